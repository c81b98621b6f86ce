"""Comments on the states that a player visited: one round of DAgger."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from reflectkit.commands import evaluate, gen_sft
from reflectkit.console import Quiet, Report
from reflectkit.data.problems import Demonstration, read_records
from reflectkit.envs.taxi import Taxi
from reflectkit.jsonl import read_jsonl
from reflectkit.prompts import policy_prompt, reflection_prompt
from research import visited


@pytest.fixture
def folder(taxi_data: Path, tmp_path: Path) -> Path:
    """A data folder with taxi's training split."""
    target = tmp_path / "data" / "taxi"
    target.mkdir(parents=True)
    for name in ("train.json", "test.json"):
        shutil.copy(taxi_data / name, target / name)
    return target


def shared(folder: Path) -> dict[str, object]:
    return {"env": "taxi", "data_dir": folder.parent, "results_dir": folder.parents[1] / "results"}


def play(folder: Path, split: str = "train", *players: str) -> Path:
    settings = shared(folder) | {"policy": players or ("random",), "task_file": folder / f"{split}.json"}
    return evaluate.run(evaluate.EvaluateConfig.from_flat(**settings, problems=40, eval_reps=3), Quiet()).folder


def comments_on(folder: Path, run: Path, **settings: object) -> Report:
    config = visited.VisitedConfig.from_flat(**shared(folder), states_of=run, **settings)
    return visited.run(config, Quiet())


def demonstrations(path: Path) -> list[tuple[dict[str, int], Demonstration]]:
    return [(dict(record.task.data), one) for record in read_records(path, "taxi") for one in record.trajectories
            if one.visited]  # fmt: skip


def test_every_state_that_was_visited_gets_the_oracles_comment_and_its_action(folder: Path) -> None:
    report = comments_on(folder, play(folder), states=100)
    (path,) = report.outputs
    found = demonstrations(path)
    steps = [step for _, one in found for step in one.trajectory]
    assert len(steps) == report.figures["states"] == 100
    notes = [step.note for step in steps]
    assert {"positive", "mistake"} <= set(notes)
    rows: dict[str, list[tuple[str, str]]] = {"sft_reflection": [], "sft": [], "sft_policy": []}
    for data, one in found:  # derived from the env alone
        env = Taxi()
        task = next(task for task in Taxi.taskset.tasks("full") if task.data == data)
        seen = env.reset(task, 0)
        for step in one.trajectory:
            best = Taxi.choices[env.teacher().action()]
            taken = Taxi.choices.index(step.cmd)
            assert f"row {env.state // 100}, column {env.state // 20 % 5}." in step.reflection
            assert ("mistake" in step.reflection or "wrong" in step.reflection) == (env.teacher().note() == "mistake")
            right = best if step.note == "mistake" else step.cmd
            rows["sft_reflection"].append((reflection_prompt(seen), f" {step.reflection}"))
            rows["sft"].append((policy_prompt(seen), f" {Taxi.choices.index(right)}"))
            rows["sft_policy"].append((policy_prompt(seen, step.reflection), f" {Taxi.choices.index(right)}"))
            seen = env.step(taken).observation
            assert (env.teacher().note() == "mistake") == (step.note == "mistake") == bool(step.best)
            assert step.best in ("", best)
    out = folder / "rows"
    settings = shared(folder) | {"task_file": path, "out_dir": out}
    gen_sft.run(gen_sft.GenSFTConfig.from_flat(**settings), Quiet())
    for name, expected in rows.items():
        written = [(row["prompt"], row["completion"]) for _, row in read_jsonl(out / f"{name}.jsonl")]
        assert set(expected) <= set(written)
    assert len(list(read_jsonl(out / "sft_reflection.jsonl"))) == 100 + sum(
        len(one.trajectory) for record in read_records(folder / "train.json", "taxi") for one in record.trajectories
    )
