"""Labels as paths of tokens, and the trie that the legal labels of a state form.

The probability of a label is the product, along its path, of the softmax over the tokens that may come next. Where one
label begins another (" 1", " 14"), the end token is among them, so the probabilities of all labels sum to 1. A label of
one token is a path of one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

Path = tuple[int, ...]
"""The token ids of a label, the end token included where it is needed."""


@dataclass(frozen=True, slots=True)
class Node:
    """Where labels part."""

    prefix: Path
    """The tokens after the prompt that lead here; empty at the root."""
    children: Path
    """The tokens that may come next, in the order of the labels."""


@dataclass(frozen=True, slots=True)
class Trie:
    """The legal labels of a state."""

    nodes: tuple[Node, ...]
    """The root, and every other place with several children; elsewhere the next token is certain."""
    steps: tuple[tuple[tuple[int, int], ...], ...]
    """For each label, the (node, child) pairs along its path, as indices. The root is part of every path."""
    chains: tuple[Path, ...]
    """What must be read after the prompt to reach all nodes: the prefixes that do not begin another one."""
    chain_of: tuple[int, ...]
    """For each node, the index of a chain that its prefix begins; 0 for a root without chains."""

    @property
    def depth(self) -> int:
        """Tokens of the longest chain: how many the model reads after the prompt."""
        return max(map(len, self.chains), default=0)


@lru_cache(maxsize=2**14)
def trie(labels: tuple[Path, ...]) -> Trie:
    """The trie of `labels`. Raises ValueError if a label is empty, or begins another one."""
    children: dict[Path, dict[int, int]] = {}
    for label in labels:
        for place, token in enumerate(label):
            below = children.setdefault(label[:place], {})
            below.setdefault(token, len(below))
    if not labels or any(not label or label in children for label in labels) or len(set(labels)) < len(labels):
        raise ValueError(f"labels must not be empty, and none may begin another one: {labels!r:.200}")
    nodes = [Node(prefix, tuple(below)) for prefix, below in children.items() if len(below) > 1 or not prefix]
    index = {node.prefix: number for number, node in enumerate(nodes)}
    steps = tuple(
        tuple(
            (index[label[:place]], children[label[:place]][token])
            for place, token in enumerate(label)
            if label[:place] in index
        )
        for label in labels
    )
    prefixes = sorted(index)  # a prefix comes right before those that it begins
    chains = [
        prefix
        for prefix, following in zip(prefixes, [*prefixes[1:], ()], strict=True)
        if prefix and following[: len(prefix)] != prefix
    ]
    chain_of = [next((n for n, chain in enumerate(chains) if chain[: len(p)] == p), 0) for p in index]
    return Trie(tuple(nodes), steps, tuple(chains), tuple(chain_of))


def with_ends(paths: Sequence[Path], end: int | None) -> tuple[Path, ...] | None:
    """`paths` with the end token after each that begins another one; None if they are still not all distinct.

    >>> with_ends([(1,), (2,), (1, 4)], 0)
    ((1, 0), (2,), (1, 4))
    """

    def beginnings(paths: Sequence[Path]) -> set[Path]:
        return {path[:place] for path in paths for place in range(1, len(path))}

    begun = beginnings(paths)
    ended = tuple((*path, end) if path in begun and end is not None else path for path in paths)
    return ended if len(set(ended)) == len(ended) and beginnings(ended).isdisjoint(ended) else None
