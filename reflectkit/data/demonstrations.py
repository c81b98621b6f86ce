"""Which of a teacher's episodes become demonstrations, how their steps are marked, and why the others were left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from reflectkit.agents.scripted import Marker
from reflectkit.chat.client import Rejected
from reflectkit.data.trajectories import Demonstration, from_trajectory
from reflectkit.errors import EnvironmentFailure
from reflectkit.rollout.episode import Episode, rollout
from reflectkit.types import Status, Task, Trajectory

Planned = Sequence[tuple[str, int, Task]]
"""What is played: positive or negative, its number, and the task."""


def add_demonstrations(
    config: Any,  # gen-trajectory's
    level: str,
    planned: Planned,
    played: Sequence[Trajectory],
    demonstrations: dict[str, list[Demonstration]],
) -> None:
    """Add the valid episodes to `demonstrations`, by task: complete ones with enough reward, and distinct negative ones
    with a correction.
    """
    for (kind, _, task), trajectory in zip(planned, played, strict=True):
        if trajectory.status is Status.ABORTED or not config.env.kind.teacher_type.is_demonstration(trajectory):
            continue
        if low_rewards(config, [trajectory]):
            continue
        if not config.oracle_acts:
            trajectory = _marked(config, level, trajectory)
        notes = [turn.decision.note for turn in trajectory.turns]
        before = demonstrations.setdefault(task.id, [])
        if kind == "negative" and not (trajectory.success and "mistake" in notes and "correction" in notes):
            continue
        entry = from_trajectory(
            trajectory, config.teacher.model_name, f"{kind}{sum(item.info.startswith(kind) for item in before)}"
        )
        if kind == "negative" and any(_commands(entry) == _commands(other) for other in before):
            continue  # there is no other mistake to make
        before.append(entry)


def low_rewards(config: Any, played: Sequence[Trajectory]) -> list[float]:
    """The rewards of the episodes that `--min-reward` leaves out."""
    if config.min_reward is None:
        return []
    ended = (trajectory for trajectory in played if trajectory.status is not Status.ABORTED)
    rewards = [float(config.env.kind.teacher_type.reward_of(trajectory)) for trajectory in ended]
    return [reward for reward in rewards if reward < config.min_reward]


def _marked(config: Any, level: str, trajectory: Trajectory) -> Trajectory:
    """A chat teacher's episode, with its wrong moves marked as mistakes by the env.

    Calls are in the teacher's own words, so that only those that could not be executed are wrong.
    """
    if config.env.kind.action_kind(config.env.settings) == "tools":
        notes = ["mistake" if turn.info.get("refused") else "" for turn in trajectory.turns]
        return _with_mistakes(trajectory, notes)
    marker = Marker([turn.decision.action for turn in trajectory.turns])
    (replayed,) = rollout([Episode(trajectory.task, trajectory.seed)], config.setup.maker(level), marker, width=1)
    if replayed.status is Status.ABORTED:
        raise EnvironmentFailure(
            f"{trajectory.task.id}: {replayed.reason}; run the same command again; answers so far are kept"
        )
    notes = [*marker.notes[1:], "good" if trajectory.success else "mistake"]
    return _with_mistakes(trajectory, notes)


def _with_mistakes(trajectory: Trajectory, notes: Sequence[str]) -> Trajectory:
    turns = [
        replace(turn, decision=replace(turn.decision, note="mistake")) if note == "mistake" else turn
        for turn, note in zip(trajectory.turns, notes, strict=True)
    ]
    return replace(trajectory, turns=tuple(turns))


def _commands(demonstration: Demonstration) -> list[str]:
    return [step.cmd for step in demonstration.trajectory]


def rejected(played: Sequence[Trajectory]) -> list[Rejected]:
    """The episodes that were aborted."""
    return [
        Rejected(f"{trajectory.task.id}, step {len(trajectory.turns)}", trajectory.reason, "")
        for trajectory in played
        if trajectory.status is Status.ABORTED
    ]


def figures_of(
    planned: Planned,
    played: Sequence[Trajectory],
    demonstrations: dict[str, list[Demonstration]],
    problems: int,
) -> dict[str, Any]:
    """What the report says of the episodes and of the demonstrations that they became."""
    kept = [item for items in demonstrations.values() for item in items]
    notes = [step.note for item in kept for step in item.trajectory]
    positive = [trajectory for (kind, _, _), trajectory in zip(planned, played, strict=True) if kind == "positive"]
    return {
        "problems": problems,
        "demonstrations": len(positive),
        "solved": sum(trajectory.success for trajectory in positive),
        "negatives": sum(item.negative for item in kept),
        "aborted": sum(trajectory.status is Status.ABORTED for trajectory in played),
        "steps": len(notes),
        "mistakes": notes.count("mistake"),
        "corrections": notes.count("correction"),
    }
