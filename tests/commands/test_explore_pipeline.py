"""AutoExplore from repositories to SFT rows on the boxed data, offline; killed and run again; and the original
toolkit's own files.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from reflectkit.agents.scripted import Replay
from reflectkit.cli.main import main
from reflectkit.commands import filter_repo, filter_task, gen_sft, gen_task, gen_trajectory, split
from reflectkit.console import Quiet
from reflectkit.data.problems import read_records
from reflectkit.env import Context
from reflectkit.envs import make
from reflectkit.errors import DataError
from reflectkit.jsonl import read_json, read_jsonl, write_json
from reflectkit.prompts import label, policy_prompt, reflection_completion, reflection_prompt
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.types import Decision, Observation
from tests.explore import write_repository
from tests.kill import fork_killed_at, hashes

BOXED = Path(__file__).parents[2] / "data" / "auto_explore" / "repos"
ENV = "auto_explore"
FILES = ("sft", "sft_reflection", "sft_policy", "sft_reflection_positive", "sft_policy_positive")


def prepare(folder: Path, repos: Path, seed: int = 0) -> Path:
    """Every data stage; returns the env's data folder."""
    shared: Any = {"data_dir": folder / "data", "results_dir": folder / "results", "seed": seed}
    filter_repo.run(filter_repo.FilterRepoConfig.from_flat(repo_dir=repos, **shared), Quiet())
    gen_task.run(gen_task.GenTaskConfig.from_flat(**shared), Quiet())
    filter_task.run(filter_task.FilterTaskConfig.from_flat(**shared), Quiet())
    gen_trajectory.run(gen_trajectory.GenTrajectoryConfig.from_flat(env=ENV, **shared), Quiet())
    split.run(split.SplitConfig.from_flat(env=ENV, **shared), Quiet())
    gen_sft.run(gen_sft.GenSFTConfig.from_flat(env=ENV, **shared), Quiet())
    return folder / "data" / ENV


@pytest.fixture(scope="module")
def repos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part of four of the included repositories."""

    def rest(folder: str, names: list[str]) -> list[str]:
        return sorted(names)[4:]

    folder = tmp_path_factory.mktemp("boxed") / "repos"
    for name in ("bookshop", "greenhouse", "ferry_line", "museum_catalog"):
        shutil.copytree(BOXED / name, folder / name, ignore=rest)
    return folder


@pytest.fixture(scope="module")
def data(repos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("explore"), repos)


class Recorder:
    """Plays a demonstration and keeps the prompts that the players would read on the way."""

    def __init__(self, replay: Replay) -> None:
        self.replay, self.seen = replay, []

    async def decide(self, observation: Observation, context: Context) -> Decision:
        decision = await self.replay.decide(observation, context)
        self.seen.append((observation, decision))
        return decision


def test_every_sft_prompt_is_what_the_agent_sees_and_every_demonstration_succeeds(data: Path) -> None:
    records = read_records(data / "tasks_filtered" / "validate.json", ENV)
    expected: dict[str, list[tuple[str, str]]] = {name: [] for name in FILES}
    config = gen_sft.GenSFTConfig.from_flat(
        env=ENV,
        task_file=data / "tasks_filtered" / "validate.json",
        out_dir=data.parent / "rows",
        data_dir=data.parent,
        results_dir=data.parent / "results",
    )
    gen_sft.run(config, Quiet())
    for record in records:
        for item in record.trajectories:
            recorder = Recorder(Replay(item.trajectory, "here"))
            (played,) = rollout(
                [Episode(record.task, item.seed)],
                lambda: make(ENV, 15, repos_dir=data / "repos_filtered"),
                recorder,
                width=1,
            )
            assert played.success
            notes = [step.note for step in item.trajectory]
            assert notes.count("mistake") == notes.count("correction") == item.negative
            for seen, decision in recorder.seen:
                if item.negative and decision.note != "correction":
                    continue
                answer = label(decision.action)
                rows = {
                    "sft": (policy_prompt(seen), answer),
                    "sft_reflection": (reflection_prompt(seen), reflection_completion(decision.reflection)),
                    "sft_policy": (policy_prompt(seen, decision.reflection), answer),
                }
                for name, row in rows.items():
                    expected[name].append(row)
                    if name != "sft" and not item.negative:
                        expected[f"{name}_positive"].append(row)
    for name in FILES:
        rows = [(row["prompt"], row["completion"]) for _, row in read_jsonl(data.parent / "rows" / f"{name}.jsonl")]
        assert rows == expected[name], name


RECIPE = """
description: the data stages, for a test
defaults: {{env: auto_explore}}
steps:
  - {{name: repos, stage: filter-repo, repo_dir: {repos}}}
  - {{name: tasks, stage: gen-task}}
  - {{name: clean, stage: filter-task}}
  - {{name: demonstrations, stage: gen-trajectory}}
  - {{name: split, stage: split}}
  - {{name: rows, stage: gen-sft}}
"""


def test_killed_anywhere_and_run_again_the_bytes_are_the_same(data: Path, repos: Path, tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text(RECIPE.format(repos=repos))
    points = ("repos_filtered/museum:1", "data_reflection_negative.json:1")
    fork_killed_at(points, ["run", "data.yaml"], tmp_path)
    assert hashes(tmp_path / "data" / ENV) == hashes(data)


# ----------------------------------------------------------------------------------------- the original toolkit's files


def original(
    question: str, filename: str, path: list[str], trajectories: list[dict[str, Any]] | None = None, **more: Any
) -> dict[str, Any]:
    record = {"question": question, "answer": "so", "optimal_path": path, "filename": filename, "root": "library",
              "n_level": filename.count("/"), "model": "gpt-4", **more}  # fmt: skip
    return record if trajectories is None else record | {"trajectories": trajectories}


def steps(*commands: str) -> list[dict[str, str]]:
    return [{"reflection": f"I think {command} helps.", "cmd": command} for command in commands]


def given(info: str, filename: str | None, trajectory: list[dict[str, str]]) -> dict[str, Any]:
    return {"model_name": "gpt-4", "info": info, "filename": filename, "trajectory": trajectory}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A data folder with a filtered repository and the original's question files."""
    folder = tmp_path / "data" / ENV
    write_repository(folder / "repos_filtered")
    fees = ["ls", "cd app", "ls", "cd rules", "ls", "cat fees.py"]
    silent = [{"reflection": "", "cmd": command} for command in ("cd app", "cat fees.py")]
    good = given("positive0", "app/rules/fees.py", steps("ls", "cd app", "cd rules", 'cat "fees.py"'))
    negative = given("negative0", None, [*silent, *steps("cd rules")])
    wrong = given("positive", "README.md", steps("cat README.md", "id README.md"))
    records = [
        original("What is the late fee?", "app/rules/fees.py", fees, [good], commands=["ls"], reason="because"),
        original("What is the late fee?", "app/rules/fees.py", fees, [negative, wrong]),
        original("How is it set up?", "setup notes.txt", ["ls", 'cat "setup notes.txt"'], []),
        original("  ", "README.md", ["cat README.md"]),
        original("Where did it go?", "gone.md", ["cat gone.md"]),
        original("Which repository?", "README.md", ["cat README.md"], root="elsewhere"),
        original("Who leaves?", "../../secret.md", ["cat secret.md"]),
        original("Who is lost?", "docs/guide.md", ["cd ..", "rm -rf /", "cat /etc/passwd"]) | {"answer": None},
        original("Nothing?", "README.md", ["cat README.md"]) | {"question": None},
        original("Half a \ud800 pair?", "README.md", ["cat README.md"]),
    ]
    (folder / "tasks").mkdir()
    (folder / "tasks" / "library.json").write_text(json.dumps(records))
    return tmp_path


def test_the_originals_files_go_through(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["filter-task", "--task-file", "data/auto_explore/tasks/"]) == 0
    kept = read_json(old / "data" / ENV / "tasks_filtered" / "data.json")
    assert [(record["question"], record["optimal_path"]) for record in kept] == [
        ("What is the late fee?", ["cd app", "cd rules", "cat fees.py", "id fees.py"]),
        ("How is it set up?", ["cat setup notes.txt", "id setup notes.txt"]),
        ("Who is lost?", ["cd docs", "cat guide.md", "id guide.md"]),
    ]
    assert [item["info"] for item in kept[0]["trajectories"]] == ["positive0", "negative0", "positive1"]
    assert "commands" not in kept[0]
    shown = capsys.readouterr().out
    reasons = ("empty question", "vanished file", "no such repository", "there twice", "text that is not valid Unicode")
    for reason in reasons:
        assert reason in shown

    shutil.copy("data/auto_explore/tasks_filtered/data.json", "data/auto_explore/tasks_filtered/train.json")
    assert main(["gen-sft", "--env", "auto_explore", "--task-file", "data/auto_explore/tasks_filtered/train.json"]) == 0
    rows = [row["prompt"] for _, row in read_jsonl(old / "data" / ENV / "tasks_filtered" / "sft_policy.jsonl")]
    assert len(rows) == 4 + 1  # the right demonstration, and the last step of the negative one
    assert "Reflection: I think cd rules helps." in rows[4]
    assert "Commands: cd app; cat fees.py" in rows[4]
    told = capsys.readouterr().out
    assert "1 demonstration: a wrong file is named" in told
    assert "1 step without a comment: no row for the reflector" in told  # `id`, which the demonstration lacks
    comments = [row["completion"] for _, row in read_jsonl(old / "data" / ENV / "tasks_filtered/sft_reflection.jsonl")]
    assert len(comments) == 3 + 1
    arguments = ["gen-sft", "--env", "auto_explore", "--accept-teacher-answers", "--out-dir", "accepted"]
    assert main(arguments) == 0
    assert len(list(read_jsonl(old / "accepted" / "sft_policy.jsonl"))) == 4 + 1 + 2


def test_a_record_that_lies_about_its_file_is_refused_while_playing(old: Path) -> None:
    record = original("Who leaves?", "README.md", []) | {"root": "../../.."}
    path = old / "lies.json"
    write_json(path, [record | {"trajectories": [{"info": "positive0", "trajectory": steps("id README.md")}]}])
    with pytest.raises(DataError, match="root"):
        gen_sft.run(
            gen_sft.GenSFTConfig.from_flat(env=ENV, task_file=path, data_dir=old / "data", results_dir=old / "results"),
            Quiet(),
        )
