"""A text environment of SkyRL's package skyrl-gym: `--env skyrl:ID@ROWS`, whose problems are the rows of a data set.

ROWS is a file that SkyRL's own scripts write, in JSON lines or Parquet: `prompt`, and what the environment reads of the
other columns. `--env skyrl:ID` takes tasks with such a row as `data` from `--task-file`. An ID that an own module
registers is written MODULE:ID.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from reflectkit.config import Config, option
from reflectkit.env import Action, Env, StepResult, check_task
from reflectkit.errors import ConfigError, DataError, EnvironmentFailure, IllegalActionError
from reflectkit.jsonl import read_jsonl
from reflectkit.types import Message, Observation, Task, ToolUse


class SkyRLSettings(Config):
    """Settings of an environment of skyrl-gym."""

    skyrl_config: str = option("{}", help="The environment's own configuration in SkyRL, as a JSON object.")


class SkyRL(Env):
    """An environment of skyrl-gym; `env_of` makes a subclass for each."""

    name = "skyrl"
    Settings = SkyRLSettings
    remote = True
    id: ClassVar[str]
    _inner: Any = None

    @classmethod
    def action_kind(cls, settings: Any) -> Literal["text"]:
        """In words, among which the environment finds its own calls."""
        return "text"

    def reset(self, task: Task, seed: int) -> Observation:
        """Begin the row `task.data`. Raises ConfigError, DataError."""
        check_task(task, self.name, self.levels)
        self.close()
        prompt = task.data.get("prompt")
        rest = {key: value for key, value in task.data.items() if key != "prompt"}
        if not isinstance(prompt, list):
            raise DataError(task.id, "a row of SkyRL has its first messages as `prompt`", field="data.prompt")
        from omegaconf import OmegaConf

        try:
            config = OmegaConf.create(json.loads(self.settings.skyrl_config))
        except ValueError as error:
            raise ConfigError(f"--skyrl-config {self.settings.skyrl_config:.60} is no JSON object: {error}") from None
        extras = {"max_turns": self.horizon} | rest if self.horizon else rest
        try:
            self._inner = make_env(self.id, env_config=config, extras=extras)
            first, _ = self._inner.init(prompt)
        except Exception as error:  # an env checks its row and its configuration in its own way
            raise DataError(task.id, f"{self.id} cannot begin it: {type(error).__name__}: {error}") from None
        self._messages = messages_of(first)
        return Observation(tuple(self._messages), replies=True)

    def step(self, action: Action) -> StepResult:
        """One answer of the model. Raises EnvironmentFailure for whatever the environment raises."""
        if self._inner is None:
            raise IllegalActionError(f"{self.name}: the episode is over; call reset first")
        text = action.text if isinstance(action, ToolUse) else str(action)
        try:
            output = self._inner.step(text)
            reward, over = float(output["reward"]), bool(output["done"])
            self._messages += [Message("assistant", text), *messages_of(output["observations"])]
            info: dict[str, Any] = {"success": reward > 0} if over else {}
            if over:
                metrics = self._inner.get_metrics()
                numbers = {key: float(value) for key, value in metrics.items() if isinstance(value, int | float)}
                info["figures"] = {f"skyrl_{key}": value for key, value in numbers.items()}
        except Exception as error:
            raise EnvironmentFailure(f"{self.id} failed: {type(error).__name__}: {error}") from None
        if over:
            self.close()
        return StepResult(Observation(tuple(self._messages), replies=True), reward, over, info=info)

    def close(self) -> None:
        """Close the environment of the episode."""
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.close()


class SkyRLRows(SkyRL):
    """An environment of skyrl-gym on the rows of a file."""

    rows: ClassVar[Path]

    @classmethod
    def tasks(cls, level: str) -> list[Task]:
        """A problem for each row. Raises DataError."""
        names = [f"{cls.rows.stem}-{number}" for number in range(len(rows_of(cls.rows)))]
        return [Task(name, cls.name, level, name, row) for name, row in zip(names, rows_of(cls.rows), strict=True)]


def make_env(name: str, **arguments: Any) -> Any:
    """The environment `name` of skyrl-gym. Raises ConfigError without the package, or for an unknown name."""
    try:
        import skyrl_gym
        from skyrl_gym.envs.registration import registry
    except ImportError as error:
        raise ConfigError(f"--env skyrl:{name} needs {error.name}; run pip install 'reflectkit[skyrl]'") from None
    module, _, name = name.rpartition(":")
    if module:
        importlib.import_module(module)
    if name not in registry:
        raise ConfigError(f"skyrl-gym has no environment {name!r}; it has {', '.join(sorted(registry))}")
    return skyrl_gym.make(name, **arguments)


@cache
def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a data set of SkyRL. Raises DataError."""
    if not path.is_file():
        raise DataError(path, "no such file; write it with the script of SkyRL that prepares the data set")
    if path.suffix != ".parquet":
        return [dict(row) for _, row in read_jsonl(path)]
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def messages_of(given: list[Mapping[str, Any]]) -> list[Message]:
    """Messages of OpenAI's form as ours."""
    return [Message(each["role"], str(each["content"])) for each in given]


@cache
def env_of(name: str) -> type[Env]:
    """The env for `ID` or `ID@ROWS`."""
    own, at, rows = name.partition("@")
    base: type[SkyRL] = SkyRLRows if at else SkyRL
    parts: dict[str, Any] = {"id": own, "__doc__": base.__doc__, "__module__": __name__}
    return type(re.sub(r"[^\w.]+", "-", f"skyrl-{name}"), (base,), parts | ({"rows": Path(rows)} if at else {}))
