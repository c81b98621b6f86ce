"""Splits against numbers derived by hand."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from reflectkit.commands.split import split_weighted
from reflectkit.data.trajectories import apportion, split_groups


@given(st.integers(0, 500))
def test_apportion_adds_up_and_is_near(total: int) -> None:
    counts = apportion(total, (7, 2, 1))
    assert sum(counts) == total
    assert all(abs(count - total * share / 10) < 1 for count, share in zip(counts, (7, 2, 1), strict=True))


def test_split_is_balanced_in_each_stratum_and_seeded() -> None:
    strata = {f"g{index}": index < 57 for index in range(300)}
    split = split_groups(strata, random.Random(0))
    assert split == split_groups(dict(reversed(strata.items())), random.Random(0))
    assert split != split_groups(strata, random.Random(1))
    # 57 → 40, 11, 6 by largest remainder (39.9, 11.4, 5.7); 243 → 170, 49, 24 (170.1, 48.6, 24.3)
    counts = {
        (name, flag): sum(split[g] == name and strata[g] == flag for g in strata)
        for name in ("train", "validate", "test")
        for flag in (True, False)
    }
    assert counts == {
        ("train", True): 40,
        ("validate", True): 11,
        ("test", True): 6,
        ("train", False): 170,
        ("validate", False): 49,
        ("test", False): 24,
    }
    # 57 → 43, 7, 7 and 243 → 182, 30, 30 + 1: by largest remainder of 42.75, 7.1, 7.1 and 182.25, 30.4, 30.4
    other = split_groups(strata, random.Random(0), (6, 1, 1))
    assert Counter(other.values()) == {"train": 43 + 182, "validate": 7 + 31, "test": 7 + 30}


def test_problems_are_split_by_weight_in_other_shares() -> None:
    names = split_weighted({f"r{index}": 10 for index in range(12)}, random.Random(0), (8, 1, 3))
    assert Counter(names.values()) == {"train": 8, "validate": 1, "test": 3}
