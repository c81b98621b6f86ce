"""The picture of the comparison: success of each arm in each seed, and the differences with their intervals."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from reflectkit.evals.plot import pyplot_for_files, save_picture
from research.claim.arms import Records, end_of
from research.claim.verdict import compare
from research.claim.worlds import World

SHOWN = {
    ("sft", "plain, SFT"): "SFT",
    ("plain", "plain"): "SFT → RL",
    ("longer", "longer"): "SFT → RL, equal tokens",
    ("think", "think"): "one model thinks first → RL",
    ("pair", "pair"): "reflector + policy → RL",
    ("others", "others"): "the pair, comments on other states → RL",
    ("pair", "pair, taught"): "the pair, before RL with the reflector",
    ("sft", "typed, SFT"): "typed reflector + policy, SFT",
    ("typed", "typed"): "typed reflector + policy → RL",
    ("typed", "typed, on other states"): "the same, comments on other states",
}
"""The rows of the left half, where there are such: the record, and the player in it."""
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#777777"


def draw(records: Records, world: World, out: Path) -> None:
    """Draw the complete seeds `records` of `world` into `out`, a .png or .svg."""
    pyplot = pyplot_for_files()
    picture, (left, right) = pyplot.subplots(1, 2, figsize=(11, 3.6), width_ratios=(3, 2))
    _draw_success(left, records)
    _draw_differences(right, records, world)
    save_picture(picture, (left, right), out)


def _draw_success(axes: Any, records: Records) -> None:
    """A dot for each seed, and a line at their mean."""
    first = next(iter(records.values()))
    shown = {}
    for (arm, player), label in SHOWN.items():
        if arm in first and player in first[arm]["success"]:
            shown[arm, player] = label
    for place, ((arm, player), label) in enumerate(shown.items()):
        successes = [100 * arms[arm]["success"][player] for arms in records.values()]
        colour = ORANGE if player in ("pair", "pair, taught", "typed") else BLUE
        # Equal successes are at different heights, so they all stay visible
        heights = [place + 0.4 * ((index + 0.5) / len(successes) - 0.5) for index in range(len(successes))]
        axes.scatter(successes, heights, s=22, color=colour, alpha=0.6, linewidths=0)
        axes.vlines(fmean(successes), place - 0.32, place + 0.32, color=colour, linewidth=3)
        axes.text(-0.02, place, label, ha="right", va="center", transform=axes.get_yaxis_transform())
    axes.set_yticks([])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(-3, 103)
    axes.set_xlabel("success on held-out starts, %; a dot a seed")


def _draw_differences(axes: Any, records: Records, world: World) -> None:
    """The paired differences with their 95 % intervals."""
    compared = (world.primary, *world.secondary)
    for place, (first, second) in enumerate(compared):
        found = compare(end_of(first, records), end_of(second, records))
        low, middle, high = (100 * value for value in (found.low, found.difference, found.high))
        colour = ORANGE if place == 0 else GREY
        axes.hlines(place, low, high, color=colour, linewidth=3)
        axes.plot(middle, place, "o", color=colour, markersize=8)
        axes.text(-0.02, place, f"{first} − {second}", ha="right", va="center", transform=axes.get_yaxis_transform())
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set_yticks([])
    axes.set_ylim(len(compared) - 0.4, -0.6)
    axes.set_xlabel("difference, points, 95 % interval")
