"""Condition grades and the order in which things are treated."""

from dataclasses import dataclass

# Points per kind of damage.
POINTS = {"loose part": 6, "active corrosion": 8, "live insects": 12,
          "flaking paint": 7, "tear": 4, "stain": 1, "old repair": 2,
          "missing part": 3, "mould": 10, "weeping glass": 9}
GRADES = [(0, "sound"), (3, "fair"), (8, "poor"), (15, "urgent")]
CHECK_YEARS = {"sound": 8, "fair": 4, "poor": 1.5, "urgent": 0.25}
EXTENT_FACTOR = {"spot": 0.5, "part": 1.0, "whole": 1.5}


@dataclass
class Damage:
    """One damage with its extent: spot, part or whole."""

    kind: str
    extent: str = "part"


def points(damages):
    """Sum of damage points, each multiplied by the factor of its extent."""
    return sum(POINTS[d.kind] * EXTENT_FACTOR[d.extent] for d in damages)


def grade(damages):
    """Highest grade whose threshold is reached; live insects are always urgent."""
    if any(d.kind == "live insects" for d in damages):
        return "urgent"
    total = points(damages)
    return [name for least, name in GRADES if total >= least][-1]


def years_to_next_check(damages, on_show):
    """Interval by grade; things on show are looked at twice as often."""
    years = CHECK_YEARS[grade(damages)]
    return years / 2 if on_show else years


def queue(cases):
    """Order of treatment.

    `cases` are (number, damages, value_class). First by points, highest first;
    with equal points the dearer class goes first.
    """
    return sorted(cases, key=lambda c: (-points(c[1]), c[2]))
