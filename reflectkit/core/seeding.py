"""Reproducible randomness: every random stream is derived from a seed and a path of names.

No generator state is kept, so a killed and resumed run draws the same numbers without saving any.
"""

from __future__ import annotations

import hashlib
import random


def derive(seed: int, *path: object) -> int:
    """A seed (0 ≤ seed < 2**63) for the stream that `path` names; different paths give independent streams.

    >>> derive(0, "rollout", 3) == derive(0, "rollout", 3), derive(0, "rollout", 3) == derive(0, "rollout", 4)
    (True, False)
    """
    text = "\x1f".join([str(seed), *map(str, path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *path: object) -> random.Random:
    """A Python generator for the stream that `path` names."""
    return random.Random(derive(seed, *path))


def uniform(seed: int, *path: object) -> float:
    """One number in [0, 1) for the stream that `path` names, without the cost of a generator."""
    return (derive(seed, *path) >> 10) / 2**53
