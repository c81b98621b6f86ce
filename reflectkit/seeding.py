"""Reproducible numbers: random streams derived from a seed and a path of names, and the number of
threads.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys


def derive(seed: int, *path: object) -> int:
    """A seed (0 ≤ seed < 2**63) for the stream that `path` names; different paths give independent
    streams.

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


VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def use_threads(count: int) -> None:
    """Make torch and numpy compute on `count` CPU threads, whether or not torch is imported yet.

    This overrides the environment's OMP_NUM_THREADS, because the same command must give the same
    bytes everywhere. Processes started later inherit the setting.
    """
    os.environ.update(dict.fromkeys(VARIABLES, str(count)))
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads"):
        torch.set_num_threads(count)
