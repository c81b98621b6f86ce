"""plot: learning curves of RL runs, or bars of evaluations. Runs of the same name (seeds) give a
median and a band.

A run that resumed from another one's checkpoint (`--resume-from`) continues its curve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

from typing_extensions import override

from reflectkit.commands import Traits
from reflectkit.config import Config, Rule, flag, non_default, option
from reflectkit.console import Progress, Report, Table
from reflectkit.errors import DataError, refuse, unknown_name
from reflectkit.evals.plot import Curve, draw_bars, draw_curves, draw_reliability, read_curves
from reflectkit.jsonl import read_json, read_jsonl
from reflectkit.runs.run import RunConfig, differing_settings, open_run, read_record
from reflectkit.text import distinct_names

EXAMPLES = (
    (
        "reflectkit plot --runs Reflect-RL=results/taxi-tiny/reflect-rl --runs 'SFT +"
        " RL=results/taxi-tiny/sft-rl'"
    ),
    "reflectkit plot --runs ours=results/seed0/taxi-tiny/reflect-rl --runs"
    " ours=results/seed1/taxi-tiny/reflect-rl --figure return --against tokens",
    "reflectkit plot --runs GRPO=results/memory-tiny/reflect-grpo --figure accuracy --figure"
    " tool_success --figure compression --out parts.svg",
    "reflectkit plot --evals results/taxi-tiny/evaluation --figure success",
    "reflectkit plot --evals results/taxi-tiny/evaluation --figure reliability",
)
RELIABILITY = "reliability"
"""The figure that shows how often what was foretold came true."""
MINOR = ("seed",)  # nothing is random
TRAITS = Traits(reports=True, arms=("runs",))


class PlotConfig(Config):
    """Settings of plot."""

    runs: tuple[str, ...] = option(
        (),
        help="RUN or NAME=RUN, a folder with metrics.jsonl (repeat the flag; seeds share a name).",
        essential=True,
    )
    evals: tuple[Path, ...] = option(
        (),
        help="Evaluation runs, for bars by level instead of curves (repeat the flag).",
        essential=True,
    )
    figure: tuple[str, ...] = option(
        (),
        help="Figures of metrics.jsonl (one panel each) or of eval.json (repeat the flag); with"
        " --evals also"
        " reliability, how often what was foretold came true.",
        essential=True,
    )
    against: Literal["episodes", "step", "tokens", "seconds"] = option(
        "episodes", help="Horizontal axis: episodes, step, tokens or seconds."
    )
    smooth: int = option(10, help="Size of the moving average, in updates.", ge=1)
    out: Path | None = option(
        None,
        help=(
            "File to write, .png or .svg; default: curves.png, bars.png or reliability.png in"
            " the run's folder."
        ),
        essential=True,
    )
    run: RunConfig = RunConfig()

    @override
    def contradictions(self) -> Iterator[Rule]:
        either = "plot needs either --runs NAME=FOLDER (curves) or --evals FOLDER (bars)"
        yield bool(self.runs) == bool(self.evals), either
        for name in non_default(self, "against", "smooth"):
            of_curves = f"{flag(name)} is for curves, and --evals draws bars; leave it out"
            yield self.evals, of_curves
        yield len(self.figure) > 1 and self.evals, "--evals takes a single --figure"
        if self.out is not None:
            is_picture = self.out.suffix in (".png", ".svg") and not self.out.is_dir()
            yield not is_picture, f"--out {self.out}: name a file that ends in .png or .svg"
        for text in self.runs:
            parse_run(text)


def parse_run(text: str) -> tuple[str, Path]:
    """(name, metrics file) of a value of --runs; a checkpoint's path means its run, and a run alone
    is named like its folder. Raises ConfigError.
    """
    name, equals, folder = text.partition("=")
    if not equals or Path(text).is_dir():
        name, folder = "", text
    refuse(
        not folder or (equals and not (name or Path(text).is_dir())),
        f"--runs {text!r}: write RUN or NAME=RUN",
    )
    path = Path(folder)
    path = path.parent if path.name.startswith("checkpoint-") else path
    return name or path.name, path / "metrics.jsonl"


CONFIG = PlotConfig


def run(config: PlotConfig, progress: Progress) -> Report:
    """Draw. Raises DataError if a run or an evaluation does not have the figure."""
    # 1. What is drawn, and where to
    runs = [parse_run(text) for text in config.runs]
    inputs = [path for _, path in runs] or [folder / "eval.json" for folder in config.evals]
    with open_run("plot", config, inputs) as current:
        if current.done and (config.out is None or config.out.exists()):
            return current.done
        if runs:
            kind = "curves"
        elif config.figure == (RELIABILITY,):
            kind = RELIABILITY
        else:
            kind = "bars"
        out = config.out or current.folder / f"{kind}.png"

        # 2. Draw it
        if kind == "curves":
            _warn_of_differences(runs, progress)
            table, figures = _draw_curves(config, runs, out, progress)
        elif kind == "bars":
            table, figures = _draw_bars(config, out)
        else:
            table, figures = _draw_reliability(config, out)
        current.tables.append(table)
        return current.finish(figures, [out])


def _draw_reliability(config: PlotConfig, out: Path) -> tuple[Table, dict[str, Any]]:
    """Draw how far forecasts can be trusted. Returns a table and the figures of the report."""
    panels = _read_reliability(config.evals)
    draw_reliability(panels, out)
    figures: dict[str, Any] = {}
    rows = []
    for kind, players in panels.items():
        rows.append((kind, str(len(players))))
        for name, bins in players.items():
            figures[f"{kind}: {name}"] = bins
    return Table(f"Reliability in {out}", ("foretold", "players"), tuple(rows)), figures


def _draw_bars(config: PlotConfig, out: Path) -> tuple[Table, dict[str, Any]]:
    """Draw bars. Returns a table and the figures of the report."""
    figure = config.figure[0] if config.figure else _default_bar(config.evals)
    bars = _read_bars(config.evals, figure)
    draw_bars(figure, bars, out)
    figures: dict[str, Any] = {}
    rows = []
    for name, by_level in bars.items():
        for level, (mean, _, _) in by_level.items():
            rows.append((name, level, f"{mean:.3f}"))
            figures[f"{name} {level}"] = mean
    return Table(f"Bars in {out}", ("policy", "level", figure), tuple(rows)), figures


def _warn_of_differences(runs: Sequence[tuple[str, Path]], progress: Progress) -> None:
    """Warn of runs of one name that do not differ in their seed alone."""
    # 1. Several runs with one seed
    seeds = Counter((name, read_record(path.parent).get("seed")) for name, path in runs)
    for (name, seed), count in seeds.items():
        if count > 1 and seed is not None:
            progress.news(
                f"warning: {count} runs named {name} have seed {seed}, and are drawn as"
                " different seeds"
            )

    # 2. Other settings
    for name in dict.fromkeys(name for name, _ in runs):
        different = differing_settings(path.parent for other, path in runs if other == name)
        if different:
            flags = ", ".join(map(flag, different))
            progress.news(f"warning: the runs named {name} differ in {flags}, not only in seed")


def _draw_curves(
    config: PlotConfig, runs: Sequence[tuple[str, Path]], out: Path, progress: Progress
) -> tuple[Table, dict[str, Any]]:
    """Draw learning curves. Returns a table and the figures of the report: where the curves end."""
    # 1. A panel for each figure
    paths = [path for _, path in runs]
    panels: dict[str, dict[str, list[Curve]]] = {}
    for figure in config.figure or (_default_curve(paths),):
        panels[figure] = {}
        curves = read_curves(paths, figure, config.against, config.smooth)
        for (name, path), curve in zip(runs, curves, strict=True):
            if curve[0]:
                panels[figure].setdefault(name, []).append(curve)
            else:
                progress.news(f"{path.parent} does not have {figure}, and is left out there")
    draw_curves(panels, config.against, config.smooth, out)

    # 2. The median of the curves' ends, by figure and name
    ends: dict[str, dict[str, float]] = {}
    for figure, curves_of in panels.items():
        ends[figure] = {}
        for name, seeds in curves_of.items():
            ends[figure][name] = median(values[-1] for _, values in seeds)

    # 3. The table
    names = [name for name, _ in runs]
    rows = []
    for name in dict.fromkeys(names):
        cells = [f"{values[name]:.3f}" if name in values else "" for values in ends.values()]
        rows.append((name, str(names.count(name)), *cells))
    headings = [f"{figure}, last {config.smooth} updates" for figure in panels]
    table = Table(f"Learning curves in {out}", ("run", "seeds", *headings), tuple(rows))
    figures: dict[str, Any] = next(iter(ends.values())) if len(ends) == 1 else ends
    return table, figures


def _default_curve(paths: Sequence[Path]) -> str:
    """The success rate; the return where not every update has one, or none is above 0."""
    rates = [row.get("success_rate") for path in paths for _, row in read_jsonl(path)]
    return "success_rate" if None not in rates and any(rates) else "return"


def _default_bar(evals: Sequence[Path]) -> str:
    """Success; the return where a player has none, or nobody ever succeeded."""
    try:
        rows = [row for folder in evals for row in read_json(folder / "eval.json")["rows"]]
        successes = [row["success"] for row in rows]
        return "success" if None not in successes and any(successes) else "return"
    except (KeyError, TypeError):
        return "success"  # `_read_bars` says what is wrong


def _read_reliability(evals: Sequence[Path]) -> dict[str, dict[str, list[dict[str, float]]]]:
    """The bins of each player by what is foretold. Raises DataError if an evaluation has no
    forecasts.
    """
    panels: dict[str, dict[str, list[dict[str, float]]]] = {}
    for folder, label in zip(evals, distinct_names(evals), strict=True):
        path = folder / "eval.json"
        try:
            rows = read_json(path)["rows"]
            levels = {row["level"] for row in rows}
            for row in rows:
                # A name is as short as the evaluations allow
                parts = [row["name"]]
                if len(levels) > 1:
                    parts.append(row["level"])
                if len(evals) > 1:
                    parts.append(label)
                for kind, scores in row.get("calibration", {}).items():
                    panels.setdefault(kind, {})[" ".join(parts)] = scores["bins"]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise DataError(path, "is not a result of evaluate; name the folder of one") from None
        if not any(row.get("calibration") for row in rows):
            how = (
                "evaluate with --score-oracle or --predict-success, players that have probabilities"
            )
            raise DataError(path, f"has no forecasts; {how}", field=RELIABILITY)
    return panels


def _read_bars(
    evals: Sequence[Path], figure: str
) -> dict[str, dict[str, tuple[float, float, float]]]:
    """(mean, low, high) by player and level. Raises DataError if a row does not have the figure."""
    bars: dict[str, dict[str, tuple[float, float, float]]] = {}
    for folder, label in zip(evals, distinct_names(evals), strict=True):
        path = folder / "eval.json"
        try:
            for row in read_json(path)["rows"]:
                # 1. The figures that every row has are columns of their own
                figures = dict(row["figures"])
                figures["success"] = {
                    "mean": row["success"],
                    "low": row["low"],
                    "high": row["high"],
                }
                for name in ("return", "steps"):
                    if name in row:
                        figures[name] = {
                            "mean": row[name],
                            "low": row.get(f"{name}_low"),
                            "high": row.get(f"{name}_high"),
                        }

                # 2. This figure, which only some levels may have; unknown ends have no whisker
                estimate = figures.get(figure, {})
                mean = estimate.get("mean")
                if mean is None:
                    continue
                low = mean if estimate["low"] is None else estimate["low"]
                high = mean if estimate["high"] is None else estimate["high"]
                player = str(row["name"]) if len(evals) == 1 else f"{row['name']} ({label})"
                bar = (float(mean), float(low), float(high))
                bars.setdefault(player, {})[str(row["level"])] = bar
        except (KeyError, TypeError, ValueError):
            raise DataError(path, "is not a result of evaluate; name the folder of one") from None
        if not bars:
            raise unknown_name(f"figure of {path}", figure, figures)
    return bars
