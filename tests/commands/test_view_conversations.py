"""Conversations in episodes.jsonl: each turn stores what is new, and page, log and tables read it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reflectkit.agents.scripted import Demonstrator
from reflectkit.commands import view
from reflectkit.console import Quiet
from reflectkit.data.episodes import episode_line, episode_to_json, read_episodes
from reflectkit.env import Context, StepResult
from reflectkit.envs.base import BaseEnv
from reflectkit.envs.support.env import Support
from reflectkit.envs.wrappers import Horizon
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.types import Decision, Message, Observation, Status, Task, ToolCall, ToolUse, Trajectory
from tests.commands.test_view import unpacked
from tests.episodes import HOSTILE, conversation, write

LOOK = ToolUse("list_products {}", (ToolCall("list_products", {}),))


class Repeating:
    """Looks up the same thing again and again."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        return Decision(LOOK)


def played(agent: Any, horizon: int) -> Trajectory:
    task = Support.taskset.example("one", 3)
    (trajectory,) = rollout([Episode(task, 5)], lambda: Horizon(Support(horizon=horizon), horizon), agent)
    return trajectory


def test_a_line_grows_with_the_conversation() -> None:
    """Twice the turns are twice the text, where the whole conversation in each turn would be four times as much."""
    short, long = (episode_to_json("x", played(Repeating(), turns)) for turns in (20, 40))
    sizes = [len(json.dumps(one["turns"][1:])) for one in (short, long)]
    assert [len(one["turns"]) for one in (short, long)] == [20, 40]
    assert sizes[1] / sizes[0] == pytest.approx(39 / 19, abs=0.05)
    assert not any("seen" in turn for turn in long["turns"])


def test_what_was_seen_can_be_put_together_again() -> None:
    trajectory = played(Demonstrator(0.3), 40)
    assert trajectory.status is Status.COMPLETED
    row = episode_to_json("x", trajectory)
    read: list[tuple[str, str, str]] = []
    for turn, line in zip(trajectory.turns, row["turns"], strict=True):
        read += [(one["role"], one["content"], one.get("name", "")) for one in line["messages"]]
        assert read == [(one.role, one.content, one.name) for one in turn.observation.messages]
        read.append(("assistant", line["said"], ""))
        assert "anew" not in line
    assert trajectory.final is not None
    ending = [(one["role"], one["content"], one.get("name", "")) for one in row["ending"]]
    assert read + ending == [(one.role, one.content, one.name) for one in trajectory.final.messages]
    assert row["ending"][-1]["role"] == "user"  # who says goodbye
    calls = [line["calls"] for line in row["turns"] if "calls" in line]
    assert calls
    assert all(call.keys() == {"name", "arguments"} for (call,) in calls)


class Forgetful(BaseEnv):
    """Shows the last four messages only, and what the agent wrote in capitals."""

    name = "forgetful"
    levels = ("full",)

    def reset(self, task: Task, seed: int) -> Observation:
        self.messages = [Message("user", "Hello.")]
        return self._observe()

    def step(self, action: int | str | ToolUse) -> StepResult:
        self.messages += [Message("assistant", str(action).upper()), Message("user", f"{len(self.messages)}")]
        return StepResult(self._observe(), 0.0, len(self.messages) > 6, info={"success": False})

    def _observe(self) -> Observation:
        return Observation(tuple(self.messages[-4:]), replies=True)


class Saying:
    async def decide(self, observation: Observation, context: Context) -> Decision:
        return Decision("yes")


def test_a_conversation_that_its_env_rewrote_is_stored_again(tmp_path: Path) -> None:
    (trajectory,) = rollout([Episode(Task("t", "forgetful", "full", "t", {}), 0)], Forgetful, Saying())
    row = episode_to_json("x", trajectory)
    shown = [[message["content"] for message in turn["messages"]] for turn in row["turns"]]
    assert shown == [["Hello."], ["YES", "1"], ["YES", "1", "YES", "3"]]
    assert [turn.get("anew", False) for turn in row["turns"]] == [False, False, True]
    (again,) = read_episodes(write(tmp_path, [row]))
    assert [turn.anew for turn in again.turns] == [False, False, True]
    assert [message.content for message in again.ending] == ["YES", "3", "YES", "5"]


def test_page_holds_the_conversation(tmp_path: Path, quiet: Quiet) -> None:
    rows = [conversation(text) for text in HOSTILE]
    page = (
        view.run(view.ViewConfig.from_flat(paths=(write(tmp_path, rows),)), quiet)
        .outputs[0]
        .read_text(encoding="utf-8")
    )
    index, block = unpacked(page, "index"), unpacked(page, "block-0")
    texts = block["texts"]
    for (values, turns), row in zip(block["episodes"], rows, strict=True):
        ending = dict(zip(index["episode_fields"], values, strict=True))["ending"]
        assert [[texts[number] for number in one] for one in ending] == [["user", row["ending"][0]["content"], ""]]
        shown = [dict(zip(index["turn_fields"], turn, strict=True)) for turn in turns]
        read = [[[texts[number] for number in one] for one in turn["messages"]] for turn in shown]
        assert read == [
            [[m["role"], m["content"], m.get("name", "")] for m in turn["messages"]] for turn in row["turns"]
        ]
        (call,) = shown[1]["calls"]
        assert json.loads(texts[call[1]]) == row["turns"][1]["calls"][0]["arguments"]
        assert shown[0]["calls"] is None


def test_inspect_log_keeps_the_messages(tmp_path: Path, quiet: Quiet) -> None:
    file = write(tmp_path, [conversation("half \ud800"), episode_to_json("SFT", played(Demonstrator(0.0), 40))])
    logs = view.run(view.ViewConfig.from_flat(paths=(file,), inspect=True), quiet).outputs
    (sample, other) = [sample for log in logs for sample in json.loads(log.read_text(encoding="utf-8"))["samples"]]
    roles = [message["role"] for message in sample["messages"]]
    assert roles == [
        "system", "user", "assistant", "user", "assistant", "tool", "assistant", "tool", "assistant", "tool",
        "assistant", "user",
    ]  # fmt: skip
    assert [message["role"] for message in sample["input"]] == ["system", "user"]
    call, result = sample["messages"][4], sample["messages"][5]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    assert result["content"] == json.dumps({"status": "pending", "note": "half \ud800"})
    assert "\ud800" not in sample["messages"][1]["content"]
    answered = {message["tool_call_id"] for message in other["messages"] if message["role"] == "tool"}
    asked = {call["id"] for message in other["messages"] for call in message.get("tool_calls", ())}
    assert answered == asked != set()


def test_inspect_itself_reads_conversations(tmp_path: Path, quiet: Quiet) -> None:
    inspect_log = pytest.importorskip("inspect_ai.log", reason="needs inspect-ai, with 84 packages")
    file = write(tmp_path, [conversation("half \ud800"), conversation()])
    (made,) = view.run(view.ViewConfig.from_flat(paths=(file,), inspect=True), quiet).outputs
    log = inspect_log.read_eval_log(str(made))
    assert [message.role for message in log.samples[1].input] == ["system", "user"]
    answer, result = log.samples[1].messages[4:6]
    assert answer.tool_calls[0].arguments == {"order": "W17", "note": "It is fine."}
    assert result.tool_call_id == answer.tool_calls[0].id


def test_half_pairs_survive_the_line(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    file.write_text(episode_line(conversation("half \ud800 a pair \udfff")), encoding="utf-8")
    (again,) = read_episodes(file)
    assert again.ending[0].content == "Goodbye. half \ud800 a pair \udfff"
