"""Guesses of what a model will write, from what it wrote before: most of all after prompts that were much alike.

A player's states come again under another last move and hardly differ from one move to the next, and neither do the
comments on them. A guess that is wrong costs a little time and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

KEPT = 512  # texts; the oldest is forgotten first
ORDERS = (4, 3, 2, 1)  # how many tokens before the guessed one must be the same: the longest known run counts
CONTEXTS = 50_000  # of all texts together; a full table starts again
START = -1  # stands before the first token

Table = dict[tuple[int, ...], int]
"""What came after some tokens the last time."""


class Guide:
    """Guesses how one text goes on: as the one after the most similar prompt did, otherwise as any other did."""

    def __init__(self, near: Mapping[tuple[int, ...], int], others: Mapping[tuple[int, ...], int]) -> None:
        self.near, self.others = near, others

    def guess(self, written: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens behind those of `written`."""
        line = [*[START] * max(ORDERS), *written]
        start = len(line)
        while len(line) < start + count:
            contexts = [tuple(line[-order:]) for order in ORDERS]
            tokens = (table.get(context) for context in contexts for table in (self.near, self.others))
            token = next((token for token in tokens if token is not None), None)
            if token is None:
                break
            line.append(token)
        return line[start:]


class Drafts:
    """The latest texts of a model, and the prompts behind which they were written."""

    def __init__(self) -> None:
        self._prompts_NT = np.full((KEPT, 256), START, dtype=np.int32)
        self._texts: list[tuple[int, ...]] = []
        self._next = 0
        self._others: Table = {}

    def remember(self, prompt: Sequence[int], text: Sequence[int]) -> None:
        """That `text` was written after `prompt`."""
        missing = len(prompt) - self._prompts_NT.shape[1]
        if missing > 0:
            self._prompts_NT = np.pad(self._prompts_NT, ((0, 0), (0, missing + 256)), constant_values=START)
        self._prompts_NT[self._next] = START
        self._prompts_NT[self._next, : len(prompt)] = prompt
        self._texts[self._next : self._next + 1] = [tuple(text)]
        self._next = (self._next + 1) % KEPT
        if len(self._others) > CONTEXTS:
            self._others = {}
        self._others.update(_contexts(text))

    def guide(self, prompt: Sequence[int]) -> Guide:
        """A guide for the text after `prompt`."""
        if not self._texts:
            return Guide({}, self._others)
        known_NT = self._prompts_NT[: len(self._texts), : len(prompt)]
        same_N = (known_NT == np.asarray(prompt[: known_NT.shape[1]], dtype=np.int32)).sum(axis=1)
        return Guide(dict(_contexts(self._texts[int(same_N.argmax())])), self._others)


def _contexts(text: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Each run of tokens before a token of `text`, and that token."""
    line = (*[START] * max(ORDERS), *text)
    for place in range(max(ORDERS), len(line)):
        for order in ORDERS:
            yield line[place - order : place], line[place]
