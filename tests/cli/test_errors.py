"""Bad settings are one line and exit code 2; internal errors exit with 1."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from reflectkit.cli.main import main
from reflectkit.commands import split
from reflectkit.errors import ReflectkitError, memory_explained
from reflectkit.jsonl import read_json
from tests.command_lines import error_of


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gen-sft", "--env", "taxi"], "run `reflectkit gen-trajectory --env taxi` and `reflectkit split"),
        (["evaluate", "--env", "alfworld", "--policy", "random"],
         "run `reflectkit gen-task --env alfworld` and `reflectkit split --env alfworld` first"),
        (["rlft", "--env", "taxi"], "--model tiny"),
        (["rlft", "--env", "taxi", "--lr", "1e-4"], "--learning-rate"),
        (["sft", "--env", "taxi", "--lora-rank", "8"], "--lora-r here"),
        (["rlft", "--env", "prompts", "--model", "tiny"], "--model smollm2-135m"),
        (["rlft", "--env", "taxi", "--num-train-epochs", "3"], "see --max-steps"),
        (["sft", "--env", "taxi", "--num-train-epochs", "3"], "is now --epochs"),
        (["sft", "--env", "taxi", "--role", "plain", "--load_dir", "tiny", "--lora_r=8"], "--model tiny starts"),
        (["rlft", "--env", "auto_explore", "--repo_dir=x"], "--repo-dir is now --repos-dir"),
        (["run", "taxi-tiny", "--repo-dir", "x"], "--repo-dir is a setting of recipe 'auto-explore"),
    ],
)  # fmt: skip
def test_bad_settings_are_one_line_and_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_of(arguments, capsys)


def test_a_level_without_problems_tells_the_flag_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    """Memory's default level is long. A split needs no demonstrations."""
    assert main(["gen-task", "--env", "memory", "--instances", "10", "--long-instances", "0"]) == 0
    assert "add --level short" in error_of(["gen-trajectory", "--env", "memory"], capsys)
    assert main(["split", "--env", "memory"]) == 0
    assert len(read_json(Path("data/memory/train.json"))) == 7
    evaluate = ["evaluate", "--env", "memory", "--policy", "random"]
    assert "add --level short" in error_of(evaluate, capsys)
    assert main([*evaluate, "--level", "short"]) == 0


def test_a_folder_in_the_place_of_a_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    place = Path("results/taken/episodes.jsonl")
    command = ["evaluate", "--env", "corridor", "--policy", "random", "--problems", "1", "--name", "taken"]
    assert main(command) == 0
    place.unlink()
    Path("results/taken/report.json").unlink()
    place.mkdir()
    assert f"{place}: Is a directory; a file is to be written there" in error_of(command, capsys)


def test_our_own_failures_exit_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(split, "read_records", divmod)
    (tmp_path / "x.json").write_text("[]")
    assert "internal error" in error_of(["split", "--env", "taxi", "--task-file", "x.json"], capsys, code=1)


@pytest.mark.parametrize(
    ("reason", "told"),
    [("No space left on device (os error 28)", "the disk is full"), ("File too large (os error 27)", "`ulimit -f`")],
)
def test_weights_that_do_not_fit_on_the_disk_tell_how_to_resume(
    reason: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise SafetensorError(f"Error while serializing: I/O error: {reason}")

    monkeypatch.setattr(split, "read_records", fail)
    (tmp_path / "x.json").write_text("[]")
    error = error_of(["split", "--env", "taxi", "--task-file", "x.json"], capsys)
    assert told in error
    assert "run the same command again" in error


def full_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB\nGPU 0 has …")


@pytest.mark.parametrize(
    "fails", [lambda: torch.empty(2**50), lambda: torch.empty(2**62), lambda: bytearray(2**60), full_gpu]
)
def test_no_memory_is_one_line_with_advice(fails: Callable[[], object]) -> None:
    with pytest.raises(ReflectkitError) as caught:
        memory_explained("lower --max-concurrency")(fails)()
    assert str(caught.value) == "out of memory; lower --max-concurrency"


STALLED = """
import gymnasium

class Stalled(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(4), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return {}["engine"], 0.0, False, False, {}

gymnasium.register("Stalled-v0", entry_point="stalled_game:Stalled", max_episode_steps=5)
"""


def test_a_fault_of_an_installed_environment_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "stalled_game.py").write_text(STALLED)
    monkeypatch.syspath_prepend(installed)
    evaluate = ["evaluate", "--env", "gymnasium:stalled_game:Stalled-v0", "--policy", "random", "--problems", "1"]
    error = error_of(evaluate, capsys)
    assert f"{installed / 'stalled_game.py'}, line 11: KeyError: 'engine'" in error
