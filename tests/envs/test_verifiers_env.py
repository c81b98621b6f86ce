"""Tasksets of verifiers in our loop: `--env verifiers:ID`. Skipped without the package (`pip install verifiers`)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from reflectkit.envs import env_class
from reflectkit.envs.adapters.verifiers import taskset_of
from reflectkit.envs.setup import EnvSetup
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.rollouts.wrappers import Checked
from reflectkit.tools import use_of
from reflectkit.types import Status, ToolCall, ToolUse, Trajectory
from tests.fakes.players import Plays

vf = pytest.importorskip("verifiers.v1", reason="needs verifiers: pip install verifiers")

TASKSET = '''
import verifiers.v1 as vf

__all__ = ["Sums"]

class Data(vf.TaskData):
    answer: int

class Count(vf.State):
    calls: int = 0

class Calculator(vf.Toolset[vf.ToolsetConfig, Count]):
    @vf.tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        self.state.calls += 1
        if a < 0:
            raise ValueError("too small")
        return str(a + b)

class Sum(vf.Task[Data, Count, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Calculator(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_message.content == str(self.data.answer))

    @vf.reward(weight=0.25)
    async def called(self, trace) -> float:
        return float(trace.state.calls)

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)

class Config(vf.TasksetConfig):
    most: int = 3

class Sums(vf.Taskset[Sum, Config]):
    def load(self):
        for n in range(self.config.most):
            yield Sum(Data(prompt=f"What is {n} + 1?", system_prompt="Be brief.", answer=n + 1), self.config.task)
'''


@pytest.fixture(autouse=True)
def _tasksets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_sums.py").write_text(TASKSET)
    monkeypatch.syspath_prepend(str(tmp_path))
    taskset_of.cache_clear()


def play(agent: Any) -> Trajectory:
    kind: Any = env_class("verifiers:my_sums")
    task = kind.taskset.tasks("all")[1]
    return rollout([Episode(task, 0)], lambda: Checked(kind(horizon=5), 5), agent)[0]


def add(a: int) -> ToolUse:
    return use_of([ToolCall("calculator_add", {"a": a, "b": 1})])


def test_tools_and_rewards_are_the_tasks_own() -> None:
    played = play(Plays(add(1), add(-1), 'calculator_add {"a": "x", "b": 1}', "2"))
    assert played.status is Status.COMPLETED
    assert played.total_return == 1 + 0.25 * 2
    assert played.figures == {"verifiers_right": 1.0, "verifiers_called": 0.5, "verifiers_turns": 4.0}
    assert played.final is not None
    shown = [(message.role, message.content) for message in played.final.messages]
    assert shown[:2] == [("system", "Be brief."), ("user", "What is 1 + 1?")]
    assert shown[3] == ("tool", "2")
    assert "too small" in shown[5][1]
    assert "expected integer" in shown[7][1]
    assert [turn.info.get("refused", 0) for turn in played.turns] == [0, 0, 1, 0]
    (tool,) = played.turns[0].observation.tools
    assert (tool.name, tool.description) == ("calculator_add", "Add two numbers.")
    assert play(Plays("3")).total_return == 0


def test_the_code_of_the_taskset_is_an_input(tmp_path: Path) -> None:
    assert [path.name for path in EnvSetup("verifiers:my_sums", tmp_path).code_files] == ["my_sums.py"]


def test_the_score_is_verifiers_own() -> None:
    """The same messages, scored by the package."""
    played = play(Plays("2"))
    (task,) = [task for task in taskset_of("my_sums")[1] if task.data.idx == 1]
    data = vf.TraceTask(type="Sum", data=task.data)
    trace = vf.Trace(task=data, agent=vf.AgentInfo(config=vf.AgentConfig()), state=vf.state.state_cls(type(task))())
    for message in (vf.UserMessage(content=task.data.prompt), vf.AssistantMessage(content="2")):
        parent = len(trace.nodes) - 1 if trace.nodes else None
        trace.nodes.append(vf.MessageNode(parent=parent, message=message, sampled=message.role == "assistant"))
    asyncio.run(task.score(trace))
    assert played.total_return == trace.reward == 1.0
