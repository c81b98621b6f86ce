"""run: the whole chain on the toy env, run again, killed, with several seeds and with ablations."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import transformers  # noqa: F401  forks of this process have it imported
import trl  # noqa: F401
import yaml

from reflectkit.cli.main import main
from reflectkit.jsonl import read_json, read_jsonl
from tests.command_lines import DATA_FILES, error_of
from tests.kill import fork_killed_at, forked, hashes

RECIPE = """
description: the toy env, for tests
defaults: {env: corridor}
steps:
  - {name: demonstrations, stage: gen-trajectory, demonstrations: 6, noise: 0.3}
  - {name: split, stage: split}
  - {name: rows, stage: gen-sft}
  - {name: reflector, stage: sft, role: reflection, max_steps: 4, save_steps: 2, max_length: 64}
  - {name: plain, stage: sft, role: plain, max_steps: 4, save_steps: 2, max_length: 64}
  - {name: policy-rows, stage: gen-sft, comments: both, mismatch: 0.2, reflector: "{reflector}",
     out_dir: "{data}/both"}
  - {name: policy, stage: sft, role: policy, max_steps: 4, save_steps: 2, max_length: 96,
     task_file: "{data}/both/sft_policy.jsonl"}
  - {name: reflect-rl, stage: rlft, policy: "{policy}", reflector: "{reflector}",
     algo: reinforce, max_steps: 2, episodes: 4, save_steps: 1}
  - {name: sft-rl, stage: rlft, policy: "{plain}", algo: reinforce, max_steps: 2, episodes: 4, save_steps: 1}
  - {name: evaluation, stage: evaluate, task_file: "{data}/corridor/train.json",
     policy: ["SFT={plain}", "SFT + RL={sft-rl}", "Reflect-RL={reflect-rl}+{reflector}", oracle]}
  - {name: curves, stage: plot, runs: ["Reflect-RL={reflect-rl}", "SFT + RL={sft-rl}"]}
ablations:
  rl: {of: SFT + RL, arm: SFT}
  entropy: {of: SFT + RL, steps: {sft-rl: {entropy_coef: 0.5}}}
"""
RUN = ["run", "toy.yaml"]
ABLATED = [*RUN, "--ablate", "rl,entropy"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy recipe with its ablations, run once without interruption."""
    folder = tmp_path_factory.mktemp("straight")
    (folder / "toy.yaml").write_text(RECIPE)
    assert forked(ABLATED, folder) == 0, (folder / "output.txt").read_text()
    return folder


def weights(folder: Path) -> dict[str, str]:
    """Digests of all weights below `folder`."""
    return {name: digest for name, digest in hashes(folder).items() if name.endswith("model.safetensors")}


def leftovers(folder: Path) -> list[Path]:
    """What only an unfinished run has."""
    return [path for path in folder.rglob("*") if path.name == "trainer" or path.name.startswith(".reflectkit-tmp")]


def test_run_makes_everything_and_leaves_nothing_half_done(straight: Path) -> None:
    assert set(DATA_FILES) <= {path.name for path in (straight / "data" / "corridor").iterdir()}
    steps = [*(step["name"] for step in yaml.safe_load(RECIPE)["steps"]), "sft-rl@entropy", "run"]
    assert [path.name for path in (straight / "results").iterdir()] == ["toy"]
    assert sorted(path.name for path in (straight / "results" / "toy").iterdir()) == sorted(steps)
    for folder in (straight / "results" / "toy").iterdir():
        assert (folder / "config.json").is_file()
        assert (folder / "report.json").is_file()
    assert leftovers(straight) == []
    rows = read_json(straight / "results" / "toy" / "evaluation" / "eval.json")["rows"]
    assert next(row for row in rows if row["name"] == "oracle")["success"] == 1.0
    assert (straight / "results" / "toy" / "curves" / "curves.png").read_bytes().startswith(b"\x89PNG")
    for step in ("reflect-rl", "sft-rl"):
        metrics = [row for _, row in read_jsonl(straight / "results" / "toy" / step / "metrics.jsonl")]
        assert [row["step"] for row in metrics] == [1, 2]
        assert metrics[0]["ratio_deviation"] < 1e-5


def test_checkpoints_open_with_transformers_alone(straight: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = straight / "results" / "toy" / "sft-rl" / "checkpoint-2"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer)


def test_running_again_skips_everything_without_torch(straight: Path) -> None:
    before = weights(straight)
    code = f"import sys\nfrom reflectkit.cli.main import main\nassert main({ABLATED}) == 0\n"
    code += "assert 'torch' not in sys.modules, 'so it takes a second'"
    done = subprocess.run([sys.executable, "-c", code], cwd=straight, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("already finished") == 12
    assert weights(straight) == before


def test_killed_at_any_point_and_started_again_it_ends_the_same(straight: Path, tmp_path: Path) -> None:
    """kill -9 while SFT and RL write their weights: same data files, same weights. The last process runs nothing but a
    part of the last training.
    """
    shutil.copy(straight / "toy.yaml", tmp_path)
    fork_killed_at(("trainer/checkpoint-2/:1", "/checkpoint-1$:1", "sft-rl/checkpoint-1$:1"), RUN, tmp_path)
    assert hashes(tmp_path / "data") == hashes(straight / "data")
    there = weights(straight / "results")
    assert weights(tmp_path / "results") == {name: there[name] for name in there if "@" not in name}
    assert leftovers(tmp_path) == []


def test_ablations_have_their_rows_and_differences(straight: Path) -> None:
    figures = read_json(max(straight.glob("results/toy/run*/report.json")))["figures"]
    steps = {name: straight / folder for name, folder in figures["steps"].items()}
    rows = {row["name"]: row["success"] for row in read_json(steps["evaluation"] / "eval.json")["rows"]}
    assert list(rows) == ["SFT", "SFT + RL", "Reflect-RL", "oracle", "SFT + RL without entropy"]
    usual, without = (read_json(steps[name] / "config.json")["settings"] for name in ("sft-rl", "sft-rl@entropy"))
    assert without == usual | {"entropy_coef": 0.5}
    found = {
        effect["ablation"]: effect["difference"] for effect in figures["ablations"] if effect["figure"] == "success"
    }
    assert found["rl"] == pytest.approx(rows["SFT + RL"] - rows["SFT"])
    assert found["entropy"] == pytest.approx(rows["SFT + RL"] - rows["SFT + RL without entropy"])


@pytest.mark.slow
def test_no_model_outlives_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays flat across steps: at the end of each, no model of it is left."""
    from transformers import PreTrainedModel

    from reflectkit.commands import run as steps

    alive: list[int] = []
    forget = steps._forget

    def count() -> None:
        forget()
        alive.append(sum(isinstance(thing, PreTrainedModel) for thing in gc.get_objects()))

    gc.collect()
    before = sum(isinstance(thing, PreTrainedModel) for thing in gc.get_objects())
    monkeypatch.setattr(steps, "_forget", count)
    Path("toy.yaml").write_text(RECIPE)
    assert main(RUN) == 0
    assert alive == [before] * 11


@pytest.mark.slow
def test_a_step_in_two_processes(straight: Path, tmp_path: Path) -> None:
    shutil.copytree(straight, tmp_path, dirs_exist_ok=True)
    (tmp_path / "toy.yaml").write_text(RECIPE[: RECIPE.index("  - {name: evaluation")])
    command = [sys.executable, "-m", "reflectkit", *RUN, "--set", "sft-rl.processes=2", "--force"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert read_json(tmp_path / "results" / "toy" / "sft-rl" / "report.json")["figures"]["steps"] == 2


def test_wrong_settings_of_later_steps_come_before_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    Path("toy.yaml").write_text(RECIPE)
    told = error_of([*RUN, "--set", "evaluation.max_concurrency=0"], capsys)
    assert "step 'evaluation': --max-concurrency must be greater" in told
    assert not Path("results").exists()


GRADED = """
from reflectkit.envs.corridor import Corridor


class Graded(Corridor):
    name = "graded"

    def _move(self, action):
        reward, ended, info = super()._move(action)
        return reward, ended, info | {"figures": ({"half": 0.5} if ended else {}) | {"place": float(self.place)}}
"""
SEEDS = """
description: three stages of the toy env
measure: half
defaults: {env: "graded_env:Graded"}
steps:
  - {name: shown, stage: gen-trajectory}
  - {name: parts, stage: split}
  - {name: evaluation, stage: evaluate, policy: [random, oracle], eval_reps: 2}
"""


def test_seeds_are_pooled_over_distinct_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And compared by what the recipe names: half of success, so half of the difference."""
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("graded_env.py").write_text(GRADED)
    Path("toy.yaml").write_text(SEEDS)
    assert main([*RUN, "--seeds", "2"]) == 0
    alone = [read_json(path)["rows"] for path in sorted(tmp_path.glob("results/seed*/toy/evaluation/eval.json"))]
    pooled = read_json(tmp_path / "results/toy/run/eval.json")["rows"]
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
    mean = sum(sum(one) / len(one) for one in outcomes.values()) / len(outcomes)
    assert [row["success"] for row in pooled] == [pytest.approx(mean), 1.0]
    (difference,) = read_json(tmp_path / "results/toy/run/differences.json")
    assert difference["difference"] == pytest.approx(0.5 * (mean - 1.0), abs=0.25)
    assert difference["difference"] != 0
    assert (difference["step"], difference["figure"]) == ("evaluation", "half")
