"""Splits: groups of problems divided into train, validate and test."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Mapping, Sequence

from reflectkit.envs import SPLITS
from reflectkit.types import Task

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
        for name, count in zip(SPLITS, apportion(len(groups), shares), strict=True):
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
    targets = {name: total * share / sum(shares) for name, share in zip(SPLITS, shares, strict=True)}
    assigned_sizes = dict.fromkeys(SPLITS, 0)
    assigned: dict[str, str] = {}
    for place, group in enumerate(groups):
        empty = [name for name in SPLITS if not assigned_sizes[name]]
        open_to = empty if len(groups) - place <= len(empty) else SPLITS
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


def levels_by_group(tasks: Iterable[Task]) -> dict[str, tuple[str, ...]]:
    """The levels of each group's problems: the strata of an env's own list, so that each level is divided alike."""
    levels: dict[str, tuple[str, ...]] = {}
    for task in tasks:
        levels[task.group] = tuple(sorted({*levels.get(task.group, ()), task.level}))
    return levels
