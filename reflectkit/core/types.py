"""The nouns: what crosses a layer is one of these frozen dataclasses, JSON both ways.

`to_json(noun)` gives plain dicts and lists; `from_json(Noun, value, path=…, line=…)` checks types strictly and raises
`DataError` with file, line and field. Checking is pydantic's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar

from reflectkit.core.errors import DataError

LARGEST = 1e100
"""Of a reward, a return or a figure, in size: squares of larger numbers do not add up to a finite one."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem to solve.

    id: unique within its env. env: the env's name. level: depth or curriculum stage, one of the env's `levels`.
    group: what a split must not tear apart (a repository, a game, a start state). data: what the env needs to set
    the problem up; JSON values only.
    """

    id: str
    env: str
    level: str
    group: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that may be called. parameters: JSON schema of the arguments, an object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. arguments: JSON values by name."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What an agent wrote where tools are offered. text: as it was written. calls: those that can be made, in order.
    errors: what is wrong with each of the others, one line each, for the agent to read.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message: who speaks, and the text. calls: an assistant's. name: of the tool whose result a "tool"
    message is.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[ToolCall, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent may see now: messages, oldest first, and either the legal actions, enumerated (K of them), or the
    tools that may be called.

    Without `choices` and `tools` the agent answers in free text.
    """

    messages: tuple[Message, ...]
    choices: tuple[str, ...] = ()
    tools: tuple[ToolSpec, ...] = ()

    @property
    def text(self) -> str:
        """The messages' contents, one after the other."""
        return "\n".join(message.content for message in self.messages)


@dataclass(frozen=True, slots=True)
class Decision:
    """What the agent did, with the exact tokens it was sampled with. What is unknown is None; scripted agents leave the
    token fields empty.
    """

    action: int | str | ToolUse
    """Index into `Observation.choices` (0 … K-1), the calls of tools, or the text."""
    reflection: str | None = None
    """The comment that it acted on; None without one."""
    prompt_ids: tuple[int, ...] = ()
    """The tokens that the policy read (T)."""
    token_ids: tuple[int, ...] = ()
    """The tokens that it wrote; one for a choice."""
    logprobs: tuple[float, ...] = ()
    """Their natural-log probabilities under the sampling distribution, ≤ 0."""
    entropy: float | None = None
    """Of the distribution over the legal actions, in nats."""
    value: float | None = None
    """The critic's expected return-to-go, in the env's unit."""
    probabilities: tuple[float, ...] = ()
    """Of each choice, where they were asked for."""
    note: str | None = None
    """How a demonstration marks the step: "positive", "mistake" or "correction"."""
    failure: str | None = None
    """Why the agent could not decide; the episode is then ABORTED."""
    overflow: str | None = None
    """That the prompt does not fit the model, that no answer was a legal action, or that the person who plays has left;
    the episode is then TRUNCATED.
    """
    illegal: int = 0
    """How many answers named no legal action before this one did."""
    unreadable: int = 0
    """How many answers were not in the form asked for."""
    price_usd: float | None = 0.0
    """Of asking for it, in US dollars; None for an unknown price."""
    tokens: int | None = None
    """How many tokens were written for it, where they themselves are not known."""
    answer: str | None = None
    """What a chat model wrote, in the form asked for."""
    version: int | None = None
    """Which weights sampled it: the number of updates that they had seen."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange. reward: in the env's own unit. info: what the env reports beside it, JSON values only."""

    observation: Observation
    decision: Decision
    reward: float
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """The action in words: the choice, or what was written."""
        action = self.decision.action
        if isinstance(action, int):
            return self.observation.choices[action]
        return action if isinstance(action, str) else action.text


class Status(StrEnum):
    """How an episode ended. ABORTED: the infrastructure failed; counted, reported, never trained on."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode. seed: of everything random in it, 0 ≤ seed < 2**63. reason: why it was ABORTED, or TRUNCATED by its
    agent. group: what it is compared with: episodes of one group began alike. Empty where nothing is compared. undone:
    the decision that ended it instead of a turn: a failure or an overflow. forfeit: reward of an overflow at the first
    turn, in the env's unit; a later one is part of the last turn's reward.
    """

    task: Task
    seed: int
    turns: tuple[Turn, ...]
    status: Status
    success: bool
    reason: str = ""
    group: str = ""
    undone: Decision | None = None
    forfeit: float = 0.0

    @property
    def price_usd(self) -> float | None:
        """Of asking for all its decisions, in US dollars; None where a price is unknown."""
        decisions = [turn.decision for turn in self.turns] + ([self.undone] if self.undone else [])
        prices = [decision.price_usd for decision in decisions]
        return None if None in prices else sum(price or 0.0 for price in prices)

    @property
    def total_return(self) -> float:
        """The undiscounted sum of the rewards, in the env's unit."""
        return sum(turn.reward for turn in self.turns) + self.forfeit

    @property
    def figures(self) -> dict[str, float]:
        """What the env reports of itself as `info["figures"]`: the mean of each over the turns that have it."""
        values_by_name: dict[str, list[float]] = {}
        for turn in self.turns:
            for name, value in turn.info.get("figures", {}).items():
                values_by_name.setdefault(name, []).append(float(value))
        return {name: sum(values) / len(values) for name, values in values_by_name.items()}


@dataclass(frozen=True, slots=True)
class Sample:
    """One training row of T tokens. Columns other than `tokens` hold 0 where the policy did not write the token, except
    `decisions`.
    """

    tokens: tuple[int, ...]
    """Token ids."""
    loss_mask: tuple[int, ...]
    """1 where the policy wrote the token, else 0."""
    decisions: tuple[int, ...]
    """Index within the row, from 0, of the decision that the token belongs to; -1 where the policy did not write it."""
    logprobs: tuple[float, ...]
    """Natural-log probabilities under the policy that sampled the tokens."""
    advantages: tuple[float, ...]
    """Advantage of the token's decision."""
    returns: tuple[float, ...]
    """The critic's target for the token's decision, in the env's unit."""
    values: tuple[float, ...]
    """The critic's prediction when the decision was made; empty without a critic."""
    choices: tuple[int, ...]
    """Ids of the legal labels (K) where the row's one trained token is a choice, else empty."""
    group_id: str
    """The episode's group."""
    replayed: bool = False
    """Whether an earlier policy sampled the row."""


Noun = TypeVar("Noun")


_adapters: dict[Any, Any] = {}


def _adapter(kind: Any) -> Any:
    """Pydantic's checker for `kind`, made once: it costs milliseconds."""
    from pydantic import TypeAdapter

    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def to_json(value: object) -> Any:
    """`value` (a noun, or a list of them) as plain JSON values."""
    return _adapter(type(value)).dump_python(value, mode="json")


def from_json(kind: type[Noun], value: object, *, path: Path | str = "<memory>", line: int | None = None) -> Noun:
    """`value`, from a JSON file, as a `kind`.

    Raises
    ------
    DataError: naming `path`, `line` and the first field of the wrong type or missing.
    """
    from pydantic import ValidationError

    if not isinstance(value, Mapping):
        raise DataError(path, f"expected a JSON object, found {type(value).__name__}", line=line)
    try:
        return _adapter(kind).validate_python(value)  # type: ignore[no-any-return]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise DataError(path, first["msg"], line=line, field=".".join(map(str, first["loc"]))) from None
