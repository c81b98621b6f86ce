"""A text environment of SkyRL's package skyrl-gym: `--env skyrl:ID --dataset ROWS`.

ROWS is what SkyRL's scripts write: `prompt`, and the columns that the environment reads. An ID that
a module of your own registers is written MODULE:ID.
"""

from __future__ import annotations

import importlib
import json
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from reflectkit.config import Config, option
from reflectkit.env import Action, Env, StepResult, Taskset, check_task
from reflectkit.envs.adapters import env_type
from reflectkit.envs.adapters.prompts import DatasetTasks, prompt_messages
from reflectkit.envs.adapters.rewards import guessed_success
from reflectkit.envs.adapters.rows import FILES
from reflectkit.errors import ConfigError, DataError, EnvironmentFailure
from reflectkit.registry import code_files
from reflectkit.types import Message, Observation, Task, ToolUse


class SkyRLSettings(Config):
    """Settings of an environment of skyrl-gym."""

    dataset: str = option(
        "",
        help=f"The rows: a file ({', '.join(FILES)}) or a data set of the hub.",
        essential=True,
    )
    dataset_split: str = option("train", help="Split of a data set of the hub.")
    skyrl_config: str = option(
        "{}", help="The environment's own configuration in SkyRL, as a JSON object."
    )


class SkyRL(Env):
    """An environment of skyrl-gym; `env_of` makes a subclass for each."""

    name = "skyrl"
    acts = "text"
    Settings: ClassVar[type[Config]] = SkyRLSettings
    taskset: ClassVar[Taskset] = DatasetTasks()
    remote = True
    id: ClassVar[str]
    _inner: Any = None

    @classmethod
    @override
    def own_files(cls, settings: Any) -> list[Path]:
        """The module that registers it."""
        maker(cls.id)  # imports it
        return code_files([cls.id.rpartition(":")[0]])

    def reset(self, task: Task, seed: int) -> Observation:
        """Begin the row `task.data`. Raises ConfigError, and DataError for a row that the
        environment refuses.
        """
        check_task(task, self.name, self.levels)
        self.close()
        # 1. The row without its prompt, and the configuration
        prompt = prompt_messages(task.data.get("prompt"), task.id)
        row = {"max_turns": self.horizon} | task.data
        row.pop("prompt", None)
        try:
            settings = json.loads(self.settings.skyrl_config)
        except ValueError as error:
            raise ConfigError(
                f"--skyrl-config {self.settings.skyrl_config:.60} is no JSON object: {error}"
            ) from None
        # 2. The environment
        make = maker(self.id)
        messages = [{"role": message.role, "content": message.content} for message in prompt]
        try:
            self._inner = make(settings, row)
            first, _ = self._inner.init(messages)
        # Each environment checks its row and its configuration in its own way
        except Exception as error:
            raise DataError(
                task.id, f"skyrl:{self.id} cannot begin it: {type(error).__name__}: {error}"
            ) from None
        self._messages, self._gained = prompt_messages(first, task.id), False
        return Observation(self._messages, replies=True)

    def step(self, action: Action) -> StepResult:
        """One answer of the model. Raises EnvironmentFailure for any error of the environment."""
        text = action.text if isinstance(action, ToolUse) else str(action)
        try:
            output = self._inner.step(text)
            reward, over = float(output["reward"]), bool(output["done"])
            metrics = self._inner.get_metrics() if over else {}
        except Exception as error:
            raise EnvironmentFailure(
                f"skyrl:{self.id} failed: {type(error).__name__}: {error}"
            ) from None
        answers = [Message(each["role"], each["content"]) for each in output["observations"]]
        self._messages = (*self._messages, Message("assistant", text), *answers)
        info: dict[str, Any] = {}
        if over:
            self.close()
            figures = {}
            for name, value in metrics.items():
                if isinstance(value, int | float):
                    figures[f"skyrl_{name}"] = float(value)
            info = {"figures": figures}
        info["success"] = guessed_success(self._gained, reward, over)
        self._gained = self._gained or reward > 0
        return StepResult(Observation(self._messages, replies=True), reward, over, info=info)

    def close(self) -> None:
        """Close the environment of the episode."""
        # Once only
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.close()


@cache
def maker(name: str) -> Any:
    """Makes the environment `name` from its configuration and a row.

    Raises ConfigError without the package, or for an unknown name.
    """
    module, _, env_id = name.rpartition(":")
    try:
        import skyrl_gym
        from omegaconf import OmegaConf
        from skyrl_gym.envs.registration import registry

        if module:
            importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"--env skyrl:{name} needs {error.name}; run pip install skyrl-gym"
        ) from None
    if env_id not in registry:
        raise ConfigError(
            f"skyrl-gym has no environment {env_id!r}; it has {', '.join(sorted(registry))}"
        )
    return lambda settings, row: skyrl_gym.make(
        env_id,
        env_config=OmegaConf.create(settings),
        extras=row,
    )


@cache
def env_of(name: str) -> type[Env]:
    """The env of skyrl-gym's `name`."""
    return env_type(SkyRL, f"skyrl-{name}", id=name)
