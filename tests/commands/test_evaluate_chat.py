"""Chat models as players of evaluate, alone and by published methods, against a real server; what a kill keeps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.data.problems import Record, record_to_json
from reflectkit.envs.corridor import Corridor
from reflectkit.envs.memory.generate import conversation
from reflectkit.jsonl import read_json, read_jsonl, write_json
from tests.server import Server, serve


@pytest.fixture
def here(tmp_path: Path) -> Path:
    write_json(
        tmp_path / "corridor.json", [record_to_json(Record(task, ())) for task in Corridor.taskset.tasks("long")]
    )
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


CALL = 100 * 1e-6 + 20 * 2e-6  # dollars: tests.server says 100 and 20 tokens, at 1 and 2 dollars a million
PRICES = ("--price-in", "1", "--price-out", "2")


def test_an_illegal_choice_is_a_loss_and_an_answer_that_cannot_be_read_is_none(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(lambda body: "Analysis: on we go.\nChoice: 9") as server:
        assert evaluate("--policy", "A=local:m", "--policy", "oracle", "--base-url", server.url, *PRICES) == 0
    rubbish, oracle = found(here)["rows"]
    assert (rubbish["name"], rubbish["success"], rubbish["episodes"], rubbish["aborted"]) == ("A", 0.0, 6, 0)
    assert (rubbish["illegal_share"], rubbish["unreadable_share"]) == (1.0, 0.0)
    assert rubbish["price_usd"] == pytest.approx(6 * 3 * CALL)  # each asked three times
    assert (oracle["illegal_share"], oracle["unreadable_share"], oracle["price_usd"]) == (0.0, 0.0, 0.0)

    with serve(lambda body: "0 or 1, I am not sure.") as server:
        assert evaluate("--policy", "B=local:m", "--base-url", server.url, "--name", "unsure") == 2
    assert "every episode of B was aborted (6)" in capsys.readouterr().err


def test_a_player_whose_episodes_are_all_aborted_takes_nobody_elses_table(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(lambda body: "") as server:
        given = ["--policy", "local:mute", "--policy", "random", "--base-url", server.url, "--problems", "2"]
        assert main(["evaluate", "--env", "corridor", *given, "--name", "both"]) == 2
    assert "every episode of local:mute was aborted (2)" in capsys.readouterr().err
    assert [row["name"] for row in read_json(here / "results/both/eval.json")["rows"]] == ["random"]


def test_a_reflector_whose_budget_is_spent_leaves_no_uncommented_episode(here: Path, walker: Server) -> None:
    """Both share one budget, so each can be the one that is stopped; nothing is kept that lacks a comment."""
    near_first = sorted(Corridor.taskset.tasks("long"), key=lambda task: -task.data["start"])
    write_json(here / "corridor.json", [record_to_json(Record(task, ())) for task in near_first])
    command = ("--policy", "local:doer+local:thinker", "--base-url", walker.url, *PRICES, "--max-concurrency", "1")
    assert evaluate(*command, "--max-cost-usd", str(15 * CALL), "--concurrency", "1") == 2
    assert walker.answered <= 15
    kept = [line for path in (here / "results").glob("*_evaluate/episodes/*") for _, line in read_jsonl(path)]
    assert kept
    assert all(turn["reflection"] for episode in kept for turn in episode["turns"])
    paid = walker.answered
    assert evaluate(*command) == 0
    (row,) = found(here)["rows"]
    assert (row["aborted"], row["episodes"]) == (0, 6)
    assert row["price_usd"] == pytest.approx(row["steps"] * 6 * 2 * CALL)
    assert walker.answered > paid


def test_killed_chat_episodes_go_on_without_paying_twice(
    here: Path, walker: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reflectkit.chat.players import ChatPolicy

    decide, turns = ChatPolicy.decide, [0]

    async def dying(self: Any, observation: Any, context: Any) -> Any:
        turns[0] += 1
        if turns[0] == 7:
            raise KeyboardInterrupt
        return await decide(self, observation, context)

    command = ("--policy", "local:doer+local:thinker", "--base-url", walker.url, "--max-concurrency", "2", *PRICES)
    monkeypatch.setattr(ChatPolicy, "decide", dying)
    assert evaluate(*command) == 130
    monkeypatch.setattr(ChatPolicy, "decide", decide)
    assert evaluate(*command) == 0
    asked = [json.dumps(body, sort_keys=True) for body in walker.requests]
    assert len(asked) - len(set(asked)) <= 1, "the other episode's call was under way"
    (row,) = found(here)["rows"]
    assert row["price_usd"] == pytest.approx(row["steps"] * 6 * 2 * CALL)


CHUNKS = 4


def keeps_all(body: dict[str, Any]) -> str:
    """The old text and the new part, in one line."""
    shown = body["messages"][-1]["content"]
    old, part = re.findall(r"<(?:memory|IS|part|info)>\n(.*?)\n</", shown, re.DOTALL)
    text = f"{old.replace('Nothing yet.', '')} {part}"
    return f"<IS>{text}</IS>" if "<IS>" in shown else text


def test_published_methods_are_scored_with_the_others_and_asked_once(tmp_path: Path) -> None:
    write_json(tmp_path / "memory.json", [record_to_json(Record(conversation(0, CHUNKS, "short", 0), ()))])
    policies = ["memagent:local:small", "mem1:local:small", "long-context"]
    command = ["evaluate", "--env", "memory", "--task-file", "memory.json", "--level", "short"]
    command += [f"--policy={policy}" for policy in policies]
    with serve(keeps_all) as server:
        command += ["--base-url", server.url]
        assert main([*command, *PRICES]) == 0
        told = found(tmp_path)
        means = [row["figures"]["accuracy"]["mean"] for row in told["rows"]]
        assert means[0] == means[1] == means[2] > 0
        assert told["asked"]["local:small"]["calls"] == len(server.requests) == 2 * CHUNKS
        assert {body["max_tokens"] for body in server.requests} == {2048}
        assert told["rows"][0]["price_usd"] == pytest.approx(CHUNKS * CALL)
        assert main([*command, "--force"]) == 0
        assert len(server.requests) == 2 * CHUNKS, "a rerun costs nothing"
