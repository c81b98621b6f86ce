"""Memo of scores: the log-probabilities of labels after prompts, within a budget of bytes."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Hashable, Sequence

from reflectkit.models.labels import Path

CAPACITY = 2**28
"""Bytes: scores of about 75,000 prompts of 800 tokens, or 400,000 of 100."""
ENTRY = 160  # bytes of an entry's place in the table, its key and its kind
NUMBER = 32  # bytes of a number and the reference to it


class ScoreMemo:
    """Log-probabilities by labels, prompt and kind, which is what else they depend on: a temperature, a version.

    capacity: bytes, after which `trim` forgets everything. A prompt takes four bytes a token; equal labels are held
    once.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.size = 0
        """Bytes that are held."""
        self._rows: dict[tuple[tuple[Path, ...], bytes, Hashable], tuple[float, ...]] = {}
        self._labels: dict[tuple[Path, ...], tuple[Path, ...]] = {}

    def get(self, labels: tuple[Path, ...], prompt: Sequence[int], kind: Hashable) -> tuple[float, ...] | None:
        """The log-probabilities that were kept, if any."""
        return self._rows.get((labels, array("i", prompt).tobytes(), kind))

    def keep(self, labels: tuple[Path, ...], prompt: Sequence[int], kind: Hashable, row: tuple[float, ...]) -> None:
        """Keep the log-probabilities of all `labels`."""
        if labels not in self._labels:
            self._labels[labels] = labels
            self.size += sum(sys.getsizeof(path) + NUMBER * len(path) for path in labels) + ENTRY
        packed = array("i", prompt).tobytes()
        self._rows[self._labels[labels], packed, kind] = row
        self.size += ENTRY + len(packed) + NUMBER * len(row)

    def trim(self) -> None:
        """Forget everything if the capacity is exceeded."""
        if self.size > self.capacity:
            self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._rows.clear()
        self._labels.clear()
        self.size = 0
