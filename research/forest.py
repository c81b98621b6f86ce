"""Forest plots: a row with an interval for each effect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectkit.evals.plot import COLOURS, label_text, pyplot_for_files, save_picture

TALLEST = 1400  # pixels of a figure of many intervals, above which it is drawn smaller
MOST_ROWS = 50  # of intervals in a column, above which there are several
MOST_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class Interval:
    """One row of `draw_intervals`, in the unit of its axis."""

    label: str
    """Text to its left."""
    middle: float
    """The estimate."""
    low: float
    """Lower end of its interval."""
    high: float
    """Upper end of its interval."""
    open: bool = False
    """Whether its marker is hollow."""
    square: bool = False
    """Whether its marker is a square."""


def draw_intervals(
    groups: Mapping[str, Sequence[Interval]],
    axis: str,
    out: Path,
    *,
    band: float = 0.0,
    legend: str = "",
    limits: tuple[float, float] | None = None,
) -> None:
    """A forest plot: a row for each interval, below the title of its group; many groups in several columns with one
    axis. band: half the width of the shaded zone of equivalence around 0, which has a line then. legend: what the
    markers mean. limits: the ends of the axis; None: those of the intervals.
    """
    pyplot = pyplot_for_files()
    columns = in_columns({title: 1 + len(some) for title, some in groups.items()})
    rows = max(sum(1 + len(groups[title]) for title in column) for column in columns)
    height = 1.2 + 0.3 * rows
    picture, panels = pyplot.subplots(
        1,
        len(columns),
        figsize=(8 if len(columns) == 1 else 6.5 * len(columns), height),
        dpi=min(150, TALLEST / height),
        sharex=True,
        squeeze=False,
    )
    colours = {title: COLOURS[index % len(COLOURS)] for index, title in enumerate(groups)}
    for panel, titles in zip(panels[0], columns, strict=True):
        _draw_column(panel, {title: groups[title] for title in titles}, colours)
        if band:
            panel.axvspan(-band, band, color="0.88", zorder=0)
            panel.axvline(0, color="0.4", linewidth=1, zorder=1)
        panel.set_ylim(rows - 0.3, -0.7)
        panel.set_xlabel(axis, fontsize=9)
        if limits is not None:
            panel.set_xlim(limits)
    if legend:
        picture.supxlabel(legend, fontsize=9)
    save_picture(picture, panels[0], out)


def in_columns(rows: Mapping[str, int]) -> list[list[str]]:
    """The groups, in their order, in as many columns as their `rows` need, at most `MOST_COLUMNS`, of about the same
    height.

    >>> in_columns({"a": 30, "b": 10, "c": 10, "d": 20})
    [['a', 'b'], ['c', 'd']]
    """
    wanted = max(1, min(MOST_COLUMNS, math.ceil(sum(rows.values()) / MOST_ROWS)))
    height = max(1, *rows.values(), math.ceil(sum(rows.values()) / wanted))
    while True:
        columns: list[list[str]] = [[]]
        filled = 0
        for title, count in rows.items():
            if filled and filled + count > height:
                columns.append([])
                filled = 0
            columns[-1].append(title)
            filled += count
        if len(columns) <= wanted:
            return columns
        height += 1


def _draw_column(panel: Any, groups: Mapping[str, Sequence[Interval]], colours: Mapping[str, str]) -> None:
    places: list[float] = []
    labels: list[str] = []
    place = 0.0
    for title, some in groups.items():
        colour = colours[title]
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        across = panel.get_yaxis_transform()
        panel.text(0.01, place, label_text(title), transform=across, weight="bold", va="center", fontsize=9, bbox=box)
        for one in some:
            place += 1
            panel.plot([one.low, one.high], [place, place], color=colour, linewidth=2, zorder=2)
            inside = "white" if one.open else colour
            panel.plot([one.middle], [place], "s" if one.square else "o", color=colour, mfc=inside, ms=6, zorder=3)
            places.append(place)
            labels.append(label_text(one.label))
        place += 1
    panel.set_yticks(places, labels, fontsize=8)
    panel.tick_params(axis="y", length=0)
    panel.grid(alpha=0.3, axis="x")
