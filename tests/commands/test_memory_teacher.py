"""gen-trajectory of memory with a chat teacher: calls for each chunk, what they may say, what is kept, and what it
costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.envs.memory.baselines import copied
from reflectkit.envs.memory.store import Store
from reflectkit.jsonl import read_json, read_jsonl
from reflectkit.tools import plain_text
from tests.server import Server, serve


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
