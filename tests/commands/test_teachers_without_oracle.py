"""A chat model demonstrates in envs without an oracle: what succeeds is kept, and both players learn from it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.jsonl import read_json, read_jsonl
from tests.server import Server, serve

CODE = '''
from reflectkit import Env, StepResult, Task
from reflectkit.types import Message, Observation, ToolSpec


class Base(Env):
    """Add the numbers."""

    @classmethod
    def tasks(cls, level):
        return [Task(str(n), cls.name, level, str(n), {"sum": [n, 1]}) for n in range(10)]

    def reset(self, task, seed):
        self.wanted = sum(task.data["sum"])
        self.seen = Observation((Message("user", "%d + %d" % tuple(task.data["sum"])),), **self.offers)
        return self.seen

    def answered(self, text):
        right = str(self.wanted) in text
        return StepResult(self.seen, 1.0 if right else 0.25, True, info={"success": right})


class Choose(Base):
    name = "choose"
    offers = {"choices": tuple(f"say {n}" for n in range(1, 11))}

    def step(self, action):
        return self.answered(self.seen.choices[action])


class Write(Base):
    name = "write"
    offers = {}

    @classmethod
    def action_kind(cls, settings):
        return "text"

    def step(self, action):
        return self.answered(action)


class Call(Base):
    name = "call"
    tools = (ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),)
    offers = {"replies": True, "tools": tools}

    @classmethod
    def action_kind(cls, settings):
        return "tools"

    def step(self, action):
        if not action.calls:
            return self.answered(action.text)
        told = (Message("assistant", action.text, action.calls), Message("tool", "counted", name="add"))
        self.seen = Observation((*self.seen.messages, *told), **self.offers)
        return StepResult(self.seen, 0.0, False)
'''


def adds(body: dict[str, Any]) -> str:
    """A teacher that calls the tool first, if there is one, and then adds, but takes 9 for 8."""
    messages = body["messages"]
    told = "\n".join(str(message["content"]) for message in messages[1:])
    first, second = map(int, re.search(r"(\d+) \+ (\d+)", told).groups())  # type: ignore[union-attr]
    said = str(first + second) if first != 9 else "8"
    if "add" in messages[0]["content"] and "Tools:" in messages[0]["content"] and "counted" not in told:
        said = 'add {"a": 1}'
    return f"Analysis: {first} and {second} are wanted.\n" + (
        f"Choice: say {said}" if "Choice: the number" in told else said
    )


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(adds) as running:
        yield running


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("adding.py").write_text(CODE)


@pytest.mark.parametrize("name", ["Choose", "Write", "Call"])
def test_what_succeeds_is_kept_and_becomes_rows(name: str, server: Server) -> None:
    env = ["--env", f"adding:{name}"]
    teacher = ["--teacher", "local:small", "--base-url", server.url]
    assert main(["gen-trajectory", *env, *teacher]) == 0
    folder = Path("data") / name.lower()
    records = read_json(folder / "data_reflection_negative.json")
    assert [record["id"] for record in records if not record["trajectories"]] == ["9"], "9 + 1 was wrong"
    (kept,) = records[3]["trajectories"]
    steps = kept["trajectory"]
    said = "say 4" if name == "Choose" else "4"
    assert [step["cmd"] for step in steps] == (['add {"a": 1}', said] if name == "Call" else [said])
    assert {step["reflection"] for step in steps} == {"3 and 1 are wanted."}
    assert main(["split", *env]) == 0
    assert main(["gen-sft", *env]) == 0
    reflections = [row for _, row in read_jsonl(folder / "sft_reflection.jsonl")]
    policies = [row for _, row in read_jsonl(folder / "sft_policy.jsonl")]
    taught = sum(bool(record["trajectories"]) for record in read_json(folder / "train.json"))
    assert len(reflections) == taught * len(steps)
    assert policies[0]["completion"], "the policy's answer"
    assert main(["gen-trajectory", *env, *teacher, "--min-reward", "0.25", "--force"]) == 0
    assert all(record["trajectories"] for record in read_json(folder / "data_reflection_negative.json"))
    assert main(["gen-trajectory", *env, *teacher, "--dry-run", "--seed", "1"]) == 0
