"""A wrong setting of a later step is one line before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.cli.main import main
from tests.server import serve

STEPS = """
description: d
defaults: {env: ENV}
steps:
  - {name: demonstrations, stage: gen-trajectory, demonstrations: 6}
  - {name: split, stage: split}
  - {name: rows, stage: gen-sft}
  - {name: plain, stage: sft, role: plain, max_steps: 2, max_length: 64}
  - {name: evaluation, stage: evaluate, policy: ["SFT={plain}"]}
"""


def refused(recipe: str, capsys: pytest.CaptureFixture[str]) -> str:
    Path("r.yaml").write_text(recipe)
    assert main(["run", "r.yaml"]) == 2
    assert not list(Path("results").rglob("checkpoint-*"))
    return capsys.readouterr().err.splitlines()[-1]


def test_a_chat_model_can_reflect_in_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serve(lambda body: "Go right.") as server:
        recipe = STEPS.replace("ENV", "corridor")
        recipe = recipe.replace('["SFT={plain}"]', f'["SFT={{plain}}+local:m"], base_url: "{server.url}"')
        Path("r.yaml").write_text(recipe)
        assert main(["run", "r.yaml"]) == 0
        assert server.requests


def test_wrong_settings_of_later_steps_come_before_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(
        STEPS.replace("ENV", "corridor").replace("stage: evaluate,", "stage: evaluate, max_concurrency: 0,"), capsys
    )
    assert "step 'evaluation': --max-concurrency must be greater" in line
    assert not Path("results").exists()
