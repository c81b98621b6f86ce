"""evaluate: which problems of a level are played, and that an episode that two levels share is played once."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.core.console import Quiet
from reflectkit.core.jsonl import read_jsonl, write_json
from reflectkit.core.types import Task
from reflectkit.data.trajectories import Record, record_to_json
from reflectkit.envs.corridor import Corridor
from reflectkit.stages.evaluate import Config, Match, play_match
from reflectkit.stages.shared.players import Players
from tests.explore import explore_task, write_repository


def test_what_another_level_played_is_not_played_again(tmp_path: Path) -> None:
    config = Config(env="corridor", policy=("random",), horizon=5)
    tasks = tuple(Corridor.tasks("long"))
    already: dict[Any, Any] = {}

    def play(number: int, folder: str, horizon: int = 5, tasks: tuple[Task, ...] = tasks) -> list[dict[str, Any]]:
        match = Match(number, "random", None, None, "long", tasks)
        settled = Config(env="corridor", policy=("random",), horizon=horizon)
        with contextlib.closing(Players(config)) as players:
            return play_match(settled, match, tmp_path / folder, players, Quiet(), already)

    first = play(0, "first")
    assert len(already) == len(first) == len(tasks)
    for _, line in already.values():
        line["level"], line["mark"] = "elsewhere", True
    assert [(line["level"], line["mark"]) for line in play(0, "second")] == [("long", True)] * len(tasks)
    assert not any("mark" in line for line in play(1, "third")), "another player's"
    elsewhere = tuple(replace(task, data=task.data | {"new": 1}) for task in tasks)
    assert not any("mark" in line for line in play(0, "fifth", tasks=elsewhere)), "another problem by the same id"
    assert not any("mark" in line for line in play(0, "fourth", horizon=6)), "another horizon's"


def test_problems_are_drawn_evenly_from_the_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_repository(tmp_path))
    many = {"app/fees.py": 6, "docs/guide.md": 3, "README.md": 1}
    tasks = [replace(explore_task(name), id=f"{name}-{number}") for name, count in many.items() for number in range(count)]
    write_json(tmp_path / "tasks.json", [record_to_json(Record(task)) for task in tasks])

    def drawn(problems: int, seed: int = 0) -> list[str]:
        arguments = ["--env", "auto_explore", "--policy", "random", "--task-file", "tasks.json", "--repos-dir", "."]
        arguments += ["--level", "all", "--problems", str(problems), "--seed", str(seed), "--name", f"{problems}-{seed}"]
        assert main(["evaluate", *arguments]) == 0
        return [line["task"] for _, line in read_jsonl(Path(f"results/{problems}-{seed}/episodes.jsonl"))]

    assert len(drawn(0)) == len(drawn(50)) == 10
    for seed in range(3):
        played = drawn(5, seed)
        assert Counter(name.rpartition("-")[0] for name in played) == {
            "app/fees.py": 2,
            "docs/guide.md": 2,
            "README.md": 1,
        }
    assert drawn(4, 7) != drawn(4, 8)
