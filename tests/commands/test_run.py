"""run: the whole chain on the toy env, run again, and killed."""

from __future__ import annotations

import contextlib
import gc
import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from reflectkit.cli.main import main
from reflectkit.jsonl import read_json, read_jsonl
from tests.command_lines import DATA_FILES
from tests.kill import hashes, run_killed_at
from tests.made import made_by_run

RECIPE = """
description: the toy env, for tests
defaults: {env: corridor}
steps:
  - {name: demonstrations, stage: gen-trajectory, demonstrations: 6, noise: 0.3}
  - {name: split, stage: split}
  - {name: rows, stage: gen-sft}
  - {name: reflector, stage: sft, role: reflection, max_steps: 24, save_steps: 8, max_length: 64}
  - {name: plain, stage: sft, role: plain, max_steps: 24, save_steps: 8, max_length: 64}
  - {name: policy-rows, stage: gen-sft, comments: both, mismatch: 0.2, reflector: "{reflector}",
     out_dir: "{data}/both"}
  - {name: policy, stage: sft, role: policy, max_steps: 24, save_steps: 8, max_length: 96,
     task_file: "{data}/both/sft_policy.jsonl"}
  - {name: reflect-rl, stage: rlft, policy: "{policy}", reflector: "{reflector}",
     max_steps: 6, episodes: 6, save_steps: 2}
  - {name: sft-rl, stage: rlft, policy: "{plain}", max_steps: 6, episodes: 6, save_steps: 2}
  - {name: evaluation, stage: evaluate, task_file: "{data}/corridor/train.json",
     policy: ["SFT={plain}", "Reflect-RL={reflect-rl}+{reflector}", oracle]}
  - {name: curves, stage: plot, runs: ["Reflect-RL={reflect-rl}", "SFT + RL={sft-rl}"]}
"""


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy recipe, run once without interruption."""
    folder = tmp_path_factory.mktemp("straight")
    (folder / "toy.yaml").write_text(RECIPE)
    output = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(output):
        assert main(["run", "toy.yaml"]) == 0
    assert "Reflect-RL" in output.getvalue()
    return folder


def test_run_makes_everything_and_leaves_nothing_half_done(straight: Path) -> None:
    assert set(DATA_FILES) <= {path.name for path in (straight / "data" / "corridor").iterdir()}
    steps = [step["name"] for step in yaml.safe_load(RECIPE)["steps"]]
    assert sorted(path.name for path in (straight / "results").iterdir()) == ["toy"]
    assert sorted(path.name for path in (straight / "results" / "toy").iterdir()) == sorted([*steps, "run"])
    for folder in (straight / "results" / "toy").iterdir():
        assert (folder / "config.json").is_file()
        assert (folder / "report.json").is_file()
    for paths in made_by_run(str(straight / "toy.yaml")).values():
        assert [path for path in paths if not (straight / path).exists()] == []
    assert not [
        path for path in straight.rglob("*") if path.name.startswith(".reflectkit-tmp") or path.name == "trainer"
    ]
    rows = read_json(straight / "results" / "toy" / "evaluation" / "eval.json")["rows"]
    wanted = {"name", "env", "level", "success", "low", "high", "tasks", "episodes", "return", "steps"}
    assert all(wanted <= set(row) for row in rows)
    assert rows[-1]["name"] == "oracle"
    assert rows[-1]["success"] == 1.0
    picture = straight / "results" / "toy" / "curves" / "curves.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_metrics_hold_what_is_promised(straight: Path) -> None:
    files = [straight / "results" / "toy" / step / "metrics.jsonl" for step in ("reflect-rl", "sft-rl")]
    for path in files:
        rows = [row for _, row in read_jsonl(path)]
        assert [row["step"] for row in rows] == list(range(1, 7))
        wanted = {
            "success_rate",
            "return",
            "loss",
            "entropy",
            "gradient_norm",
            "reflector_cache_hits",
            "tokens_per_second",
            "episodes_per_second",
        }
        assert wanted <= set(rows[0])
        assert rows[0]["ratio_deviation"] < 1e-5


def test_checkpoints_open_with_transformers_alone(straight: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for folder in (straight / "results" / "toy" / step / "checkpoint-6" for step in ("reflect-rl", "sft-rl")):
        tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
        assert model.config.vocab_size == len(tokenizer)
        assert not list(folder.glob("*.bin"))


def test_running_again_skips_everything(straight: Path) -> None:
    before = hashes(straight)
    again = "import sys\nfrom reflectkit.cli.main import main\nassert main(['run', 'toy.yaml']) == 0"
    done = subprocess.run(
        [sys.executable, "-c", f"{again}\nassert 'torch' not in sys.modules, 'so it takes a second'"],
        cwd=straight,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("already finished") == 11
    assert "loading torch" not in done.stdout
    assert "reflectkit view results/toy/evaluation" in done.stdout
    after = hashes(straight)
    assert {name: digest for name, digest in after.items() if name in before and before[name] != digest} == {}


def test_killed_at_any_point_and_started_again_it_ends_the_same(straight: Path, tmp_path: Path) -> None:
    """kill -9 while data, weights and figures are written: same data files, same weights."""
    shutil.copy(straight / "toy.yaml", tmp_path)
    points = ("train.json:1", "trainer/checkpoint-16/:1", "checkpoint-6$:1", "eval.json:1")
    run_killed_at(points, ["run", "toy.yaml"], tmp_path)
    assert hashes(tmp_path / "data") == hashes(straight / "data")

    def weights(folder: Path) -> dict[str, str]:
        return {
            name: digest for name, digest in hashes(folder / "results").items() if name.endswith("model.safetensors")
        }

    assert weights(tmp_path) == weights(straight), "in the same folders, whichever steps began first"
    assert not [
        path for path in tmp_path.rglob("*") if path.name.startswith(".reflectkit-tmp") or path.name == "trainer"
    ]


def test_a_step_makes_the_same_bytes_alone(straight: Path, tmp_path: Path) -> None:
    """In a process that runs no other step before it, and leaves the models of none behind."""
    shutil.copytree(straight, tmp_path, dirs_exist_ok=True)
    for step in ("plain", "reflect-rl"):
        shutil.rmtree(tmp_path / "results" / "toy" / step)
        subprocess.run([sys.executable, "-m", "reflectkit", "run", "toy.yaml"], cwd=tmp_path, check=True, timeout=300)
        made, wanted = (hashes(folder / "results" / "toy" / step) for folder in (tmp_path, straight))
        weights = [name for name in wanted if name.endswith(".safetensors")]
        assert weights
        assert {name: made[name] for name in weights} == {name: wanted[name] for name in weights}


@pytest.mark.slow
def test_no_model_outlives_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays flat across steps: at the start of each training, no model of an earlier one is there."""
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
    monkeypatch.chdir(tmp_path)
    Path("toy.yaml").write_text(RECIPE)
    assert main(["run", "toy.yaml"]) == 0
    assert alive == [before] * 11


@pytest.mark.slow
def test_a_step_in_two_processes(straight: Path, tmp_path: Path) -> None:
    shutil.copytree(straight, tmp_path, dirs_exist_ok=True)
    run = [sys.executable, "-m", "reflectkit", "run", "toy.yaml", "--set", "sft-rl.processes=2", "--force"]
    (tmp_path / "toy.yaml").write_text(RECIPE[: RECIPE.index("  - {name: evaluation")])
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = read_json(tmp_path / "results" / "toy" / "sft-rl" / "report.json")
    assert report["figures"]["steps"] == 6
