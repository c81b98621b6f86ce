"""run --seeds: a folder a seed, and what the seeds come to together."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.jsonl import read_json, read_jsonl
from tests.command_lines import error_of

RECIPE = """
description: three stages of the toy env
defaults: {env: corridor}
steps:
  - {name: shown, stage: gen-trajectory}
  - {name: parts, stage: split}
  - {name: evaluation, stage: evaluate, policy: [random, oracle], eval_reps: 2}
"""


def test_seeds_are_pooled_over_distinct_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(RECIPE)
    assert main(["run", "toy.yaml", "--seeds", "2"]) == 0
    alone = [read_json(path)["rows"] for path in sorted(tmp_path.glob("results/seed*/toy/evaluation/eval.json"))]
    (pooled,) = [read_json(path)["rows"] for path in tmp_path.glob("results/toy/run/eval.json")]
    assert [row["name"] for row in pooled] == ["random", "oracle"]
    outcomes: dict[str, list[float]] = {}
    for path in tmp_path.glob("results/seed*/toy/evaluation/episodes.jsonl"):
        for _, episode in read_jsonl(path):
            if episode["name"] == "random":
                outcomes.setdefault(episode["task"], []).append(float(episode["success"]))
    for index, row in enumerate(pooled):
        assert row["by_seed"] == [rows[index]["success"] for rows in alone]
        assert row["tasks"] == len(outcomes)
        assert row["episodes"] == sum(rows[index]["episodes"] for rows in alone)
        assert "pass_at" in alone[0][index]
        assert row["pass_at"].keys() == alone[0][index]["pass_at"].keys(), "tries of one seed's model, not of all"
    assert pooled[0]["success"] == pytest.approx(sum(sum(one) / len(one) for one in outcomes.values()) / len(outcomes))
    assert pooled[1]["success"] == 1.0
    assert "100 · 100" in capsys.readouterr().out
    assert main(["run", "toy.yaml", "--seeds", "2"]) == 0
    assert len(list(tmp_path.glob("results/seed*/*/evaluation*"))) == 2  # finished steps are not done again


GRADED = """
from reflectkit.envs.corridor import Corridor


class Graded(Corridor):
    name = "graded"

    def _move(self, action):
        reward, ended, info = super()._move(action)
        return reward, ended, info | {"figures": ({"half": 0.5} if ended else {}) | {"place": float(self.place)}}
"""


def test_seeds_are_compared_by_what_the_recipe_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of success: half of the difference. A figure that is no share, or that there is not, is an error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "graded_env.py").write_text(GRADED)
    differences = {}
    for measure in ("success", "half"):
        text = RECIPE.replace("env: corridor", "env: graded_env:Graded")
        (tmp_path / f"{measure}.yaml").write_text(f"measure: {measure}\n{text}")
        assert main(["run", f"{measure}.yaml", "--seeds", "2"]) == 0
        assert f"Differences in {measure}, in points" in capsys.readouterr().out
        (differences[measure],) = read_json(tmp_path / f"results/{measure}/run/differences.json")
    assert differences["half"]["difference"] == pytest.approx(0.5 * differences["success"]["difference"])
    assert differences["success"]["difference"] != 0
    for measure, message in (("place", "'place' is no share"), ("wit", "no figure 'wit'; there are half, place")):
        (tmp_path / f"{measure}.yaml").write_text(f"measure: {measure}\n{text}")
        assert message in error_of(["run", f"{measure}.yaml", "--seeds", "2"], capsys)
