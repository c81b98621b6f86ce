"""Pictures of learning curves, bars and reliability, from metrics.jsonl and evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from reflectkit.console import visible
from reflectkit.errors import DataError, unknown_name
from reflectkit.jsonl import read_jsonl, replacing
from reflectkit.prompts import one_line
from reflectkit.runs.run import read_record
from reflectkit.types import LARGEST, NAMED

SUMMED = {"tokens": ("tokens",), "seconds": ("rollout_seconds", "update_seconds")}
"""For an axis that adds up over updates, the figures of metrics.jsonl whose sums it shows."""
VALIDATION = "validation_"
"""The prefix in the names of validation's figures."""
Rows = dict[int, tuple[Path, int, dict[str, Any]]]
"""By step: (the metrics.jsonl, the number of the line, the row in it)."""
Curve = tuple[Sequence[float], Sequence[float]]
"""Places on the axis, and the values there."""
Numbers = tuple[float, float, float]
"""The mean of a figure, and the ends of its interval."""
ReliabilityBins = Sequence[Mapping[str, float]]
"""Bins as eval.json has them, each {confidence, hits, low, high, forecasts}."""


def read_curves(
    paths: Sequence[Path],
    figure: str,
    against: str = "episodes",
    window: int = 1,
) -> list[Curve]:
    """The smoothed curve of a figure, for each run. A run continues the curve of the one it
    resumed.

    paths: the runs' metrics.jsonl. against: the axis: episodes, step, tokens or seconds. window:
    the length of the moving average, in updates.

    An env may report a figure only in episodes that come far enough. If a run has it at a level, it
    is 0 in updates without it, in all runs of the same env at that level. Validation counts as one
    level. The curve of a run without the figure is empty if another run has it. Raises DataError.
    """
    # 1. The rows of each run
    runs = [_rows_of(path) for path in paths]
    prefix = VALIDATION if figure.startswith(VALIDATION) else ""
    name = figure.removeprefix(prefix)

    # 2. The rows with episodes, by env and level
    comparable: dict[Any, list[dict[str, Any]]] = {}
    for path, rows in zip(paths, runs, strict=True):
        env = _settings(path).get("env", path)
        for _, _, row in rows.values():
            if f"{prefix}return" in row:
                level = None if prefix else str(row.get("level"))
                comparable.setdefault((env, level), []).append(row)

    # 3. A figure that one of them has is 0 in the others
    for group in comparable.values():
        reported_names = [row.get(f"{prefix}{NAMED}") or () for row in group]
        if any(name in names for names in reported_names):
            for row in group:
                row.setdefault(figure, 0.0)

    # 4. The curves. If no run has the figure, its name is wrong, and `_curve` raises
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


def run_chain(path: Path) -> list[Path]:
    """The metrics.jsonl `path` and those of the runs that it resumed from, the earliest first.

    Raises DataError if the runs form a cycle.
    """
    chain = [path]
    while True:
        checkpoint = _settings(chain[0]).get("resume_from")
        if not checkpoint:
            return chain
        # Its path is relative to the folder where the run was started, a parent of the run's folder
        bases = (*chain[0].absolute().parents, Path())
        candidates = (base / Path(checkpoint).parent / "metrics.jsonl" for base in bases)
        earlier = next((candidate for candidate in candidates if candidate.is_file()), None)
        if earlier is None:
            return chain
        if earlier in chain:
            fix = "one of their config.json files is wrong"
            raise DataError(path, f"resumed from {earlier}, and that one from it; {fix}")
        chain.insert(0, earlier)


def _rows_of(path: Path) -> Rows:
    """The updates of `path` and of the runs that it resumed from. Raises DataError."""
    rows: Rows = {}
    for part in run_chain(path):
        part_rows: Rows = {}
        for line, row in read_jsonl(part):
            step = int(number_in(part, line, row, "step"))
            part_rows[step] = part, line, dict(row)
        # Updates that the earlier run made after its checkpoint were made again
        first = min(part_rows)
        rows = {step: entry for step, entry in rows.items() if step < first} | part_rows
    return rows


def _curve(
    path: Path,
    rows: Rows,
    figure: str,
    against: str,
) -> tuple[list[float], list[float]]:
    """(places on the axis `against`, values of the figure there) of a run. Raises DataError."""
    # Some updates lack a figure: not all are validated, and some have no rows to learn from
    is_in_some = any(figure in row for _, _, row in rows.values())
    places: list[float] = []
    values: list[float] = []
    total = 0.0
    for _, (part, line, row) in sorted(rows.items()):
        summands = [number_in(part, line, row, name) for name in SUMMED.get(against, ())]
        total += sum(summands)
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
    """The figure `name` of a row. path, line: where the row is. Raises DataError if it is no
    number.
    """
    value: Any = row.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= LARGEST:
        numeric = [key for key, other in row.items() if isinstance(other, int | float)]
        if name not in row:
            raise unknown_name(f"figure of {path}", name, numeric)
        names = ", ".join(numeric)
        raise DataError(path, f"is no number here; this run has {names}", line=line, field=name)
    return value


def smooth(values: list[float], window: int) -> list[float]:
    """For each of the `values`, the mean of it and up to `window` - 1 values before it."""
    means = []
    for end in range(1, len(values) + 1):
        start = max(0, end - window)
        means.append(fmean(values[start:end]))
    return means


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""The colours of Okabe and Ito, which colour-blind people can tell from each other."""
STYLES = ("-", "--", "-.", ":")
"""Line styles, for more curves than there are colours."""
LONGEST_NAME = 200
"""The maximum length of a label, in characters."""
MOST_BANDS = 3
"""The bands of more curves than this would hide each other."""
RIGHT_OF_PANEL: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
"""The place of a legend."""
SHARES = ("success_rate", "accuracy", "tool_success", "content", "success")
"""Figures whose axis is from 0 to 1."""


def draw_curves(
    panels: Mapping[str, Mapping[str, Sequence[Curve]]],
    against: str,
    window: int,
    out: Path,
) -> None:
    """Draw one panel for each figure, with the median of each name's curves.

    A name with several curves, one per seed, also has a band from the lowest to the highest. If
    there would be more than MOST_BANDS bands, each curve is a thin line instead.

    panels: figure → name → curves. against: the axis. window: the length of the curves' moving
    average, in updates. out: the file, .png or .svg.
    """
    pyplot = pyplot_for_files()
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    size = (9, 1 + 3 * len(panels))
    picture, axes = pyplot.subplots(len(panels), 1, figsize=size, dpi=150, squeeze=False)
    for panel, (figure, curves) in zip(axes[:, 0], panels.items(), strict=True):
        # 1. The curves of each name
        band_count = sum(len(seeds) > 1 for seeds in curves.values())
        has_bands = band_count <= MOST_BANDS
        for name, seeds in curves.items():
            _draw_curve(panel, name, names.index(name), seeds, has_band=has_bands)

        # 2. Labels, title and legend
        label = figure.replace("_", " ")
        panel.set(xlabel=against, ylabel=label)
        most_values = max(len(values) for seeds in curves.values() for _, values in seeds)
        updates = min(window, most_values)
        mean = f", mean of {updates} updates" if updates > 1 else ""
        spread = ""
        if band_count:
            band = "range of seeds" if has_bands else "each seed"
            spread = f", median and {band}"
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
    """Draw the median of a name's curves, and a band or each of them.

    index: the number of the name, which determines colour and line style.
    """
    import numpy as np

    # 1. The N places of any curve that lie within all S curves, or all places if none does
    places = np.unique(np.concatenate([seed_places for seed_places, _ in seeds]))
    first = max(seed_places[0] for seed_places, _ in seeds)
    last = min(seed_places[-1] for seed_places, _ in seeds)
    in_all = (places >= first) & (places <= last)
    if in_all.any():
        places = places[in_all]

    # 2. The values of each curve at these places
    values_SN = np.array([np.interp(places, *seed) for seed in seeds])

    # 3. The lines
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
    """Draw a group of bars for each level, one bar with its interval for each player.

    bars: player → level → (mean, low, high). out: the file, .png or .svg.
    """
    # 1. A picture wide enough for all bars
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
                # Rounding may put an end on the wrong side
                lower.append(max(0.0, mean - low))
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

    # 3. Labels, title and legend
    panel.set_xticks(range(len(levels)), list(map(label_text, levels)))
    label = figure.replace("_", " ")
    intervals = ", 95 % intervals" if has_intervals else ""
    panel.set(ylabel=label, title=f"{label} by level{intervals}")
    if figure in SHARES:
        panel.set_ylim(0, 1.02)
    panel.grid(alpha=0.3, axis="y")
    panel.set_axisbelow(True)
    panel.legend(frameon=False, fontsize=8, **RIGHT_OF_PANEL)
    save_picture(picture, [panel], out)


def draw_reliability(panels: Mapping[str, Mapping[str, ReliabilityBins]], out: Path) -> None:
    """Draw one panel for each kind of forecasts: how often they came true, against their
    probability.

    Each player has a dot with a 95 % interval for each bin; a larger dot has more forecasts. On the
    diagonal, events come true exactly as often as forecast.

    panels: kind of forecasts → player → bins. out: the file, .png or .svg.
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
            total = sum(row["forecasts"] for row in bins)
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

        # 2. Axes and title
        panel.set(
            xlim=(-0.03, 1.03),
            ylim=(-0.03, 1.03),
            xlabel="probability",
            ylabel="came true",
            title=kind,
        )
        panel.set_aspect("equal")
        panel.grid(alpha=0.3)

    # 3. One legend, whose dots all have the same size
    legend = axes[0, -1].legend(frameon=False, fontsize=8, **RIGHT_OF_PANEL)
    for handle in legend.legend_handles:
        handle.set_sizes([40])
    save_picture(picture, axes[0], out)


def pyplot_for_files() -> Any:
    """pyplot for files: a dollar sign begins no formula, and SVG ids are always the same."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"text.parse_math": False, "svg.hashsalt": "reflectkit"})
    from matplotlib import pyplot

    return pyplot


def label_text(name: str) -> str:
    """`name` as a label: on one line, and cut off after LONGEST_NAME characters."""
    text = visible(one_line(name))
    if len(text) > LONGEST_NAME:
        text = f"{text[: LONGEST_NAME - 1]}…"
    # matplotlib leaves labels that start with an underscore out of the legend
    return f" {text}" if text.startswith("_") else text


def save_picture(
    picture: Any,
    panels: Sequence[Any],
    out: Path,
) -> None:
    """Write `picture` to `out`, a .png or .svg file. The same data gives the same bytes."""
    for panel in panels:
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    picture.tight_layout()
    metadata = {"Software": None} if out.suffix == ".png" else {"Date": None}
    with replacing(out) as file:
        picture.savefig(file, format=out.suffix[1:], metadata=metadata)
    pyplot_for_files().close(picture)
