"""Strings that end a text, found where its last token completes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StopStrings:
    """Finds stop strings at the end of a row's text."""

    def __init__(self, strings: Sequence[str], tokenizer: Any) -> None:
        if strings and tokenizer is None:
            raise ValueError("stop strings are searched in the text, which requires the tokenizer")
        self.strings, self.tokenizer = [string for string in strings if string], tokenizer
        self.tail = (
            max((len(string.encode()) for string in self.strings), default=0) + 2
        )  # tokens; each is at least a byte
        self.last = {string[-1] for string in self.strings}
        self._may_end: dict[int, bool] = {}

    def end(self, token_ids: list[int]) -> bool:
        """Whether the last token completes one of the strings."""
        if not self.strings or not self._may_complete(token_ids[-1]):
            return False
        text = self._text(token_ids[-self.tail :])
        return any(string in text for string in self.strings)

    def _may_complete(self, token: int) -> bool:
        """False for a token of whole characters, none of which ends a string. Spaces may appear only next to others."""
        if token not in self._may_end:
            text = self._text([token])
            plain = text and "\N{REPLACEMENT CHARACTER}" not in text and not any(last.isspace() for last in self.last)
            self._may_end[token] = not plain or not self.last.isdisjoint(text)
        return self._may_end[token]

    def _text(self, token_ids: list[int]) -> str:
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text
