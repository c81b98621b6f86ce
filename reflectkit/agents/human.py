"""A person who plays: is shown the choices, and answers with one, with calls of tools, or in words.

What is typed is read by `choice_of`, or as calls in the plain form. Where it cannot be read, the person sees why and is
asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reflectkit.console import Progress
from reflectkit.env import Context, Env, UserTurn, rules_of
from reflectkit.errors import EnvironmentFailure, IllegalActionError, ReflectkitError
from reflectkit.prompts import LABELS, one_line
from reflectkit.tools import PLAIN, PLAIN_RULES, TURN_RULES, parse, tools_text, use_of
from reflectkit.types import AGENT_MARKER, Decision, Message, Observation, ToolCall, ToolUse

LEFT = "the person left"
HELP_KEYS = ("h", "?")
MOST_NAMED = 6  # choices that are listed where an answer may mean several
SAYING_KEYS = "Write what you say. i: your instructions; e: say goodbye, which ends the conversation; q: leave"


class Human:
    """A person at the other end of `progress`.

    left: whether they have gone; no further episode should begin then. heard: whether there was any answer at all.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress, self.left, self.answered = progress, False, False

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The person's answer; everything else waits for it."""
        if observation.choices:
            self.progress.show(choices_text(observation.choices))
        read = self._turn if observation.replies else self._calls if observation.tools else self._line
        action = read(observation, context.env)
        if action is None:
            self.left = True
            return Decision(0, truncation_reason=LEFT)
        return Decision(action)

    def _line(self, observation: Observation, env: Env) -> int | str | None:
        """A choice, or a line of text if there are no choices; None if the person quits."""
        while (text := self._answer("Your move: ", observation, env)) is not None:
            if not observation.choices:
                return text
            try:
                return choice_of(text, observation.choices)
            except IllegalActionError as error:
                self.progress.show(str(error))
        return None

    def _turn(self, observation: Observation, env: Env) -> str | ToolUse | None:
        """One call or one reply to the user; None if the person quits."""
        while (text := self._answer("Your call or reply: ", observation, env)) is not None:
            if not observation.tools and text:
                return text
            use = parse(text, observation.tools, PLAIN, replies=True)
            if text and not use.errors:
                return use
            self.progress.show("; ".join(use.errors) or "Nothing was written; h lists the tools.")
        return None

    def _calls(self, observation: Observation, env: Env) -> ToolUse | None:
        """Calls, one per line, up to an empty line; None if the person quits."""
        calls: list[ToolCall] = []
        while (text := self._answer(f"Call {len(calls) + 1}, or Enter to go on: ", observation, env)) is not None:
            if not text:
                return use_of(calls)
            read = parse(text, observation.tools, PLAIN)
            calls += read.calls
            for error in read.errors:
                self.progress.show(f"{error}. Write that call again; ? lists the tools.")
        return None

    def _answer(self, question: str, observation: Observation, env: Env) -> str | None:
        """The next line that is not a command; None if the person quits."""
        while (text := self.progress.ask(question)) is not None:
            self.answered = True
            answer = text.strip()
            command = answer.casefold()
            if command == "q":
                return None
            if command in HELP_KEYS:
                self.progress.show(help_text(observation, env))
            elif command == "o":
                self.progress.show(oracle_text(observation, env))
            else:
                return answer
        return None


class PersonUser:
    """The person at the other end of `progress`.

    left: whether they have gone; no further episode should begin then. answered: whether there was any answer at all.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress, self.left, self.answered = progress, False, False

    def say(self, instructions: str, conversation: Sequence[Message], seed: int) -> UserTurn:
        """What the person writes; everything else waits for it. Raises EnvironmentFailure once they have left."""
        if conversation:
            self.progress.show(conversation[-1].line if conversation[-1].role == "assistant" else AGENT_MARKER)
        else:
            self.progress.show(f"{instructions}\n{SAYING_KEYS}.")
        while (text := self.progress.ask("You: ")) is not None:
            self.answered = True
            said = text.strip()
            if said == "q":
                break
            if said == "e" and conversation:
                return UserTurn("Goodbye.", over=True)
            if said and said not in ("i", "e"):
                return UserTurn(said)
            self.progress.show(instructions if said == "i" else f"Nothing was said. {SAYING_KEYS}.")
        self.left = True
        raise EnvironmentFailure(LEFT)


def choice_of(text: str, choices: Sequence[str]) -> int:
    """The index of the choice that `text` names: by its label or number, its full text, or a unique prefix.

    >>> choice_of("2", ("south", "north", "east")), choice_of("so", ("south", "north", "east"))
    (2, 0)

    Raises
    ------
    IllegalActionError: no choice, or several, match; the message is for the person.
    """
    if text in LABELS[: len(choices)]:
        return LABELS.index(text)
    if text in map(str, range(len(choices))):
        return int(text)
    prefix = one_line(text).casefold()
    texts = [one_line(choice).casefold() for choice in choices]
    if prefix in texts:
        return texts.index(prefix)
    fitting = [index for index, choice in enumerate(texts) if prefix and choice.startswith(prefix)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        problem = f"{text[:60]!r} is no choice" if text else "Nothing was written"
        raise IllegalActionError(f"{problem}; write a number from 0 to {len(choices) - 1}, or h for help")
    named = ", ".join(f"{index} {one_line(choices[index])}" for index in fitting[:MOST_NAMED])
    more = f" or one of {len(fitting) - MOST_NAMED} more" if len(fitting) > MOST_NAMED else ""
    raise IllegalActionError(f"{text!r:.60} may be {named}{more}; write more of it, or its number")


def choices_text(choices: Sequence[str]) -> str:
    """The choices with their numbers, one per line."""
    return "\n".join(f"{number:>4}  {one_line(choice)}" for number, choice in enumerate(choices))


def keys(env: Any) -> str:
    """What a letter alone does at the question for a move.

    >>> from reflectkit.envs.corridor import Corridor
    >>> keys(Corridor())
    'h or ?: help; o: what the oracle would do; q: leave'
    """
    oracle = "; o: what the oracle would do" if env.teacher().has("action") else ""
    return f"h or ?: help{oracle}; q: leave"


def help_text(observation: Observation, env: Env) -> str:
    """The env's rules, and the possible answers."""
    if observation.replies:
        answers = f"{tools_text(observation.tools)}\n{TURN_RULES}"
    elif observation.tools:
        answers = f"{tools_text(observation.tools)}\n{PLAIN_RULES} An empty line calls none."
    elif observation.choices:
        answers = f"{choices_text(observation.choices)}\nWrite a choice's number, or the beginning of its text."
    else:
        answers = "Write a line."
    return f"{rules_of(env)}\n\n{answers} A letter alone is a key: {keys(env)}.".lstrip()


def oracle_text(observation: Observation, env: Any) -> str:
    """The oracle's action in words."""
    if not env.teacher().has("action"):
        return f"Env '{env.name}' has no oracle."
    try:
        action = env.teacher().action()
    except ReflectkitError as error:
        return str(error)
    return f"The oracle would: {action_text(observation, action)}"


def action_text(observation: Observation, action: int | str | ToolUse) -> str:
    """An action in words: the number and the choice, or the text."""
    if isinstance(action, int):
        return f"{action}  {one_line(observation.choices[action])}"
    return action if isinstance(action, str) else action.text
