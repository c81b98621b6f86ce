"""Splits problems, 7:2:1 unless told otherwise, so that no part of a test problem is seen in training.

Departs from the original, which flips an unseeded coin.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence

NAMES = ("train", "validate", "test")
SHARES = (7, 2, 1)


def split_groups(
    strata: Mapping[str, Hashable], generator: random.Random, shares: Sequence[int] = SHARES
) -> dict[str, str]:
    """A split name for each group, in `shares` within each stratum.

    Parameters
    ----------
    strata: group → the stratum it is balanced in (e.g. whether it has demonstrations).

    Within a stratum, the counts are the shares rounded by the largest remainder method.
    """
    assigned: dict[str, str] = {}
    members: dict[Hashable, list[str]] = {}
    for group in sorted(strata):
        members.setdefault(strata[group], []).append(group)
    for stratum in sorted(members, key=repr):
        groups = members[stratum]
        generator.shuffle(groups)
        start = 0
        for name, count in zip(NAMES, apportion(len(groups), shares), strict=True):
            assigned |= dict.fromkeys(groups[start : start + count], name)
            start += count
    return assigned


def split_weighted(
    sizes: Mapping[str, int], generator: random.Random, shares: Sequence[int] = SHARES
) -> dict[str, str]:
    """A split name for each group, so that the splits hold about `shares` of the *problems*.

    Parameters
    ----------
    sizes: group → how many problems it has.

    Groups are assigned from largest to smallest, in random order within a size, to the split that lacks most of its
    share. With three or more groups, no split stays empty.
    """
    groups = sorted(sizes)
    generator.shuffle(groups)
    groups.sort(key=lambda group: -sizes[group])
    total = sum(sizes.values())
    targets = {name: total * share / sum(shares) for name, share in zip(NAMES, shares, strict=True)}
    assigned_sizes = dict.fromkeys(NAMES, 0)
    assigned: dict[str, str] = {}
    for place, group in enumerate(groups):
        empty = [name for name in NAMES if not assigned_sizes[name]]
        open_to = empty if len(groups) - place <= len(empty) else NAMES
        name = max(open_to, key=lambda name: targets[name] - assigned_sizes[name])
        assigned[group] = name
        assigned_sizes[name] += sizes[group]
    return assigned


def apportion(total: int, shares: Sequence[int]) -> list[int]:
    """`total` in whole parts proportional to `shares` (Hamilton's method); ties go to the earlier part.

    >>> apportion(300, (7, 2, 1)), apportion(4, (7, 2, 1))
    ([210, 60, 30], [3, 1, 0])
    """
    exact = [total * share / sum(shares) for share in shares]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda index: (counts[index] - exact[index], index))
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts
