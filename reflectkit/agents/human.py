"""A person at the keyboard who acts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from reflectkit.console import Progress
from reflectkit.env import Context, Env, rules_of
from reflectkit.errors import IllegalActionError, ReflectkitError
from reflectkit.prompts import LABELS, one_line
from reflectkit.tools import PLAIN, PLAIN_RULES, TURN_RULES, parse, tools_text, use_of
from reflectkit.types import Decision, Observation, ToolCall, ToolUse

QUIT = "the person left"
"""Why an episode ended that the person left."""
HELP_KEYS = ("h", "?")


class Human:
    """A person who acts. After an answer that cannot be read, the person is asked again."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.has_quit = False
        """Whether the person has left. Then no further episode should begin."""
        self.has_answered = False
        """Whether the person has given any answer."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The person's action; everything else waits for it."""
        if observation.choices:
            self.progress.news(choices_text(observation.choices))
        action = self._action(observation, context.env)
        if action is None:
            self.has_quit = True
            return Decision(0, truncation_reason=QUIT)
        return Decision(action)

    def _action(self, observation: Observation, env: Env) -> int | str | ToolUse | None:
        """A choice, a text, or calls (one per line, then an empty one); None if the person quits."""
        if observation.tools and not observation.choices:
            return self._calls(observation, env)
        question = "Your reply: " if observation.replies else "Your move: "
        while True:
            text = self._answer(question, observation, env)
            if text is None or not observation.choices:
                return text
            try:
                return choice_of(text, observation.choices)
            except IllegalActionError as error:
                self.progress.news(str(error))

    def _calls(self, observation: Observation, env: Env) -> ToolUse | None:
        """Calls of tools; in a conversation one call, or a reply; None if the person quits."""
        calls: list[ToolCall] = []
        names = [tool.name for tool in observation.tools]
        while True:
            # 1. Ask for a line; an empty one ends a list of calls
            question = f"Call {len(calls) + 1}, or Enter to go on: "
            if observation.replies:
                question = "Your call or reply: "
            text = self._answer(question, observation, env)
            if text is None:
                return None
            if not text and not observation.replies:
                return use_of(calls)

            # 2. A text that begins with the name of a tool is a call without its arguments
            use = parse(text, observation.tools, PLAIN, replies=observation.replies)
            is_text = not use.calls and not use.errors
            first_word = re.split(r"[^\w.:-]", text)[0]
            if is_text and first_word in names:
                tools = tools_text(observation.tools)
                self.progress.news(f"This is no call yet:\n{tools}\n{TURN_RULES}")
                continue

            # 3. Take what can be read, and ask again for the rest
            if observation.replies and text and not use.errors:
                return use
            calls += use.calls
            for problem in use.errors:
                self.progress.news(f"{problem}. Write that call again; ? lists the tools.")

    def _answer(self, question: str, observation: Observation, env: Env) -> str | None:
        """The next line that is not a command; None if the person quits."""
        while True:
            line = self.progress.ask(question)
            if line is None:
                return None
            self.has_answered = True
            answer = line.strip()
            command = answer.casefold()
            if command == "q":
                return None
            if command in HELP_KEYS:
                self.progress.news(help_text(observation, env))
            elif command == "o":
                self.progress.news(oracle_text(observation, env))
            else:
                return answer


def choice_of(text: str, choices: Sequence[str]) -> int:
    """The index of the choice that `text` names: by a label, a number, its text, or a unique
    prefix.

    >>> choice_of("2", ("south", "north", "east")), choice_of("so", ("south", "north", "east"))
    (2, 0)
    >>> choice_of("2", ("1", "2", "3"))
    1

    Raises IllegalActionError, with a message for the person, if no choice or several match.
    """
    # 1. The whole text of a choice, which may be a number
    prefix = one_line(text).casefold()
    texts = [one_line(choice).casefold() for choice in choices]
    if prefix in texts:
        return texts.index(prefix)

    # 2. A label or a number
    if _are_numbered(choices):
        if text in LABELS[: len(choices)]:
            return LABELS.index(text)
        if text in map(str, range(len(choices))):
            return int(text)

    # 3. The beginning of only one choice
    matches = []
    if prefix:
        matches = [index for index, choice in enumerate(texts) if choice.startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    problem = "may be several choices" if matches else "is no choice"
    fix = f"write a number from 0 to {len(choices) - 1}"
    if not _are_numbered(choices):
        fix = "write its text"
    raise IllegalActionError(f"{text[:60]!r} {problem}; {fix}, or h for help")


def _are_numbered(choices: Sequence[str]) -> bool:
    """Whether numbers stand for the choices: not if one is a number itself."""
    return not any(one_line(choice).isdecimal() for choice in choices)


def choices_text(choices: Sequence[str]) -> str:
    """The choices, one per line, with their numbers if these stand for them."""
    if not _are_numbered(choices):
        return "\n".join(f"      {one_line(choice)}" for choice in choices)
    return "\n".join(f"{number:>4}  {one_line(choice)}" for number, choice in enumerate(choices))


def help_text(observation: Observation, env: Env) -> str:
    """The help for the person: the env's rules, the possible answers and the keys."""
    if observation.replies:
        answers = f"{tools_text(observation.tools)}\n{TURN_RULES}"
    elif observation.tools:
        answers = f"{tools_text(observation.tools)}\n{PLAIN_RULES} An empty line calls none."
    elif observation.choices:
        choices = choices_text(observation.choices)
        how = ", or its number" if _are_numbered(observation.choices) else ""
        answers = f"{choices}\nWrite the beginning of a choice's text{how}."
    else:
        answers = "Write a line."
    return f"{rules_of(env)}\n\n{answers} A letter alone is a key: {keys_of(env)}.".lstrip()


def keys_of(env: Any) -> str:
    """The letters that are commands, and what they do."""
    oracle = "o: what the oracle would do; " if env.teacher().has("action") else ""
    return f"h or ?: help; {oracle}q: leave"


def oracle_text(observation: Observation, env: Any) -> str:
    """A line with the oracle's action, or why there is none."""
    if not env.teacher().has("action"):
        return f"Env '{env.name}' has no oracle."
    try:
        return f"The oracle would: {action_text(observation, env.teacher().action())}"
    except ReflectkitError as error:
        return str(error)


def action_text(observation: Observation, action: int | str | ToolUse) -> str:
    """An action in words: the number, if it has one, and text of a choice, a text, or calls as
    text.
    """
    if isinstance(action, int):
        text = one_line(observation.choices[action])
        return f"{action}  {text}" if _are_numbered(observation.choices) else text
    if isinstance(action, str):
        return action
    return action.text
