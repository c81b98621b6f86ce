"""Each env as a gymnasium env: text observation, discrete actions in the env's order, and a horizon
of its own.

Importing this module registers them: `import reflectkit.integrations.gym`, then
`gymnasium.make("reflectkit/Taxi-v0")`; or both in one,
`gymnasium.make("reflectkit.integrations.gym:reflectkit/Taxi-v0", level="dropoff")`. Gymnasium 1.0
removed plug-in entry points, so it finds no env whose module nobody imports. An env that does not
list its own problems takes them from a file: `gymnasium.make("reflectkit/AutoExplore-v0",
task_file="…/test.json", repos_dir="…/repos_filtered")`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces

from reflectkit.envs import ENVS, PLUGINS, env_class, make
from reflectkit.errors import ConfigError
from reflectkit.eventloop import result_of
from reflectkit.integrations import tasks_of
from reflectkit.prompts import LABELS
from reflectkit.registry import plugins
from reflectkit.types import Observation

LONGEST = 20_000  # characters of an observation
PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"


class TextEnv(gymnasium.Env[str, int]):
    """An env of reflectkit behind gymnasium's interface.

    Observation: the text that a policy would see, `spaces.Text`. Action: `spaces.Discrete`, the
    index of a choice. Reward: the env's. Truncation: after `horizon` steps (default: the env's own
    for the level). `info["choices"]`: the actions' names; `info["state"]` and `info["success"]`
    where the env reports them. `reset(options={"task": number})` picks a problem; without it the
    seed does. task_file: records to take the problems from. settings: the env's own.

    Raises UnknownNameError: no such env or level. ConfigError, DataError: no problems.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012  gymnasium's own attribute

    def __init__(
        self,
        env: str,
        level: str = "",
        horizon: int = 0,
        render_mode: str | None = None,
        task_file: str | Path | None = None,
        **settings: Any,
    ) -> None:
        kind = env_class(env)
        self.level = level or kind.levels[-1]
        self.tasks = tasks_of(env, self.level, task_file)
        steps = horizon or kind.horizon_of(self.level)
        self.inner: Any = make(env, steps, **settings)
        self.render_mode = render_mode
        self.observation_space = spaces.Text(min_length=0, max_length=LONGEST, charset=PRINTABLE)
        self.action_space: Any = spaces.Discrete(len(getattr(kind, "choices", None) or LABELS))
        self._text = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin a problem: number `options["task"]`, or one drawn by gymnasium's generator."""
        # gymnasium seeds its generator here, once
        super().reset(seed=seed)
        number = (options or {}).get("task")
        place = int(self.np_random.integers(len(self.tasks))) if number is None else int(number)
        if not 0 <= place < len(self.tasks):
            raise ConfigError(
                f"no problem {place}: level '{self.level}' has {len(self.tasks)}, from 0"
            )
        observation = result_of(
            self.inner.reset(self.tasks[place], int(self.np_random.integers(2**31)))
        )
        return self._seen(observation), self._info(observation, {"task": self.tasks[place].id})

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a choice. Raises IllegalActionError."""
        result = result_of(self.inner.step(int(action)))
        info = self._info(result.observation, result.info)
        return (
            self._seen(result.observation),
            result.reward,
            result.terminated,
            result.truncated,
            info,
        )

    def render(self) -> str | None:
        """The text last seen, in render mode "ansi"."""
        return self._text if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Give back what the env holds."""
        self.inner.close()

    def _seen(self, observation: Observation) -> str:
        self._text = observation.text
        return self._text

    def _info(self, observation: Observation, info: dict[str, Any]) -> dict[str, Any]:
        state = getattr(self.inner, "state", None)
        return (
            {"choices": list(observation.choices)}
            | ({} if state is None else {"state": state})
            | info
        )


def _register() -> None:
    others = {name: point.value for name, point in plugins(PLUGINS).items() if name not in ENVS}
    for name, target in (ENVS | others).items():
        title = target.rpartition(":")[2]
        gymnasium.register(
            id=f"reflectkit/{title}-v0",
            entry_point=f"{__name__}:TextEnv",
            kwargs={"env": name},
            order_enforce=True,
        )


_register()
