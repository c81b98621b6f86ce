"""Wrappers around an env: they change one thing and pass the rest on."""

from __future__ import annotations

import dataclasses
from typing import Any

from reflectkit.core.errors import ConfigError, IllegalActionError
from reflectkit.core.protocols import Env, StepResult
from reflectkit.core.types import Observation, Task


class Horizon:
    """Truncates an episode after `steps` steps. Everything else, the oracle included, is the wrapped env's."""

    def __init__(self, env: Env, steps: int) -> None:
        if steps < 1:
            raise ConfigError(f"a horizon is at least 1 step, got {steps}")
        self.env, self.steps, self.taken = env, steps, 0

    @property
    def name(self) -> str:
        """The wrapped env's."""
        return self.env.name

    @property
    def levels(self) -> tuple[str, ...]:
        """The wrapped env's."""
        return self.env.levels

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):  # asked for before __init__, while copying or unpickling
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, task: Task, seed: int) -> Observation:
        """Begin `task` with the full horizon ahead."""
        self.taken = 0
        return self.env.reset(task, seed)

    def step(self, action: int | str) -> StepResult:
        """One step; the last one that the horizon allows is marked truncated, unless the env ended there itself."""
        if self.taken >= self.steps:
            raise IllegalActionError(f"{self.name}: the episode is over; call reset first")
        result = self.env.step(action)
        self.taken += 1
        if result.terminated or self.taken < self.steps:
            return result
        info = {"success": False} | result.info
        return dataclasses.replace(result, truncated=True, info=info)
