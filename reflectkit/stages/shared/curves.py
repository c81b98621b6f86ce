"""Learning curves, read from the metrics.jsonl of runs; a run that resumed from another one continues its curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectkit.core.errors import DataError
from reflectkit.core.jsonl import read_json, read_jsonl
from reflectkit.core.stats import smooth
from reflectkit.core.types import LARGEST
from reflectkit.rl.figures import NAMED
from reflectkit.stages.shared.figures import Curve

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
