"""evaluate holds what its tables need, and not the episodes themselves."""

from __future__ import annotations

import dataclasses
import gc
import tracemalloc
from pathlib import Path

from reflectkit.commands import evaluate
from reflectkit.console import Quiet
from reflectkit.envs.corridor import Corridor
from reflectkit.evals.tables import lean, row
from reflectkit.jsonl import read_json, read_jsonl
from reflectkit.types import Task, Trajectory

LENGTH = 20_000


class LongTexts(Corridor):
    """Each observation is another text of 20 kB."""

    name = "long-texts"

    @classmethod
    def tasks(cls, level: str) -> list[Task]:
        return [dataclasses.replace(task, env=cls.name) for task in Corridor.taskset.tasks(level)]

    def _text(self) -> str:
        return super()._text() + "x" * LENGTH


class Watching(Quiet):
    """Counts the trajectories in memory when the last episode ends."""

    ended = alive = 0

    def advance(self, amount: int = 1, **figures: float) -> None:
        self.ended += amount
        if self.ended == 120:
            self.alive = sum(isinstance(one, Trajectory) for one in gc.get_objects())


def config(results: Path, **settings: object) -> evaluate.EvaluateConfig:
    env = "tests.commands.test_evaluate_memory:LongTexts"
    return evaluate.EvaluateConfig.from_flat(
        env=env, policy=("oracle",), max_concurrency=2, results_dir=results, **settings
    )  # type: ignore[arg-type]


def test_memory_does_not_grow_with_the_episodes(tmp_path: Path) -> None:
    evaluate.run(config(tmp_path / "first"), Quiet())  # imports
    watching = Watching()
    gc.collect()
    tracemalloc.start()
    report = evaluate.run(config(tmp_path, eval_reps=20), watching)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert watching.alive <= 4
    written = (report.folder / "episodes.jsonl").stat().st_size
    assert written > 120 * LENGTH * 2
    assert peak < written / 4
    (figures,) = read_json(report.folder / "eval.json")["rows"]
    assert (figures["episodes"], figures["steps"], figures["success"]) == (120, 3.5, 1.0)


def test_the_tables_are_those_of_the_whole_episodes(tmp_path: Path) -> None:
    report = evaluate.run(config(tmp_path, eval_reps=2), Quiet())
    (figures,) = read_json(report.folder / "eval.json")["rows"]
    whole = [dict(one) for _, one in read_jsonl(report.folder / "episodes.jsonl")]
    assert figures == row("oracle", figures["env"], "long", whole)
    said = [
        {**one, "unfit": True, "unreadable": 1, "turns": [{"reflection": "go right", "tokens": 3, "illegal": 1}, *rest]}
        for one in whole
        for _, *rest in [one["turns"]]
    ]
    assert row("x", "env", "long", said) == row("x", "env", "long", list(map(lean, said)))
    assert row("x", "env", "long", said)["reflection_words"] == 2.0
