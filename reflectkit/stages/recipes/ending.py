"""What `run` prints last: what the recipe's run was, what the full one takes and shows, and commands to type next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectkit.core.config import flag, leaves
from reflectkit.core.reports import Report
from reflectkit.stages import config_class
from reflectkit.stages.recipes.steps import Job, outputs_of, resolved

CHECK = "This was a quick check that every step runs. Its models are hardly trained, so their figures mean nothing."
DECIDED = ("name", "keep", "force", "threads", "device", "task", "count", "from_", "reflector")
"""Settings that a suggested command leaves at their defaults."""


def closing(
    in_full: Sequence[str],
    fast: bool,
    fast_shows: str,
    full_shows: str,
    jobs: Sequence[Job],
    reports: Mapping[str, Report],
) -> tuple[str, ...]:
    """The lines. in_full: the arguments of `run` for the full recipe. fast_shows: what the fast variant is; empty: a
    check. full_shows: what the full run takes and shows.

    jobs, reports: of the whole run; the commands are about the first evaluation.
    """
    lines: list[str] = []
    if fast:
        full = f" The full run, `{_program()} run {shlex.join(in_full)}`, {full_shows}." if full_shows else ""
        lines.append((fast_shows or CHECK) + full)
    job = next((job for job in jobs if job.stage == "evaluate"), None)
    if job is None:
        return tuple(lines)
    outputs = outputs_of(job, reports)
    values = {name: resolved(value, job, outputs) for name, value in job.values.items()}
    players = [entry for entry in values.get("policy", ()) if "=" in entry]
    lines += ["Next:", f"  {_command('view', {})} {shlex.quote(str(reports[job.name].folder))}"]
    if players:
        best = next((entry for entry in reversed(players) if "+" in entry.partition("=")[2]), players[-1])
        levels = values.get("level") or [""]
        lines.append(f"  {_command('play', values | {'policy': best, 'level': _last(levels)})}")
        lines.append(f"  {_command('evaluate', values | {'policy': ['oracle', best]})}")
    return tuple(lines)


def _last(levels: Sequence[str]) -> str:
    return "" if levels[-1] == "all" else levels[-1]


def _command(stage: str, values: Mapping[str, Any]) -> str:
    """The command of `stage` with those of `values` that are its settings and not its defaults."""
    parts = [_program(), stage]
    for item in leaves(config_class(stage), values):
        value = values.get(item.name)
        if item.name in DECIDED or value is None or str(value) == str(item.default) or value in ("", [], ()):
            continue
        name = flag(item.name)
        if isinstance(value, bool):
            parts.append(name if value else f"--no-{name[2:]}")
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            parts += [name, shlex.quote(str(one))]
    return " ".join(parts)


def _program() -> str:
    """How to call reflectkit in this shell: by name if that finds it, else by the path in its environment."""
    script = Path(sys.executable).parent / "reflectkit"
    if shutil.which("reflectkit") or not script.is_file():
        return "reflectkit"
    relative = os.path.relpath(script)
    return shlex.quote(str(script) if relative.startswith("..") else relative)
