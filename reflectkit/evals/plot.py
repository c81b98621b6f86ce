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


def read_curves(
    paths: Sequence[Path], figure: str, against: str = "episodes", window: int = 1
) -> list[Curve]:
    """The smoothed curve of the figure of each run; chained runs give each update once.

    paths: the runs' metrics.jsonl. against: the axis: episodes, step, tokens or seconds. window: of the moving average,
    in updates.

    A figure that the env reported in one of the runs is 0 at that level, in all runs of the same env, where no episode
    came far enough to report it. Validation is always at one level. The curve of a run that does not have the figure is
    empty if another one has it. Raises DataError.
    """
    runs = [_rows_of(path) for path in paths]
    when, name = (
        (VALIDATION, figure.removeprefix(VALIDATION))
        if figure.startswith(VALIDATION)
        else ("", figure)
    )
    played: dict[Any, list[dict[str, Any]]] = {}
    for path, rows in zip(paths, runs, strict=True):
        env = _settings(path).get("env", path)
        for _, _, row in rows.values():
            if f"{when}return" in row:
                played.setdefault((env, None if when else str(row.get("level"))), []).append(row)
    for same in played.values():
        if any(name in (row.get(f"{when}{NAMED}") or ()) for row in same):
            for row in same:
                row.setdefault(figure, 0.0)
    have_it = [any(figure in row for _, _, row in rows.values()) for rows in runs]
    curves = [
        _curve(path, rows, figure, against) if has or not any(have_it) else ([], [])
        for path, rows, has in zip(paths, runs, have_it, strict=True)
    ]
    return [(places, smooth(values, window)) for places, values in curves]


def _settings(path: Path) -> dict[str, Any]:
    """The settings of the run with these metrics, as far as its config.json says."""
    return dict(read_record(path.parent).get("settings", {}))


def chained(path: Path) -> list[Path]:
    """The metrics of `path` and of the runs that it resumed from, the first one first. Raises DataError if they form a
    cycle.
    """
    chain = [path]
    while start := _settings(chain[0]).get("resume_from"):
        bases = (
            *chain[0].absolute().parents,
            Path(),
        )  # it is relative to where the run was started, above the run
        places = (base / Path(start).parent / "metrics.jsonl" for base in bases)
        before = next((place for place in places if place.is_file()), None)
        if before is None:
            break
        if before in chain:
            fix = "one of their config.json files is wrong"
            raise DataError(path, f"resumed from {before}, and that one from it; {fix}")
        chain.insert(0, before)
    return chain


def _rows_of(path: Path) -> Rows:
    """The updates of `path` and of the runs that it resumed from. Raises DataError."""
    rows: Rows = {}
    for part in chained(path):
        new = {
            int(number_in(part, line, row, "step")): (part, line, dict(row))
            for line, row in read_jsonl(part)
        }
        first = min(new)
        rows = {step: entry for step, entry in rows.items() if step < first} | new
    return rows


def _curve(path: Path, rows: Rows, figure: str, against: str) -> tuple[list[float], list[float]]:
    in_some = any(
        figure in row for _, _, row in rows.values()
    )  # not every update is validated or has rows to learn
    places: list[float] = []
    values: list[float] = []
    total = 0.0
    for _, (part, line, row) in sorted(rows.items()):
        total += sum(number_in(part, line, row, name) for name in SUMMED.get(against, ()))
        if figure in row or not in_some:
            values.append(float(number_in(part, line, row, figure)))
            places.append(
                total if against in SUMMED else float(number_in(part, line, row, against))
            )
    return places, values


def number_in(path: Path, line: int, row: Mapping[str, Any], name: str) -> Any:
    """A figure of a row. Raises DataError if it is not a number."""
    value = row.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= LARGEST:
        numeric = [key for key, other in row.items() if isinstance(other, int | float)]
        raise DataError(
            path, f"is no number here; this run has {', '.join(numeric)}", line=line, field=name
        )
    return value


def smooth(values: list[float], window: int) -> list[float]:
    """Trailing mean over up to `window` values; the first ones average what there is. Same length as `values`."""
    return [fmean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]


COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)  # Okabe and Ito: safe for the colour-blind
STYLES = ("-", "--", "-.", ":")
LONGEST_NAME = 200  # characters
BANDS = 3  # above that many curves with ranges, their bands hide each other
BESIDE: dict[str, Any] = {
    "loc": "upper left",
    "bbox_to_anchor": (1, 1),
}  # a legend to the right of its panel
SHARES = ("success_rate", "accuracy", "tool_success", "content", "success")  # from 0 to 1


def draw_curves(
    panels: Mapping[str, Mapping[str, Sequence[Curve]]], against: str, smoothed: int, out: Path
) -> None:
    """One panel per figure: the median of each name's curves (x, y), with their range if there are several; with more
    than BANDS names, each curve as a thin line instead.
    """
    import numpy as np

    pyplot = pyplot_for_files()
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    several = {
        figure: sum(len(seeds) > 1 for seeds in curves.values())
        for figure, curves in panels.items()
    }
    picture, axes = pyplot.subplots(
        len(panels), 1, figsize=(9, 1 + 3 * len(panels)), dpi=150, squeeze=False
    )
    for panel, (figure, curves) in zip(axes[:, 0], panels.items(), strict=True):
        banded = several[figure] <= BANDS
        for name, seeds in curves.items():
            index = names.index(name)
            places = np.unique(np.concatenate([where for where, _ in seeds]))
            shared = (places >= max(where[0] for where, _ in seeds)) & (
                places <= min(where[-1] for where, _ in seeds)
            )
            places = places[shared] if shared.any() else places
            values_SN = np.array([np.interp(places, where, values) for where, values in seeds])
            colour, style = (
                COLOURS[index % len(COLOURS)],
                STYLES[index // len(COLOURS) % len(STYLES)],
            )
            shown = label_text(f"{name} ({len(seeds)} seeds)" if len(seeds) > 1 else name)
            panel.plot(
                places,
                np.median(values_SN, axis=0),
                color=colour,
                linestyle=style,
                linewidth=2,
                label=shown,
            )
            if len(seeds) > 1 and banded:
                panel.fill_between(
                    places,
                    values_SN.min(axis=0),
                    values_SN.max(axis=0),
                    color=colour,
                    alpha=0.2,
                    linewidth=0,
                )
            elif len(seeds) > 1:
                panel.plot(
                    places, values_SN.T, color=colour, linestyle=style, linewidth=0.7, alpha=0.5
                )
        label = figure.replace("_", " ")
        panel.set(xlabel=against, ylabel=label)
        window = min(smoothed, max(len(values) for seeds in curves.values() for _, values in seeds))
        mean = f", mean of {window} updates" if window > 1 else ""
        spread = (
            f", median and {'range of seeds' if banded else 'each seed'}" if several[figure] else ""
        )
        panel.set_title(f"{label}{mean}{spread}")
        if figure.removeprefix("validation_") in SHARES:
            panel.set_ylim(-0.02, 1.02)
        panel.grid(alpha=0.3)
        panel.legend(frameon=False, **BESIDE)
    save_picture(picture, axes[:, 0], out)


def draw_bars(
    figure: str, bars: Mapping[str, Mapping[str, tuple[float, float, float]]], out: Path
) -> None:
    """Groups of bars with intervals: player → level → (mean, low, high)."""
    pyplot = pyplot_for_files()
    levels = list(dict.fromkeys(level for by_level in bars.values() for level in by_level))
    picture, axes = pyplot.subplots(
        figsize=(max(7, 0.45 * len(bars) * len(levels) + 3), 4), dpi=150
    )
    panel: Any = axes
    wide = 0.8 / max(1, len(bars))
    known = any(low != high for by_level in bars.values() for _, low, high in by_level.values())
    for index, (name, by_level) in enumerate(bars.items()):
        shown = [
            (place, by_level[level]) for place, level in enumerate(levels) if level in by_level
        ]
        places = [place - 0.4 + wide * (index + 0.5) for place, _ in shown]
        means = [mean for _, (mean, _, _) in shown]
        errors = [  # rounding may put an end on the wrong side of the mean
            [max(0.0, mean - low) for _, (mean, low, _) in shown],
            [max(0.0, high - mean) for _, (mean, _, high) in shown],
        ]
        colour = COLOURS[index % len(COLOURS)]
        drawn = errors if known else None
        panel.bar(
            places, means, wide * 0.92, yerr=drawn, capsize=2, color=colour, label=label_text(name)
        )
    panel.set_xticks(range(len(levels)), list(map(label_text, levels)))
    title = f"{figure.replace('_', ' ')} by level{', 95 % intervals' if known else ''}"
    panel.set(ylabel=figure.replace("_", " "), title=title)
    if figure in SHARES:
        panel.set_ylim(0, 1.02)
    panel.grid(alpha=0.3, axis="y")
    panel.set_axisbelow(True)
    panel.legend(frameon=False, fontsize=8, **BESIDE)
    save_picture(picture, [panel], out)


def draw_reliability(
    panels: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]], out: Path
) -> None:
    """One panel for each thing that is foretold: how often it came true against how likely it was called, by player,
    with 95 % intervals; a larger dot has more forecasts. On the diagonal, probabilities mean what they say.

    panels: what is foretold → player → bins, each {confidence, hits, low, high, forecasts}.
    """
    pyplot = pyplot_for_files()
    names = list(dict.fromkeys(name for players in panels.values() for name in players))
    picture, axes = pyplot.subplots(
        1, len(panels), figsize=(1.5 + 4 * len(panels), 4.4), dpi=150, squeeze=False
    )
    for panel, (kind, players) in zip(axes[0], panels.items(), strict=True):
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
                places, hits, yerr=errors, color=colour, linewidth=1, elinewidth=0.8, capsize=2
            )
            panel.scatter(places, hits, s=sizes, color=colour, alpha=0.8, label=label_text(name))
        panel.set(
            xlim=(-0.03, 1.03),
            ylim=(-0.03, 1.03),
            xlabel="probability",
            ylabel="came true",
            title=kind,
        )
        panel.set_aspect("equal")
        panel.grid(alpha=0.3)
    legend = axes[0, -1].legend(frameon=False, fontsize=8, **BESIDE)
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


def save_picture(picture: Any, panels: Sequence[Any], out: Path) -> None:
    """Write a figure as `out`, .png or .svg, the same bytes for the same data."""
    for panel in panels:
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    picture.tight_layout()
    metadata = {"Software": None} if out.suffix == ".png" else {"Date": None}
    with replacing(out) as file:
        picture.savefig(file, format=out.suffix[1:], metadata=metadata)
    pyplot_for_files().close(picture)
