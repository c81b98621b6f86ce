"""Conversations between a user and an agent with tools: the base of the envs of this kind.

An agent's action is one call of a tool or one reply to the user. Anything else (several calls, a
call with an error, no words) is refused: nothing is executed, and the agent reads why;
`several_calls` may let the first of several valid calls be carried out instead. The transcript only
grows, and holds the agent's text as it was written, so that a prompt begins with the one before it.
The user reads the same text without reasoning and marks.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from reflectkit.config import Config, option
from reflectkit.env import Action, Env, StepResult, Teacher, User, UserTurn
from reflectkit.errors import ConfigError, brief
from reflectkit.eventloop import followed
from reflectkit.seeding import derive
from reflectkit.tools import THOUGHT, read_use
from reflectkit.types import Message, Observation, Task, ToolCall, ToolSpec, ToolUse, Trajectory

LONGEST = 2000
"""Characters of a user's message; the rest is cut off."""
LONGEST_RESULT = 16_000
"""Characters of a tool's result; the rest is cut off, with a note."""
LONGEST_REPLY = 16_000
"""Likewise of the agent's reply, as the user reads it."""
REFUSE: Literal["refuse"] = "refuse"
FIRST: Literal["first"] = "first"
ONE_CALL = "call one tool, or reply to the user; nothing was executed"

THOUGHT_BEGIN, THOUGHT_END = THOUGHT
MARKS = re.compile(
    # As in <|im_end|> and <|python_tag|>, and with full-width bars
    r"<[|\uff5c][^<>|\uff5c\s]{1,40}[|\uff5c]>"
    r"|</?(?:tool_call|tool_response|think|s|pad|bos|eos|unk|start_of_turn|end_of_turn)>"
    r"|\[/?(?:INST|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS)\]"
    r"|\x1e"
)
THOUGHTS = re.compile(
    r"(?:<\|channel>thought|<\|channel\|>analysis<\|message\|>| ?to=self<\|message\|>)"
    r".*?(?:<channel\|>|<\|end\|>|<\|eom\|>|\Z)",
    re.DOTALL,
)
"""Reasoning of Gemma 4, GPT-OSS and Muse Glimmer."""
HEADERS = re.compile(
    r"<\|start\|>assistant|<\|channel\|>\w+(?=<\|message\|>)| ?to=[\w.:-]+(?=<\|message\|>)"
)
"""Of a message of the last two."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an action is neither a call nor a reply, for the agent to read. parts: how many parts of
    it were refused.
    """

    text: str
    parts: int = 1


def read_action(
    use: ToolUse,
    *,
    first: bool = False,
) -> ToolCall | str | Refusal:
    """What the agent does: a call, or the words that the user hears. first: of several calls
    without an error, the first one counts.
    """
    # 1. Calls, with or without errors
    count = len(use.calls) + len(use.errors)
    takes_first = first and not use.errors
    if count > 1 and not takes_first:
        return Refusal("; ".join([*use.errors, f"{count} calls at once: {ONE_CALL}"]), count)
    if use.errors:
        return Refusal(f"{use.errors[0]}; nothing was executed")
    if use.calls:
        return use.calls[0]
    # 2. Words
    reply = spoken(use.text)
    if not reply:
        return Refusal(f"neither a tool call nor a reply: {ONE_CALL}")
    return reply


def spoken(text: str) -> str:
    """What the user hears of the agent's `text`: without reasoning, even if it was not ended, and
    special marks.

    >>> spoken("<think>An old order.</think>\\n\\nWhich order is it?<|im_end|>")
    'Which order is it?'
    """
    # 1. Without reasoning that has an end
    *parts, last = HEADERS.sub("", THOUGHTS.sub("", text)).split(THOUGHT_END)
    reply = ""
    for part in parts:
        before, mark, _ = part.partition(THOUGHT_BEGIN)
        # Without a mark of its beginning, all before its end was a thought
        reply = reply + before if mark else ""
    # 2. Without reasoning that has none, and without special marks
    reply = (reply + last).partition(THOUGHT_BEGIN)[0]
    return cut(MARKS.sub("", reply).strip(), LONGEST_REPLY)


def cut(text: str, limit: int) -> str:
    """`text`, or its first `limit` characters and a note. Halves of surrogate pairs are replaced.

    >>> cut("a" * 1000, 5)
    'aaaaa [cut: 5 of 1,000 characters]'
    """
    beginning = text[:limit].encode(errors="replace").decode()
    if len(text) <= limit:
        return beginning
    return f"{beginning} [cut: {limit:,} of {len(text):,} characters]"


class UserSettings(Config):
    """Settings of a conversation with a user who may be a chat model; a subclass adds `user`, which
    names it.
    """

    chat_models: ClassVar[Mapping[str, str]] = {"user": "reflectkit.chat.env_models:ChatUser"}
    several_calls: Literal["refuse", "first"] = option(
        REFUSE,
        help="What several calls in one turn do: refuse (none is carried out, and the agent is told"
        " why) or first (the first is, and the others are passed over).",
    )
    user_url: str | None = option(
        None, help="The server of the user's model; for local: http://localhost:1234/v1."
    )
    user_max_usd: float | None = option(
        None,
        help="The most that the user's model may cost, in US dollars.",
        gt=0,
    )


class ConversationTeacher(Teacher):
    """The base of teachers of a `ConversationEnv`."""

    noise: ClassVar[float] = 0.05

    def note(self) -> str:
        """The mark of the last action: "" at the start, "good", or "mistake" if it was no use."""
        mark: str = self.env.mark
        return mark

    @classmethod
    def is_demonstration(cls, trajectory: Trajectory) -> bool:
        """Whether it succeeded."""
        return trajectory.success


class ConversationEnv(Env):
    """An env in which an agent serves a user with tools, with one call or one reply a turn.

    A subclass writes `_begin`, `_tools`, `_user_turn`, `_execute` and `_verdict`, and sets `mark` for its teacher, a
    `ConversationTeacher`. With `Settings` that inherit from `UserSettings` and have a field `user`, a chat model or a
    person may be the user: `_user_turn` then returns `self._asked(self.user, instructions)` wherever `self.user` is not
    None.

    user: who talks with the agent; None: whom the subclass has for it. At the `horizon` the verdict is given as well.
    """

    acts = "tools"
    teacher_type: ClassVar[type[Teacher]] = ConversationTeacher
    messages: list[Message]
    """What the agent sees."""
    dialogue: list[Message]
    """The part that the user sees."""
    mark: str
    """The teacher's mark of the last action."""

    def __init__(self, user: User | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.user = user
        self._steps, self.mark, self._seed = 0, "", 0
        self._first = getattr(self.settings, "several_calls", REFUSE) == FIRST

    def reset(
        self,
        task: Task,
        seed: int,
    ) -> Observation | Awaitable[Observation]:
        """Begin `task`. The observation is awaitable if the user's words are.

        Raises DataError: another env's task, or a level or data that this env does not know.
        ConfigError: something to be installed is missing. EnvironmentFailure: the user cannot be
        asked.
        """
        self._steps, self.mark, self._seed = 0, "", seed
        policy = self._begin(task, seed)
        self.messages, self.dialogue = [Message("system", policy)] if policy else [], []

        def begin(turn: UserTurn) -> Observation:
            self._hear(turn)
            return self._observe()

        return followed(self._user_turn(""), begin)

    def step(self, action: Action) -> StepResult | Awaitable[StepResult]:
        """Carry out a call, or tell the user the reply. Text is read as a call in the plain form,
        or else as a reply. The result is awaitable if the user's answer is.

        Raises IllegalActionError: a choice. ConfigError: a reply, and there is no user.
        EnvironmentFailure: the user cannot be asked.
        """
        # 1. What the agent does
        use = read_use(action, self._tools, self.name)
        meaning = read_action(use, first=self._first)
        self._before(meaning)
        self.messages.append(Message("assistant", use.text, use.calls))
        self._steps += 1
        # 2. A reply, a refusal, or a call
        if isinstance(meaning, str):
            self.dialogue.append(Message("assistant", meaning))
            return followed(self._user_turn(meaning), self._answered)
        if isinstance(meaning, Refusal):
            self.messages.append(Message("tool", meaning.text))
            return self._result({"refused": meaning.parts}, is_over=False)
        # A copy, since a tool may change a list, and the call is recorded
        outcome = self._execute(copy.deepcopy(meaning))
        fits = isinstance(outcome, tuple) and len(outcome) == 3 and isinstance(outcome[0], str)
        self._need(
            "_execute",
            fits,
            outcome,
            "(a text, whether it was refused, whether it ends the conversation)",
        )
        result, refused, is_over = outcome
        self.messages.append(Message("tool", cut(result, LONGEST_RESULT), name=meaning.name))
        # Calls that were passed over count as refused, too
        refusals = len(use.calls) - 1 + bool(refused)
        return self._result({"refused": refusals} if refusals else {}, is_over=is_over)

    def _hear(self, turn: UserTurn) -> None:
        fits = isinstance(turn, UserTurn) and isinstance(turn.text, str)
        self._need("_user_turn", fits, turn, "a UserTurn with a text (reflectkit.env)")
        # Nothing is said where the user leaves without a word
        if turn.text or not turn.over:
            message = Message("user", cut(turn.text.strip(), LONGEST))
            self.messages.append(message)
            self.dialogue.append(message)

    def _answered(self, turn: UserTurn) -> StepResult:
        self._hear(turn)
        return self._result({}, is_over=turn.over)

    def _need(
        self,
        method: str,
        fits: bool,
        returned: object,
        form: str,
    ) -> None:
        """Raises ConfigError unless what the subclass's `method` returned `fits`."""
        if not fits:
            raise ConfigError(
                f"{method}() of env '{self.name}' returned {brief(returned)}; return {form}"
            )

    def _result(self, info: dict[str, Any], *, is_over: bool) -> StepResult:
        self._after(is_over)
        reward = 0.0
        if is_over or self._steps == self.horizon:
            # The end of the conversation, or of the steps
            verdict = self._verdict(is_over)
            fits = isinstance(verdict, tuple) and len(verdict) == 2 and isinstance(verdict[1], dict)
            self._need("_verdict", fits, verdict, "(reward, info)")
            reward = verdict[0]
            info |= verdict[1]
        return StepResult(self._observe(), reward, is_over, info=info)

    def _asked(
        self,
        user: User,
        instructions: str,
    ) -> UserTurn | Awaitable[UserTurn]:
        """What `user`, who plays by `instructions`, says next."""
        return user.say(instructions, tuple(self.dialogue), derive(self._seed, "user", self._steps))

    def _observe(self) -> Observation:
        return Observation(tuple(self.messages), tools=tuple(self._offered), replies=True)

    def _begin(self, task: Task, seed: int) -> str:
        """Begin `task`; the policy that the agent reads first, or "". Raises as `reset` does."""
        raise NotImplementedError

    @property
    def _tools(self) -> Sequence[ToolSpec]:
        """The tools that can be called."""
        raise NotImplementedError

    @property
    def _offered(self) -> Sequence[ToolSpec]:
        """The tools that the prompt describes."""
        return self._tools

    def _user_turn(self, said: str) -> UserTurn | Awaitable[UserTurn]:
        """The user's answer to what the agent `said`; their first words if it is empty."""
        raise NotImplementedError

    def _execute(self, call: ToolCall) -> tuple[str, bool, bool]:
        """(result for the agent, whether the call was refused, whether it ends the conversation)."""
        raise NotImplementedError

    def _verdict(self, is_over: bool) -> tuple[float, dict[str, Any]]:
        """(reward, info) of the last step. is_over: not by the horizon."""
        raise NotImplementedError

    def _before(self, meaning: ToolCall | str | Refusal) -> None:
        """Called before each action; may raise."""

    def _after(self, is_over: bool) -> None:
        """Called when an action has had its effect. is_over: whether it ended the conversation."""
