"""Env tau against the real tau_bench package: replay solves its tasks, and random walks are as in its own env."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import pytest
from pydantic import ValidationError

from reflectkit.agents.scripted import Oracle, RandomAgent
from reflectkit.env import Context, UserTurn
from reflectkit.envs import make
from reflectkit.envs.tau import package
from reflectkit.envs.tau.env import Tau, tasks_of
from reflectkit.eventloop import result_of
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.seeding import generator
from reflectkit.types import Message, Observation, Status, Task, ToolCall, ToolUse
from tests.taubench import CHECKOUT, THERE, installed

pytestmark = pytest.mark.skipif(
    not THERE, reason="tau_bench is not installed; TAU_BENCH_DIR=CHECKOUT names a checkout of sierra-research/tau-bench"
)
WALKS = int(os.environ.get("TAU_WALKS", "24"))
"""Random walks; the package computes each reward in about half a second."""
STEPS = 25
SIZES = {("retail", "train"): 500, ("retail", "dev"): 20, ("retail", "test"): 115, ("airline", "test"): 50}
STOP = "###STOP###"


@pytest.fixture(autouse=True, scope="module")
def real() -> Iterator[None]:
    """The real package, with its modules kept from test to test."""
    with installed(CHECKOUT):
        yield


def test_the_right_calls_of_all_tasks_are_worth_one() -> None:
    tasks = [task for place in SIZES for task in tasks_of(*place)]
    trajectories = rollout([Episode(task, 0) for task in tasks], lambda: make("tau", 30), Oracle())
    assert len(trajectories) == 685
    failed = [trajectory.task.id for trajectory in trajectories if trajectory.total_return != 1]
    assert failed == []
    assert {trajectory.status for trajectory in trajectories} == {Status.COMPLETED}
    assert "litellm" not in sys.modules


class Walker:
    """A user on both sides: the same line for the same number of replies, with an end that the seed draws."""

    def __init__(self, seed: int) -> None:
        self.lines = generator(seed, "lines").choices(("Yes.", "No, the other one.", "My email is a@b.c", "Hm?"), k=99)
        self.last = generator(seed, "last").randint(1, 6)

    def line(self, number: int) -> UserTurn:
        return UserTurn(self.lines[number], over=number == self.last)

    def say(self, instructions: str, conversation: Sequence[Message], seed: int) -> UserTurn:
        return self.line(sum(message.role == "assistant" for message in conversation))


class PackagedWalker:
    """The same user, as the package asks it."""

    def __init__(self, walker: Walker) -> None:
        self.walker, self.number = walker, 0

    def reset(self, instruction: str) -> str:
        return self.walker.line(0).text

    def step(self, content: str) -> str:
        self.number += 1
        turn = self.walker.line(self.number)
        return f"{turn.text} {STOP}" if turn.over else turn.text

    def get_total_cost(self) -> float:
        return 0.0


def drawn(task: Task, observation: Observation, chance: random.Random) -> ToolUse:
    """A right call of this task or another, a random one, or a reply that may have what is to be told."""
    name, split = task.data["domain"], task.data["split"]
    problems = package.problems(name, split)
    problem = problems[task.data["index"]]
    kind = chance.random()
    if kind < 0.25:
        words = [*problem.outputs, "1,000", "Please confirm.", "done"]
        return ToolUse(" ".join(chance.choices(words, k=3)))
    source = problem if kind < 0.6 else chance.choice(problems)
    if kind < 0.8 and source.actions:
        return ToolUse("call", (chance.choice(source.actions),))
    return _random_call(observation, chance)


def _random_call(observation: Observation, chance: random.Random) -> ToolUse:
    while True:
        context = Context(chance.randrange(2**60), Tau())
        use = result_of(RandomAgent().decide(observation, context)).action
        assert isinstance(use, ToolUse)
        if use.calls:
            return use


@pytest.mark.parametrize("name", ["retail", "airline"])
def test_random_walks_are_as_in_the_packages_own_env(name: str) -> None:
    """The same observations, rewards and ends; ToolCall for Action."""
    split = "test"
    tasks = tasks_of(name, split)
    envs = sys.modules["tau_bench.envs"]  # imported with the tasks
    action_of = sys.modules["tau_bench.types"].Action
    theirs: Any = envs.get_env(name, user_strategy="human", user_model="", task_split=split, task_index=0)
    rewards: list[float] = []
    for number in range(WALKS // 2):
        chance = generator(number, "walk", name)
        task, walker = chance.choice(tasks), Walker(number)
        theirs.user = PackagedWalker(walker)
        ours = Tau(walker, horizon=STEPS + 1)
        opening = theirs.reset(task_index=task.data["index"]).observation
        observation = ours.reset(task, number)
        assert isinstance(observation, Observation)
        assert [message.content for message in observation.messages] == [theirs.wiki, opening]
        for _ in range(STEPS):
            use = drawn(task, observation, chance)
            result: Any = ours.step(use)
            observation = result.observation
            call = use.calls[0] if use.calls else ToolCall("respond", {"content": use.text})
            try:
                expected = theirs.step(action_of(name=call.name, kwargs=deepcopy(call.arguments)))
            except ValidationError:  # its env cannot show what its tool returned
                assert observation.messages[-1].content == f"Error: {package.NO_RESULT}"
                continue
            assert observation.messages[-1].content == expected.observation.replace(STOP, "").strip()
            assert (result.reward, result.terminated) == (expected.reward, expected.done)
            if result.terminated:
                rewards.append(result.reward)
                break
    assert len(rewards) > WALKS // 4
    assert {0.0, 1.0} >= set(rewards)
