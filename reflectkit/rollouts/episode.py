"""The only interaction loop: data generation, online RL and evaluation all go through `play`.

An episode is a coroutine: while it waits for its env or its agent, the others go on. Up to `width`
run concurrently; when one ends, the next starts. All randomness comes from each episode's own seed,
so an episode does not depend on the others that run with it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from reflectkit.env import Agent, Context, Env
from reflectkit.errors import ConfigError, EnvironmentFailure, brief, code_place
from reflectkit.eventloop import in_thread, outside_loop, run_sync
from reflectkit.keys import masked
from reflectkit.rollouts.wrappers import checked
from reflectkit.seeding import derive
from reflectkit.types import Decision, Observation, Status, Task, Trajectory, Turn

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False)
class Slot:
    """One of the concurrent episodes of a barrier."""

    barrier: BatchBarrier
    loop: asyncio.AbstractEventLoop
    """The loop that its barrier waits in."""
    episode: int = 0
    """Number of the current episode, which orders the items of a batch."""
    pending: int = 0
    """Number of its requests that wait in a batcher."""
    late: bool = False
    """Whether the others have stopped waiting for it."""


class BatchBarrier:
    """The episodes that run concurrently.

    patience: seconds without progress after which waiting requests are served without the other
    episodes.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._awaited = 0  # slots that neither wait in a batcher nor are late
        self._slots: set[Slot] = set()
        self._waiting: set[Batcher[Any, Any]] = set()
        self._last_progress = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def join(self) -> Slot:
        """Take a slot for the current task and the tasks that it starts in this loop."""
        slot = Slot(self, asyncio.get_running_loop())
        self._slots.add(slot)
        self._awaited += 1
        _slot.set(slot)
        return slot

    def leave(self, slot: Slot) -> None:
        """Give the slot up: the others no longer wait for it."""
        self._slots.discard(slot)
        self._awaited -= not slot.pending and not slot.late
        self._serve_if_ready()

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()

    def _add(self, slot: Slot, batcher: Batcher[Any, Any]) -> None:
        slot.pending += 1
        if slot.pending == 1:
            self._awaited -= not slot.late
            slot.late = False
        self._waiting.add(batcher)
        self._serve_if_ready()

    def _remove(self, slot: Slot, batcher: Batcher[Any, Any]) -> None:
        slot.pending -= 1
        self._awaited += not slot.pending
        self._waiting.discard(batcher)  # another barrier may have served it

    def _serve_if_ready(self) -> None:
        """Serve a batch if no other slot is awaited; otherwise start the timer."""
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._last_progress = loop.time()
            if self._awaited == 0:
                loop.call_soon(self._serve)
            elif self._timer is None:
                self._timer = loop.call_later(self.patience, self._on_timeout)

    def _serve(self) -> None:
        if self._awaited:  # another slot has joined since
            self._serve_if_ready()
        elif self._waiting:
            min(self._waiting, key=lambda batcher: batcher.rank).serve()

    def _on_timeout(self) -> None:
        self._timer = None
        if not self._waiting or self._awaited == 0:
            return

        # 1. There was progress since the timer started: wait for the rest of the time
        loop = asyncio.get_running_loop()
        remaining_s = self._last_progress + self.patience - loop.time()
        if remaining_s > 0:
            self._timer = loop.call_later(remaining_s, self._on_timeout)
            return

        # 2. There was none: serve without those that do not ask
        for slot in self._slots:
            slot.late = slot.late or not slot.pending
        self._awaited = 0
        self._serve()


_slot: ContextVar[Slot | None] = ContextVar("slot", default=None)


class Batcher(Generic[Item, Answer]):
    """Answers requests in batches.

    work: maps the items of a batch to their answers, in order; an exception goes to every request
    of the batch. rank: of several batchers with waiting requests, the one with the lowest rank
    serves first.
    """

    def __init__(self, work: Callable[[list[Item]], Sequence[Answer]], rank: int = 0) -> None:
        self.work, self.rank = work, rank
        self._queue: list[tuple[Slot | None, Item, asyncio.Future[Answer]]] = []

    async def ask(self, item: Item) -> Answer:
        """The answer to `item`. Outside a barrier, a batch holds the requests of one iteration of
        the event loop.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        slot = _slot.get()
        if slot is not None and slot.loop is not loop:
            slot = None  # this loop's requests do not wait for that loop's episodes
        self._queue.append((slot, item, future))
        if slot is not None:
            slot.barrier._add(slot, self)
        elif len(self._queue) == 1:
            loop.call_soon(self.serve)
        return await future

    def serve(self) -> None:
        """Answer all waiting requests."""
        # 1. The requests in the order of their episodes, whenever they came: a batch does not depend on time
        queue, self._queue = self._queue, []
        queue.sort(key=lambda entry: entry[0].episode if entry[0] else 0)
        for slot, _, _ in queue:
            if slot is not None:
                slot.barrier._remove(slot, self)
        queue = [entry for entry in queue if not entry[2].done()]  # the others were cancelled
        if not queue:
            return

        # 2. Their answers
        try:
            answers = self.work([item for _, item, _ in queue])
        except Exception as error:
            for _, _, future in queue:
                future.set_exception(error)
            return
        for (_, _, future), answer in zip(queue, answers, strict=True):
            future.set_result(answer)


Value = TypeVar("Value")
LATE = "the episode took longer than"
"""Begins the reason of an episode that met its deadline."""
UNSCORED = "no reward applies"
"""Begins the reason of an episode that ended without a reward, since all functions returned None."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode to play.

    seed: seed of everything random in it, 0 ≤ seed < 2**63. group: the episodes that it will be
    compared with. start: seed of the env's reset, which the episodes of a group share; None derives
    it from `seed`.
    """

    task: Task
    seed: int
    group: str = ""
    start: int | None = None


def rollout(
    episodes: Sequence[Episode],
    make_env: Callable[[], Env],
    agent: Agent,
    *,
    width: int = 32,
    patience: float = 2.0,
    timeout_s: float = 0.0,
    on_end: Callable[[Trajectory], None] | None = None,
    keep: bool = True,
) -> list[Trajectory]:
    """Play `episodes` with `agent`, and return their trajectories in the same order; a coroutine
    awaits `play_all`.

    Args:
        episodes: What to play.
        make_env: Makes a fresh env, including its horizon wrapper; called once for each concurrent
            episode. They are closed at the end.
        agent: Decides for one observation.
        width: Number of concurrent episodes; fewer if the env's `max_concurrency` is smaller.
        patience: Seconds without progress after which waiting observations are served without the
            others.
        timeout_s: Seconds after which an episode is truncated; 0 is never.
        on_end: Called with each trajectory as it ends.
        keep: Whether to return the trajectories; with `on_end` alone, memory stays small.
    """
    playing = play_all(
        episodes,
        make_env,
        agent,
        width=width,
        patience=patience,
        timeout_s=timeout_s,
        on_end=on_end,
        keep=keep,
    )
    return run_sync(playing)


async def play_all(
    episodes: Sequence[Episode],
    make_env: Callable[[], Env],
    agent: Agent,
    *,
    width: int = 32,
    patience: float = 2.0,
    timeout_s: float = 0.0,
    on_end: Callable[[Trajectory], None] | None = None,
    keep: bool = True,
) -> list[Trajectory]:
    """`rollout` for coroutines. Raises what env and agent raise, except EnvironmentFailure; see
    `play`.
    """
    if not episodes:
        return []
    trajectories: list[Trajectory | None] = [None] * len(episodes)
    remaining = iter(enumerate(episodes))  # which all players share
    first_env = checked(outside_loop(make_env))
    envs = [first_env]
    spare_envs = [first_env]
    barrier = BatchBarrier(patience)

    async def player() -> None:
        slot = barrier.join()
        try:
            for slot.episode, episode in remaining:
                # 1. An env that no other player has
                if not spare_envs:
                    env = checked(outside_loop(make_env))
                    envs.append(env)
                    spare_envs.append(env)
                env = spare_envs.pop()

                # 2. Play
                trajectory = await play(episode, env, agent, timeout_s=timeout_s)

                # 3. What it leaves
                if usable_after(trajectory):
                    spare_envs.append(env)
                else:
                    envs.remove(env)
                    env.close()
                if keep:
                    trajectories[slot.episode] = trajectory
                if on_end is not None:
                    outside_loop(on_end, trajectory)
        finally:
            barrier.leave(slot)

    # Several players take one episode after the other; the first error ends them all
    count = min(width, first_env.max_concurrency, len(episodes))
    players = [asyncio.create_task(player()) for _ in range(count)]
    try:
        finished, _ = await asyncio.wait(players, return_when=asyncio.FIRST_EXCEPTION)
        for task in players:
            if task in finished:
                task.result()
    finally:
        barrier.close()
        for task in players:
            task.cancel()
        await asyncio.gather(*players, return_exceptions=True)
        for env in envs:
            env.close()
    return [trajectory for trajectory in trajectories if trajectory is not None]


def usable_after(trajectory: Trajectory) -> bool:
    """Whether the env of `trajectory` may play another episode: not if it failed, or may still be
    at work.
    """
    if trajectory.reason.startswith(UNSCORED):
        return True
    if trajectory.reason.startswith(LATE):
        return False
    agent_failed = trajectory.unexecuted_decision is not None
    return trajectory.status is not Status.ABORTED or agent_failed


@dataclass(slots=True)
class History:
    """What has happened in an episode so far."""

    episode: Episode
    turns: list[Turn] = field(default_factory=list)
    observation: Observation | None = None
    """The latest observation; None before the first."""

    def trajectory(
        self,
        status: Status,
        reason: str = "",
        unexecuted: Decision | None = None,
        penalty: float = 0.0,
    ) -> Trajectory:
        """The episode as it has ended.

        reason: why it ended early. unexecuted: a last decision that the env did not carry out.
        penalty: for ending before the first turn.
        """
        success = False
        if self.turns and status is not Status.ABORTED:
            success = self.turns[-1].info.get("success") is True
        return Trajectory(
            self.episode.task,
            self.episode.seed,
            tuple(self.turns),
            status,
            success,
            reason,
            self.episode.group,
            unexecuted,
            penalty,
            self.observation,
        )

    def truncated(self, decision: Decision, env: Env) -> Trajectory:
        """The episode as ended by `decision`, a decision to end it, with the env's penalty."""
        penalty = 0.0
        if self.observation is not None:
            penalty = float(env.truncation_penalty(0))
        if self.turns and penalty:
            last = self.turns[-1]
            info = last.info | {"truncation_penalty": penalty}
            self.turns[-1] = replace(last, reward=last.reward + penalty, info=info)
            penalty = 0.0
        reason = decision.truncation_reason or ""
        return self.trajectory(Status.TRUNCATED, reason, decision, penalty)


async def play(
    episode: Episode,
    env: Env,
    agent: Agent,
    *,
    timeout_s: float = 0.0,
) -> Trajectory:
    """Play one episode.

    timeout_s: seconds after which it is TRUNCATED as by a prompt that is too long; 0: no limit.

    If the env fails (EnvironmentFailure, also from its teacher) or the agent cannot decide
    (`Decision.failure`), the episode is ABORTED, with the reason. If the observation is too long
    for the agent's model or no answer was legal (`Decision.truncation_reason`), it is TRUNCATED,
    and the env's `truncation_penalty` is added to the last turn's reward, so that ending early
    never costs less than playing on. Other errors are raised; ConfigError for what
    `rollouts.checked` refuses.
    """
    env = checked(env)
    history = History(episode)
    turns = history.turns
    start = derive(episode.seed, "env") if episode.start is None else episode.start
    deadline = asyncio.timeout(timeout_s or None)
    try:
        async with deadline:
            observation = await _answer(env, env.reset, episode.task, start)
            history.observation = observation
            while True:
                # 1. The agent decides
                context = Context(derive(episode.seed, "turn", len(turns)), env, tuple(turns))
                decision = await _decision(agent, observation, context)
                if decision.failure is not None:
                    return history.trajectory(Status.ABORTED, decision.failure, decision)
                if decision.truncation_reason is not None:
                    return history.truncated(decision, env)

                # 2. The env takes its step
                env.decided(decision)
                result = await _answer(env, env.step, decision.action)
                turns.append(Turn(observation, decision, result.reward, result.info))
                observation = history.observation = result.observation
                if result.terminated:
                    return history.trajectory(Status.COMPLETED)
                if result.truncated:
                    return history.trajectory(Status.TRUNCATED)
    except EnvironmentFailure as failure:
        return history.trajectory(Status.ABORTED, masked(str(failure)))
    except TimeoutError:
        if not deadline.expired():
            raise
        return history.truncated(Decision(0, truncation_reason=f"{LATE} {timeout_s:g} s"), env)
    finally:
        env.release()


async def _decision(agent: Agent, observation: Observation, context: Context) -> Decision:
    """The agent's decision. Raises ConfigError if its `decide` is no coroutine or returns something
    else.
    """
    answer = agent.decide(observation, context)
    if not inspect.isawaitable(answer):
        raise ConfigError(
            f"{code_place(type(agent))}: decide() is not async; write async def decide"
        )
    decision = await answer
    if not isinstance(decision, Decision):
        raise ConfigError(
            f"{code_place(type(agent))}: decide() returned {brief(decision)}; return a"
            " reflectkit.Decision, e.g. Decision(0)"
        )
    return decision


async def _answer(
    env: Env, method: Callable[..., Value | Awaitable[Value]], *arguments: Any
) -> Value:
    """The result of a method of `env`, awaited if necessary; a blocking env is called in a thread."""
    value = await in_thread(method, *arguments) if env.remote else method(*arguments)
    return await value if inspect.isawaitable(value) else value
