"""The types that layers exchange: frozen dataclasses that convert to JSON and back.

`to_json(noun)` returns plain dicts and lists. `from_json(Noun, value, path=…, line=…)` validates
types with pydantic and raises `DataError` with file, line and field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from typing_extensions import TypedDict

from reflectkit.errors import DataError
from reflectkit.text import headed

AGENT_MARKER = "Agent:"
"""What the agent says follows this, in the text of a conversation."""
DType = Literal["float32", "bfloat16", "float16"]
Quantize = Literal["none", "8bit", "4bit"]
Answer = Literal["label", "text", "score"]
"""What a policy answers where it chooses: the choice's number, or its own words. With "score" it
answers nothing: it reads each choice alone after the rest of the prompt, and the choices' scores
make the probabilities.
"""
ANSWERS: tuple[Answer, ...] = get_args(Answer)
TEXT: Answer = "text"
SCORE: Answer = "score"
Thinking = Literal["on", "off", "hidden"]
"""Reasoning of a model with a chat template: as its template does, off, or not shown to it later.
"""
THINKING: tuple[Thinking, ...] = get_args(Thinking)
NAMED = "env_figures"
"""The key, in a row of `metrics.jsonl`, of the names of the env's figures that its episodes
reported. Where another row of the run names a figure that this one lacks, no episode came far
enough, and it is 0.
"""
LARGEST = 1e100
"""Largest magnitude of a reward, a return or a figure: sums of the squares of larger numbers
overflow.
"""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem to solve.

    id: unique within its env. env: the env's name. level: depth or curriculum stage, one of the
    env's `levels`. group: what a split keeps together (a repository, a game, a start state). data:
    what the env needs to set up the problem; JSON values only. Data of {"seed": N} alone means that
    the env's `reset` gets seed N.
    """

    id: str
    env: str
    level: str
    group: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that the agent may call. parameters: JSON schema of its arguments, of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool. arguments: JSON values by name."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """An agent's output where tools are offered. text: as written. calls: the valid calls, in
    order. errors: what is wrong with each of the others, one line each, for the agent to read.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. calls: made by the assistant in this message. name: in a "tool" message,
    the tool that returned the content.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[ToolCall, ...] = ()
    name: str = ""

    @property
    def entry(self) -> str:
        """The message in the text of a conversation: its speaker begins a line, and nothing that it
        says does, so that it cannot imitate another speaker. What the system says has no speaker.
        """
        if self.role == "system":
            return self.content
        if self.role == "assistant":
            return headed(AGENT_MARKER, self.content.removeprefix(" "))
        speaker = "User" if self.role == "user" else f"Tool {self.name}".rstrip()
        return headed(f"{speaker}:", self.content)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees: messages, oldest first, and either the K legal actions or the tools that
    it may call.

    Without `choices` and `tools` the agent answers in free text.
    """

    messages: tuple[Message, ...]
    choices: tuple[str, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    replies: bool = False
    """Whether the messages are a conversation with a user, and words without a call are a reply to
    them.
    """

    @property
    def text(self) -> str:
        """The contents of the messages, joined by newlines; in a conversation, with their speakers."""
        return "\n".join(
            message.entry if self.replies else message.content for message in self.messages
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """The agent's action, with the exact tokens of its sampling. Unknown values are None; scripted
    agents leave the token fields empty.
    """

    action: int | str | ToolUse
    """Index into `Observation.choices` (0 … K-1), tool calls, or text."""
    reflection: str | None = None
    """The reflection that the agent read before it acted, if any."""
    prompt_ids: tuple[int, ...] = ()
    """The policy's prompt (T tokens)."""
    token_ids: tuple[int, ...] = ()
    """The tokens that the policy generated; for a choice, those of its label."""
    logprobs: tuple[float, ...] = ()
    """Their natural-log probabilities under the sampling distribution, ≤ 0; for a choice, the one
    of its label.
    """
    entropy: float | None = None
    """Entropy of the distribution over the legal actions, in nats."""
    value: float | None = None
    """The critic's expected return-to-go, in the env's unit."""
    probabilities: tuple[float, ...] = ()
    """Probability of each choice, if requested."""
    note: str | None = None
    """How a demonstration marks the step: "positive", "mistake" or "correction"."""
    failure: str | None = None
    """Why the agent could not decide; the episode is then ABORTED."""
    truncation_reason: str | None = None
    """Why the episode ends early: the prompt does not fit the model, no answer was a legal action,
    or the human player quit. The episode is then TRUNCATED.
    """
    illegal: int = 0
    """Number of answers before this one that named no legal action."""
    unreadable: int = 0
    """Number of answers that were not in the requested format."""
    price_usd: float | None = 0.0
    """Cost of its requests in US dollars; None if the price is unknown."""
    tokens: int | None = None
    """Number of tokens generated for it, where `token_ids` is unknown."""
    thoughts: int | None = None
    """How many of its tokens are reasoning; None where that is unknown."""
    answer: str | None = None
    """The chat model's answer, in the requested format."""
    version: int | None = None
    """Version of the weights that sampled it: their number of updates."""
    comment_tokens: int | None = None
    """Length of the reflection in the policy's tokens; None where that is unknown or there is none.
    """
    hint: str | None = None
    """A comment that the policy did not read, for distillation."""
    hint_prompt_ids: tuple[int, ...] = ()
    """The policy's prompt with that comment; empty if the comment is empty, or too long for the
    policy.
    """
    hint_failure: str = ""
    """Why there is no usable comment, unless it is empty."""
    thought: Comment | None = None
    """The comment that the policy wrote itself before it acted, which is trained as well."""
    cut: bool = False
    """Whether its text was cut off at the limit of tokens."""
    answers: dict[str, tuple[float, ...]] = field(default_factory=dict, hash=False)
    """Answers to other questions about the state, by name: the probability of each option; that of
    yes comes first.
    """


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of an episode. reward: in the env's unit. info: what else the env reports; JSON
    values only.
    """

    observation: Observation
    decision: Decision
    reward: float
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def action_text(self) -> str:
        """The action as text: the choice, or what the agent wrote."""
        action = self.decision.action
        if isinstance(action, int):
            return self.observation.choices[action]
        return action if isinstance(action, str) else action.text


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment that a reflector sampled on a state, with the exact tokens of its sampling, and
    what it was worth.
    """

    text: str
    """As the policy reads it: one line."""
    prompt_ids: tuple[int, ...]
    """The reflector's prompt (T tokens)."""
    token_ids: tuple[int, ...]
    """The tokens that the reflector generated."""
    logprobs: tuple[float, ...]
    """Their natural-log probabilities under the sampling distribution, ≤ 0."""
    reward: float = 0.0
    """What it brought the policy: a return, in the env's unit."""
    true: bool | None = None
    """Whether the env confirms what it says of the state; None where the env cannot tell."""


class PaidComment(str):
    """A comment that was paid for."""

    price_usd: float | None = 0.0
    """What it cost in US dollars; None if the price is unknown."""


class TypedComment(PaidComment):
    """A comment that is made of answers to questions about the state."""

    answers: dict[str, tuple[float, ...]]
    """The probability of each option, by the name of the question."""


@dataclass(frozen=True, slots=True)
class StateQuestion:
    """A question about a state, which a typed reflector answers with probabilities."""

    name: str
    """In comments, e.g. "likely"."""
    text: str
    """What is asked."""
    options: tuple[str, ...] = ()
    """The possible answers; ("yes", "no") for a yes-or-no question. Default: the actions that the
    state offers.
    """


class Status(StrEnum):
    """How an episode ended. ABORTED: the infrastructure failed; counted, reported, never trained
    on.
    """

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode."""

    task: Task
    """The problem."""
    seed: int
    """Seed of everything random in the episode, 0 ≤ seed < 2**63."""
    turns: tuple[Turn, ...]
    """Its steps, in order."""
    status: Status
    """How it ended."""
    success: bool
    """Whether it solved the problem."""
    reason: str = ""
    """Why it was ABORTED, or TRUNCATED by its agent."""
    group: str = ""
    """Episodes of one group have the same start state and are compared with each other; empty
    without groups.
    """
    unexecuted_decision: Decision | None = None
    """The decision that ended it without a step: a failure or an overflow."""
    truncation_penalty: float = 0.0
    """Reward for an overflow at the first step, in the env's unit; that of a later one is part of
    the last step's.
    """
    final: Observation | None = None
    """What the env showed last, if no turn answers it."""

    @property
    def price_usd(self) -> float | None:
        """Cost of all its decisions in US dollars; None if a price is unknown."""
        decisions = [turn.decision for turn in self.turns] + (
            [self.unexecuted_decision] if self.unexecuted_decision else []
        )
        prices = [decision.price_usd for decision in decisions]
        return None if None in prices else sum(price or 0.0 for price in prices)

    @property
    def total_return(self) -> float:
        """The undiscounted sum of the rewards, in the env's unit."""
        return sum(turn.reward for turn in self.turns) + self.truncation_penalty

    @property
    def reported_success(self) -> bool | None:
        """Whether it solved the problem, as far as the env said so before it ended."""
        if self.success:
            return True
        return self.turns[-1].info.get("success") if self.turns else None

    @property
    def figures(self) -> dict[str, float]:
        """Figures that the env reports: those in `info["figures"]` averaged over the turns that
        have them, and the last values of those in `info["last_figures"]`.
        """
        values_by_name: dict[str, list[float]] = {}
        last_values: dict[str, float] = {}
        for turn in self.turns:
            for name, value in turn.info.get("figures", {}).items():
                values_by_name.setdefault(name, []).append(float(value))
            for name, value in turn.info.get("last_figures", {}).items():
                last_values[name] = float(value)
        return last_values | {
            name: sum(values) / len(values) for name, values in values_by_name.items()
        }

    @property
    def inapplicable(self) -> tuple[str, ...]:
        """The figures that do not apply to this episode, by `info["inapplicable"]`: it is left out of
        their means. Of other figures that it lacks, its value is 0.
        """
        names: dict[str, None] = {}
        for turn in self.turns:
            names |= dict.fromkeys(turn.info.get("inapplicable", ()))
        reported = self.figures if names else {}
        return tuple(name for name in names if name not in reported)


def reports_success(outcomes: Iterable[tuple[str, bool | None]]) -> bool:
    """Whether an env says which of its episodes succeeded, given the status and the
    `reported_success` of several.

    One that was cut off may have said nothing yet: it counts as a failure if those that ended by
    themselves say.
    """
    valid = [(status, success) for status, success in outcomes if status != Status.ABORTED]
    complete = [success for status, success in valid if status == Status.COMPLETED]
    return None not in (complete or [success for _, success in valid])


@dataclass(frozen=True, slots=True)
class ChoiceTarget:
    """A distribution over the choices of a state that the policy is drawn towards."""

    probabilities: tuple[float, ...]
    """Of each choice (K), in the order of the observation."""
    weight: float
    """Of the divergence from it in the loss."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One training row of T tokens. Columns other than `tokens` hold 0 where the policy did not
    write the token, except `decisions`. A choice is one thing to learn, however many tokens its
    label has: the first stands for all of them, and the others count as not written.
    """

    tokens: tuple[int, ...]
    """Token ids."""
    loss_mask: tuple[int, ...]
    """1 where the policy wrote the token, else 0."""
    decisions: tuple[int, ...]
    """Index within the row, from 0, of the decision that the token belongs to; -1 where the policy
    did not write it.
    """
    logprobs: tuple[float, ...]
    """Natural-log probabilities under the policy that sampled the tokens."""
    advantages: tuple[float, ...]
    """Advantage of the token's decision."""
    returns: tuple[float, ...]
    """The critic's target for the token's decision, in the env's unit."""
    values: tuple[float, ...]
    """The critic's prediction when the decision was made; empty without a critic."""
    choices: tuple[tuple[int, ...], ...]
    """The tokens of each legal label (K) where the row ends with a choice among them, else empty.
    """
    group_id: str
    """The episode's group."""
    replayed: bool = False
    """Whether an earlier policy sampled the row."""
    commented: tuple[tuple[int, ...], ...] = ()
    """For each decision, its prompt with a comment, or (); empty where nothing is distilled from
    the row.
    """
    only_distilled: bool = False
    """Whether the row has no part in any loss but that of distillation."""
    target: ChoiceTarget | None = None
    """What a choice is drawn towards, besides its advantage."""

    @property
    def start(self) -> int:
        """Position of the first token to learn."""
        return self.loss_mask.index(1)


Noun = TypeVar("Noun")


_adapters: dict[Any, Any] = {}


def _adapter(kind: Any) -> Any:
    """Pydantic's validator for `kind`, cached because it takes milliseconds to build."""
    from pydantic import TypeAdapter

    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def to_json(value: object) -> Any:
    """`value` (a noun, or a list of them) as plain JSON values."""
    return _adapter(type(value)).dump_python(value, mode="json")


def from_json(
    kind: type[Noun],
    value: object,
    *,
    path: Path | str = "<memory>",
    line: int | None = None,
    field: str = "",
) -> Noun:
    """`value`, from a JSON file, as a `kind`. field: of the line, if it is not the whole of it.

    Raises DataError: naming `path`, `line` and the first field of the wrong type or missing.
    """
    from pydantic import ValidationError

    if not isinstance(value, Mapping):
        reason = f"expected a JSON object, found {type(value).__name__}"
        raise DataError(path, reason, line=line, field=field or None)
    try:
        return _adapter(kind).validate_python(value)  # type: ignore[no-any-return]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = [field] if field else []
        place += map(str, first["loc"])
        raise DataError(path, first["msg"], line=line, field=".".join(place)) from None


class ModelFacts(TypedDict, total=False):
    """What is needed of the facts in a model's folder."""

    role: str | None
    dtype: DType
    quantize: Quantize
    answer: Answer
    acts: Literal["choice"]
    """There if it learned to choose from a list."""
