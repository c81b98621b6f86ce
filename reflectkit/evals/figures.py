"""Learning curves and bars as pictures, from the metrics.jsonl of runs and from evaluations."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from reflectkit.errors import DataError
from reflectkit.evals.stats import smooth
from reflectkit.jsonl import read_json, read_jsonl, replacing
from reflectkit.prompts import one_line
from reflectkit.text import visible
from reflectkit.train.metrics import NAMED
from reflectkit.types import LARGEST

AGAINST = ("episodes", "step", "tokens", "seconds")
"""The axes."""
SUMMED = {"tokens": ("tokens",), "seconds": ("rollout_seconds", "update_seconds")}
"""The figures of metrics.jsonl that are per update, and are summed along this axis."""
VALIDATION = "validation_"
"""What the names of the figures of validation begin with."""
LONGEST_CHAIN = 100  # runs, each resumed from the one before
Rows = dict[int, tuple[Path, int, dict[str, Any]]]
"""Rows of metrics.jsonl by step, each with its file and line."""


def read_curves(paths: Sequence[Path], figure: str, against: str = "episodes", window: int = 1) -> list[Curve]:
    """(positions on the axis, smoothed values of the figure) of each run; chained runs give each update once.

    paths: the runs' metrics.jsonl. against: the axis, one of AGAINST. window: of the moving average, in updates.

    A figure that the env reported in one of the runs is 0 at that level, in all runs of the same env and its code,
    where no episode came far enough to report it. Raises DataError.
    """
    runs = [_rows_of(path) for path in paths]
    by_env: dict[str | Path, list[Rows]] = {}
    for path, rows in zip(paths, runs, strict=True):
        by_env.setdefault(_env_of(path) or path, []).append(rows)
    for same in by_env.values():
        _complete(same, figure)
    curves = [_curve(path, rows, figure, against) for path, rows in zip(paths, runs, strict=True)]
    return [(places, smooth(values, window)) for places, values in curves]


def _env_of(path: Path) -> str:
    """What env a run has played, with the digests of its code where it is the user's own; "" if nothing says so."""
    try:
        record = read_json(path.with_name("config.json"))
        code = {file: digest for file, digest in (record.get("inputs") or {}).items() if file.endswith(".py")}
        return f"{record['settings']['env']} {sorted(code.items())}"
    except (DataError, KeyError, TypeError, AttributeError):
        return ""


def chained(path: Path) -> list[Path]:
    """The metrics of `path` and of the runs that it resumed from, the first one first.

    Raises DataError if they form a cycle.
    """
    chain = [path]
    while (before := _resumed_from(chain[0])) is not None:
        if before in chain or len(chain) >= LONGEST_CHAIN:
            raise DataError(
                path, f"resumed from {before}, and that one from it; one of their config.json files is wrong"
            )
        chain.insert(0, before)
    return chain


def _resumed_from(path: Path) -> Path | None:
    try:
        settings = read_json(path.with_name("config.json"))["settings"]
        start = settings.get("resume_from")
    except (DataError, KeyError, TypeError, AttributeError):
        return None
    if not isinstance(start, str) or not start:
        return None
    bases = (*path.absolute().parents, Path())  # it is relative to where the run was started, which is above the run
    places = (base / Path(start).parent / "metrics.jsonl" for base in bases)
    return next((place for place in places if place.is_file()), None)


def _rows_of(path: Path) -> Rows:
    """The updates of `path` and of the runs that it resumed from. Raises DataError."""
    rows: Rows = {}
    for part in chained(path):
        entries = [(part, line, dict(row)) for line, row in read_jsonl(part)]
        first = min((number_in(part, line, row, "step") for part, line, row in entries), default=0)
        rows = {step: entry for step, entry in rows.items() if step < first}
        rows |= {int(number_in(part, line, row, "step")): (part, line, row) for part, line, row in entries}
    return rows


def _complete(runs: Sequence[Rows], figure: str) -> None:
    """Set the env's `figure` to 0 in the updates in which no episode came far enough to report it, at the levels at
    which the env has it. Validation is always at one level.
    """
    when, name = (VALIDATION, figure.removeprefix(VALIDATION)) if figure.startswith(VALIDATION) else ("", figure)
    every = [row for rows in runs for _, _, row in rows.values() if f"{when}success_rate" in row]
    levels = {None if when else row.get("level") for row in every if name in _names(row, when)}
    for row in every:
        if (None if when else row.get("level")) in levels:
            row.setdefault(figure, 0.0)


def _names(row: Mapping[str, Any], when: str) -> list[str]:
    names = row.get(f"{when}{NAMED}")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _curve(path: Path, rows: Rows, figure: str, against: str) -> tuple[list[float], list[float]]:
    in_some = any(figure in row for _, _, row in rows.values())  # not every update is validated or has rows to learn
    places: list[float] = []
    values: list[float] = []
    total = 0.0
    for _, (part, line, row) in sorted(rows.items()):
        if against in SUMMED:
            total += sum(number_in(part, line, row, name) for name in SUMMED[against])
        if figure in row or not in_some:
            values.append(float(number_in(part, line, row, figure)))
            places.append(total if against in SUMMED else float(number_in(part, line, row, against)))
    if not values:
        raise DataError(path, "has no update yet")
    return places, values


def number_in(path: Path, line: int, row: Mapping[str, Any], name: str) -> Any:
    """A figure of a row. Raises DataError if it is not a number."""
    value = row.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= LARGEST:
        numeric = [key for key, other in row.items() if isinstance(other, int | float)]
        more = "; --validate-steps adds such figures" if name.startswith(VALIDATION) else ""
        raise DataError(
            path,
            f"is not a number of at most {LARGEST:g} in size here; this run has {', '.join(numeric)}{more}",
            line=line,
            field=name,
        )
    return value


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito: safe for the colour-blind
STYLES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "..", "xx")
TALLEST = 1400  # pixels of a figure of many intervals, above which it is drawn smaller
MOST_ROWS = 50  # of intervals in a column, above which there are several
MOST_COLUMNS = 4
LONGEST_NAME = 200  # characters
BANDS = 3  # above that many curves with ranges, their bands hide each other
INSIDE = 6  # a legend of more names covers the curves
BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)}  # a legend to the right of its panel
SHARES = ("success_rate", "accuracy", "tool_success", "content", "success")  # from 0 to 1

Curve = tuple[Sequence[float], Sequence[float]]


def draw_curves(panels: Mapping[str, Mapping[str, Sequence[Curve]]], against: str, smoothed: int, out: Path) -> None:
    """One panel per figure: the median of each name's curves (x, y), with their range if there are several; with more
    than BANDS names, each curve as a thin line instead. The names stand beside the panel then, and where there are more
    than INSIDE.
    """
    import numpy as np

    pyplot = _pyplot()
    several = {figure: sum(len(seeds) > 1 for seeds in curves.values()) for figure, curves in panels.items()}
    outside = max(map(len, panels.values()), default=0) > INSIDE or max(several.values(), default=0) > BANDS
    size = (9 if outside else 7, 1 + 3 * len(panels))
    picture, axes = pyplot.subplots(len(panels), 1, figsize=size, dpi=150, squeeze=False)
    for panel, (figure, curves) in zip(axes[:, 0], panels.items(), strict=True):
        banded = several[figure] <= BANDS
        for index, (name, seeds) in enumerate(curves.items()):
            places = np.unique(np.concatenate([where for where, _ in seeds]))
            shared = (places >= max(where[0] for where, _ in seeds)) & (places <= min(where[-1] for where, _ in seeds))
            places = places[shared] if shared.any() else places
            values_SN = np.array([np.interp(places, where, values) for where, values in seeds])
            colour, style = COLOURS[index % len(COLOURS)], STYLES[index // len(COLOURS) % len(STYLES)]
            shown = _shown(f"{name} ({len(seeds)} seeds)" if len(seeds) > 1 else name)
            panel.plot(places, np.median(values_SN, axis=0), color=colour, linestyle=style, linewidth=2, label=shown)
            if len(seeds) > 1 and banded:
                panel.fill_between(
                    places, values_SN.min(axis=0), values_SN.max(axis=0), color=colour, alpha=0.2, linewidth=0
                )
            elif len(seeds) > 1:
                panel.plot(places, values_SN.T, color=colour, linestyle=style, linewidth=0.7, alpha=0.5)
        label = figure.replace("_", " ")
        panel.set(xlabel=against, ylabel=label)
        mean = f", mean of {smoothed} updates" if smoothed > 1 else ""
        spread = f", median and {'range of seeds' if banded else 'each seed'}" if several[figure] else ""
        panel.set_title(f"{label}{mean}{spread}")
        if figure.removeprefix("validation_") in SHARES:
            panel.set_ylim(-0.02, 1.02)
        panel.grid(alpha=0.3)
        panel.legend(frameon=False, **(BESIDE if outside else {}))
    _finish(picture, axes[:, 0], out)


def draw_bars(figure: str, bars: Mapping[str, Mapping[str, tuple[float, float, float]]], out: Path) -> None:
    """Groups of bars with intervals: player → level → (mean, low, high)."""
    pyplot = _pyplot()
    levels = list(dict.fromkeys(level for one in bars.values() for level in one))
    picture, axes = pyplot.subplots(figsize=(max(7, 0.45 * len(bars) * len(levels) + 3), 4), dpi=150)
    panel: Any = axes
    wide = 0.8 / max(1, len(bars))
    for index, (name, by_level) in enumerate(bars.items()):
        shown = [(place, by_level[level]) for place, level in enumerate(levels) if level in by_level]
        places = [place - 0.4 + wide * (index + 0.5) for place, _ in shown]
        means = [mean for _, (mean, _, _) in shown]
        errors = [  # rounding may put an end on the wrong side of the mean
            [max(0.0, mean - low) for _, (mean, low, _) in shown],
            [max(0.0, high - mean) for _, (mean, _, high) in shown],
        ]
        hatch = HATCHES[index // len(COLOURS) % len(HATCHES)]
        colour = COLOURS[index % len(COLOURS)]
        panel.bar(places, means, wide * 0.92, yerr=errors, capsize=2, color=colour, hatch=hatch, label=_shown(name))
    panel.set_xticks(range(len(levels)), list(map(_shown, levels)))
    panel.set(ylabel=figure.replace("_", " "), title=f"{figure.replace('_', ' ')} by level, 95 % intervals")
    if figure in SHARES:
        panel.set_ylim(0, 1.02)
    panel.grid(alpha=0.3, axis="y")
    panel.set_axisbelow(True)
    panel.legend(frameon=False, fontsize=8, **BESIDE)
    _finish(picture, [panel], out)


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
    pyplot = _pyplot()
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
    _finish(picture, panels[0], out)


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
        panel.text(0.01, place, _shown(title), transform=across, weight="bold", va="center", fontsize=9, bbox=box)
        for one in some:
            place += 1
            panel.plot([one.low, one.high], [place, place], color=colour, linewidth=2, zorder=2)
            inside = "white" if one.open else colour
            panel.plot([one.middle], [place], "s" if one.square else "o", color=colour, mfc=inside, ms=6, zorder=3)
            places.append(place)
            labels.append(_shown(one.label))
        place += 1
    panel.set_yticks(places, labels, fontsize=8)
    panel.tick_params(axis="y", length=0)
    panel.grid(alpha=0.3, axis="x")


def _pyplot() -> Any:
    """matplotlib for files: dollars are not math, and SVG ids are deterministic."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"text.parse_math": False, "svg.hashsalt": "reflectkit"})
    from matplotlib import pyplot

    return pyplot


def _shown(name: str) -> str:
    """`name` on one line, the end of a long one cut off; matplotlib omits labels that start with an underscore from the
    legend.
    """
    text = visible(one_line(name))
    text = text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"
    return f" {text}" if text.startswith("_") else text


def _finish(picture: Any, panels: Sequence[Any], out: Path) -> None:
    for panel in panels:
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    picture.tight_layout()
    with replacing(out) as file:
        if out.suffix == ".png":
            _save_small(picture, file)
        else:
            picture.savefig(file, format=out.suffix[1:], metadata={"Date": None})
    _pyplot().close(picture)


def _save_small(picture: Any, file: IO[bytes]) -> None:
    """As a PNG of 256 colours, a fourth of the bytes."""
    from PIL import Image

    whole = io.BytesIO()
    picture.savefig(whole, format="png", metadata={"Software": None})
    Image.open(whole).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
        file, "png", optimize=True
    )
