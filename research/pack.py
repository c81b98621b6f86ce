"""pack: keep the episodes and learning curves of published runs in a small folder, from which `research.figures` draws
the figures again.

Each training seed is one compressed file. Packing further seeds, or one of them again, leaves the others as they are.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from reflectkit.cli.main import main
from reflectkit.config import Config, option
from reflectkit.console import Progress, Report, Table
from reflectkit.data.episodes import read_compared
from reflectkit.errors import ConfigError, DataError
from reflectkit.evals.aggregate import reported_figures, task_clusters
from reflectkit.evals.plot import read_curves
from reflectkit.evals.rows import EpisodeRow, Json
from reflectkit.jsonl import read_json
from reflectkit.runs.run import HASHED_WHOLE, RunConfig, digest, read_record, write_permission
from research.packs import Curve, Pack, Seed, figures_kept, is_pack, merged, players, read_pack, write_pack
from research.seeds import no_share

EXAMPLES = (
    "python -m research.pack results/taxi-tiny --out packs/taxi --title DangerousTaxi"
    " --compare 'Reflect-RL - SFT + RL'",
    "python -m research.pack results/seed0/taxi-tiny results/seed1/taxi-tiny --out packs/seeds --title 'Two seeds'"
    " --compare 'Reflect-RL - SFT + RL' --curve Reflect-RL=reflect-rl --curve 'SFT + RL=sft-rl' --figure success_rate",
    "python -m research.pack results/seed2/taxi-tiny --out packs/seeds --curve Reflect-RL=reflect-rl"
    " --curve 'SFT + RL=sft-rl' --figure success_rate",
    "python -m research.pack results/memory-tiny --out packs/memory --title Memory --compare 'SFT + GRPO - SFT'"
    " --measure accuracy",
    "python -m research.pack results/memory-tiny/longer-evaluation --out packs/memory --add"
    " --compare 'SFT, 400 steps more - SFT'",
    "python -m research.figures --packs packs/taxi --packs packs/seeds --out effects.png",
)
MINUS = " - "


class PackConfig(Config):
    """Settings of pack."""

    paths: tuple[Path, ...] = option(
        (), help="Runs of evaluate, or folders with such runs; each belongs to its seed.", argument=True
    )
    out: Path = option(help="Folder of the pack; seeds that it has already are kept or replaced.")
    add: bool = option(
        False,
        help="Add players, curves and comparisons to those that the pack has for these seeds, instead of replacing"
        " them; a player or a curve of the same name is replaced.",
    )
    title: str = option("", help="Title of its figures; needed for a new pack.")
    compare: tuple[str, ...] = option(
        (), help="An effect to show, as 'FIRST - SECOND' with the names of two players (repeat the flag)."
    )
    measure: str = option(
        "", help="What is compared: success, or one of the environment's figures that is a share, such as accuracy."
    )
    curve: tuple[str, ...] = option(
        (), help="NAME=RUN, a run of rlft in each of the folders, whose learning curve is kept (repeat the flag)."
    )
    figure: str = option("validation_success_rate", help="The figure of metrics.jsonl whose curves are kept.")
    skip: tuple[str, ...] = option(
        (), help="A run of evaluate in the folders that is left out, such as the visits of a policy (repeat the flag)."
    )
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.paths:
            raise ConfigError("pack needs at least one run of evaluate, or a folder with such runs")
        for text in self.compare:
            _pair(text)
        names = []
        for text in self.curve:
            name, _, run_name = text.partition("=")
            if not (name and run_name):
                raise ConfigError(f"--curve {text!r}: write NAME=RUN, a run of rlft in each of the folders")
            if name in names:
                raise ConfigError(f"--curve {text!r}: there is a curve {name!r} already; give each a name of its own")
            names.append(name)
        if self.out.exists() and not self.out.is_dir():
            raise ConfigError(f"--out {self.out}: is a file; name a folder")
        return self


def _pair(text: str) -> tuple[str, str]:
    first, minus, second = text.partition(MINUS)
    if not (first and minus and second):
        raise ConfigError(f"--compare {text!r}: write 'FIRST - SECOND', with the names of two players")
    if first == second:
        raise ConfigError(f"--compare {text!r}: compares a player with itself; name two players")
    return first, second


CONFIG = PackConfig


def run(config: PackConfig, progress: Progress) -> Report:
    """Write the pack. Raises ConfigError, and DataError if a run is missing or damaged."""
    write_permission(config.out)
    old = read_pack(config.out) if is_pack(config.out) else None
    if old is None and config.add:
        raise ConfigError(f"--add: there is no pack in {config.out} yet; leave it out to make one")
    if old is None and not config.title:
        raise ConfigError(f"{config.out} is a new pack; give it a --title")
    seeds: dict[int, Seed] = {}
    with progress.bar("Packing", len(config.paths)) as bar:
        for path in config.paths:
            number, seed = _read(config, path)
            if number in seeds:
                raise ConfigError(f"{path} has seed {number}, as another of the folders; pack one of them")
            seeds[number] = seed
            bar.advance()
    pack = Pack(config.title, tuple(map(_pair, config.compare)), seeds, config.measure)
    pack = merged(old or Pack(""), pack, config.add)
    for number, seed in pack.seeds.items():
        if outside := no_share(seed.episodes, pack.measure):
            raise ConfigError(f"--measure {pack.measure}: seed {number} {outside}")
    if len(figures := figures_kept(pack.seeds.values())) > 1:
        raise ConfigError(
            f"{config.out} would have curves of {' and of '.join(figures)}; give one --figure for all seeds"
        )
    names = players(list(pack.seeds.values()))
    for pair in pack.comparisons:
        for name in pair:
            if name not in names:
                raise ConfigError(f"--compare {MINUS.join(pair)!r}: no player {name!r}; there are {', '.join(names)}")
    for text in counted_as_0({f"seed {number}": seed.episodes for number, seed in pack.seeds.items()}):
        progress.news(text)
    outputs = write_pack(config.out, pack)
    size = sum(path.stat().st_size for path in outputs)
    cells = tuple(
        (str(number), str(len(seed.episodes)), str(len(players([seed]))), str(len(seed.curves)))
        for number, seed in pack.seeds.items()
    )
    table = Table(f"{config.out}, {size / 1000:.1f} kB", ("seed", "episodes", "players", "curves"), cells)
    return Report("pack", config.out, {"seeds": len(pack.seeds), "bytes": size}, tuple(outputs), (table,))


def _read(config: PackConfig, path: Path) -> tuple[int, Seed]:
    """(the training seed, what is kept) of one folder."""
    folders = (
        [path] if (path / "episodes.jsonl").is_file() else sorted(file.parent for file in path.glob("*/episodes.jsonl"))
    )
    if not folders:
        raise DataError(path, "no episodes.jsonl here or one folder below; name a run of evaluate or of a recipe")
    names = [folder.name for folder in folders]
    for name in config.skip:
        if name not in names:
            raise ConfigError(f"--skip {name}: no such run of evaluate in {path}; there are {', '.join(names)}")
    folders = [folder for folder in folders if folder.name not in config.skip]
    if not folders:
        raise ConfigError(f"--skip leaves nothing of {path}")
    numbers = {_seed_of(folder) for folder in folders}
    if len(numbers) > 1:
        raise DataError(
            path, f"has evaluations of seeds {', '.join(map(str, sorted(numbers)))}; name each one's folder"
        )
    parts = {folder.name: read_compared(_whole(folder, "episodes.jsonl").parent) for folder in folders}
    several = Counter(name for part in parts.values() for name in {str(one["name"]) for one in part})
    episodes: list[dict[str, Any]] = []
    for step, part in parts.items():
        cluster = task_clusters(map(EpisodeRow.read, part))
        for one in part:
            name = f"{one['name']} ({step})" if several[one["name"]] > 1 else one["name"]
            episodes.append({**one, "name": name, "cluster": cluster[one["task"]]})
    return numbers.pop(), Seed(tuple(episodes), tuple(_curves(config, path)))


def _whole(folder: Path, name: str) -> Path:
    """The file of that name. Raises DataError if the run's report has another checksum for it."""
    path = folder / name
    report = read_json(folder / "report.json") if (folder / "report.json").is_file() else {}
    outputs = report.get("outputs") if isinstance(report, dict) else None
    recorded = {Path(written).name: one for written, one in outputs.items()} if isinstance(outputs, dict) else {}
    if name in recorded and path.is_file() and path.stat().st_size <= HASHED_WHOLE and digest(path) != recorded[name]:
        raise DataError(
            path, "is not what the run wrote, by the checksum in its report.json; restore it, or run it again"
        )
    return path


def _curves(config: PackConfig, path: Path) -> Sequence[Curve]:
    pairs = [(name, path / run_name) for name, _, run_name in (text.partition("=") for text in config.curve)]
    read = read_curves([_whole(run, "metrics.jsonl") for _, run in pairs], config.figure)
    for _, run in pairs:
        if not (run / "report.json").is_file():
            raise DataError(run, "is not finished, and its curve would end early; let it end, then pack it")
    return [
        Curve(name, config.figure, tuple(places), tuple(values))
        for (name, _), (places, values) in zip(pairs, read, strict=True)
    ]


def _seed_of(folder: Path) -> int:
    seed = read_record(folder).get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise DataError(folder / "config.json", f"expected the seed of a run, found {seed!r:.40}", field="seed")
    return seed


if __name__ == "__main__":
    sys.exit(main(["research.pack", *sys.argv[1:]]))


def counted_as_0(parts: Mapping[str, Sequence[Json]]) -> list[str]:
    """Sentences about the figures that one of several evaluations, given by name, never has at a level where another
    one has them: it may have been recorded before the env reported them.
    """
    rows = {name: [EpisodeRow.read(line) for line in part] for name, part in parts.items()}
    by_part = {name: reported_figures(part) for name, part in rows.items()}
    every = reported_figures([episode for part in rows.values() for episode in part])
    return [
        f"{name}: no episode at level {level} reports {', '.join(sorted(missing))}, as others do; counted as 0 there"
        for name, reported in by_part.items()
        for level, figures in reported.items()
        if (missing := every[level].keys() - figures.keys())
    ]
