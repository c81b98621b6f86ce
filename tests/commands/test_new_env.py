"""`reflectkit new`: what it writes can be played and trained as it says, and nothing is replaced."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.envs import env_class
from reflectkit.jsonl import read_json
from tests.server import serve
from tests.writing import writing_model


@pytest.mark.parametrize("kind", ["choices", "tools", "prompts"])
def test_what_it_writes_is_trained_by_the_command_that_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"new_{kind}"
    assert main(["new", name, "--kind", kind]) == 0
    printed = [line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.startswith("  reflectkit")]
    assert [command[0] for command in printed] == ["play", "rlft"]
    model = str(writing_model(Path("model")))
    train = [argument.replace("Qwen/Qwen3-0.6B", model) for argument in printed[1]]
    few = ["--max-steps", "1", "--episodes", "8", "--validate-problems", "0", "--max-new-tokens", "8"]
    assert main([*train, *few, "--name", "rl"]) == 0
    inputs = read_json(Path("results/rl/config.json"))["inputs"]
    written = {f"{name}.py"} | ({f"{name}.jsonl"} if kind == "prompts" else set())
    assert written <= inputs.keys()
    if kind != "prompts":
        assert env_class(f"{name}.py").__name__ == f"New{kind.capitalize()}"
        play = [*printed[0], "--policy", "random", "--auto"]
        assert main(play) == 0


def answer(body: dict[str, Any]) -> str:
    """A chat model that adds, walks away from signs, and guesses the first number of a range."""
    told = "\n".join(str(message["content"]) for message in body["messages"][1:])
    if sums := re.findall(r"(\d+) \+ (\d+) =", told):
        return f"Analysis: A sum.\n{sum(map(int, sums[-1]))}"
    if signs := re.findall(r"points (\w+)", told):
        ways = ["north", "south", "east", "west"]
        return f"Analysis: The other way.\nChoice: {ways.index(signs[-1]) ^ 1}"
    if "Tool guess" in told:
        return "Analysis: Done.\nI guessed."
    low = re.findall(r"from (\d+)", told)[-1]
    return f'Analysis: The first.\nguess {{"number": {low}}}'


@pytest.mark.parametrize("kind", ["choices", "tools", "prompts"])
def test_a_chat_model_teaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"taught_{kind}"
    assert main(["new", name, "--kind", kind]) == 0
    env, folder = ["--env", f"{name}.py"], Path("data") / f"taught{kind}"
    if kind == "prompts":
        env = ["--env", "prompts", "--dataset", f"{name}.jsonl", "--reward", f"{name}.py:exact"]
        folder = Path("data/prompts") / f"{name}.jsonl"
    with serve(answer) as server:
        teacher = ["--teacher", "local:small", "--base-url", server.url, "--demonstrations", "20"]
        assert main(["gen-trajectory", *env, *teacher]) == 0
    records = read_json(folder / "data_reflection_negative.json")
    assert any(record["trajectories"] for record in records)
    assert main(["split", *env]) == 0
    assert main(["gen-sft", *env]) == 0
    assert main(["sft", *env, "--role", "policy", "--max-steps", "1"]) == 0
