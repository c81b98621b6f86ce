"""Reads the answers of chat models: an analysis with a choice, or with calls of tools, and comments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from reflectkit.agents.requests import ANALYSIS_WORDS, action_words
from reflectkit.core.prompts import label, one_line
from reflectkit.core.tools import PLAIN, after_thought, parse, plain_text, reads_as_calls, use_of
from reflectkit.core.types import Observation, ToolUse

LONGEST_ANALYSIS = 120  # words; longer analyses are rejected
REPLY = re.compile(
    r"analysis\W*?[:\-]\s*(?P<analysis>.+?)\s*\**\bchoice\W*?[:\-]\s*[*`\"'\[(<]*\s*(?P<choice>\S[^\n]*)",
    re.IGNORECASE | re.DOTALL,
)
CALLED = re.compile(r"analysis\W*?[:\-]\s*(?P<analysis>[^\n]+)\n(?P<calls>.*)", re.IGNORECASE | re.DOTALL)
FRAME = re.compile(r"```\w*|\W*calls\W*", re.IGNORECASE)
"""A line around calls that is none of them."""
COMMENT_HEAD = re.compile(r"^\W*(?:comment|reflection|analysis)\W*?:\W*", re.IGNORECASE)

Action = int | str | ToolUse


class UnreadableError(ValueError):
    """An answer that is not in the requested format, so that it contains no action."""


def parse_reply(text: str, choices: Sequence[str]) -> tuple[str, int]:
    """(analysis, index of the choice) of a reply.

    Raises
    ------
    ValueError: saying what is wrong with it; UnreadableError where it is not in the form asked for, so names no action.

    >>> parse_reply("Analysis: The fee is set elsewhere.\\nChoice: 1", ["cd app", "cd conf"])
    ('The fee is set elsewhere.', 1)
    """
    reply = REPLY.search(text)
    if reply is None:
        raise UnreadableError("not two lines, `Analysis: …` and `Choice: …`")
    analysis = _checked_analysis(reply["analysis"])
    chosen = reply["choice"].strip("*`\"'[]()<> ").removesuffix(".")
    labels = [label(index).strip() for index in range(len(choices))]
    for index, (mark, choice) in enumerate(zip(labels, choices, strict=True)):
        if chosen in (mark, choice, f"{mark} {choice}", f"{mark}. {choice}"):
            return analysis, index
    raise ValueError(f"the choice {chosen[:40]!r} is none of the {len(choices)} actions")


def parse_called(text: str, observation: Observation) -> tuple[str, ToolUse]:
    """(analysis, calls) of a reply. A call that cannot be executed is in the calls' errors, for the env to tell.

    Raises
    ------
    UnreadableError: there is no analysis, or no call can be read and it is not the word for none.
    """
    reply = CALLED.search(after_thought(text))
    if reply is None:
        raise UnreadableError("no line `Analysis: …` with the calls behind it")
    analysis = _checked_analysis(reply["analysis"])
    calls = "\n".join(line for line in reply["calls"].splitlines() if not FRAME.fullmatch(line.strip()))
    if not calls.strip() or not reads_as_calls(calls, PLAIN):
        raise UnreadableError("no calls behind the analysis, and not the word none")
    use = parse(calls, observation.tools, PLAIN)
    return analysis, use if use.errors else use_of(use.calls)


def _checked_analysis(text: str) -> str:
    """An analysis on one line. Raises UnreadableError if it is empty or too long."""
    analysis = one_line(text).strip("* ")
    if not any(character.isalnum() for character in analysis):
        raise UnreadableError("an empty analysis")
    if len(analysis.split()) > LONGEST_ANALYSIS:
        raise UnreadableError(f"an analysis of {len(analysis.split())} words, at most {ANALYSIS_WORDS} were asked for")
    return analysis


def plain_comment(text: str) -> str:
    """A comment on one line, without reasoning, and without the heading that some models add.

    >>> plain_comment("**Comment:** The goal is\\nnear.")
    'The goal is near.'
    >>> plain_comment("<think>South is right.</think>\\nThe goal is near.")
    'The goal is near.'
    """
    line = one_line(after_thought(text))
    return COMMENT_HEAD.sub("", line) or line


def parse_comment(text: str, observation: Observation, right: Action) -> str:
    """A teacher's comment on one line. Raises ValueError if it is empty or too long, or names the best action."""
    comment = plain_comment(text)
    if not any(character.isalnum() for character in comment):
        raise ValueError("an empty comment")
    if len(comment.split()) > LONGEST_ANALYSIS:
        raise ValueError(f"a comment of {len(comment.split())} words, at most {ANALYSIS_WORDS} were asked for")
    if name := named(comment, observation, right):
        raise ValueError(f"the comment names the right action: {name!r:.80}")
    return comment


def named(comment: str, observation: Observation, action: Action) -> str:
    """By which words `comment` names `action`, or "": the choice or command itself, its number as such, a call or its
    tool.

    >>> from reflectkit.core.types import Message
    >>> seen = Observation((Message("user", "a map"),), ("south", "pickup"))
    >>> named("Pickup is due.", seen, 1), named("Take action 1.", seen, 1), named("Row 1 holds the passenger.", seen, 1)
    ('pickup', 'action 1', '')
    """
    words = [action_words(observation, action)]
    if isinstance(action, ToolUse):
        words = [*(plain_text([call]) for call in action.calls), *dict.fromkeys(call.name for call in action.calls)]
    line = one_line(comment).casefold()
    for name in map(one_line, words):
        if re.search(rf"(?<!\w){re.escape(name.casefold())}(?!\w)", line):
            return name
    if isinstance(action, int):
        mark = re.escape(label(action).strip().casefold())
        match = re.search(rf"\b(?:action|choice|option|number|label|no\.)\W{{0,3}}{mark}(?!\w)", line)
        return match[0] if match else ""
    return ""
