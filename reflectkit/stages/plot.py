"""plot: learning curves of several RL runs; runs of one name (seeds) become a median and a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectkit.core.config import StageConfig, at_least, option
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError, DataError
from reflectkit.core.jsonl import read_jsonl
from reflectkit.core.runs import Report, Table, open_run
from reflectkit.core.stats import smooth

EXAMPLES = (
    "reflectkit plot --runs Reflect-RL=results/8_rlft --runs 'SFT + RL=results/9_rlft'",
    "reflectkit plot --runs ours=seed0/results/8_rlft --runs ours=seed1/results/8_rlft --figure return",
)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito: safe for the colour-blind
STYLES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Config(StageConfig):
    """Settings of plot."""

    runs: tuple[str, ...] = option(help="NAME=RUN, a folder with metrics.jsonl (repeat the flag; one name, several seeds).")
    figure: str = option("success_rate", help="Which figure of metrics.jsonl, e.g. success_rate, return, entropy.")
    against: str = option("episodes", help="What the horizontal axis counts: episodes or step.")
    smooth: int = option(10, help="Updates that a point averages.")
    out: Path | None = option(None, help="Picture to write, .png or .svg; default: curves.png in the run's folder.")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("smooth", self.smooth, 1)
        if not self.runs:
            raise ConfigError("plot needs at least one --runs NAME=FOLDER")
        if self.out is not None and self.out.suffix not in (".png", ".svg"):
            raise ConfigError(f"--out {self.out}: write a .png or .svg")
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
    """Draw the curves. Raises DataError where a run has no such figure."""
    named = [parse_run(text) for text in config.runs]
    with open_run("plot", config, [path for _, path in named]) as current:
        if current.done and (config.out is None or config.out.exists()):
            return current.done
        curves: dict[str, list[tuple[list[float], list[float]]]] = {}
        for name, path in named:
            curves.setdefault(name, []).append(_read(path, config))
        out = config.out or current.folder / "curves.png"
        out.parent.mkdir(parents=True, exist_ok=True)
        _draw(curves, config, out)
        rows = tuple((name, str(len(seeds)), f"{_end(seeds):.3f}") for name, seeds in curves.items())
        columns = ("run", "seeds", f"{config.figure}, last {config.smooth} updates")
        current.tables.append(Table(f"Learning curves in {out}", columns, rows))
        return current.finish({name: _end(seeds) for name, seeds in curves.items()}, [out])


def _read(path: Path, config: Config) -> tuple[list[float], list[float]]:
    places: list[float] = []
    values: list[float] = []
    for line, row in read_jsonl(path):
        for name, into in ((config.against, places), (config.figure, values)):
            value = row.get(name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                numeric = [key for key, other in row.items() if isinstance(other, int | float)]
                raise DataError(path, f"no number here; this run has {', '.join(numeric)}", line=line, field=name)
            into.append(float(value))
    return places, smooth(values, config.smooth)


def _end(seeds: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    ends = sorted(values[-1] for _, values in seeds)
    middle = len(ends) // 2
    return ends[middle] if len(ends) % 2 else (ends[middle - 1] + ends[middle]) / 2


def _draw(curves: Mapping[str, list[tuple[list[float], list[float]]]], config: Config, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import numpy as np
    from matplotlib import pyplot

    picture, axes = pyplot.subplots(figsize=(7, 4), dpi=150)
    axes_: Any = axes
    for index, (name, seeds) in enumerate(curves.items()):
        length = min(len(values) for _, values in seeds)
        places = seeds[0][0][:length]
        values_SN = np.array([values[:length] for _, values in seeds])
        colour, style = COLOURS[index % len(COLOURS)], STYLES[index // len(COLOURS) % len(STYLES)]
        shown = f"{name} ({len(seeds)} seeds)" if len(seeds) > 1 else name
        axes_.plot(places, np.median(values_SN, axis=0), color=colour, linestyle=style, linewidth=2, label=shown)
        if len(seeds) > 1:
            axes_.fill_between(places, values_SN.min(axis=0), values_SN.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    label = config.figure.replace("_", " ")
    axes_.set(xlabel=config.against, ylabel=label)
    if config.figure == "success_rate":
        axes_.set_ylim(-0.02, 1.02)
    axes_.set_title(
        f"{label}, mean of {config.smooth} updates"
        + (", median and range of seeds" if max(map(len, curves.values())) > 1 else "")
    )
    axes_.grid(alpha=0.3)
    axes_.legend(frameon=False)
    for side in ("top", "right"):
        axes_.spines[side].set_visible(False)
    picture.tight_layout()
    partial = out.with_name(f".reflectkit-tmp-{out.name}")
    picture.savefig(partial, metadata={"Software": None} if out.suffix == ".png" else {"Date": None})
    partial.replace(out)
    pyplot.close(picture)
