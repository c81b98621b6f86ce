"""Bad settings are one line and exit code 2; internal errors exit with 1."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from reflectkit.commands import split
from tests.command_lines import error_of


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["split", "--env", "taxii"], "did you mean 'taxi'"),
        (["gen-trajectory", "--env", "taxi", "--noise", "2"], "--noise must be less than or equal to 1, got 2.0"),
        (["gen-trajectory"], "gen-trajectory needs --env (Environment: taxi, "),
        (["gen-trajectory", "--env", "taxi", "--data-dir", ""], "--data-dir is empty"),
        (["split", "--env", "taxi"], "run `reflectkit gen-trajectory --env taxi` first"),
        (["sft", "--env", "taxi", "--role", "policy", "--lora-r", "8"], "--lora-r needs a pretrained model"),
        (["sft", "--env", "taxi", "--clip", "3"], "`reflectkit rlft` has it"),
        (["rlft", "--env", "taxi", "--width", "3"], "--width is now --max-concurrency"),
        (["evaluate", "--env", "taxi", "--policy", "a=x", "--policy", "a=y"], "given twice"),
        (["gen-task", "--env", "auto_explore", "--parquet", "x"], "--parquet is a setting of env 'memory'"),
        (["run", "taxi-tinny"], "did you mean 'taxi-tiny'"),
        (["run", "taxi-tiny", "--repo-dir", "x"], "--repo-dir is a setting of recipe 'auto-explore"),
        (["run", "taxi-tiny", "--set", "reflectorr.max_steps=3"], "did you mean 'reflector'"),
        (["run", "taxi-tiny", "--ablate", "reflexion"], "did you mean 'reflection'"),
        (["run", "taxi-tiny", "--name", "../elsewhere"], "--name '../elsewhere'"),
    ],
)  # fmt: skip
def test_bad_settings_are_one_line_and_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in error_of(arguments, capsys)


def test_our_own_failures_exit_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(split, "read_records", divmod)
    (tmp_path / "x.json").write_text("[]")
    assert "internal error" in error_of(["split", "--env", "taxi", "--task-file", "x.json"], capsys, code=1)


@pytest.mark.parametrize("method", ["reset", "step"])
def test_an_env_of_ones_own_that_fails_is_told_by_its_line(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(".")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(
        "from reflectkit.envs.corridor import Corridor\n\n\nclass Mine(Corridor):\n"
        f"    def {method}(self, *given):\n        return {{}}['wall']\n"
    )
    told = error_of(["play", "--env", "mine:Mine", "--policy", "oracle", "--auto"], capsys)
    assert "mine.py, line 6: KeyError: 'wall'" in told
