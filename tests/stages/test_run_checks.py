"""What a later step would stop at is said once the data are made, with the flags that fix it; nothing is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.cli.main import main
from tests.explore import FILES
from tests.server import serve

STEPS = """
description: d
defaults: {env: ENV}
steps:
  - {name: demonstrations, stage: gen-trajectory, demonstrations: 6}
  - {name: split, stage: split}
  - {name: rows, stage: gen-sft}
  - {name: plain, stage: sft, role: plain, max_steps: 2, max_length: 24}
  - {name: evaluation, stage: evaluate, policy: ["SFT={plain}"]}
"""
EXPLORE = """
description: d
defaults: {env: auto_explore}
steps:
  - {name: repos, stage: filter-repo, repo_dir: repos}
  - {name: tasks, stage: gen-task, min_tokens: 5}
  - {name: clean, stage: filter-task}
  - {name: demonstrations, stage: gen-trajectory}
  - {name: split, stage: split, by: repo}
  - {name: rows, stage: gen-sft}
  - {name: plain, stage: sft, role: plain, max_steps: 2, max_length: 1024}
  - {name: rl, stage: rlft, load_dir: "{plain}", curriculum: ["0", all], max_steps: 1, episodes: 2}
  - {name: evaluation, stage: evaluate, policy: ["SFT={plain}"], level: ["2", all]}
parameters:
  split_by: {help: h, sets: [split.by]}
  levels: {help: h, sets: [evaluation.level]}
"""


def refused(recipe: str, capsys: pytest.CaptureFixture[str]) -> str:
    Path("r.yaml").write_text(recipe)
    assert main(["run", "r.yaml"]) == 2
    assert not list(Path("results").rglob("checkpoint-*"))
    return capsys.readouterr().err.splitlines()[-1]


def put_repositories(names: str, without: str = "") -> None:
    """Write repositories with distinct questions; those in `without` have no file two folders deep."""
    for name in names.split():
        for path, text in FILES.items():
            if path.count("/") < 2 or name not in without.split():
                target = Path("repos", name, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)


def test_rows_that_are_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(STEPS.replace("ENV", "corridor"), capsys)
    assert "tokens, and the model of step 'plain' reads 24" in line
    assert "add --set 'sft.max_length=64'" in line
    assert main(["run", "r.yaml", "--set", "sft.max_length=64"]) == 0


def test_a_chat_model_that_reflects_is_no_model_to_look_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serve(lambda body: "Go right.") as server:
        recipe = STEPS.replace("ENV", "corridor").replace("max_length: 24", "max_length: 64")
        recipe = recipe.replace('["SFT={plain}"]', f'["SFT={{plain}}+local:m"], base_url: "{server.url}"')
        Path("r.yaml").write_text(recipe)
        assert main(["run", "r.yaml"]) == 0
        assert server.requests


def test_a_single_repository_and_missing_levels_are_reported_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    put_repositories("one")
    line = refused(EXPLORE.replace("1024", "40"), capsys)
    assert "has no problems: one repository cannot be split 7:2:1" in line
    assert "--split-by question" in line
    assert "the model of step 'plain' reads 40" in line


def test_a_level_that_the_held_out_repository_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    put_repositories("a b c", without="a b c")
    line = refused(EXPLORE, capsys)
    assert "step 'evaluation' plays level 2, and data/auto_explore/tasks_filtered/test.json" in line
    assert "has only 0, 1; add --levels all" in line
    assert "question" not in line, "no split has that level"


def test_wrong_settings_of_later_steps_come_before_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(STEPS.replace("ENV", "corridor").replace("stage: evaluate,", "stage: evaluate, width: 0,"), capsys)
    assert "step 'evaluation': --width must be greater" in line
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ('policy: ["SFT={plain}+my/own/nothign"]', "step 'evaluation': my/own/nothign does not exist"),
        ('policy: ["SFT=elsewhere/run/checkpoint-9"]', "step 'evaluation': elsewhere/run/checkpoint-9 does not exist"),
        (
            'policy: ["SFT=~/a/plain"]',
            "step 'evaluation': ~/a/plain does not exist, and no step makes it; write {STEP}",
        ),
    ],
)
def test_a_model_that_no_step_makes_comes_before_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], step: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(STEPS.replace("ENV", "corridor").replace('policy: ["SFT={plain}"]', step), capsys)
    assert message in line
    assert not Path("results").exists()


def test_a_folder_among_the_results_may_be_made_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(STEPS.replace("ENV", "corridor").replace("{plain}", "results/r/plain+nothing"), capsys)
    assert Path("results/r/rows").exists()
