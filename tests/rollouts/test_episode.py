"""The one loop: order, independence of the width, failures that are counted, and batches of those who wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from reflectkit.agents.scripted import RandomAgent
from reflectkit.env import Context, Env, StepResult
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.errors import ConfigError, EnvironmentFailure
from reflectkit.eventloop import outside_loop, run_sync
from reflectkit.rollouts.episode import BatchBarrier, Batcher, Episode, rollout
from reflectkit.rollouts.wrappers import Checked, Shuffled
from reflectkit.seeding import generator
from reflectkit.types import Decision, Observation, Status

EPISODES = [Episode(task, seed) for seed in range(3) for task in Corridor.taskset.tasks("long")]


class Drawing:
    """RandomAgent's choices, in batches."""

    def __init__(self) -> None:
        self._batcher: Batcher[tuple[Observation, Context], Decision] = Batcher(
            lambda items: self.act(*zip(*items, strict=True))
        )

    async def decide(self, observation: Observation, context: Context) -> Decision:
        return await self._batcher.ask((observation, context))

    def act(self, observations: Sequence[Observation], contexts: Sequence[Context]) -> list[Decision]:
        return [
            Decision(generator(context.seed, "random").randrange(len(observation.choices)))
            for observation, context in zip(observations, contexts, strict=True)
        ]


@pytest.mark.parametrize("width", [1, 100])
def test_order_and_course_do_not_depend_on_the_width(width: int) -> None:
    played = rollout(EPISODES, lambda: make("corridor", 9), RandomAgent(), width=width)
    assert [(t.task, t.seed) for t in played] == [(e.task, e.seed) for e in EPISODES]
    assert played == rollout(EPISODES, lambda: make("corridor", 9), RandomAgent(), width=7)


def test_at_most_width_observations_at_once_and_the_batch_is_refilled() -> None:
    seen = []

    class Counting(Drawing):
        def act(self, observations: Sequence[Observation], contexts: Sequence[Context]) -> list[Decision]:
            seen.append(len(observations))
            return super().act(observations, contexts)

    rollout(EPISODES, lambda: make("corridor", 9), Counting(), width=4)
    assert max(seen) == 4
    assert seen[:9] == [4] * 9  # someone ended by then, and the seat was filled


def test_each_turn_has_a_seed_of_its_own() -> None:
    seeds: list[int] = []

    class Watching(RandomAgent):
        async def decide(self, observation: Observation, context: Context) -> Decision:
            seeds.append(context.seed)
            return await super().decide(observation, context)

    episodes = [Episode(EPISODES[0].task, seed) for seed in range(3)]
    for _ in range(2):
        rollout(episodes, lambda: make("corridor", 9), Watching(), width=1)
    first, second = seeds[: len(seeds) // 2], seeds[len(seeds) // 2 :]
    assert first == second
    assert len(set(first)) == len(first) > 3


class Flaky(Corridor):
    """Fails at reset in cell 0, and at the first step in cell 1."""

    def reset(self, task, seed):
        if task.data["start"] == 0:
            raise EnvironmentFailure("the engine did not start")
        return super().reset(task, seed)

    def step(self, action) -> StepResult:
        if self.place == 1:
            raise EnvironmentFailure("the engine died")
        return super().step(action)


def test_engine_failures_are_counted_and_the_rest_goes_on() -> None:
    told: list[str] = []
    played = rollout(EPISODES[:6], Flaky, RandomAgent(), width=2, on_end=lambda t: told.append(t.task.id))
    assert [t.status for t in played[:2]] == [Status.ABORTED, Status.ABORTED]
    assert [t.reason for t in played[:2]] == ["the engine did not start", "the engine died"]
    assert not played[0].success
    assert sorted(told) == sorted(e.task.id for e in EPISODES[:6])
    assert played[5].status is Status.COMPLETED or played[5].status is Status.ABORTED


def test_an_episode_that_failed_after_a_success_has_none() -> None:
    class Fails(Corridor):
        steps = 0

        def step(self, action) -> StepResult:
            self.steps += 1
            if self.steps > 1:
                raise EnvironmentFailure("the engine died")
            return replace(super().step(action), terminated=False, info={"success": True})

    (played,) = rollout(EPISODES[:1], Fails, RandomAgent())
    assert (played.status, len(played.turns), played.success) == (Status.ABORTED, 1, False)


def test_an_env_that_failed_plays_no_other_episode() -> None:
    """It may be dead; one that only played on is used again."""

    class Dies(Corridor):
        dead = False

        def reset(self, task, seed):
            self.dead = self.dead or seed == 1
            if self.dead:
                raise EnvironmentFailure("the engine died")
            return super().reset(task, seed)

    made: list[Env] = []

    def make_env() -> Env:
        made.append(Checked(Dies(), 9))
        return made[-1]

    episodes = [Episode(EPISODES[0].task, seed, start=seed) for seed in range(4)]
    played = rollout(episodes, make_env, RandomAgent(), width=1)
    assert [one.status is Status.ABORTED for one in played] == [False, True, False, False]
    assert len(made) == 2


class Remote(Corridor):
    remote = True


class Batches(Drawing):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[str]] = []

    def act(self, observations: Sequence[Observation], contexts: Sequence[Context]) -> list[Decision]:
        self.seen.append([observation.text for observation in observations])
        return super().act(observations, contexts)


class Awaited(Corridor):
    """Answers later, as an engine in another process does."""

    async def reset(self, task, seed):  # type: ignore[override]
        await asyncio.sleep(0)
        return super().reset(task, seed)

    async def step(self, action):  # type: ignore[override]
        for _ in range(self.place):  # each in its own time
            await asyncio.sleep(0)
        return super().step(action)


@pytest.mark.parametrize("width", [1, 4])
def test_envs_that_are_awaited_give_the_same_episodes_in_the_same_batches(width: int) -> None:
    plain, awaited = Batches(), Batches()
    played = rollout(EPISODES, lambda: Checked(Shuffled(Corridor()), 9), plain, width=width)
    assert rollout(EPISODES, lambda: Checked(Shuffled(Awaited()), 9), awaited, width=width, patience=60) == played
    assert awaited.seen == plain.seen


def test_remote_envs_work_at_once() -> None:
    together = threading.Barrier(4, timeout=60)

    class Meeting(Remote):
        def reset(self, task, seed):
            together.wait()  # all four are in here, or nobody gets on
            return super().reset(task, seed)

    assert len(rollout(EPISODES[:4], Meeting, RandomAgent(), width=4)) == 4


def test_the_others_do_not_wait_for_a_stuck_env() -> None:
    freed = threading.Event()
    order = []

    class Stuck(Remote):
        def reset(self, task, seed):
            self.stuck = seed == 5
            return super().reset(task, seed)

        def step(self, action) -> StepResult:
            if self.stuck:
                assert freed.wait(60)
            return super().step(action)

    def on_end(trajectory) -> None:
        order.append(trajectory.seed)
        if len(order) == len(EPISODES) - 1:
            freed.set()  # only when all others are through

    episodes = [Episode(e.task, number, start=5 if number == 1 else 0) for number, e in enumerate(EPISODES)]
    played = rollout(episodes, Stuck, RandomAgent(), width=4, patience=0.01, on_end=on_end)
    assert order[-1] == 1
    assert played == rollout(episodes, Corridor, RandomAgent(), width=4)


@pytest.mark.parametrize("kind", [Corridor, Flaky])
def test_every_env_is_closed_once(kind: type[Corridor]) -> None:
    made: list[Corridor] = []
    closed: list[Corridor] = []

    class Closing(kind):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def close(self) -> None:
            closed.append(self)

    rollout(EPISODES[:6], Closing, RandomAgent(), width=2)
    assert sorted(map(id, made)) == sorted(map(id, closed))


def test_an_agent_that_returns_no_decision_is_told() -> None:
    class Says(RandomAgent):
        async def decide(self, observation: Observation, context: Context) -> Any:
            return 3

    with pytest.raises(ConfigError, match=r"test_episode.py, line \d+: decide\(\) returned 3; return a"):
        rollout(EPISODES, lambda: make("corridor"), Says())


def test_without_a_horizon_that_of_the_level_counts() -> None:
    class Left(RandomAgent):
        async def decide(self, observation: Observation, context: Context) -> Decision:
            return Decision(0)

    (played,) = rollout(EPISODES[:1], lambda: make("corridor"), Left())
    assert (played.status, len(played.turns)) == (Status.TRUNCATED, Corridor.horizons[played.task.level])


def test_envs_are_closed_where_an_agent_raises() -> None:
    closed: list[int] = []

    class Closing(Corridor):
        def close(self) -> None:
            closed.append(id(self))

    class Raising(RandomAgent):
        async def decide(self, observation, context) -> Decision:
            raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        rollout(EPISODES[:3], Closing, Raising(), width=3)
    assert len(set(closed)) == len(closed) == 3


def test_an_env_may_allow_fewer_side_by_side() -> None:
    class Narrow(Corridor):
        max_concurrency = 2

    agent = Batches()
    assert rollout(EPISODES, Narrow, agent, width=7) == rollout(EPISODES, Corridor, RandomAgent(), width=7)
    assert max(map(len, agent.seen)) == 2


def test_a_late_episode_is_truncated_and_pays_for_it() -> None:
    """It costs as much as playing on to the horizon, and its env, which may still be at work, is not used again."""
    made = []

    class Hanging(RandomAgent):
        async def decide(self, observation: Observation, context: Context) -> Decision:
            if len(context.turns) == 2:
                await asyncio.Event().wait()
            return await super().decide(observation, context)

    def make_env() -> Env:
        made.append(1)
        return make("corridor", 9)

    played = rollout([EPISODES[0]] * 2, make_env, Hanging(), width=1, timeout_s=0.05)
    assert [(one.status, one.reason) for one in played] == [
        (Status.TRUNCATED, "the episode took longer than 0.05 s")
    ] * 2
    assert [one.total_return for one in played] == pytest.approx([-0.9] * 2)  # 9 steps of 0.1
    assert all(len(one.turns) <= 2 and not one.success for one in played)
    assert len(made) == 2


def test_a_time_out_of_an_env_is_no_deadline() -> None:
    class Slow(Corridor):
        def _move(self, action: int) -> tuple[float, bool, dict[str, object]]:
            raise TimeoutError("the engine")

    with pytest.raises(TimeoutError, match="the engine"):
        rollout(EPISODES[:1], lambda: Checked(Slow(), 9), RandomAgent(), timeout_s=60)


def test_the_lower_rank_serves_first_and_its_askers_join_the_others() -> None:
    """As comments and actions: two ask for a comment, one has it already."""
    order: list[tuple[str, list[int]]] = []

    def named(name: str, rank: int) -> Batcher[int, int]:
        def work(items: list[int]) -> list[int]:
            order.append((name, items))
            return items

        return Batcher(work, rank)

    comments, actions = named("comments", 0), named("actions", 1)

    async def player(table: BatchBarrier, episode: int) -> None:
        seat = table.join()
        seat.episode = episode
        if episode:
            await comments.ask(episode)
        await actions.ask(episode)
        table.leave(seat)

    async def play() -> None:
        table = BatchBarrier(60)
        await asyncio.gather(*[asyncio.create_task(player(table, episode)) for episode in range(3)])

    run_sync(play())
    assert order == [("comments", [1, 2]), ("actions", [0, 1, 2])]


def test_two_tables_that_share_batchers_do_not_hold_each_other_up() -> None:
    """As play and validation in one loop: the first serves the second's comments, whose player then wants an action."""
    comments: Batcher[int, int] = Batcher(lambda items: items, 0)
    actions: Batcher[int, int] = Batcher(lambda items: items, 1)

    async def play() -> list[int]:
        one, other = BatchBarrier(60), BatchBarrier(60)
        last = asyncio.Event()

        async def player(table: BatchBarrier, episode: int) -> int:
            seat = table.join()
            if episode == 2:
                await last.wait()
                answer = await actions.ask(episode)
            else:
                answer = await comments.ask(episode)
                last.set()
            if episode == 1:
                answer = await actions.ask(episode)
            table.leave(seat)
            return answer

        players = [asyncio.create_task(player(table, n)) for n, table in enumerate((one, other, other))]
        return list(await asyncio.wait_for(asyncio.gather(*players), 10))

    assert run_sync(play()) == [0, 1, 2]


def test_who_asks_in_another_loop_waits_for_no_episode() -> None:
    """As code of users may, which starts a loop while other episodes of its table are at work."""
    batcher: Batcher[int, int] = Batcher(lambda items: [2 * item for item in items])

    async def episode() -> int:
        table = BatchBarrier(patience=60.0)
        table.join()
        slot = table.join()
        try:
            return outside_loop(asyncio.run, asyncio.wait_for(batcher.ask(4), 10.0))
        finally:
            table.leave(slot)

    assert run_sync(episode()) == 8


def test_an_error_reaches_everybody_in_the_batch_and_the_next_batch_works() -> None:
    def work(items: list[int]) -> list[int]:
        if 13 in items:
            raise ValueError("thirteen")
        return items

    batcher = Batcher(work)

    async def ask(*items: int) -> list[int | BaseException]:
        return await asyncio.gather(*map(batcher.ask, items), return_exceptions=True)

    assert [str(answer) for answer in run_sync(ask(1, 13))] == ["thirteen", "thirteen"]
    assert run_sync(ask(1, 2)) == [1, 2]
