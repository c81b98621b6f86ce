"""view: write played episodes as one HTML page, or with --inspect as logs for `inspect view`."""

from __future__ import annotations

import datetime
import json
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from reflectkit.config import Config, Rule, option
from reflectkit.console import Bar, Progress, Report
from reflectkit.data.episodes import Played, read_episodes
from reflectkit.errors import DataError
from reflectkit.evals.view import Source, inspect_log, write_page
from reflectkit.files import missing, visible_files
from reflectkit.jsonl import read_json, replacing
from reflectkit.runs.run import RunConfig
from reflectkit.text import distinct_names

EXAMPLES = (
    "reflectkit view results/taxi-tiny/evaluation --open",
    (
        "reflectkit view results/alfworld-tiny/evaluation results/alfworld-tiny/evaluation-rooms"
        " --out compare.html"
    ),
    (
        "reflectkit view results/taxi-tiny/evaluation --inspect --out logs && inspect view"
        " --log-dir logs"
    ),
)
MINOR = ("seed",)  # nothing is random
EPISODES = "episodes.jsonl"
MADE_BY = "run `reflectkit evaluate`, which writes it, or name another run"
KILOBYTE = 1000


class ViewConfig(Config):
    """Settings of view."""

    paths: tuple[Path, ...] = option(
        (),
        help=(
            "Runs, folders of runs, or files of episodes; default: the run --name, or the"
            " results folder."
        ),
        argument=True,
    )
    out: Path | None = option(
        None,
        help=(
            "Page to write, or with --inspect a folder; default: view.html beside what is shown"
            " first."
        ),
    )
    inspect: bool = option(
        False,
        help=(
            "Write eval logs for `inspect view` instead; default folder: inspect, at the same"
            " place."
        ),
    )
    open: bool = option(False, help="Open the page in the browser.")
    run: RunConfig = RunConfig()

    @override
    def contradictions(self) -> Iterator[Rule]:
        no_page = "--open opens the page, but --inspect writes none; leave one out"
        yield self.inspect and self.open, no_page
        if self.out is not None and not self.inspect:
            is_page = self.out.suffix in (".html", ".htm")
            yield not is_page, f"--out {self.out}: write a .html"


CONFIG = ViewConfig


def run(config: ViewConfig, progress: Progress) -> Report:
    """Write the page, or the logs. Raises DataError if a path is missing, has no episodes, or is
    damaged.
    """
    # 1. Resolve: the files of episodes, and the place of what is written
    paths = config.paths or (config.run.results_dir / config.run.name,)
    files = episode_files(paths)
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    target = config.out or folder / ("inspect" if config.inspect else "view.html")

    # 2. The page or the logs
    count, outputs = _write(config, files, target, progress)
    if not count:
        target.unlink(missing_ok=True)
        raise DataError(files[0], f"holds no episode; {MADE_BY}")

    # 3. The browser
    if config.open and not webbrowser.open(outputs[0].resolve().as_uri()):
        progress.news(f"no browser could be opened; open {outputs[0]} in one")
    return Report(
        "view",
        target if config.inspect else folder,
        {"episodes": count, "runs": len(files)},
        tuple(outputs),
    )


def _write(
    config: ViewConfig, files: Sequence[Path], target: Path, progress: Progress
) -> tuple[int, list[Path]]:
    """Write the page or the logs; returns (the number of episodes, what was written)."""
    sources = _sources(files)
    kilobytes = sum(file.stat().st_size for file in files) // KILOBYTE
    with progress.bar("Reading episodes, in kB", kilobytes) as bar:
        episodes = _episodes(files, bar)
        if config.inspect:
            return _write_logs(target, sources, files, episodes)
        with replacing(target) as page:
            count = write_page(page, sources, episodes)
        return count, [target]


def _sources(files: Sequence[Path]) -> list[Source]:
    """What the runs of these files say of themselves."""
    places = [file.parent if file.name == EPISODES else file for file in files]
    sources = []
    for file, place, name in zip(files, places, distinct_names(places), strict=True):
        settings = _beside(file, "config.json", "settings", {})
        rows = _beside(file, "eval.json", "rows", [])
        sources.append(Source(name, str(place), settings, rows))
    return sources


def episode_files(paths: Sequence[Path]) -> list[Path]:
    """The files of episodes at or below `paths`, each once, in order. Links in folders are not
    followed.
    """
    by_place: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise missing(path)
        if path.is_file() and path.suffix != ".jsonl":
            raise DataError(path, f"is no file of episodes; name a run, or its {EPISODES}")
        # A file may be given directly, or be in a folder
        files = (
            [file for file in visible_files(path) if file.name == EPISODES]
            if path.is_dir()
            else [path]
        )
        if not files or not files[0].is_file():
            raise DataError(path, f"holds no {EPISODES}; {MADE_BY}")
        # Two paths may lead to the same file
        for file in files:
            by_place.setdefault(file.resolve(), file)
    return list(by_place.values())


def _beside(file: Path, name: str, key: str, default: Any) -> Any:
    """The entry `key` of the run's other file `name`, with infinite numbers as text; `default` if
    there is none.
    """
    path = file.with_name(name)
    if file.name != EPISODES or not path.is_file():
        return default
    value = read_json(path)
    entry = value.get(key) if isinstance(value, dict) else None
    return (
        json.loads(json.dumps(entry), parse_constant=str)
        if isinstance(entry, type(default))
        else default
    )


def _episodes(files: Sequence[Path], bar: Bar) -> Iterator[tuple[int, Played]]:
    """Each episode with the index of its file; moves `bar` by kilobytes."""
    characters = 0

    def on_line(size: int) -> None:
        # The bar counts whole kilobytes
        nonlocal characters
        bar.advance((characters + size) // KILOBYTE - characters // KILOBYTE)
        characters += size

    for index, file in enumerate(files):
        for episode in read_episodes(file, on_line):
            yield index, episode


def _write_logs(
    folder: Path,
    sources: Sequence[Source],
    files: Sequence[Path],
    episodes: Iterator[tuple[int, Played]],
) -> tuple[int, list[Path]]:
    """Write one log for each run, player, env and level."""
    logs: dict[tuple[int, str, str, str], list[Played]] = {}
    for index, episode in episodes:
        logs.setdefault((index, episode.name, episode.env, episode.level), []).append(episode)
    outputs = []
    for (index, *_), episodes_of_log in logs.items():
        modified = datetime.datetime.fromtimestamp(int(files[index].stat().st_mtime), datetime.UTC)
        name, content = inspect_log(
            sources[index].name, modified, sources[index].settings, episodes_of_log
        )
        outputs.append(folder / name)
        with replacing(folder / name) as file:
            file.write(content)
    return sum(map(len, logs.values())), outputs
