"""The protocols of an env and an agent, what they exchange in a step, and who answers at the other end."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from reflectkit.errors import ConfigError
from reflectkit.types import Decision, Message, Observation, Task, ToolUse, Turn


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of an action. observation: never None; at the end, the final view.

    reward: in the env's unit. terminated: the env ended the episode. truncated: a wrapper did. info: JSON values;
    `info["success"]` is a bool on the last step; `info["refused"]`, if an env sets it, is the number of parts of the
    action that could not be executed; `info["figures"]`, on any step, are numbers by name, to report and compare.
    """

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Env(Protocol):
    """An environment. It knows no model, no tokenizer and no horizon.

    `reset` and `step` return their results, or awaitables of them if the env waits for an engine in another process, a
    server or a simulated user. An env that waits in blocking calls sets `remote = True`.

    `close()` is optional: it gives back what the env holds, e.g. a process or a connection. Whoever made the env calls
    it once. After an episode that took too long, a call of a `remote` env may still be under way then.

    `truncation_penalty(steps_left) -> float` is optional: the reward for ending now without an answer, 0 by default.
    `cluster(task) -> str` is an optional classmethod that names what a task is about, e.g. a file; tasks of one cluster
    are not independent in the statistics. By default each task is its own cluster.
    """

    @property
    def name(self) -> str:
        """Name of the env; may be a class attribute."""
        ...

    @property
    def levels(self) -> tuple[str, ...]:
        """Curriculum stages, easiest first; the last is the full task. May be a class attribute."""
        ...

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`. Raises DataError if `task.data` is not valid for this env."""
        ...

    def step(self, action: int | str | ToolUse) -> StepResult | Awaitable[StepResult]:
        """Raises IllegalActionError for an action that was not offered, and after the end."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """The context of one observation.

    seed: seed of this turn. env: for scripted teachers, and for its rules (`rules_of`). turns: the episode so far,
    oldest first, for agents that read the history.
    """

    seed: int
    env: Env
    turns: tuple[Turn, ...] = ()


@runtime_checkable
class Agent(Protocol):
    """Decides for one observation at a time; it may wait for other requests meanwhile."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The decision for `observation`."""
        ...


class BatchAgent(Protocol):
    """Maps a batch of observations to their decisions, in order; `Batched` turns it into an Agent."""

    def act(self, observations: Sequence[Observation], contexts: Sequence[Context]) -> list[Decision]:
        """One decision per observation."""
        ...


def rules_of(env: Env) -> str:
    """The rules that a person or a chat model reads first: the `rules` of `env`, or the docstring of its class."""
    rules = getattr(env, "rules", None)
    return inspect.cleandoc(rules if isinstance(rules, str) else type(env).__doc__ or "")


TEACHER = ("oracle", "mistakes", "note", "reflection")
"""What an oracle teacher needs of an env."""


def require_oracle(env: Any, needed: Sequence[str] = TEACHER) -> Any:
    """`env`, or an env's class, if it has an oracle, with what is `needed` of it. Raises ConfigError naming what it
    lacks.
    """
    missing = [name for name in needed if not env.has(name)]
    if missing:
        raise ConfigError(f"env '{env.name}' has no oracle teacher: it lacks {', '.join(missing)}()")
    return env


class Wrapper:
    """Forwards everything to `env`, including the oracle."""

    def __init__(self, env: Env) -> None:
        self.env = env

    @property
    def name(self) -> str:
        """The wrapped env's."""
        return self.env.name

    @property
    def levels(self) -> tuple[str, ...]:
        """The wrapped env's."""
        return self.env.levels

    @property
    def rules(self) -> str:
        """The wrapped env's, and what the wrapper adds."""
        return rules_of(self.env)

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):  # looked up before __init__, during copying or unpickling
            raise AttributeError(name)
        return getattr(self.env, name)


@dataclass(frozen=True, slots=True)
class UserTurn:
    """What the user says, and whether they end the conversation with it."""

    text: str
    over: bool = False


class User(Protocol):
    """A user who is told who they are and what they want; it keeps nothing between calls, so that concurrent episodes
    share it.
    """

    def say(self, instructions: str, conversation: Sequence[Message], seed: int) -> UserTurn | Awaitable[UserTurn]:
        """The user's next message.

        Parameters
        ----------
        instructions: who the user is, what they want, and what they know. conversation: what user and agent have said
        to each other, oldest first; empty at the start. seed: of the turn, 0 ≤ seed < 2**63.

        Raises EnvironmentFailure where nobody answers.
        """
        ...


ANSWER_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Query:
    """A question as the reader gets it.

    advice: what the reader is told about questions of this source, in place of its own advice; "" leaves it. tokens:
    most tokens of the answer.
    """

    question: str
    advice: str = ""
    tokens: int = ANSWER_TOKENS


@dataclass(frozen=True, slots=True)
class Claim:
    """An answer to be judged: the question, what a right answer has to meet, and the answer."""

    question: str
    rubric: str
    answer: str


class Reader(Protocol):
    """Answers questions from memories."""

    def answer(self, queries: Sequence[Query], memories: Sequence[Sequence[str]]) -> list[str] | Awaitable[list[str]]:
        """An answer to each question, from the texts that were retrieved for it, best first; awaitable if the reader is
        a server.

        Raises EnvironmentFailure if the reader cannot be reached.
        """
        ...


class Judge(Protocol):
    """Decides whether answers meet their rubrics."""

    def verdicts(self, claims: Sequence[Claim]) -> list[bool] | Awaitable[list[bool]]:
        """Whether each answer is right; awaitable if the judge is a server. Raises EnvironmentFailure if the judge
        cannot be reached.
        """
        ...
