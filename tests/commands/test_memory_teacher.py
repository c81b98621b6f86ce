"""gen-trajectory of memory with a chat teacher: calls for each chunk, what they may say, what is kept, and what it
costs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectkit.chat.templates import parse_called
from reflectkit.cli.main import main
from reflectkit.envs.memory.baselines import copied
from reflectkit.envs.memory.env import MemoryTeacher
from reflectkit.envs.memory.store import TOOLS, Store
from reflectkit.jsonl import read_json, read_jsonl
from reflectkit.tools import plain_text
from reflectkit.types import Decision, Message, Observation, Status, Task, Trajectory, Turn
from tests.server import Server, serve

SEEN = Observation((Message("user", "Core memory: empty"),), tools=TOOLS)
INSERT = 'new_memory_insert {"memory_type": "semantic_memory", "content": "Anna is in Rome"}'


def keeps(body: dict[str, Any]) -> str:
    """Keeps every sentence of the chunk."""
    state = body["messages"][-1]["content"].partition("Conversation:\n")[2].partition("\n\nStart with one line")[0]
    return f"Analysis: Something is new.\n{plain_text(copied('keep-everything', Store(), state, 0).calls)}"


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(keeps) as running:
        yield running


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["gen-task", "--env", "memory", "--instances", "2", "--long-instances", "0"]) == 0
    return tmp_path / "data" / "memory"


def generate(server: Server, *more: str) -> int:
    common = ["--env", "memory", "--level", "short", "--teacher", "local:small", "--base-url", server.url]
    return main(["gen-trajectory", *common, *more])


def chunks(here: Path) -> list[str]:
    return [chunk for record in read_json(here / "data.json") for chunk in record["data"]["chunks"]]


def test_calls_become_rows_and_a_rerun_costs_nothing(server: Server, here: Path) -> None:
    assert generate(server) == 0
    assert len(server.requests) == len(chunks(here))
    assert all(len(body["messages"]) == 2 for body in server.requests), "a state is shown without the earlier ones"
    records = read_json(here / "data_reflection_negative.json")
    steps = [step for record in records for step in record["trajectories"][0]["trajectory"]]
    assert {step["reflection"] for step in steps} == {"Something is new."}
    assert generate(server, "--force") == 0
    assert len(server.requests) == len(chunks(here))
    assert main(["split", "--env", "memory"]) == 0
    assert main(["gen-sft", "--env", "memory"]) == 0
    rows = [row for _, row in read_jsonl(here / "sft.jsonl")]
    assert rows
    assert all(row["completion"].startswith(" new_memory_insert {") for row in rows)


def test_what_cannot_be_done_is_told_and_no_row(server: Server, here: Path) -> None:
    """Each first chunk is answered with a call of an item that is not there, and a broken one."""
    wrong = 'memory_delete {"memory_type": "semantic_memory", "memory_id": "s9"}\nmemory_update {"memory_type": '
    server.answer = lambda body: (
        f"Analysis: It begins.\n{INSERT}\n{wrong}" if "Not done" not in body["messages"][-1]["content"] else keeps(body)
    )
    assert generate(server, "--demonstrations", "1") == 0
    told = server.requests[1]["messages"][-1]["content"]
    assert "Not done: semantic_memory has no item 's9'" in told
    assert told.count("Not done:") == 2
    (steps,) = [item["trajectory"] for record in read_json(here / "data_reflection_negative.json")
                for item in record["trajectories"]]  # fmt: skip
    assert steps[0]["note"] == "mistake"
    assert "positive" in {step["note"] for step in steps[1:]}


def test_low_rewards_are_left_out(server: Server, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With none left, the error names the highest reward, and neither earlier demonstrations nor answers are lost."""
    path = here / "data_reflection_negative.json"
    assert generate(server, "--min-reward", "3") == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "no episode reaches --min-reward 3; the highest reward is " in error
    assert not path.exists()
    highest = float(re.search(r"highest reward is ([\d.]+)\. Lower", error).group(1))
    assert generate(server, "--min-reward", str(highest - 0.001)) == 0
    kept = read_json(path)
    assert any(record["trajectories"] for record in kept)
    assert generate(server, "--min-reward", str(highest + 0.001)) == 2
    assert read_json(path) == kept
    assert len(server.requests) == len(chunks(here)), "only the first run asks"


def test_a_reward_by_hand() -> None:
    """Two chunks of 1.1 and 0.6, and 0.8 that both share."""
    turns = [Turn(SEEN, Decision(0), 1.1), Turn(SEEN, Decision(0), 0.6 + 0.8, {"shared_reward": 0.8})]
    task = Task("t", "memory", "short", "t", {})
    assert MemoryTeacher.reward_of(Trajectory(task, 0, tuple(turns), Status.COMPLETED, True)) == pytest.approx(1.65)


@pytest.mark.parametrize(
    ("text", "calls", "errors"),
    [
        (f"Analysis: New.\n{INSERT}", 1, 0),
        (f"<think>Hm.</think>\n**Analysis:** New.\nCalls:\n```json\n{INSERT}\n{INSERT}\n```", 2, 0),
        (f"Analysis: New.\n{INSERT}\nforget it all", 1, 1),
        ('Analysis: New.\nmemory_burn {"a": 1}', 0, 1),
    ],
)
def test_calls_are_read_behind_the_analysis(text: str, calls: int, errors: int) -> None:
    analysis, use = parse_called(text, SEEN)
    assert analysis == "New."
    assert (len(use.calls), len(use.errors)) == (calls, errors)
