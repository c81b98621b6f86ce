"""Demonstrations played again as recorded: the steps that stages learn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reflectkit.agents.scripted import Replay
from reflectkit.console import Progress
from reflectkit.data.sft_rows import Lesson, lessons
from reflectkit.data.trajectories import Demonstration, Record, demonstration_steps, read_records
from reflectkit.envs.setup import EnvSetup, not_repeatable
from reflectkit.errors import ConfigError, DataError, EnvironmentFailure
from reflectkit.prompts import answers
from reflectkit.rollout.episode import Episode, rollout
from reflectkit.seeding import derive, generator
from reflectkit.text import pluralize
from reflectkit.types import Status, Trajectory

REPLAYED_TWICE = 8  # demonstrations, to see whether the env is the same each time


def replayed_lessons(
    setup: EnvSetup, source: Path, records: Sequence[Record], progress: Progress, *, answer: str, repeats: int = 1
) -> tuple[list[Lesson], Counter[str]]:
    """The lessons of the demonstrations, and the number of omitted demonstrations by fault.

    answer: the form of an answer for a choice, "label" or "text". repeats: replays of each demonstration.

    Each demonstration is replayed as recorded. A negative one gives only its correction; its other steps are in the
    positive one. Raises DataError if the env disagrees with a record, ConfigError if it shows something else each time,
    EnvironmentFailure.
    """
    steps: list[Lesson] = []
    unchecked = REPLAYED_TWICE
    faults: Counter[str] = Counter()
    with progress.bar("Replaying demonstrations", len(records) * repeats) as bar:
        for repeat in range(repeats):
            for record in records:
                for demonstration in record.trajectories:
                    try:
                        played = _replayed(setup, source, record, demonstration, repeat)
                    except DataError as error:
                        if error.field == "cmd" and setup.kind.teacher_type.drops_choices(setup.settings):
                            continue
                        raise
                    if unchecked:
                        unchecked -= 1
                        _check_repeats(setup, played, _replayed(setup, source, record, demonstration, repeat))
                    replayed_steps = lessons([played], answer)
                    if demonstration.visited:
                        steps += _taught(replayed_steps, demonstration)
                    elif demonstration.negative:
                        steps += [step for step in replayed_steps if step.note == "correction"]
                    elif fault := setup.kind.teacher_type.fault(played):
                        faults[fault] += repeat == 0
                    else:
                        steps += replayed_steps
                bar.advance()
    return steps, faults


def _check_repeats(setup: EnvSetup, played: Trajectory, again: Trajectory) -> None:
    """Raises ConfigError if two replays of a demonstration differ in what the env showed or gave."""
    for number, (first, second) in enumerate(zip(played.turns, again.turns, strict=True)):
        if (first.observation, first.reward) != (second.observation, second.reward):
            raise not_repeatable(setup.env_name, played.task.id, number)


def _taught(replayed_steps: list[Lesson], demonstration: Demonstration) -> list[Lesson]:
    """The steps of another player, in which the teacher's action takes the place of a mistake, as a correction."""
    taught = []
    for lesson, step in zip(replayed_steps, demonstration.trajectory, strict=True):
        choices = lesson.observation.choices
        if step.note == "mistake" and step.best in choices:
            right = answers(choices, lesson.form)[choices.index(step.best)]
            lesson = replace(lesson, completion=right, note="correction")
        taught.append(lesson)
    return taught


def drawn_records(setup: EnvSetup, seed: int, source: Path, demonstrations: int) -> list[Record]:
    """The records of `source`; only those of `demonstrations` problems (0: all) keep their demonstrations.

    The first ones drawn are the same for every number. Raises ConfigError, DataError.
    """
    records = read_records(source, setup.env_name)
    if not demonstrations:
        return records
    having = [record.task.id for record in records if record.trajectories]
    if demonstrations > len(having):
        raise ConfigError(
            f"--demonstrations is {demonstrations}, and {source} has {pluralize(len(having), 'problem')} with some;"
            " lower it"
        )
    order = generator(seed, "demonstrations").sample(having, len(having))
    chosen = set(order[:demonstrations])
    return [record if record.task.id in chosen else replace(record, trajectories=()) for record in records]


def _replayed(setup: EnvSetup, source: Path, record: Record, demonstration: Demonstration, repeat: int) -> Trajectory:
    """Replay one demonstration. Raises DataError if the env disagrees with the record."""
    where = f"{source}, task '{record.task.id}'"
    if not demonstration.trajectory:
        raise DataError(where, "a demonstration without steps", field="trajectories.trajectory")
    steps = demonstration_steps(demonstration)
    seed = demonstration.seed if repeat == 0 else derive(demonstration.seed, "repeat", repeat)
    (played,) = rollout([Episode(record.task, seed)], lambda: setup.make(len(steps)), Replay(steps, where), width=1)
    if played.status is Status.ABORTED:
        raise EnvironmentFailure(f"{where}: {played.reason}")
    if len(played.turns) < len(steps):
        raise DataError(
            where,
            f"the episode ends at step {len(played.turns)} of {len(steps)} recorded; make the demonstrations again, and"
            " let the env draw from random.Random(seed) only",
        )
    return played
