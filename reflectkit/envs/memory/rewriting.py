"""The published methods whose memory is one text that a model rewrites after each chunk.

The text is the only item of the semantic memory. The env's own tools change it, so that it is scored like any memory;
the reader gets it whole.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass

from reflectkit.envs.memory import mem1, memagent
from reflectkit.envs.memory.store import SEMANTIC, Store
from reflectkit.envs.memory.tools import UPDATE, insertion
from reflectkit.text import count_tokens
from reflectkit.tools import plain_text
from reflectkit.types import Message, ToolCall, ToolUse

LONGEST_TOKEN = 8  # characters, with a space behind them


@dataclass(frozen=True, slots=True)
class Method:
    """messages: what the model is asked, given the text and the chunk. read: its new text; raises ValueError. tokens:
    most of the text.
    """

    messages: Callable[[str, str], tuple[Message, ...]]
    read: Callable[[str], str]
    tokens: int


METHODS = {
    "memagent": Method(memagent.messages, memagent.read, memagent.MEMORY_TOKENS),
    "mem1": Method(mem1.messages, mem1.read, mem1.STATE_TOKENS),
}


def text_of(store: Store) -> str:
    """The text that is kept; "" before it was first written."""
    return next((item.text for item in store.items.values()), "")


def rewritten(method: Method, store: Store, answer: str) -> ToolUse:
    """The call that puts the text of `answer` in place of the one kept; none where they are equal. A text that is too
    long loses its end, which counts as a refused call. Raises ValueError where there is no text.
    """
    new = " ".join(method.read(answer).split())
    kept = beginning(new, method.tokens)
    calls: list[ToolCall] = []
    if kept != text_of(store):
        old = {"memory_type": SEMANTIC, "memory_id": next(iter(store.items), ""), "new_content": kept}
        calls.append(ToolCall(UPDATE, old) if store.items else insertion(SEMANTIC, kept))
    errors = () if kept == new else (f"the text is longer than {method.tokens} tokens; its end is cut off",)
    return ToolUse(plain_text(calls), tuple(calls), errors)


def beginning(text: str, tokens: int) -> str:
    """The longest beginning of `text`, which is one line, with at most `tokens` tokens.

    >>> beginning("one two three", 2), beginning("one two", 2)
    ('one two', 'one two')
    """
    text_start = text[: LONGEST_TOKEN * (tokens + 1)]
    end = bisect.bisect_right(range(len(text_start) + 1), tokens, key=lambda length: count_tokens(text_start[:length]))
    return text_start[: end - 1].rstrip()
