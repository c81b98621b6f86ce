"""Play that goes on while the policy learns: what an update takes, how old it may be, and that nothing is lost."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from reflectkit.env import Context, Env, StepResult
from reflectkit.rollouts.async_rollouts import AsyncRollouts, Group
from reflectkit.rollouts.episode import Episode
from reflectkit.types import Decision, Message, Observation, Task

SEEN = Observation((Message("user", "?"),), ("a", "b"))


class OneStep(Env):
    """An env whose episode is over after one action."""

    name, levels = "one-step", ("all",)

    def reset(self, task: Task, seed: int) -> Observation:
        return SEEN

    def step(self, action: Any) -> StepResult:
        return StepResult(SEEN, 1.0, True, info={"success": True})


class Gate:
    """An agent of weights `version` that answers at once, but to the episodes `held` (by seed) only when let go."""

    def __init__(self, held: set[int] | None = None) -> None:
        self.version, self.held = 0, held or set()
        self.begun: list[int] = []

    async def decide(self, observation: Observation, context: Context) -> Decision:
        version = self.version
        self.begun.append(context.seed)
        while context.env.seed in self.held:  # type: ignore[attr-defined]
            await asyncio.sleep(0.001)
        return Decision(0, version=version)


class Numbered(OneStep):
    def reset(self, task: Task, seed: int) -> Observation:
        self.seed = task.data["number"]
        return SEEN


def group(number: int) -> Group:
    task = Task(str(number), "one-step", "all", str(number), {"number": number})
    return Group([Episode(task, number, group=str(number))], Numbered)


def test_its_envs_are_closed() -> None:
    made: list[Any] = []
    closed: list[Any] = []

    class Closing(Numbered):
        def __init__(self) -> None:
            made.append(self)

        def close(self) -> None:
            closed.append(self)

    def closing(number: int) -> Group:
        return Group(group(number).episodes, Closing)

    ahead = AsyncRollouts(closing, Gate(), groups=2, staleness=1, updates=9, width=3)
    ahead.take(0)
    ahead.close()
    assert made
    assert sorted(map(id, made)) == sorted(map(id, closed))


def numbers(played: Any) -> list[int]:
    return [int(one.task.id) for one in played]


def test_updates_take_the_groups_of_the_synchronous_loop_in_order() -> None:
    agent = Gate()
    ahead = AsyncRollouts(group, agent, groups=3, staleness=2, updates=9, width=4)
    try:
        for step in range(4):
            agent.version = step
            taken = ahead.take(step)
            assert numbers(taken) == [3 * step, 3 * step + 1, 3 * step + 2]
            assert all(0 <= step - one.turns[0].decision.version <= 2 for one in taken)
            assert ahead.waiting <= 3 * 2
            assert len(agent.begun) <= 3 * (step + 3)  # K = 2: groups of two more updates at most
    finally:
        ahead.close()


def test_the_oldest_groups_are_waited_for() -> None:
    agent = Gate({0})
    ahead = AsyncRollouts(group, agent, groups=2, staleness=1, updates=9, width=8)
    try:
        threading.Timer(0.05, agent.held.clear).start()
        assert numbers(ahead.take(0)) == [0, 1]
    finally:
        ahead.close()


def test_a_restart_plays_what_was_not_learned_from_and_nothing_after_the_last_update() -> None:
    agent = Gate()
    ahead = AsyncRollouts(group, agent, groups=2, staleness=1, updates=4, width=2, step=2)
    try:
        assert numbers(ahead.take(2)) == [4, 5]
        assert numbers(ahead.take(3)) == [6, 7]
        assert len(agent.begun) == 4
    finally:
        ahead.close()


def test_an_error_in_play_is_raised() -> None:
    class Broken(Gate):
        async def decide(self, observation: Observation, context: Context) -> Decision:
            raise ValueError("no")

    ahead = AsyncRollouts(group, Broken(), groups=2, staleness=1, updates=9, width=2)
    try:
        with pytest.raises(ValueError, match="no"):
            ahead.take(0)
    finally:
        ahead.close()
