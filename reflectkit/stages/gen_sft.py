"""gen-sft: write the five SFT files by replaying the training split's demonstrations through the environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from reflectkit.agents.scripted import Replay
from reflectkit.core.config import ANSWERS, fraction, one_of, option, within
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError, DataError, EnvironmentFailure
from reflectkit.core.eventloop import wait_for
from reflectkit.core.folders import write_permission
from reflectkit.core.jsonl import write_jsonl
from reflectkit.core.memory import memory_explained
from reflectkit.core.prompts import answers
from reflectkit.core.reports import Report, Table
from reflectkit.core.rollout import Episode, rollout
from reflectkit.core.runs import open_run
from reflectkit.core.seeding import derive, generator
from reflectkit.core.types import Status, Trajectory
from reflectkit.data.sft import FILES, Lesson, joined, lessons, mismatched, plain_row, policy_row, reflection_row
from reflectkit.data.trajectories import Demonstration, Record, demonstration_steps, read_records
from reflectkit.stages.shared.environments import WorldConfig

EXAMPLES = (
    "reflectkit gen-sft --env taxi",
    "reflectkit gen-sft --env auto_explore --shuffle-action --repeats 3",
    "reflectkit gen-sft --env taxi --comments both --reflect-load-dir results/taxi-tiny/reflector/checkpoint-700"
    " --out-dir data/taxi/both",
    "reflectkit gen-sft --env auto_explore --answer text",
)
COMMENTS = ("teacher", "reflector", "both")


@dataclass(frozen=True)
class Config(WorldConfig):
    """Settings of gen-sft."""

    WRITES_DATA: ClassVar[bool] = True
    MAKES_ARM: ClassVar[bool] = True
    OUTPUT: ClassVar[str] = "out_dir"
    task_file: Path | None = option(None, help="Records to learn from; default: train.json in the env's data folder.")
    out_dir: Path | None = option(None, help="Folder for the five files; default: the env's data folder.")
    demonstrations: int = option(0, help="Use the demonstrations of only this many problems, drawn by --seed; 0: all.")
    comments: str = option(
        "teacher", help="Whose comments the policy's rows show: teacher, reflector, or both (one row each)."
    )
    reflect_load_dir: Path | None = option(None, help="The reflector's checkpoint, for --comments reflector or both.")
    answer: str = option(
        ANSWERS[0],
        help="What the policy answers where it chooses: label (the choice's number) or text (its own words).",
    )
    repeats: int = option(
        1, help="Replays of each demonstration; they differ if something is random, e.g. with --shuffle-action."
    )
    mismatch: float = option(
        0.0, help="Share of the policy's rows that show another step's comment, so that it learns to check them."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("comments", self.comments, COMMENTS)
        one_of("answer", self.answer, ANSWERS)
        fraction("mismatch", self.mismatch)
        within("repeats", self.repeats, 1, 1000)
        within("demonstrations", self.demonstrations, 0, 10_000_000)
        if (self.comments == "teacher") != (self.reflect_load_dir is None):
            raise ConfigError(
                f"--comments {self.comments} "
                + ("takes no" if self.reflect_load_dir else "needs")
                + " --reflect-load-dir"
            )


@memory_explained("use a smaller --reflect-load-dir model")
def run(config: Config, progress: Progress) -> Report:
    """Write sft, sft_reflection, sft_policy and the last two's `_positive` variants, one prompt and
    completion a line.
    """
    source = config.task_file or config.folder / "train.json"
    target = config.out_dir or config.folder
    write_permission(target)
    reflector = [config.reflect_load_dir] if config.reflect_load_dir else []
    records = _drawn(config, source)
    with open_run(
        "gen-sft", config, [source, *reflector, *config.input_files(record.task for record in records)]
    ) as current:
        if current.done:
            return current.done
        steps, faults = _lessons(config, source, records, progress)
        if not steps:
            raise DataError(source, "no record has a demonstration; generate some with `reflectkit gen-trajectory`")
        for fault, number in faults.items():
            progress.news(f"{number} demonstrations {fault}")
        right = [step for step in steps if step.note != "mistake"]
        positive = [step for step in steps if step.note == "positive"]
        own = _reflector_comments(config, right, progress)
        rows: dict[str, list[dict[str, Any]]] = {
            "sft": joined([plain_row(step) for step in right]),
            "sft_reflection": [reflection_row(step) for step in steps],
            "sft_policy": _policy_rows(config, right, own),
            "sft_reflection_positive": [reflection_row(step) for step in positive],
            "sft_policy_positive": _policy_rows(config, positive, own),
        }
        outputs, figures = [], {}
        for name in FILES:
            path = target / f"{name}.jsonl"
            figures[name] = write_jsonl(path, rows[name])
            outputs.append(path)
        table = Table(f"SFT rows in {target}", ("file", "rows"), tuple((f"{n}.jsonl", str(figures[n])) for n in FILES))
        current.tables.append(table)
        return current.finish(figures, outputs)


def _lessons(
    config: Config, source: Path, records: list[Record], progress: Progress
) -> tuple[list[Lesson], Counter[str]]:
    """The lessons of the demonstrations, and the number of omitted demonstrations by fault.

    Each demonstration is replayed as recorded. A negative one gives only its correction; its other steps are in the
    positive one.
    """
    steps: list[Lesson] = []
    faults: Counter[str] = Counter()
    with progress.bar("Replaying demonstrations", len(records) * config.repeats) as bar:
        for repeat in range(config.repeats):
            for record in records:
                for demonstration in record.trajectories:
                    try:
                        played = _replayed(config, source, record, demonstration, repeat)
                    except DataError as error:
                        if error.field == "cmd" and config.kind.drops_choices(config.settings):
                            continue
                        raise
                    replayed_steps = lessons([played], config.answer)
                    if demonstration.visited:
                        steps += _taught(replayed_steps, demonstration)
                    elif demonstration.negative:
                        steps += [step for step in replayed_steps if step.note == "correction"]
                    elif fault := config.kind.fault(played):
                        faults[fault] += repeat == 0
                    else:
                        steps += replayed_steps
                bar.advance()
    return steps, faults


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


def _drawn(config: Config, source: Path) -> list[Record]:
    """The records of `source`; with --demonstrations, only those of that many problems keep their demonstrations.

    The first ones drawn are the same for every number. Raises ConfigError, DataError.
    """
    records = read_records(source, config.env_name)
    if not config.demonstrations:
        return records
    having = [record.task.id for record in records if record.trajectories]
    if config.demonstrations > len(having):
        raise ConfigError(
            f"--demonstrations is {config.demonstrations}, and {source} has {len(having)} problems with some; lower it"
        )
    order = generator(config.seed, "demonstrations").sample(having, len(having))
    chosen = set(order[: config.demonstrations])
    return [record if record.task.id in chosen else replace(record, trajectories=()) for record in records]


def _replayed(config: Config, source: Path, record: Record, demonstration: Demonstration, repeat: int) -> Trajectory:
    """Replay one demonstration. Raises DataError if the env disagrees with the record."""
    where = f"{source}, task '{record.task.id}'"
    if not demonstration.trajectory:
        raise DataError(where, "a demonstration without steps", field="trajectories.trajectory")
    steps = demonstration_steps(demonstration)
    seed = demonstration.seed if repeat == 0 else derive(demonstration.seed, "repeat", repeat)
    (played,) = rollout([Episode(record.task, seed)], lambda: config.make(len(steps)), Replay(steps, where), width=1)
    if played.status is Status.ABORTED:
        raise EnvironmentFailure(f"{where}: {played.reason}")
    if len(played.turns) < len(steps):
        raise DataError(where, f"the episode ends at step {len(played.turns)} of {len(steps)} recorded")
    return played


def _reflector_comments(config: Config, steps: list[Lesson], progress: Progress) -> dict[str, str]:
    """The trained reflector's own comment on each step, by the step's text; empty if only the teacher comments."""
    if config.reflect_load_dir is None:
        return {}
    from reflectkit.agents.two_player import Reflector
    from reflectkit.models.load import load_player
    from reflectkit.models.local import LocalSampler

    parts = {id(part): part for step in steps for part in (*step.earlier, step)}  # conversations share their steps
    steps = list({part.observation.text: part for part in parts.values()}.values())
    sampler = LocalSampler(load_player(config.reflect_load_dir, "reflection"), frozen=True)
    reflector = Reflector(sampler)
    own: dict[str, str] = {}
    with progress.bar("The reflector comments", len(steps)) as bar:
        for start in range(0, len(steps), sampler.batch):
            part = steps[start : start + sampler.batch]
            comments = wait_for(reflector.comments([step.observation for step in part], [0] * len(part)))
            own |= {step.observation.text: comment for step, comment in zip(part, comments, strict=True)}
            bar.advance(len(part))
    return own


def _policy_rows(config: Config, steps: list[Lesson], own: dict[str, str]) -> list[dict[str, Any]]:
    sources: dict[str, Callable[[Lesson], str]] = {
        "teacher": lambda step: step.reflection,
        "reflector": lambda step: own.get(step.observation.text, ""),
    }
    rows: list[dict[str, Any]] = []
    for name in ("teacher", "reflector"):
        if config.comments in (name, "both") and steps:
            chance = generator(derive(config.seed, "mismatch"), name)
            comment_on = sources[name]
            shown = mismatched([comment_on(step) for step in steps], config.mismatch, chance)
            read: dict[str, str] = {}  # the comment on each state, as the policy reads it later in the conversation
            parts = []
            for step, comment in zip(steps, shown, strict=True):
                read[step.observation.text] = comment
                earlier = [read.get(before.observation.text, comment_on(before)) for before in step.earlier]
                parts.append(policy_row(step, comment, earlier))
            rows += joined(parts)
    return rows
