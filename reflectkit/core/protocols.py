"""The two protocols, Env and Agent, and what passes between them in one step.

Departs from the design in three places, each because the loop needs it: `StepResult.truncated` lets the horizon be a
wrapper; `decide` receives a `Context`, so that what an agent samples depends on the episode's own seed and not on what
is played beside it; and the context hands scripted teachers the env's oracle (learned agents must not look).
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from reflectkit.core.types import Decision, Observation, Task, ToolUse, Turn


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an action led to. observation: None is never returned; after the end it is the last view.

    reward: in the env's unit. terminated: the env ended the episode. truncated: a wrapper did. info: JSON values;
    `info["success"]` is a bool on the last step; `info["refused"]`, where an env has it, is how many parts of the
    action could not be done.
    """

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Env(Protocol):
    """One screen of rules. Knows no model, no tokenizer and no horizon.

    `reset` and `step` return their results, or awaitables of them where the env waits for somebody: an engine in
    another process, a server, a simulated user. An env that waits in blocking calls sets `remote = True`.

    `forfeit(steps_left) -> float` is optional: the reward for ending now without an answer, 0 where an env does not
    have it. `cluster(task) -> str` is an optional classmethod: what a task is about, e.g. a file; tasks of one cluster
    are not independent in the statistics. Where an env does not have it, each task is its own cluster.
    """

    @property
    def name(self) -> str:
        """What the env is called; a class attribute will do."""
        ...

    @property
    def levels(self) -> tuple[str, ...]:
        """Curriculum stages, easiest first; the last one is the whole task. A class attribute will do."""
        ...

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`. Raises DataError where `task.data` is not this env's."""
        ...

    def step(self, action: int | str | ToolUse) -> StepResult | Awaitable[StepResult]:
        """Raises IllegalActionError for an action that was not offered, and after the end."""
        ...


@runtime_checkable
class OracleEnv(Env, Protocol):
    """An env in which a best action is known, so that demonstrations cost nothing."""

    def oracle(self) -> int | str | ToolUse:
        """A best action in the current state: its index, the calls, or the text."""
        ...

    def mistakes(self) -> Sequence[int | str | ToolUse]:
        """Actions that are not best but do not end the episode: what a noisy demonstration may do."""
        ...

    def note(self) -> str:
        """How a perfect teacher would mark the last action: "" at the start, "good" or "mistake"."""
        ...

    def reflection(self, generator: random.Random) -> str:
        """What a perfect teacher would comment on the current state, in one line; the generator picks the wording."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """What stands behind one observation.

    seed: of this turn of this episode. env: for scripted teachers, and for its rules (`rules_of`). turns: of the
    episode so far, oldest first, for agents that read its history.
    """

    seed: int
    env: Env
    turns: tuple[Turn, ...] = ()


@runtime_checkable
class Agent(Protocol):
    """Decides for each episode by itself, and may wait for others while it does."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The decision on `observation`."""
        ...


class BatchAgent(Protocol):
    """A batch of observations in, a batch of decisions out, in the same order; `Batched` makes it an Agent."""

    def act(self, observations: Sequence[Observation], contexts: Sequence[Context]) -> list[Decision]:
        """One decision for each observation."""
        ...


def rules_of(env: Env) -> str:
    """What a person or a chat model is told before playing `env`: its `rules`, else the docstring of its class, else
    "".
    """
    rules = getattr(env, "rules", None)
    return inspect.cleandoc(rules if isinstance(rules, str) else type(env).__doc__ or "")
