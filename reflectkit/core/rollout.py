"""The only interaction loop: data generation, online RL and evaluation all go through `rollout`.

Episodes are played side by side, up to `width` at once; one that ends makes room for the next. Chance comes from each
episode's own seed, so an episode's course does not depend on which others are played beside it.

An env that works in another process says so (`remote = True`): all of them are then reset and stepped at once, from
threads. The agent sees those that have answered, which is all of them unless one is stuck.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reflectkit.core.errors import ConfigError, EnvironmentFailure
from reflectkit.core.protocols import Agent, Context, Env, StepResult
from reflectkit.core.seeding import derive
from reflectkit.core.types import LARGEST, Decision, Observation, Status, Task, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode to play.

    seed: of everything random in it, 0 ≤ seed < 2**63. group: what it will be compared with. start: seed of the env's
    reset, which the episodes of a group share; None takes it from `seed`.
    """

    task: Task
    seed: int
    group: str = ""
    start: int | None = None


@dataclass(slots=True, eq=False)
class _Seat:
    """An episode in play. asked: whether its env was asked for something. answer: what came of it, an error included;
    None as long as the env works. decision: what the agent decided last. late: the others do not wait for it.
    """

    number: int
    episode: Episode
    env: Env
    asked: bool = False
    answer: Observation | StepResult | Exception | None = None
    observation: Observation | None = None
    decision: Decision | None = None
    turns: list[Turn] = field(default_factory=list)
    late: bool = False


def rollout(
    episodes: Sequence[Episode],
    make_env: Callable[[], Env],
    agent: Agent,
    *,
    width: int = 32,
    patience: float = 2.0,
    on_end: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play `episodes` with `agent`; trajectories come back in the order of `episodes`.

    Parameters
    ----------
    make_env: a fresh env, its horizon wrapper included; called once for each of at most `width` seats.
    width: how many observations the agent sees at once; fewer where the env has a smaller `widest`.
    patience: seconds without an answer of any remote env, after which those that have answered go on; the late ones
    join them when they are ready.
    on_end: told of each trajectory as it ends (in order of ending).

    A failed engine (EnvironmentFailure) or an agent that could not decide (`Decision.failure`) makes the episode
    ABORTED with its reason; an observation too long for the agent's model, or no legal answer (`Decision.overflow`),
    makes it TRUNCATED, and adds the env's `forfeit` to the last turn's reward: ending early without an answer is never
    cheaper than going on to the horizon. Other errors are raised; ConfigError where an env's reward or info is no JSON.
    """
    trajectories: list[Trajectory | None] = [None] * len(episodes)
    waiting = iter(enumerate(episodes))
    spare = [make_env()] if episodes else []
    width = min([width, *(getattr(env, "widest", width) for env in spare)])
    seats: list[_Seat] = []
    bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    def finish(seat: _Seat, status: Status, reason: str = "", undone: Decision | None = None) -> None:
        episode, forfeit = seat.episode, 0.0
        if undone is not None and undone.overflow is not None:
            forfeit = _forfeit(seat.env)
            if seat.turns:
                last = seat.turns[-1]
                seat.turns[-1] = replace(last, reward=last.reward + forfeit, info=last.info | {"forfeit": forfeit})
                forfeit = 0.0
        turns = tuple(seat.turns)
        success = status is not Status.ABORTED and bool(turns) and turns[-1].info.get("success") is True
        ended = Trajectory(episode.task, episode.seed, turns, status, success, reason, episode.group, undone, forfeit)
        trajectories[seat.number] = ended
        seats.remove(seat)
        if on_end is not None:
            on_end(ended)

    def ask(seat: _Seat, work: Callable[..., Any], *arguments: Any) -> None:
        remote = getattr(seat.env, "remote", False)

        def answer() -> None:
            try:
                seat.answer = work(*arguments)
            except Exception as error:
                seat.answer = error
            if remote:
                bell.put(None)

        seat.asked, seat.answer = True, None
        if remote:
            threading.Thread(target=answer, daemon=True).start()
        else:
            answer()

    def fill() -> bool:
        """Give the free seats to episodes that wait; whether there were any."""
        begun = False
        while len(seats) < width and (entry := next(waiting, None)) is not None:
            number, episode = entry
            seat = _Seat(number, episode, spare.pop() if spare else make_env())
            seats.append(seat)
            ask(
                seat,
                seat.env.reset,
                episode.task,
                derive(episode.seed, "env") if episode.start is None else episode.start,
            )
            begun = True
        return begun

    def settle() -> None:
        """Wait for the envs that were asked; for the late ones only where there is nothing else to do."""
        while True:
            working = [seat for seat in seats if seat.asked and seat.answer is None]
            awaited = [seat for seat in working if not seat.late]
            if not awaited and len(working) < len(seats):
                return
            try:
                bell.get(timeout=patience if awaited else None)
            except queue.Empty:
                for seat in awaited:
                    seat.late = True

    def advance(seat: _Seat) -> None:
        """Take in what the env has answered."""
        answer, seat.answer = seat.answer, None
        seat.asked = seat.late = False
        if isinstance(answer, EnvironmentFailure):
            answer.__traceback__ = None  # it holds this seat, and so the env and its process
            finish(seat, Status.ABORTED, str(answer))  # the failed env is dropped, not reused
        elif isinstance(answer, Exception):
            raise answer
        elif isinstance(answer, StepResult):
            assert seat.observation is not None
            assert seat.decision is not None
            _check(answer, seat.env)
            seat.turns.append(Turn(seat.observation, seat.decision, answer.reward, answer.info))
            seat.observation = answer.observation
            if answer.terminated or answer.truncated:
                spare.append(seat.env)
                finish(seat, Status.COMPLETED if answer.terminated else Status.TRUNCATED)
        else:
            seat.observation = answer

    def obey(seat: _Seat, decision: Decision) -> None:
        if (reason := decision.failure or decision.overflow) is not None:
            spare.append(seat.env)
            finish(seat, Status.ABORTED if decision.failure else Status.TRUNCATED, reason, decision)
        else:
            seat.decision = decision
            ask(seat, seat.env.step, decision.action)

    while fill() or seats:
        settle()
        for seat in [seat for seat in seats if seat.asked and seat.answer is not None]:
            advance(seat)
        if fill():
            continue
        going = [(seat, seat.observation) for seat in seats if not seat.asked and seat.observation is not None]
        if going:
            contexts = [
                Context(derive(seat.episode.seed, "turn", len(seat.turns)), seat.env, tuple(seat.turns))
                for seat, _ in going
            ]
            decisions = agent.act([observation for _, observation in going], contexts)
            for (seat, _), decision in zip(going, decisions, strict=True):
                obey(seat, decision)
    return [trajectory for trajectory in trajectories if trajectory is not None]


def _forfeit(env: Env) -> float:
    """The reward for ending the episode in `env` now, without an answer; 0 where the env does not say."""
    forfeit = getattr(env, "forfeit", None)
    return float(forfeit(0)) if forfeit else 0.0


def _check(result: StepResult, env: Env) -> None:
    """Raises ConfigError for a reward or info that could be neither kept nor learnt from."""
    try:
        json.dumps([result.reward, result.info], allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"env '{env.name}' gave a reward or info that is no JSON ({error}); give finite numbers, texts, true and"
            " false, as float(reward)"
        ) from None
    figures = result.info.get("figures", {})
    numbers = {"reward": result.reward, **(figures if isinstance(figures, dict) else {"figures": figures})}
    for name, value in numbers.items():
        if not isinstance(value, int | float) or not -LARGEST <= value <= LARGEST:
            raise ConfigError(
                f"env '{env.name}' gave {value!r:.40} as '{name}'; give a number of at most {LARGEST:g} in size"
            )
