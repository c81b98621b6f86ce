"""Packs: the episodes and learning curves of published runs, slimmed to what tables and figures need.

A pack is a folder with a compressed file for each training seed. Every figure of a page can be drawn from it without
training. `pack.json` has the title, the comparisons, what they are measured by (success if it does not say) and the
checksum of each file. A line of `seed-N.jsonl.gz` is an episode (name, env, level, task, cluster, seed, status,
success, return, figures, steps) or a curve (curve, figure, episodes, values).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reflectkit.data.episodes import SUCCESS
from reflectkit.errors import DataError
from reflectkit.jsonl import dumps, read_json, replacing, write_json
from reflectkit.types import LARGEST, Status
from research.seeds import no_share

INDEX = "pack.json"
NEW = ".new"  # behind the names of files that have not replaced the old ones yet
FORMAT = 1
LARGEST_FILE = 64 * 2**20  # bytes, unpacked
MOST_STEPS = 10_000_000  # of the episodes of a file
FILE = re.compile(r"seed-(0|[1-9][0-9]{0,9})\.jsonl\.gz")
FIELDS = {"name": str, "level": str, "task": str, "cluster": str, "status": str, "success": bool, "steps": int}
AGAIN = "delete the folder, and pack all of its seeds again with `reflectkit pack`"


@dataclass(frozen=True)
class Curve:
    """A learning curve of one seed."""

    name: str
    """Of the arm."""
    figure: str
    """Of metrics.jsonl, e.g. validation_success_rate."""
    episodes: tuple[float, ...]
    """Places on the axis, ascending."""
    values: tuple[float, ...]
    """Values there."""


@dataclass(frozen=True)
class Seed:
    """What one training seed left."""

    episodes: tuple[Mapping[str, Any], ...] = ()
    """Slim lines of episodes.jsonl; `turns` has an empty object for each step."""
    curves: tuple[Curve, ...] = ()


@dataclass(frozen=True)
class Pack:
    """The published data of one experiment."""

    title: str
    """Of its figures."""
    comparisons: tuple[tuple[str, str], ...] = ()
    """Pairs of players, (first, second): first minus second is an effect to show."""
    seeds: Mapping[int, Seed] = field(default_factory=dict)
    """By training seed."""
    measure: str = SUCCESS
    """What is compared: success, or one of the env's figures that is a share."""


def slim(episode: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """What a pack keeps of a line of episodes.jsonl."""
    kept = {name: episode[name] for name in ("name", "env", "level", "task") if name in episode}
    kept["cluster"] = cluster
    kept |= {name: episode[name] for name in ("seed", "status", "return") if name in episode}
    kept["success"] = episode.get("success", False)
    if episode.get("figures"):
        kept["figures"] = episode["figures"]
    return kept | {"steps": len(episode.get("turns", ()))}


def write_pack(folder: Path, pack: Pack) -> list[Path]:
    """Write the files and the index; the same pack gives the same bytes. Returns their paths.

    All are written beside those that they replace, the index last, and then take their names: a folder in which this
    was interrupted holds the old pack or the new one.
    """
    _switch(folder)
    for path in folder.glob(f"seed-*{NEW}"):
        path.unlink()
    files: dict[str, str] = {}
    for number, seed in sorted(pack.seeds.items()):
        rows: list[dict[str, Any]] = []
        for episode in seed.episodes:
            rows.append(slim(episode, episode["cluster"]))
        for curve in seed.curves:
            rows.append(
                {"curve": curve.name, "figure": curve.figure, "episodes": curve.episodes, "values": curve.values}
            )
        content = "".join(dumps(row) + "\n" for row in rows).encode()
        name = f"seed-{number}.jsonl.gz"
        with replacing(folder / f"{name}{NEW}") as file:
            file.write(gzip.compress(content, mtime=0))
        files[name] = hashlib.sha256(content).hexdigest()
    index: dict[str, Any] = {"format": FORMAT, "title": pack.title}
    if pack.measure != SUCCESS:
        index["measure"] = pack.measure
    index |= {"comparisons": [list(pair) for pair in pack.comparisons], "files": files}
    write_json(folder / f"{INDEX}{NEW}", index)
    _switch(folder)
    return [folder / INDEX, *(folder / name for name in files)]


def _switch(folder: Path) -> None:
    """Give the new files their names, if all of them are written: if their index is."""
    if _index(folder).name != INDEX:
        for path in sorted(folder.glob(f"seed-*{NEW}")):
            path.replace(path.with_suffix(""))
        _index(folder).replace(folder / INDEX)


def _index(folder: Path) -> Path:
    """The index that counts: the new one, once it is written."""
    new = folder / f"{INDEX}{NEW}"
    return new if new.exists() else folder / INDEX


def is_pack(folder: Path) -> bool:
    """Whether there is a pack in `folder`, intact or not."""
    return _index(folder).exists()


def read_pack(folder: Path) -> Pack:
    """The pack in `folder`. Raises DataError if it is missing or damaged."""
    path = _index(folder)
    index = read_json(path)
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise DataError(path, f"is not the index of a pack (format {FORMAT}); {AGAIN}")
    title, pairs, files = (index.get(name) for name in ("title", "comparisons", "files"))
    measure = index.get("measure", SUCCESS)
    if not isinstance(measure, str) or not measure:
        raise DataError(path, f"expected success or the name of a figure, found {measure!r:.60}", field="measure")
    if not isinstance(title, str) or not title:
        raise DataError(path, f"expected a title, found {title!r:.60}", field="title")
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and [type(name) for name in pair] == [str, str] and pair[0] != pair[1] for pair in pairs
    ):
        raise DataError(path, f"expected a list of pairs of different names, found {pairs!r:.60}", field="comparisons")
    if not isinstance(files, dict) or not files or not all(FILE.fullmatch(name) for name in files):
        raise DataError(path, f"expected seed-N.jsonl.gz with their checksums, found {files!r:.60}", field="files")
    seeds = {}
    for name, digest in files.items():
        waits = path.name != INDEX and (folder / f"{name}{NEW}").exists()
        seeds[int(name[5:].partition(".")[0])] = _read_seed(folder / f"{name}{NEW * waits}", digest)
    if len(figures := figures_kept(seeds.values())) > 1:
        raise DataError(folder, f"has curves of {' and of '.join(figures)}; {AGAIN}")
    for number, seed in seeds.items():
        if outside := no_share(seed.episodes, measure):
            raise DataError(folder / f"seed-{number}.jsonl.gz", f"{outside}; {AGAIN}")
    return Pack(title, tuple((first, second) for first, second in pairs), dict(sorted(seeds.items())), measure)


def _read_seed(path: Path, digest: Any) -> Seed:
    try:
        with gzip.open(path) as file:
            content = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise DataError(path, f"no such file, but {INDEX} names it; {AGAIN}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(path, f"is damaged ({error}); {AGAIN}") from None
    if len(content) > LARGEST_FILE:
        raise DataError(path, f"is larger than {LARGEST_FILE:,} bytes when unpacked; pack fewer problems")
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(path, f"its checksum is not the one in {INDEX}; {AGAIN}")
    episodes, curves, steps = [], [], 0
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), start=1):
        if line:
            try:
                row = json.loads(line)
                if "curve" in row:
                    curves.append(_curve(row))
                else:
                    steps += row["steps"]
                    if steps > MOST_STEPS:
                        raise DataError(path, f"has more than {MOST_STEPS:,} steps; pack fewer problems", line=number)
                    episodes.append(_episode(row))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                raise DataError(path, f"is neither an episode nor a curve; {AGAIN}", line=number) from None
    twice = [name for name, count in Counter(curve.name for curve in curves).items() if count > 1]
    if twice:
        raise DataError(path, f"has two curves of {twice[0]!r:.60}; {AGAIN}")
    return Seed(tuple(episodes), tuple(curves))


def _episode(row: dict[str, Any]) -> dict[str, Any]:
    """A line of episodes.jsonl that has what tables need. Raises ValueError, TypeError, KeyError,
    AttributeError.
    """
    if row["steps"] < 0 or any(type(row[name]) is not kind for name, kind in FIELDS.items()):
        raise ValueError(row)
    Status(row["status"])
    kept = {name: row[name] for name in (*FIELDS, "env", "seed") if name in row}
    figures = {name: _finite(value) for name, value in row.get("figures", {}).items()}
    return kept | {"return": _finite(row["return"]), "figures": figures, "turns": [{}] * row["steps"]}


def _curve(row: dict[str, Any]) -> Curve:
    places, values = tuple(map(_finite, row["episodes"])), tuple(map(_finite, row["values"]))
    if len(places) != len(values) or not places or list(places) != sorted(set(places)):
        raise ValueError(row)
    return Curve(str(row["curve"]), str(row["figure"]), places, values)


def _finite(value: Any) -> float:
    """`value`, an integer as it is, so that a pack that is written again keeps its bytes."""
    if type(value) not in (int, float) or not abs(value) <= LARGEST:
        raise ValueError(value)
    return value  # type: ignore[no-any-return]


def merged(old: Pack, new: Pack, add: bool = False) -> Pack:
    """`old` with the seeds of `new` in place of its own, and the title, comparisons and measure of `new` where it has
    some.

    add: keep those players, curves and comparisons of `old` that `new` does not have.
    """
    seeds, comparisons = {**old.seeds, **new.seeds}, new.comparisons or old.comparisons
    if add:
        seeds |= {number: _both(old.seeds[number], seed) for number, seed in new.seeds.items() if number in old.seeds}
        comparisons = tuple(dict.fromkeys((*old.comparisons, *new.comparisons)))
    return Pack(new.title or old.title, comparisons, dict(sorted(seeds.items())), new.measure or old.measure)


def _both(old: Seed, new: Seed) -> Seed:
    """The players and curves of both, those of `new` where both have one of a name."""
    names, curves = set(players([new])), {curve.name for curve in new.curves}
    kept = tuple(one for one in old.episodes if one["name"] not in names)
    return Seed((*kept, *new.episodes), (*(one for one in old.curves if one.name not in curves), *new.curves))


def figures_kept(seeds: Iterable[Seed]) -> list[str]:
    """The figures that the curves are of, sorted; a pack has one, as areas are compared by the arm's name."""
    return sorted({curve.figure for seed in seeds for curve in seed.curves})


def players(seeds: Sequence[Seed]) -> list[str]:
    """The names of all players, in the order of their first episode."""
    return list(dict.fromkeys(episode["name"] for seed in seeds for episode in seed.episodes))
