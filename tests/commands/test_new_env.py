"""`reflectkit new`: what it writes can be played and trained as it says, and nothing is replaced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.envs import env_class
from reflectkit.jsonl import read_json
from tests.writing import writing_model


@pytest.mark.parametrize("kind", ["choices", "tools", "prompts"])
def test_what_it_writes_is_trained_by_the_command_that_it_prints(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    name = f"new_{kind}"
    assert main(["new", name, "--kind", kind]) == 0
    printed = [line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.startswith("  reflectkit")]
    assert [command[0] for command in printed] == ["play", "rlft"]
    model = str(writing_model(Path("model")))
    train = [re.sub(r"Qwen/\S+", model, argument) for argument in printed[1]]
    few = ["--max-steps", "1", "--episodes", "8", "--validate-problems", "0", "--max-new-tokens", "8"]
    assert main([*train, *few, "--name", "rl"]) == 0
    inputs = read_json(Path("results/rl/config.json"))["inputs"]
    written = {f"{name}.py"} | ({f"{name}.jsonl"} if kind == "prompts" else set())
    assert written <= inputs.keys()
    if kind != "prompts":
        assert env_class(f"{name}.py").__name__ == f"New{kind.capitalize()}"
        play = [*printed[0], "--policy", "random", "--auto"]
        assert main(play) == 0
