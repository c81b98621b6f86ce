"""Learning curves and bars as pictures, from the metrics.jsonl of runs and from evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from reflectkit.console import visible
from reflectkit.errors import DataError
from reflectkit.jsonl import read_jsonl, replacing
from reflectkit.prompts import one_line
from reflectkit.runs.run import read_record
from reflectkit.types import LARGEST, NAMED

SUMMED = {"tokens": ("tokens",), "seconds": ("rollout_seconds", "update_seconds")}
"""The figures of metrics.jsonl that are per update, and are summed along this axis."""
VALIDATION = "validation_"  # what the names of the figures of validation begin with
Rows = dict[int, tuple[Path, int, dict[str, Any]]]
"""Rows of metrics.jsonl by step, each with its file and line."""
Curve = tuple[Sequence[float], Sequence[float]]
"""Positions on the axis, and the values there."""
Numbers = tuple[float, float, float]
"""The mean of a figure, and the ends of its interval."""
ReliabilityBins = Sequence[Mapping[str, float]]
"""Each {confidence, hits, low, high, forecasts}, as eval.json has them."""


def read_curves(
    paths: Sequence[Path],
    figure: str,
    against: str = "episodes",
    window: int = 1,
) -> list[Curve]:
    """The smoothed curve of the figure of each run; chained runs give each update once.

    paths: the runs' metrics.jsonl. against: the axis: episodes, step, tokens or seconds. window: of the moving average,
    in updates.

    A figure that the env reported in one of the runs is 0 at that level, in all runs of the same env, where no episode
    came far enough to report it. Validation is always at one level. The curve of a run that does not have the figure is
    empty if another one has it. Raises DataError.
    """
    # 1. The rows of each run
    runs = [_rows_of(path) for path in paths]
    prefix = VALIDATION if figure.startswith(VALIDATION) else ""
    name = figure.removeprefix(prefix)

    # 2. 0 where no episode came far enough to report the figure, though some of the same env and level did
    comparable: dict[Any, list[dict[str, Any]]] = {}
    for path, rows in zip(paths, runs, strict=True):
        env = _settings(path).get("env", path)
        for _, _, row in rows.values():
            if f"{prefix}return" in row:
                level = None if prefix else str(row.get("level"))
                comparable.setdefault((env, level), []).append(row)
    for group in comparable.values():
        if any(name in (row.get(f"{prefix}{NAMED}") or ()) for row in group):
            for row in group:
                row.setdefault(figure, 0.0)

    # 3. The curves; a run without the figure has none, unless that is a mistake in its name
    has_figure = [any(figure in row for _, _, row in rows.values()) for rows in runs]
    curves: list[Curve] = []
    for path, rows, has in zip(paths, runs, has_figure, strict=True):
        if has or not any(has_figure):
            places, values = _curve(path, rows, figure, against)
            curves.append((places, smooth(values, window)))
        else:
            curves.append(([], []))
    return curves


def _settings(path: Path) -> dict[str, Any]:
    """The settings of the run with these metrics, as far as its config.json says."""
    return dict(read_record(path.parent).get("settings", {}))


def chained(path: Path) -> list[Path]:
    """The metrics of `path` and of the runs that it resumed from, the first one first. Raises DataError if they form a
    cycle.
    """
    chain = [path]
    while True:
        checkpoint = _settings(chain[0]).get("resume_from")
        if not checkpoint:
            return chain
        # It is relative to where the run was started, above the run
        bases = (*chain[0].absolute().parents, Path())
        candidates = (base / Path(checkpoint).parent / "metrics.jsonl" for base in bases)
        before = next((candidate for candidate in candidates if candidate.is_file()), None)
        if before is None:
            return chain
        if before in chain:
            fix = "one of their config.json files is wrong"
            raise DataError(path, f"resumed from {before}, and that one from it; {fix}")
        chain.insert(0, before)


def _rows_of(path: Path) -> Rows:
    """The updates of `path` and of the runs that it resumed from. Raises DataError."""
    rows: Rows = {}
    for part in chained(path):
        part_rows: Rows = {}
        for line, row in read_jsonl(part):
            step = int(number_in(part, line, row, "step"))
            part_rows[step] = part, line, dict(row)
        first = min(part_rows)
        rows = {step: entry for step, entry in rows.items() if step < first} | part_rows
    return rows


def _curve(
    path: Path,
    rows: Rows,
    figure: str,
    against: str,
) -> tuple[list[float], list[float]]:
    # Not every update is validated or has rows to learn
    is_in_some = any(figure in row for _, _, row in rows.values())
    places: list[float] = []
    values: list[float] = []
    total = 0.0
    for _, (part, line, row) in sorted(rows.items()):
        parts_of_axis = SUMMED.get(against, ())
        total += sum(number_in(part, line, row, name) for name in parts_of_axis)
        if figure not in row and is_in_some:
            continue
        values.append(float(number_in(part, line, row, figure)))
        place = total if against in SUMMED else number_in(part, line, row, against)
        places.append(float(place))
    return places, values


def number_in(
    path: Path,
    line: int,
    row: Mapping[str, Any],
    name: str,
) -> Any:
    """A figure of a row. Raises DataError if it is not a number."""
    value: Any = row.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= LARGEST:
        numeric = [key for key, other in row.items() if isinstance(other, int | float)]
        names = ", ".join(numeric)
        raise DataError(path, f"is no number here; this run has {names}", line=line, field=name)
    return value


def smooth(values: list[float], window: int) -> list[float]:
    """Trailing mean over up to `window` values; the first ones average what there is. Same length as `values`."""
    means = []
    for end in range(1, len(values) + 1):
        start = max(0, end - window)
        means.append(fmean(values[start:end]))
    return means


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Of Okabe and Ito, which the colour-blind can tell from each other."""
STYLES = ("-", "--", "-.", ":")
LONGEST_NAME = 200  # characters
BANDS = 3  # above that many curves with ranges, their bands hide each other
RIGHT_OF_PANEL: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
"""Where a legend is."""
SHARES = ("success_rate", "accuracy", "tool_success", "content", "success")  # from 0 to 1


def draw_curves(
    panels: Mapping[str, Mapping[str, Sequence[Curve]]],
    against: str,
    window: int,
    out: Path,
) -> None:
    """One panel per figure: the median of each name's curves (x, y), with their range if there are several; with more
    than BANDS names, each curve as a thin line instead. window: of the moving average that the curves are of.
    """
    pyplot = pyplot_for_files()
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    size = (9, 1 + 3 * len(panels))
    picture, axes = pyplot.subplots(len(panels), 1, figsize=size, dpi=150, squeeze=False)
    for panel, (figure, curves) in zip(axes[:, 0], panels.items(), strict=True):
        # 1. The curves of each name
        range_count = sum(len(seeds) > 1 for seeds in curves.values())
        has_bands = range_count <= BANDS
        for name, seeds in curves.items():
            _draw_curve(panel, name, names.index(name), seeds, has_band=has_bands)

        # 2. What they are
        label = figure.replace("_", " ")
        panel.set(xlabel=against, ylabel=label)
        most_values = max(len(values) for seeds in curves.values() for _, values in seeds)
        updates = min(window, most_values)
        mean = f", mean of {updates} updates" if updates > 1 else ""
        spread = ""
        if range_count:
            spread = f", median and {'range of seeds' if has_bands else 'each seed'}"
        panel.set_title(f"{label}{mean}{spread}")
        if figure.removeprefix("validation_") in SHARES:
            panel.set_ylim(-0.02, 1.02)
        panel.grid(alpha=0.3)
        panel.legend(frameon=False, **RIGHT_OF_PANEL)
    save_picture(picture, axes[:, 0], out)


def _draw_curve(
    panel: Any,
    name: str,
    index: int,
    seeds: Sequence[Curve],
    *,
    has_band: bool,
) -> None:
    """The median of a name's curves, and their range or each of them. index: of the colour and the style."""
    import numpy as np

    # 1. The values of all seeds at the same places, which are those that all have if there are any
    places = np.unique(np.concatenate([seed_places for seed_places, _ in seeds]))
    first = max(seed_places[0] for seed_places, _ in seeds)
    last = min(seed_places[-1] for seed_places, _ in seeds)
    in_all = (places >= first) & (places <= last)
    if in_all.any():
        places = places[in_all]
    values_SN = np.array([np.interp(places, *seed) for seed in seeds])

    # 2. Their lines
    line = {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": STYLES[index // len(COLOURS) % len(STYLES)],
    }
    label = label_text(f"{name} ({len(seeds)} seeds)" if len(seeds) > 1 else name)
    panel.plot(places, np.median(values_SN, axis=0), linewidth=2, label=label, **line)
    if len(seeds) > 1 and has_band:
        low = values_SN.min(axis=0)
        high = values_SN.max(axis=0)
        panel.fill_between(
            places,
            low,
            high,
            color=line["color"],
            alpha=0.2,
            linewidth=0,
        )
    elif len(seeds) > 1:
        panel.plot(places, values_SN.T, linewidth=0.7, alpha=0.5, **line)


def draw_bars(
    figure: str,
    bars: Mapping[str, Mapping[str, Numbers]],
    out: Path,
) -> None:
    """Groups of bars with intervals: player → level → (mean, low, high)."""
    # 1. The picture, wide enough for all bars
    pyplot = pyplot_for_files()
    levels = list(dict.fromkeys(level for by_level in bars.values() for level in by_level))
    size = (max(7, 0.45 * len(bars) * len(levels) + 3), 4)
    picture, axes = pyplot.subplots(figsize=size, dpi=150)
    panel: Any = axes
    width = 0.8 / max(1, len(bars))
    figures = [numbers for by_level in bars.values() for numbers in by_level.values()]
    has_intervals = any(low != high for _, low, high in figures)

    # 2. A bar for each player in each level's group
    for index, (name, by_level) in enumerate(bars.items()):
        places = []
        means = []
        lower = []
        upper = []
        for place, level in enumerate(levels):
            if level in by_level:
                mean, low, high = by_level[level]
                places.append(place - 0.4 + width * (index + 0.5))
                means.append(mean)
                lower.append(max(0.0, mean - low))  # rounding may put an end on the wrong side
                upper.append(max(0.0, high - mean))
        panel.bar(
            places,
            means,
            width * 0.92,
            yerr=[lower, upper] if has_intervals else None,
            capsize=2,
            color=COLOURS[index % len(COLOURS)],
            label=label_text(name),
        )

    # 3. What they are
    panel.set_xticks(range(len(levels)), list(map(label_text, levels)))
    title = f"{figure.replace('_', ' ')} by level{', 95 % intervals' if has_intervals else ''}"
    panel.set(ylabel=figure.replace("_", " "), title=title)
    if figure in SHARES:
        panel.set_ylim(0, 1.02)
    panel.grid(alpha=0.3, axis="y")
    panel.set_axisbelow(True)
    panel.legend(frameon=False, fontsize=8, **RIGHT_OF_PANEL)
    save_picture(picture, [panel], out)


def draw_reliability(panels: Mapping[str, Mapping[str, ReliabilityBins]], out: Path) -> None:
    """One panel for each thing that is foretold: how often it came true against how likely it was called, by player,
    with 95 % intervals; a larger dot has more forecasts. On the diagonal, probabilities mean what they say.

    panels: what is foretold → player → bins.
    """
    pyplot = pyplot_for_files()
    names = list(dict.fromkeys(name for players in panels.values() for name in players))
    size = (1.5 + 4 * len(panels), 4.4)
    picture, axes = pyplot.subplots(1, len(panels), figsize=size, dpi=150, squeeze=False)
    for panel, (kind, players) in zip(axes[0], panels.items(), strict=True):
        # 1. The diagonal, and each player's bins with their intervals
        panel.plot([0, 1], [0, 1], color="0.6", linestyle=":", linewidth=1)
        for name, bins in players.items():
            colour = COLOURS[names.index(name) % len(COLOURS)]
            places = [row["confidence"] for row in bins]
            hits = [row["hits"] for row in bins]
            errors = [
                [max(0.0, row["hits"] - row["low"]) for row in bins],
                [max(0.0, row["high"] - row["hits"]) for row in bins],
            ]
            total = sum(row["forecasts"] for row in bins)  # of which a dot's size is a share
            sizes = [12 + 160 * row["forecasts"] / total for row in bins]
            panel.errorbar(
                places,
                hits,
                yerr=errors,
                color=colour,
                linewidth=1,
                elinewidth=0.8,
                capsize=2,
            )
            panel.scatter(
                places,
                hits,
                s=sizes,
                color=colour,
                alpha=0.8,
                label=label_text(name),
            )

        # 2. What they are
        panel.set(
            xlim=(-0.03, 1.03),
            ylim=(-0.03, 1.03),
            xlabel="probability",
            ylabel="came true",
            title=kind,
        )
        panel.set_aspect("equal")
        panel.grid(alpha=0.3)

    # One legend, whose dots are all of the same size
    legend = axes[0, -1].legend(frameon=False, fontsize=8, **RIGHT_OF_PANEL)
    for handle in legend.legend_handles:
        handle.set_sizes([40])
    save_picture(picture, axes[0], out)


def pyplot_for_files() -> Any:
    """matplotlib for files: dollars are not math, and SVG ids are deterministic."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"text.parse_math": False, "svg.hashsalt": "reflectkit"})
    from matplotlib import pyplot

    return pyplot


def label_text(name: str) -> str:
    """`name` on one line, the end of a long one cut off; matplotlib omits labels that start with an underscore from the
    legend.
    """
    text = visible(one_line(name))
    text = text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"
    return f" {text}" if text.startswith("_") else text


def save_picture(
    picture: Any,
    panels: Sequence[Any],
    out: Path,
) -> None:
    """Write a figure as `out`, .png or .svg, the same bytes for the same data."""
    for panel in panels:
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    picture.tight_layout()
    metadata = {"Software": None} if out.suffix == ".png" else {"Date": None}
    with replacing(out) as file:
        picture.savefig(file, format=out.suffix[1:], metadata=metadata)
    pyplot_for_files().close(picture)
