"""plot: learning curves of RL runs, and bars of evaluations. Runs of one name (seeds) become a median and a band.

A run that went on from another's checkpoint (`--resume-from`) is one curve with it. `--live` follows a run in the
terminal.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectkit.core.config import StageConfig, one_of, option, within
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError, DataError
from reflectkit.core.jsonl import read_json, read_jsonl, rows_so_far
from reflectkit.core.runs import Report, Table, open_run, worked_on
from reflectkit.core.stats import smooth
from reflectkit.stages.common import told_apart
from reflectkit.stages.figures import Curve, draw_bars, draw_curves

EXAMPLES = (
    "reflectkit plot --runs Reflect-RL=results/taxi-tiny/reflect-rl --runs 'SFT + RL=results/taxi-tiny/sft-rl'",
    "reflectkit plot --runs ours=results/seed0/taxi-tiny/reflect-rl --runs ours=results/seed1/taxi-tiny/reflect-rl"
    " --figure return --against tokens",
    "reflectkit plot --runs GRPO=results/memory-tiny/reflect-grpo --figure accuracy --figure tool_success"
    " --figure compression --out parts.svg",
    "reflectkit plot --evals results/taxi-tiny/evaluation --figure success",
    "reflectkit plot --runs now=results/taxi-tiny/sft-rl --live",
)
AGAINST = ("episodes", "step", "tokens", "seconds")
SUMMED = {"tokens": ("tokens",), "seconds": ("rollout_seconds", "update_seconds")}
"""What metrics.jsonl tells of each update by itself."""
FOLLOWED = ("success_rate", "return", "loss")
LONGEST_CHAIN = 100  # runs, one gone on from the other
LOOK_S = 1.0  # seconds between looks at a run that is followed
VAIN_LOOKS = 30  # at a run that nobody works on; more may come of it where it is copied here from another machine


@dataclass(frozen=True)
class Config(StageConfig):
    """Settings of plot."""

    runs: tuple[str, ...] = option(
        (), help="NAME=RUN, a folder with metrics.jsonl (repeat the flag; one name, several seeds)."
    )
    evals: tuple[Path, ...] = option((), help="Folders of evaluate: bars by level instead of curves (repeat the flag).")
    figure: tuple[str, ...] = option(
        (), help="Figures of metrics.jsonl, a panel each, or of eval.json (repeat the flag)."
    )
    against: str = option("episodes", help="What the horizontal axis counts: episodes, step, tokens or seconds.")
    smooth: int = option(10, help="Updates that a point averages.")
    out: Path | None = option(None, help="Picture to write, .png or .svg; default: curves.png in the run's folder.")
    live: bool = option(False, help="Follow the first run in the terminal until it ends, and draw nothing.")

    def __post_init__(self) -> None:
        super().__post_init__()
        within("smooth", self.smooth, 1, 1_000_000)
        one_of("against", self.against, AGAINST)
        if bool(self.runs) == bool(self.evals):
            raise ConfigError(
                "plot takes curves, --runs NAME=FOLDER, or bars, --evals FOLDER: one of them, and not both"
            )
        if self.live and not self.runs:
            raise ConfigError("--live follows a run: give --runs NAME=FOLDER")
        if self.out is not None and self.out.suffix not in (".png", ".svg"):
            raise ConfigError(f"--out {self.out}: write a .png or .svg")
        if self.out is not None and self.out.is_dir():
            raise ConfigError(f"--out {self.out}: is a folder; name another")
        for text in self.runs:
            parse_run(text)


def parse_run(text: str) -> tuple[str, Path]:
    """(name, metrics file) of a --runs; a checkpoint's path stands for its run. Raises ConfigError."""
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise ConfigError(f"--runs {text!r}: write NAME=FOLDER")
    path = Path(folder)
    return name, (path.parent if path.name.startswith("checkpoint-") else path) / "metrics.jsonl"


def run(config: Config, progress: Progress) -> Report:
    """Draw. Raises DataError where a run or an evaluation has no such figure."""
    if config.live:
        return _follow(config, progress)
    named = [parse_run(text) for text in config.runs]
    inputs = [path for _, path in named] or [folder / "eval.json" for folder in config.evals]
    with open_run("plot", config, inputs) as current:
        if current.done and (config.out is None or config.out.exists()):
            return current.done
        out = config.out or current.folder / ("curves.png" if named else "bars.png")
        if config.evals:
            figures = _bars(config, out)
            told = tuple((name, level, f"{value:.3f}") for (name, level), value in figures.items())
            current.tables.append(
                Table(f"Bars in {out}", ("policy", "level", (config.figure or ("success",))[0]), told)
            )
            return current.finish({f"{name} {level}": value for (name, level), value in figures.items()}, [out])
        panels: dict[str, dict[str, list[Curve]]] = {}
        for figure in dict.fromkeys(config.figure or ("success_rate",)):
            for name, path in named:
                panels.setdefault(figure, {}).setdefault(name, []).append(read_curve(path, figure, config))
        draw_curves(panels, config.against, config.smooth, out)
        ends = {figure: {name: _end(seeds) for name, seeds in curves.items()} for figure, curves in panels.items()}
        columns = ("run", "seeds", *(f"{figure}, last {config.smooth} updates" for figure in panels))
        rows = tuple(
            (name, str(len(seeds)), *(f"{ends[figure][name]:.3f}" for figure in panels))
            for name, seeds in next(iter(panels.values())).items()
        )
        current.tables.append(Table(f"Learning curves in {out}", columns, rows))
        return current.finish(next(iter(ends.values())) if len(ends) == 1 else ends, [out])


def chained(path: Path) -> list[Path]:
    """The metrics of `path` and of the runs that it went on from, the first one first.

    Raises DataError where they go in a circle.
    """
    chain = [path]
    while (before := _went_on_from(chain[0])) is not None:
        if before in chain or len(chain) >= LONGEST_CHAIN:
            raise DataError(path, f"goes on from {before}, and that from it; one of their config.json is not its own")
        chain.insert(0, before)
    return chain


def _went_on_from(path: Path) -> Path | None:
    try:
        settings = read_json(path.with_name("config.json"))["settings"]
        start = settings.get("resume_from")
    except (DataError, KeyError, TypeError, AttributeError):
        return None
    if not isinstance(start, str) or not start:
        return None
    bases = (*path.absolute().parents, Path())  # it was written where the run was begun, which is above the run
    places = (base / Path(start).parent / "metrics.jsonl" for base in bases)
    return next((place for place in places if place.is_file()), None)


def read_curve(path: Path, figure: str, config: Config) -> Curve:
    """Where, and what: the figure's values along the axis, smoothed; of chained runs each update once."""
    rows: dict[int, tuple[Path, int, dict[str, Any]]] = {}
    for part in chained(path):
        found = [(part, line, dict(row)) for line, row in read_jsonl(part)]
        first = min((_number(part, line, row, "step") for part, line, row in found), default=0)
        rows = {step: entry for step, entry in rows.items() if step < first}
        rows |= {int(_number(part, line, row, "step")): (part, line, row) for part, line, row in found}
    some = any(figure in row for _, _, row in rows.values())  # not every update has a validation, or something to learn
    places: list[float] = []
    values: list[float] = []
    total = 0.0
    for _, (part, line, row) in sorted(rows.items()):
        if config.against in SUMMED:
            total += sum(_number(part, line, row, name) for name in SUMMED[config.against])
        if figure in row or not some:
            values.append(float(_number(part, line, row, figure)))
            places.append(total if config.against in SUMMED else float(_number(part, line, row, config.against)))
    if not values:
        raise DataError(path, "has no update yet")
    return places, smooth(values, config.smooth)


def _number(path: Path, line: int, row: Mapping[str, Any], name: str) -> Any:
    """A figure of a row. Raises DataError where it is no number."""
    value = row.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        numeric = [key for key, other in row.items() if isinstance(other, int | float)]
        more = "; --validate-steps makes such figures" if name.startswith("validation_") else ""
        raise DataError(path, f"no number here; this run has {', '.join(numeric)}{more}", line=line, field=name)
    return value


def _end(seeds: Sequence[Curve]) -> float:
    ends = sorted(values[-1] for _, values in seeds)
    middle = len(ends) // 2
    return ends[middle] if len(ends) % 2 else (ends[middle - 1] + ends[middle]) / 2


def _bars(config: Config, out: Path) -> dict[tuple[str, str], float]:
    """Draw the bars; returns the means by (player, level)."""
    if len(config.figure) > 1:
        raise ConfigError("--evals draws one --figure")
    figure = (config.figure or ("success",))[0]
    bars: dict[str, dict[str, tuple[float, float, float]]] = {}
    for folder, known_as in zip(config.evals, told_apart(config.evals), strict=True):
        path = folder / "eval.json"
        value = read_json(path)
        rows = value.get("rows") if isinstance(value, dict) else None
        if not isinstance(rows, list) or not rows:
            raise DataError(path, "is no result of evaluate: it has no rows")
        for row in rows:
            try:
                if figure == "success":
                    told = (row["success"], row["low"], row["high"])
                else:
                    mean, *ends = (row["figures"][figure][part] for part in ("mean", "low", "high"))
                    told = (mean, *(mean if end is None else end for end in ends))  # unknown ends have no whisker
                name = row["name"] if len(config.evals) == 1 else f"{row['name']} ({known_as})"
                mean, low, high = (_finite(value) for value in told)
                bars.setdefault(name, {})[row["level"]] = (mean, low, high)
            except (KeyError, TypeError, ValueError, OverflowError):
                known = ", ".join(["success", *(row.get("figures", {}) if isinstance(row, dict) else {})])
                raise DataError(path, f"a row has no '{figure}'; there are {known}", field=figure) from None
    draw_bars(figure, bars, out)
    return {(name, level): mean for name, found in bars.items() for level, (mean, _, _) in found.items()}


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError(value)
    return float(value)


def _follow(config: Config, progress: Progress) -> Report:
    """Show a run's newest figures until its report is there, or nobody works on it. Raises DataError: there
    is no run.
    """
    name, path = parse_run(config.runs[0])
    if not path.with_name("config.json").is_file():
        raise DataError(path.parent, "no such run; name the folder that rlft writes into")
    try:
        total = int(read_json(path.with_name("config.json"))["settings"]["max_steps"])
    except (DataError, KeyError, TypeError, ValueError):
        total = 0
    seen = vain = 0
    newest: dict[str, float] = {}
    with progress.bar(name, total) as bar:
        while True:
            ended = path.with_name("report.json").is_file()
            rows = rows_so_far(path)
            step = int(_number(path, len(rows), rows[-1], "step")) if rows else 0
            if rows and step != seen:
                nowhere = [figure for figure in config.figure if not any(figure in row for row in rows)]
                told = [*nowhere, *(figure for figure in config.figure or FOLLOWED if figure in rows[-1])]
                newest = {figure: float(_number(path, len(rows), rows[-1], figure)) for figure in told}
                bar.advance(step - seen, **newest)
                seen, vain = step, 0
            vain += not ended and not worked_on(path.parent)
            if vain > VAIN_LOOKS:
                progress.news(f"nobody works on {path.parent} any more; the command that began it goes on with it")
            if ended or vain > VAIN_LOOKS:
                return Report("plot", path.parent, {"updates": seen} | newest)
            time.sleep(LOOK_S)
