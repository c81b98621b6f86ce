"""Completion as the shells ask for it: words in environment variables, answers on standard output."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.stages.shared.completing import VALUES
from tests.test_layers import HEAVY

ROOT = Path(__file__).parents[2]
NO_SHELL = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # or the shell that runs the tests would decide


def made(folder: Path, role: str | None, **facts: Any) -> None:
    folder.mkdir(parents=True)
    (folder / "reflectkit.json").write_text(json.dumps({"role": role} | facts))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of every kind, two of which cannot be read."""
    monkeypatch.chdir(tmp_path)
    for name, stage in (("a/rl", "rlft"), ("a/eval", "evaluate"), ("9_play", "play"), ("10_play", "play")):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "config.json").write_text(json.dumps({"stage": stage}))
    made(Path("results/a/rl/checkpoint-9"), "policy", env="taxi", reflector="results/a/comments/checkpoint-1")
    made(Path("results/a/rl/checkpoint-10"), "policy", env="taxi", reflector="gone")
    made(Path("results/a/comments/checkpoint-1"), "reflection", env="taxi")
    made(Path("results/a/my model/checkpoint-3"), "plain")
    made(Path("results/a/b\nad/checkpoint-3"), "plain")
    (tmp_path / "results" / "a" / "eval" / "checkpoint-4").mkdir()
    (tmp_path / "results" / "a" / "eval" / "checkpoint-4" / "reflectkit.json").write_text("{")
    return tmp_path


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What bash is offered for the words that it has broken up; the last is being written."""

    def ask(*words: str, code: int = 0) -> list[str]:
        monkeypatch.setenv("_REFLECTKIT_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(("reflectkit", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        assert main([]) == code
        shown = capsys.readouterr()
        assert shown.err == ""
        return [line for line in shown.out.splitlines() if line]

    return ask


NINE, TEN, COMMENTS = "results/a/rl/checkpoint-9", "results/a/rl/checkpoint-10", "results/a/comments/checkpoint-1"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fi"], ["filter-repo", "filter-task"]),
        (["sft", "--le"], ["--learning-rate"]),
        (["play", "--env", "memory", "--rec"], ["--recent"]),
        (["play", "--env", "ta"], ["taxi", "taxi-maps", "tau"]),
        (["play", "--env", "=", "ta"], ["taxi", "taxi-maps", "tau"]),
        (["play", "--env", "taxi", "--level", ""], ["pickup", "dropoff", "full"]),
        (["play", "--env", "memory", "--policy", "r"], ["random", "rag", f"rl={NINE}+{COMMENTS}", f"rl={TEN}"]),
        (["evaluate", "--policy", "s"], ["sft"]),
        (["evaluate", "--policy", "op"], ["openai:"]),
        (["evaluate", "--env", "memory", "--policy", "mem"], ["memagent:", "mem1:"]),
        (["evaluate", "--policy", "x", "=", "results/a/r"], [f"{NINE}+{COMMENTS}", TEN]),
        (["evaluate", "--policy", "x", "="], ["results/a/my\\ model/checkpoint-3", f"{NINE}+{COMMENTS}", TEN]),
        (["evaluate", "--policy", "=", "x", "=", f"{NINE}+"], [f"{NINE}+{COMMENTS}"]),
        (["play", "--reflector", ""], [COMMENTS]),
        (["rlft", "--env", "taxi", "--algo", ""], ["reinforce", "ppo", "grpo"]),
        (["rlft", "--reflector-sampler", ""], ["local", "vllm:http://", "sglang:http://"]),
        (["rlft", "--sampler", "vllm", ":", "ht"], ["http://"]),
        (["rlft", "--load-dir", "results/a/rl/"], [NINE, TEN]),
        (["rlft", "--load-dir", "results/a/my\\ m"], ["results/a/my\\ model/checkpoint-3"]),
        (["rlft", "--results-dir", "elsewhere", "--load-dir", ""], []),
        (["export", "--load-dir", "results/a/c"], [COMMENTS]),
        (["sft", "--role", "p"], ["policy", "plain"]),
        (["sft", "--model", "ti"], ["tiny", "tiny-hybrid"]),
        (["sft", "--quantize", ""], ["none", "8bit", "4bit"]),
        (["gen-task", "--teacher", "openai", ":", "gpt"], []),
        (
            ["run", "taxi"],
            ["taxi-both", "taxi-few", "taxi-gpt2-xl", "taxi-maps", "taxi-self", "taxi-tiny", "taxi-worth"],
        ),
        (["run", "taxi-tiny", "--ablate", "reflection,cu"], ["reflection,curriculum"]),
        (["run", "nowhere", "--ablate", ""], []),
        (["run", "auto-explore-tiny", "--sp"], ["--split-by"]),
        (["run", "auto-explore-tiny", "--split-by", "re"], ["repo"]),
        (["run", "auto-explore-tiny", "--levels", "1,a"], ["1,all"]),
        (["run", "auto-explore-gpt2-xl", "--split-by", "q"], ["question"]),
        (["run", "tau-qwen3-4b", "--thinking", "h"], ["hidden"]),
        (["run", "tau-qwen3-4b", "--user", ""], []),
        (["run", "auto-explore-tiny", "--max-length", ""], []),
        (["plot", "--runs", ""], ["rl=results/a/rl"]),
        (["plot", "--runs", "mine", "="], ["results/a/rl"]),
        (["plot", "--evals", ""], ["results/a/eval"]),
        (["view", ""], ["results/9_play", "results/10_play", "results/a/eval"]),
        (["view", "data/"], []),
        (["bench", ""], ["env", "rl", "sft", "coverage", "gpu"]),
        (["bench", "gpu", "--only", "sft"], ["sft", "sft-8bit", "sft-4bit"]),
        (["evaluate", "--env", "taxii", "--pol"], ["--policy"]),
        (["evaluate", "--env", "taxii", "--level", ""], []),
        (["evaluate", "--algo", ""], []),
        (["nothing", "--of-the-kind"], []),
        (["evaluate", "--policy", "'x"], []),
    ],
)  # fmt: skip
def test_bash_is_offered_what_may_follow(words: list[str], expected: list[str], results: Path, offered: Any) -> None:
    assert offered(*words) == expected


@pytest.mark.parametrize(
    ("words", "number"), [("", ""), ("reflectkit", "x"), ("reflectkit\nplay", "9" * 30), ("\n\n", "-1"), ("=\n=", "1")]
)
def test_what_no_shell_sends_is_no_failure(
    words: str, number: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_REFLECTKIT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", number)
    assert main([]) in (0, 1)
    assert capsys.readouterr().err == ""


def test_zsh_and_fish_are_offered_the_same(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "reflectkit evaluate --policy x=results/a/r")
    monkeypatch.setenv("_REFLECTKIT_COMPLETE", "complete_zsh")
    assert main([]) == 0
    assert f'"x={TEN}":"taxi"' in capsys.readouterr().out
    monkeypatch.setenv("_REFLECTKIT_COMPLETE", "complete_fish")
    for action, code in (("get-args", 0), ("is-args", 0)):
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", action)
        assert main([]) == code
        assert (f"x={TEN}\ttaxi" in capsys.readouterr().out.splitlines()) == (action == "get-args")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "reflectkit play --task-file da")
    assert main([]) == 1, "fish then completes files"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_script_that_is_installed_works_in_bash(results: Path) -> None:
    command = Path("bin/reflectkit")
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m reflectkit "$@"\n')
    command.chmod(0o755)
    script = """source <(reflectkit --show-completion bash)
    COMP_WORDS=(reflectkit evaluate --env taxi --policy x = results/a/rl/checkpoint-1) COMP_CWORD=7
    _reflectkit_completion reflectkit; printf '%s\\n' "${COMPREPLY[@]}"; complete -p reflectkit"""
    path = f"{command.parent.absolute()}:{os.environ['PATH']}"
    env = os.environ | NO_SHELL | {"PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "--norc", "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [TEN, "complete -o default -F _reflectkit_completion reflectkit"]


def test_no_value_needs_torch(results: Path) -> None:
    """The tab key is answered in half a second."""
    asked = [("rlft", "--algo"), ("evaluate", "--policy"), ("run", ""), ("sft", "--model"), ("plot", "--evals")]
    code = "import os, sys\nfrom reflectkit.cli.main import main\n"
    for words in asked:
        line = "\n".join(("reflectkit", *words, *([""] if words[-1] else [])))
        code += f"os.environ['COMP_WORDS'], os.environ['COMP_CWORD'] = {line!r}, '{line.count(chr(10))}'\nmain([])\n"
    code += f"print(sorted({HEAVY | {'gymnasium', 'numpy'}!r} & set(sys.modules)))"
    env = os.environ | {"PYTHONPATH": str(ROOT), "_REFLECTKIT_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_completed_setting_exists() -> None:
    from reflectkit.cli.command import stage_flags
    from reflectkit.stages import STAGES, config_class

    arguments = {item for name in STAGES for item in config_class(name).model_fields}
    every = {flag[2:].replace("-", "_") for flags in stage_flags().values() for flag in flags} | arguments
    for setting in VALUES:
        stage, _, name = setting.rpartition(" ")
        assert name in every
        assert not stage or stage in STAGES
