"""The installed alfworld package's files, read without importing it: its import makes a folder in the user's home."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from reflectkit.envs.alfworld.engine import check_installed

BLANK = "UNKNOWN GOAL"


@cache
def folder() -> Path:
    """The package's folder. Raises ConfigError if it is not installed."""
    check_installed()
    spec = importlib.util.find_spec("alfworld")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@cache
def table(name: str) -> Any:
    """The package's module gen/NAME.py: "constants" (what is where, what fits where) or "goal_library". Raises
    ConfigError.
    """
    spec = importlib.util.spec_from_file_location(f"alfworld_{name}", folder() / "gen" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def domain() -> str:
    """The rules of the world, PDDL. Raises ConfigError."""
    return (folder() / "data" / "alfred.pddl").read_text(encoding="utf-8")


def grammar(task: str) -> str:
    """The grammar of the game's texts, with `task` as the task's text. Raises ConfigError."""
    return _grammar().replace(BLANK, task)


def task_text(level: str, parameters: Mapping[str, str], chance: random.Random) -> str:
    """One of the wordings of a task, drawn. parameters: traj_data.json's pddl_params. Raises ConfigError."""
    wording: str = chance.choice(table("goal_library").gdict[level]["templates"])
    places = {"obj": "object_target", "recep": "parent_target", "toggle": "toggle_target", "mrecep": "mrecep_target"}
    return wording.format(**{place: parameters[name].lower() for place, name in places.items()})


@cache
def _grammar() -> str:
    return (folder() / "data" / "alfred.twl2").read_text(encoding="utf-8")
