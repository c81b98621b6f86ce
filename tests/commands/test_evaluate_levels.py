"""evaluate: problems drawn from a level, and an episode that two levels share is played once."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from reflectkit.agents.players import Players
from reflectkit.commands.evaluate import EvaluateConfig, Match, drawn, play_match
from reflectkit.console import Quiet
from reflectkit.envs.corridor import Corridor
from reflectkit.types import Task


def test_what_another_level_played_is_not_played_again(tmp_path: Path) -> None:
    config = EvaluateConfig.from_flat(env="corridor", policy=("random",), horizon=5)
    tasks = tuple(Corridor.taskset.tasks("long"))
    already: dict[Any, Any] = {}

    def play(number: int, folder: str, horizon: int = 5, tasks: tuple[Task, ...] = tasks) -> list[dict[str, Any]]:
        match = Match(number, "random", None, None, "long", tasks)
        settled = EvaluateConfig.from_flat(env="corridor", policy=("random",), horizon=horizon)
        with contextlib.closing(Players(config.players)) as players:
            played = play_match(settled, match, tmp_path / folder, players, Quiet(), already)
        assert {one.whole()["level"] for one in played} == {"long"}
        return [one.line for one in played]

    first = play(0, "first")
    assert len(already) == len(first) == len(tasks)
    for _, one in already.values():
        one.line["level"], one.line["mark"] = "elsewhere", True
    assert [(line["level"], line["mark"]) for line in play(0, "second")] == [("long", True)] * len(tasks)
    assert not any("mark" in line for line in play(1, "third")), "another player's"
    elsewhere = tuple(replace(task, data=task.data | {"new": 1}) for task in tasks)
    assert not any("mark" in line for line in play(0, "fifth", tasks=elsewhere)), "another problem by the same id"
    assert not any("mark" in line for line in play(0, "fourth", horizon=6)), "another horizon's"


def test_problems_are_drawn_evenly_from_the_clusters() -> None:
    clusters = [*"aaaaaa", *"bbb", "c"]
    for count in (0, 10, 99):
        assert drawn(clusters, count, 0) == list(range(10))
    seen = set()
    for seed in range(5):
        places = drawn(clusters, 5, seed)
        assert places == sorted(places) == drawn(clusters, 5, seed)
        assert Counter(clusters[place] for place in places) == {"a": 2, "b": 2, "c": 1}
        seen.add(tuple(places))
    assert len(seen) > 1
