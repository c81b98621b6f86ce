"""Published methods as players of evaluate: with a chat model, with a model in this process, and their price."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.data.problems import Record, record_to_json
from reflectkit.envs.memory.generate import conversation
from reflectkit.jsonl import read_json, read_jsonl, write_json
from tests.server import Server, serve

CHUNKS = 4


@pytest.fixture
def here(tmp_path: Path) -> Path:
    write_json(tmp_path / "memory.json", [record_to_json(Record(conversation(0, CHUNKS, "short", 0), ()))])
    return tmp_path


def keeps_all(body: dict[str, Any]) -> str:
    """The old text and the new part, in one line."""
    shown = body["messages"][-1]["content"]
    old, part = re.findall(r"<(?:memory|IS|part|info)>\n(.*?)\n</", shown, re.DOTALL)
    text = f"{old.replace('Nothing yet.', '')} {part}"
    return f"<IS>{text}</IS>" if "<IS>" in shown else text


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(keeps_all) as running:
        yield running


def evaluate(*more: str) -> int:
    return main(["evaluate", "--env", "memory", "--task-file", "memory.json", "--level", "short", *more])


def found() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(eval.json, the episodes) of the only evaluation."""
    (run,) = Path("results").glob("*_evaluate")
    return dict(read_json(run / "eval.json")), [row for _, row in read_jsonl(run / "episodes.jsonl")]


def test_both_are_scored_with_the_others_and_asked_once(here: Path, server: Server) -> None:
    policies = ["memagent:local:small", "mem1:local:small", "long-context"]
    more = [part for policy in policies for part in ("--policy", policy)]
    assert evaluate(*more, "--base-url", server.url, "--price-in", "1", "--price-out", "2") == 0
    told, episodes = found()
    rows = {row["name"]: row for row in told["rows"]}
    means = {name: row["figures"]["accuracy"]["mean"] for name, row in rows.items()}
    assert means["memagent:local:small"] == means["mem1:local:small"] == means["long-context"] > 0
    assert told["asked"]["local:small"]["calls"] == len(server.requests) == 2 * CHUNKS
    assert {body["max_tokens"] for body in server.requests} == {2048}
    assert episodes[0]["price_usd"] == pytest.approx(CHUNKS * (100 + 2 * 20) / 1e6)
    assert evaluate(*more, "--base-url", server.url, "--force") == 0
    assert len(server.requests) == 2 * CHUNKS, "a rerun costs nothing"
