"""Demonstrations: which episodes become some, and what replaying them gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from typing_extensions import override

from reflectkit.agents.scripted import Marker, Replay
from reflectkit.console import Progress
from reflectkit.data.episodes import read_episodes
from reflectkit.data.problems import (
    Demonstration,
    Record,
    from_trajectory,
    read_records,
)
from reflectkit.data.sft_rows import Lesson, lessons
from reflectkit.env import LIKELY, SUCCEEDS, Agent, Context, Env, Teacher
from reflectkit.envs.setup import EnvSetup, not_repeatable
from reflectkit.errors import ConfigError, DataError, EnvironmentFailure
from reflectkit.prompts import answers
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.seeding import derive, generator
from reflectkit.text import pluralize
from reflectkit.types import Decision, Message, Observation, Status, Task, Trajectory

REPLAYED_TWICE = 8  # demonstrations, to see whether the env is the same each time

Planned = Sequence[tuple[str, int, Task]]
"""What is played: "positive" or "negative", its number, and the task."""


def add_demonstrations(
    demonstrations: dict[str, list[Demonstration]],
    planned: Planned,
    trajectories: Sequence[Trajectory],
    teacher: type[Teacher],
    model_name: str,
    min_reward: float | None,
    make: Callable[[], Env] | None,
    *,
    only_successes: bool = False,
) -> list[float]:
    """Add the episodes that demonstrate something to `demonstrations`, by task; returns the rewards
    of those that `min_reward` leaves out.

    A negative one must contain a mistake and its correction, and differ from the others. make: for
    episodes of a chat teacher, an env that marks its mistakes; None for the oracle's, which are
    marked. only_successes: leave out all others.
    """
    low = []

    # 1. Which episodes demonstrate something
    for (label, _, task), trajectory in zip(planned, trajectories, strict=True):
        if trajectory.status is Status.ABORTED:
            continue
        reward = float(teacher.reward_of(trajectory))
        if min_reward is not None and reward < min_reward:
            low.append(reward)
            continue
        if not teacher.is_demonstration(trajectory) or (only_successes and not trajectory.success):
            continue

        # 2. What a chat teacher did wrong
        if make is not None and (
            teacher.has("note") or any(turn.observation.tools for turn in trajectory.turns)
        ):
            trajectory = mark_mistakes(trajectory, make)

        # 3. The demonstration, by its number among those of its kind
        notes = [turn.decision.note for turn in trajectory.turns]
        before = demonstrations.setdefault(task.id, [])
        number = sum(item.info.startswith(label) for item in before)
        entry = from_trajectory(trajectory, model_name, f"{label}{number}")
        # A negative one must show a mistake that no other shows
        if label == "negative":
            if not (trajectory.success and "mistake" in notes and "correction" in notes):
                continue
            commands = [step.cmd for step in entry.trajectory]
            if any(commands == [step.cmd for step in other.trajectory] for other in before):
                continue  # there is no other mistake to make
        before.append(entry)
    return low


def mark_mistakes(trajectory: Trajectory, make: Callable[[], Env]) -> Trajectory:
    """A chat teacher's episode, with its wrong moves marked as mistakes by the env.

    Of tool calls, only those that could not be executed are wrong.
    """
    # Calls are wrong if they could not be executed
    if any(turn.observation.tools for turn in trajectory.turns):
        wrong = [bool(turn.info.get("refused")) for turn in trajectory.turns]
    else:
        marker = Marker(from_trajectory(trajectory, "", "").trajectory, trajectory.task.id)
        _play(trajectory.task, trajectory.seed, make, marker, trajectory.task.id)
        wrong = [note == "mistake" for note in marker.notes[1:]] + [not trajectory.success]
    turns = [
        replace(turn, decision=replace(turn.decision, note="mistake")) if is_wrong else turn
        for turn, is_wrong in zip(trajectory.turns, wrong, strict=True)
    ]
    return replace(trajectory, turns=tuple(turns))


def _play(task: Task, seed: int, make: Callable[[], Env], agent: Agent, where: str) -> Trajectory:
    """One episode. Raises EnvironmentFailure if it was aborted."""
    (trajectory,) = rollout([Episode(task, seed)], make, agent, width=1)
    if trajectory.status is Status.ABORTED:
        raise EnvironmentFailure(f"{where}: {trajectory.reason}")
    return trajectory


def hindsight_lessons(path: Path) -> list[Lesson]:
    """What the episodes of an episodes.jsonl show in hindsight, as answers to the questions that
    every env can be asked: what was done in successful ones, and whether they were successful.

    Raises DataError: the file is malformed, or says of no episode with choices whether it
    succeeded.
    """
    result: list[Lesson] = []
    # Of each episode whose success is known
    for episode in read_episodes(path):
        if episode.status == Status.ABORTED.value or episode.success is None:
            continue
        for turn in episode.turns:
            if turn.seen is None or not turn.choices or turn.action is None:
                continue
            # What was done in a success was right; in a failure, nothing is known of it
            answers: dict[str, tuple[float, ...]] = {}
            answers[SUCCEEDS.name] = float(episode.success), float(not episode.success)
            if episode.success:
                answers[LIKELY.name] = tuple(
                    float(index == turn.action) for index in range(len(turn.choices))
                )
            observation = Observation((Message("user", turn.seen),), tuple(turn.choices))
            result.append(Lesson(observation, "", turn.said or "", "positive", answers=answers))
    if not result:
        raise DataError(path, "has no episode with choices of which is known whether it succeeded")
    return result


def drawn_records(setup: EnvSetup, seed: int, source: Path, demonstrations: int) -> list[Record]:
    """The records of `source`; only those of `demonstrations` problems (0: all) keep their
    demonstrations.

    The first ones drawn are the same for every number. Raises ConfigError, DataError.
    """
    setup.require(source, demonstrated=True)

    # 1. All records
    records = read_records(source, setup.env_name)
    if not demonstrations:
        return records

    # 2. The first of a random order, which is the same for every number
    having = [record.task.id for record in records if record.trajectories]
    if demonstrations > len(having):
        raise ConfigError(
            f"--demonstrations is {demonstrations}, and {source} has"
            f" {pluralize(len(having), 'problem')} with some; lower it"
        )
    ids = set(generator(seed, "demonstrations").sample(having, len(having))[:demonstrations])
    return [
        record if record.task.id in ids else replace(record, trajectories=()) for record in records
    ]


def replayed_lessons(
    setup: EnvSetup,
    source: Path,
    records: Sequence[Record],
    progress: Progress,
    *,
    answer: str,
    repeats: int = 1,
    typed: bool = False,
) -> tuple[list[Lesson], Counter[str]]:
    """The lessons of the demonstrations, and the number of omitted demonstrations by fault.

    answer: the form of an answer for a choice, "label" or "text". repeats: replays of each
    demonstration. typed: with the teacher's answers to the env's questions.

    Each demonstration is replayed as recorded. A negative one gives only its correction; its other
    steps are in the positive one. Raises DataError if the env disagrees with a record, ConfigError
    if it shows something else each time, EnvironmentFailure.
    """
    steps: list[Lesson] = []
    unchecked = REPLAYED_TWICE
    faults: Counter[str] = Counter()
    with progress.bar("Replaying demonstrations", len(records) * repeats) as bar:
        for repeat in range(repeats):
            for record in records:
                # 1. The episode again. Choices that the settings drop are no fault
                for demonstration in record.trajectories:
                    try:
                        trajectory = _replayed(
                            setup, source, record.task, demonstration, repeat, typed=typed
                        )
                    except DataError as error:
                        if error.field == "cmd" and setup.kind.teacher_type.drops_choices(
                            setup.settings
                        ):
                            continue
                        raise

                    # 2. Some are replayed twice, to see whether the environment repeats itself
                    if unchecked:
                        unchecked -= 1
                        again = _replayed(setup, source, record.task, demonstration, repeat)
                        for number, (turn, other) in enumerate(
                            zip(trajectory.turns, again.turns, strict=True)
                        ):
                            if (turn.observation, turn.reward) != (other.observation, other.reward):
                                raise not_repeatable(setup.env_name, record.task.id, number)

                    # 3. What of it is learned
                    replayed = lessons([trajectory.turns], answer)
                    if demonstration.visited:
                        for lesson, step in zip(replayed, demonstration.trajectory, strict=True):
                            choices = lesson.observation.choices
                            # The teacher's action, as a correction
                            if step.note == "mistake" and step.best in choices:
                                right = answers(choices, lesson.form)[choices.index(step.best)]
                                lesson = replace(lesson, completion=right, note="correction")
                            steps.append(lesson)
                    elif demonstration.negative:
                        steps += [step for step in replayed if step.note == "correction"]
                    elif fault := setup.kind.teacher_type.fault(trajectory):
                        faults[fault] += repeat == 0
                    else:
                        steps += replayed
                bar.advance()
    return steps, faults


class AnsweringReplay(Replay):
    """Replays recorded steps, with the teacher's answers to the env's questions about each state."""

    @override
    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The next recorded step. Raises DataError."""
        decision = await super().decide(observation, context)

        # 1. The options of each question, which may be the choices of the state
        options_of: dict[str, Sequence[str]] = {}
        for question in context.env.questions():
            options_of[question.name] = question.options or observation.choices

        # 2. The answers, in which right options share the probability
        answers = {}
        for name, right in context.env.teacher().answers().items():
            options = options_of.get(name, ())
            if right and options:
                numbers = range(len(options))
                answers[name] = tuple(float(number in right) / len(right) for number in numbers)
        return replace(decision, answers=answers)


def _replayed(
    setup: EnvSetup,
    source: Path,
    task: Task,
    demonstration: Demonstration,
    repeat: int,
    *,
    typed: bool = False,
) -> Trajectory:
    """Replay one demonstration. Raises DataError if the env disagrees with the record."""
    # Repeats differ in their seed, for what is random in the environment
    where, steps = f"{source}, task '{task.id}'", demonstration.trajectory
    if not steps:
        raise DataError(where, "a demonstration without steps", field="trajectories.trajectory")
    seed = demonstration.seed if repeat == 0 else derive(demonstration.seed, "repeat", repeat)
    agent = AnsweringReplay(steps, where) if typed else Replay(steps, where)
    trajectory = _play(task, seed, lambda: setup.make(len(steps)), agent, where)
    if len(trajectory.turns) < len(steps):
        raise DataError(
            where,
            f"the episode ends at step {len(trajectory.turns)} of {len(steps)} recorded; make the"
            " demonstrations again, and let the env draw from random.Random(seed) only",
        )
    return trajectory
