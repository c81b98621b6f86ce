"""The only interaction loop: data generation, online RL and evaluation all go through `rollout`.

Episodes are played side by side, up to `width` at once; one that ends makes room for the next. Chance comes from each
episode's own seed, so an episode's course does not depend on which others are played beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from reflectkit.core.errors import EnvironmentFailure
from reflectkit.core.protocols import Agent, Context, Env
from reflectkit.core.seeding import derive
from reflectkit.core.types import Decision, Observation, Status, Task, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode to play.

    seed: of everything random in it, 0 ≤ seed < 2**63. group: what it will be compared with. start: seed of the env's reset,
    which the episodes of a group share; None takes it from `seed`.
    """

    task: Task
    seed: int
    group: str = ""
    start: int | None = None


@dataclass(slots=True)
class _Seat:
    """An episode in play."""

    number: int
    episode: Episode
    env: Env
    observation: Observation
    turns: list[Turn] = field(default_factory=list)


def rollout(
    episodes: Sequence[Episode],
    make_env: Callable[[], Env],
    agent: Agent,
    *,
    width: int = 32,
    on_end: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play `episodes` with `agent`; trajectories come back in the order of `episodes`.

    Parameters
    ----------
    make_env: a fresh env, its horizon wrapper included; called once for each of at most `width` seats.
    width: how many observations the agent sees at once.
    on_end: told of each trajectory as it ends (in order of ending).

    A failed engine (EnvironmentFailure) or an agent that could not decide (`Decision.failure`) makes the episode ABORTED
    with its reason; an observation too long for the agent's model, or no legal answer
    (`Decision.overflow`), makes it TRUNCATED. Other errors are raised.
    """
    trajectories: list[Trajectory | None] = [None] * len(episodes)
    waiting = iter(enumerate(episodes))
    spare: list[Env] = []
    seats: list[_Seat] = []

    def finish(
        number: int, episode: Episode, turns: list[Turn], status: Status, reason: str = "", undone: Decision | None = None
    ) -> None:
        success = status is not Status.ABORTED and bool(turns) and turns[-1].info.get("success") is True
        ended = Trajectory(episode.task, episode.seed, tuple(turns), status, success, reason, episode.group, undone)
        trajectories[number] = ended
        if on_end is not None:
            on_end(ended)

    def fill() -> None:
        while len(seats) < width and (entry := next(waiting, None)) is not None:
            number, episode = entry
            env = spare.pop() if spare else make_env()
            try:
                observation = env.reset(episode.task, derive(episode.seed, "env") if episode.start is None else episode.start)
            except EnvironmentFailure as error:
                finish(number, episode, [], Status.ABORTED, str(error))
                continue  # the failed env is dropped, not reused
            seats.append(_Seat(number, episode, env, observation))

    def advance(seat: _Seat, decision: Decision) -> bool:
        """Take one step; True while the episode goes on."""
        if (reason := decision.failure or decision.overflow) is not None:
            status = Status.ABORTED if decision.failure else Status.TRUNCATED
            finish(seat.number, seat.episode, seat.turns, status, reason, decision)
            spare.append(seat.env)
            return False
        try:
            result = seat.env.step(decision.action)
        except EnvironmentFailure as error:
            finish(seat.number, seat.episode, seat.turns, Status.ABORTED, str(error))
            return False
        seat.turns.append(Turn(seat.observation, decision, result.reward, result.info))
        seat.observation = result.observation
        if not (result.terminated or result.truncated):
            return True
        finish(seat.number, seat.episode, seat.turns, Status.COMPLETED if result.terminated else Status.TRUNCATED)
        spare.append(seat.env)
        return False

    fill()
    while seats:
        contexts = [Context(derive(seat.episode.seed, "turn", len(seat.turns)), seat.env) for seat in seats]
        decisions = agent.act([seat.observation for seat in seats], contexts)
        seats[:] = [seat for seat, decision in zip(seats, decisions, strict=True) if advance(seat, decision)]
        fill()
    return [trajectory for trajectory in trajectories if trajectory is not None]
