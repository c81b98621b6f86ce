"""Chat models as players of evaluate, against a real server; what a killed evaluation keeps; paired differences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.core.jsonl import read_json, write_json
from reflectkit.data.trajectories import Record, record_to_json
from reflectkit.envs.corridor import Corridor
from reflectkit.envs.memory.generate import conversation
from tests.server import Server, serve


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / "corridor.json", [record_to_json(Record(task, ())) for task in Corridor.tasks("long")])
    write_json(tmp_path / "memory.json", [record_to_json(Record(conversation(0, 4, "short", 0), ()))])
    return tmp_path


@pytest.fixture
def walker() -> Iterator[Server]:
    """Says two lines, and always goes right."""
    with serve(lambda body: "Analysis: the goal is to the right.\nChoice: 1") as server:
        yield server


def evaluate(*more: str) -> int:
    return main(["evaluate", "--env", "corridor", "--task-file", "corridor.json", *more])


def found(folder: Path) -> dict[str, Any]:
    (path,) = (folder / "results").glob("*_evaluate/eval.json")
    return dict(read_json(path))


def test_a_chat_model_plays_and_is_compared(here: Path, walker: Server) -> None:
    assert evaluate("--policy", "local:walker", "--base-url", walker.url, "--policy", "random", "--policy", "oracle") == 0
    told = found(here)
    rates = {row["name"]: row["success"] for row in told["rows"]}
    assert rates["local:walker"] == rates["oracle"] == 1.0
    assert told["asked"]["local:walker"]["calls"] > 0
    pairs = {(one["first"], one["second"]): one for one in told["differences"] if one["figure"] == "success"}
    same = pairs["local:walker", "oracle"]
    assert (same["difference"], same["p"], same["tasks"]) == (0.0, 1.0, 6)
    run = next((here / "results").glob("*_evaluate"))
    assert "| local:walker | long | 100.0 % |" in (run / "eval.md").read_text()
    assert (run / "eval.csv").read_text().startswith("name,env,level,success,low,high")


def test_two_chat_models_reflect_and_act(here: Path) -> None:
    seen: list[str] = []

    def answer(body: dict[str, Any]) -> str:
        seen.append(body["model"])
        asked = body["messages"][-1]["content"]
        if body["model"] == "thinker":
            return "The goal lies to the right."
        return (
            "Analysis: as said.\nChoice: 1"
            if "Reflection: The goal lies to the right." in asked
            else "Analysis: none.\nChoice: 0"
        )

    with serve(answer) as server:
        assert evaluate("--policy", "local:doer+local:thinker", "--base-url", server.url) == 0
    assert found(here)["rows"][0]["success"] == 1.0
    assert set(seen) == {"doer", "thinker"}


def test_a_chat_model_keeps_a_memory_by_calls(here: Path) -> None:
    with serve(lambda body: 'new_memory_insert {"memory_type": "semantic_memory", "content": "something"}\nrubbish') as server:
        code = main(["evaluate", "--env", "memory", "--level", "short", "--task-file", "memory.json", "--policy", "local:m",
                     "--base-url", server.url])  # fmt: skip
    assert code == 0
    (row,) = found(here)["rows"]
    assert 0 < row["figures"]["tool_success"]["mean"] < 1
    assert row["refused"] == 1.0


def test_rubbish_is_aborted_and_the_same_command_goes_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(lambda body: "I would rather not.") as server:
        assert evaluate("--policy", "local:m", "--base-url", server.url) == 2
    assert "were aborted" in capsys.readouterr().err


def test_dry_run_asks_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("--policy", "openai:gpt-4o-mini", "--dry-run") == 0
    assert "openai:gpt-4o-mini" in capsys.readouterr().out
    assert not (here / "results").exists()


@pytest.mark.parametrize("policy", ["openai:", "gpt:4", "local:a+nothing", "a=b+openai:x=", "local:a+local:b+local:c"])
def test_names_that_are_no_player(here: Path, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("--policy", policy) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_killed_evaluation_keeps_what_ended(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reflectkit.agents.scripted import RandomAgent

    act, turns = RandomAgent.act, [0]

    def dying(self: Any, observations: Any, contexts: Any) -> Any:
        turns[0] += 1
        if turns[0] == 30:
            raise KeyboardInterrupt
        return act(self, observations, contexts)

    command = ("--policy", "random", "--width", "2", "--seed", "5")
    assert evaluate(*command) == 0
    whole = found(here)
    next((here / "results").glob("*_evaluate")).rename(here / "whole")
    monkeypatch.setattr(RandomAgent, "act", dying)
    assert evaluate(*command) == 130
    (kept,) = (here / "results").glob("*_evaluate/episodes/0-long.jsonl")
    ended = len(kept.read_text().splitlines())
    assert ended > 0
    with kept.open("a") as file:
        file.write('{"task": "half a li')
    monkeypatch.setattr(RandomAgent, "act", act)
    assert evaluate(*command) == 0
    assert found(here)["rows"] == whole["rows"]
    assert json.dumps(found(here)["differences"]) == json.dumps(whole["differences"])


def test_settings_come_from_a_file_and_a_flag_goes_before(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "evals.yaml").write_text("env: corridor\ntask-file: corridor.json\npolicy: [oracle, random]\neval_reps: 2\n")
    assert main(["evaluate", "--config", "evals.yaml", "--eval-reps", "1"]) == 0
    assert [(row["name"], row["episodes"]) for row in found(here)["rows"]] == [("oracle", 6), ("random", 6)]
    for text, said in (
        ("env: [", "is no YAML"),
        ("- a", "expected settings by name"),
        ("env: corridor\npolicyy: [a]", "did you mean"),
    ):
        (here / "bad.yaml").write_text(text)
        capsys.readouterr()
        assert main(["evaluate", "--config", "bad.yaml"]) == 2
        assert said in capsys.readouterr().err
    assert main(["evaluate", "--config", "none.yaml"]) == 2
