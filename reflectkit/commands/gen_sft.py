"""gen-sft: write the SFT files by replaying the training split's demonstrations through the
environment, or from logged conversations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from reflectkit.agents.mismatches import plain_settings
from reflectkit.agents.player_refs import model_folders
from reflectkit.commands import Traits
from reflectkit.config import Config, Rule, flag, non_default, option, with_values
from reflectkit.console import Progress, Report, Table
from reflectkit.data.demonstrations import drawn_records, hindsight_lessons, replayed_lessons
from reflectkit.data.logs import logged_lessons
from reflectkit.data.problems import Problems, Record, read_records
from reflectkit.data.sft_rows import (
    ROWS_SETTINGS,
    TYPED,
    VERSION,
    Lesson,
    decision_row,
    joined,
    mismatched,
    plain_row,
    policy_row,
    reflection_row,
    think_row,
    typed_decisions,
    usual_form,
)
from reflectkit.decisions.labelled import LabelledDecision, labelled_decision, read_labelled
from reflectkit.envs import RECORDS
from reflectkit.envs.setup import EnvConfig, EnvSetup
from reflectkit.errors import DataError, memory_explained
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import write_json, write_jsonl
from reflectkit.models.refs import ModelRef, resolved
from reflectkit.prompts import PROMPT_VERSION
from reflectkit.runs.run import Run, RunConfig, open_run, write_permission
from reflectkit.seeding import derive, generator
from reflectkit.text import pluralize
from reflectkit.types import ANSWERS, SCORE, TEXT

EXAMPLES = (
    "reflectkit gen-sft --env taxi",
    "reflectkit gen-sft --env auto_explore --shuffle-action --repeats 3",
    "reflectkit gen-sft --env taxi --comments both --reflector"
    " results/taxi-tiny/reflector/checkpoint-700 --out-dir data/taxi/both",
    "reflectkit gen-sft --env auto_explore --answer text",
    "reflectkit gen-sft --env 'program:./my-agent {seed}' --log logs.jsonl",
    "reflectkit gen-sft --env decisions --dataset tickets.jsonl",
)
LABELLED = "decisions"
"""The env whose problems are labelled decisions."""
OF_DEMONSTRATIONS = ("task_file", "demonstrations", "repeats")

TRAITS = Traits(writes_data=True, makes_arm=True, output="out_dir")


class GenSFTConfig(Config):
    """Settings of gen-sft."""

    env: EnvConfig
    task_file: Path | None = option(
        None, help="Records to learn from; default: train.json in the env's data folder."
    )
    out_dir: Path | None = option(
        None, help="Folder for the files; default: the env's data folder."
    )
    log: Path | None = option(
        None,
        help="Conversations to learn from instead, each a line {messages, tools} in OpenAI's form, or"
        " in ShareGPT's; or"
        " the file of serve --record.",
        essential=True,
    )
    decisions: Path | None = option(
        None,
        help='Labelled decisions to learn from instead, a line {"state", "question", "options",'
        ' "answer"} each, or with'
        ' "probabilities" for soft labels; default for --env decisions: the training part of its'
        " --dataset.",
        essential=True,
    )
    demonstrations: int = option(
        0,
        help="Use the demonstrations of only this many problems, drawn by --seed; 0: all.",
        ge=0,
        essential=True,
    )
    comments: Literal["teacher", "reflector", "both", "nothing"] = option(
        "teacher",
        help=(
            "Whose comments the policy's rows show: teacher, reflector, both (one row each), or"
            " nothing (empty ones)."
        ),
        essential=True,
    )
    reflector: ModelRef | None = option(
        None,
        help=(
            "The reflector's checkpoint, or a run in which both learned, for --comments"
            " reflector or both."
        ),
        essential=True,
    )
    questions: bool = option(
        False,
        help=(
            "Also write rows for a typed reflector: the teacher's answers to the environment's"
            " questions."
        ),
        essential=True,
    )
    played: Path | None = option(
        None,
        help="With --questions and without a teacher: a run of evaluate, or its episodes.jsonl, whose"
        " outcomes are the"
        " answers in hindsight; writes nothing else.",
    )
    answer: Literal["", "label", "text", "score"] = option(
        "",
        help="What the policy answers where it chooses, and a typed reflector: label (the choice's"
        " number), text (its own words) or score (each choice is read alone and given a score)."
        " Default: label, but text for questions whose options change, and in an environment of your"
        " own whose choices change.",
        essential=True,
    )
    repeats: int = option(
        1,
        help=(
            "Replays of each demonstration; they differ if something is random, e.g. with"
            " --shuffle-action."
        ),
        ge=1,
    )
    mismatch: float = option(
        0.0,
        help=(
            "Share of the policy's rows that show another step's comment, so that it learns to"
            " check them."
        ),
        ge=0,
        le=1,
    )
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup.of(self.env, self.run)

    @override
    def contradictions(self) -> Iterator[Rule]:
        # 1. Whose comments
        takes_none = self.comments in ("teacher", "nothing")
        needs = "takes no" if self.reflector else "needs"
        is_wrong = takes_none != (self.reflector is None)
        yield is_wrong, f"--comments {self.comments} {needs} --reflector"

        # 2. Settings of what the rows are not made of
        for name in non_default(self, "answer", *OF_DEMONSTRATIONS):
            no_env = f"{flag(name)}: with --log no environment is played; leave it out"
            yield self.log is not None, no_env
        no_questions = f"--played {self.played} is for --questions; add it, or leave it out"
        yield self.played and not self.questions, no_questions
        for name in non_default(self, "log", "comments", "mismatch", *OF_DEMONSTRATIONS):
            outcomes = f"{flag(name)}: --played makes rows of outcomes alone; leave it out"
            yield self.played is not None, outcomes
        if self.questions and self.played is None:
            teacher = "--questions needs a teacher's demonstrations, or --played; leave out --log"
            yield self.log, teacher
            self.env.require_teacher("action")
        for name in non_default(
            self, "questions", "log", "comments", "mismatch", *OF_DEMONSTRATIONS
        ):
            labels = f"{flag(name)}: labelled decisions have no demonstrations; leave it out"
            yield self.learns_decisions, labels

    @property
    def learns_decisions(self) -> bool:
        """Whether the rows come from labelled decisions."""
        return self.decisions is not None or self.env.kind.name == LABELLED


CONFIG = GenSFTConfig


@memory_explained("use a smaller --reflector model")
def run(config: GenSFTConfig, progress: Progress) -> Report:
    """Write sft, sft_reflection, sft_policy and the last two's `_positive` variants, one prompt and
    completion a line; and sft_think, of a comment and then the action, where there are no tools and
    conversations.
    """
    # 1. Rows of other sources than demonstrations or logs
    if config.learns_decisions:
        return _write_decisions(config, progress)
    if config.played is not None:
        return _write_hindsight(config, config.played, progress)

    # 2. What is learned from, and where the rows go
    source = config.log or config.task_file or config.setup.folder / "train.json"
    target = config.out_dir or config.setup.folder
    write_permission(target)
    config = with_values(
        config, reflector=resolved(config.reflector, config.run.data_dir, progress, reflects=True)
    )
    inputs = [source, *model_folders([config.reflector])]
    records: list[Record] = []
    if not config.log:
        records = drawn_records(config.setup, config.run.seed, source, config.demonstrations)
    inputs += config.setup.input_files(record.task for record in records)
    with open_run("gen-sft", config, inputs) as current:
        if current.done:
            return current.done

        # 3. The steps to learn from
        steps = _steps(config, source, records, current, progress)

        # 4. The rows
        rows = _rows(config, steps, progress)
        if config.questions:
            rows[TYPED.stem] = _typed(steps, config, source, progress)
        return _finish(current, rows, target, config)


def _steps(
    config: GenSFTConfig,
    source: Path,
    records: Sequence[Record],
    current: Run,
    progress: Progress,
) -> list[Lesson]:
    """The steps to learn from: of the log, or of the demonstrations. Raises DataError if there are
    none.
    """
    if config.log:
        steps, account = logged_lessons(config.log)
        current.tables.append(account.table(config.log))
    else:
        if not config.task_file:
            _compare(records, source.with_name(RECORDS), progress)
        steps = _replayed_steps(config, source, records, progress)
    if not steps:
        command = config.setup.command("gen-trajectory")
        raise DataError(source, f"no record has a demonstration; generate some with {command}")
    return steps


def _replayed_steps(
    config: GenSFTConfig,
    source: Path,
    records: Sequence[Record],
    progress: Progress,
) -> list[Lesson]:
    """The steps of the demonstrations. Raises DataError if no demonstration can be used."""
    # 1. Replay them
    form = config.answer or config.env.kind.answers_with
    steps, faults = replayed_lessons(
        config.setup,
        source,
        records,
        progress,
        answer=form or TEXT,
        repeats=config.repeats,
        typed=config.questions,
    )

    # 2. Where nobody says in which form, the choices do
    if not form:
        offers = [("", step.observation.choices) for step in steps]
        if usual_form(offers) == TEXT:
            progress.news("choices change, so the policy answers in words (--answer text)")
        else:
            steps = [step.answered_in(ANSWERS[0]) for step in steps]

    # 3. What cannot be used
    if not steps and faults:
        raise DataError(source, f"no demonstration can be used: {', '.join(faults)}")
    for fault, number in faults.items():
        progress.news(f"{pluralize(number, 'demonstration')}: {fault}")
    return steps


def _rows(
    config: GenSFTConfig,
    steps: Sequence[Lesson],
    progress: Progress,
) -> dict[str, list[dict[str, Any]]]:
    """The rows of a policy, a reflector, and a model that is both, by the name of their file."""
    # 1. A wrong move teaches a reflector, but no policy
    right = [step for step in steps if step.note != "mistake"]
    positive = [step for step in steps if step.note == "positive"]

    # 2. A reflector learns nothing from a step without a comment
    commented = [step for step in steps if step.reflection.strip()]
    silent_count = len(steps) - len(commented)
    if silent_count:
        count = pluralize(silent_count, "step")
        progress.news(f"{count} without a comment: no row for the reflector")
    positive_comments = [step for step in commented if step.note == "positive"]

    # 3. Their rows
    reflector_comments = _reflector_comments(config, right, progress)
    rows: dict[str, list[dict[str, Any]]] = {
        "sft": joined([plain_row(step) for step in right]),
        "sft_reflection": [reflection_row(step) for step in commented],
        "sft_policy": _policy_rows(config, right, reflector_comments),
        "sft_reflection_positive": [reflection_row(step) for step in positive_comments],
        "sft_policy_positive": _policy_rows(config, positive, reflector_comments),
    }

    # 4. A model that thinks first has no place for calls and conversations
    if config.answer == SCORE:
        return rows
    thoughtful = [
        step for step in right if not (step.observation.tools or step.observation.replies)
    ]
    if thoughtful:
        rows["sft_think"] = [think_row(step) for step in thoughtful]
    return rows


def _finish(
    current: Run,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    target: Path,
    config: GenSFTConfig,
) -> Report:
    """Write `rows`, by the name of their file in `target`, and the report of the run."""
    outputs, figures = [], {}
    for name, lines in rows.items():
        path = target / f"{name}.jsonl"
        figures[name] = write_jsonl(path, lines)
        outputs.append(path)
    write_json(target / ROWS_SETTINGS, {VERSION: PROMPT_VERSION} | plain_settings(config.env))
    counts = tuple((f"{name}.jsonl", str(count)) for name, count in figures.items())
    current.tables.append(Table(f"SFT rows in {target}", ("file", "rows"), counts))
    return current.finish(figures, outputs)


def _write_decisions(config: GenSFTConfig, progress: Progress) -> Report:
    """Write `sft.jsonl`, a row of each labelled decision. Raises DataError."""
    target, setup = config.out_dir or config.setup.folder, config.setup
    write_permission(target)
    inputs = [config.decisions] if config.decisions else setup.input_files([])
    with open_run("gen-sft", config, inputs) as current:
        if current.done:
            return current.done
        # From a file, or the training part of the environment's data set
        if config.decisions is not None:
            decisions = read_labelled(config.decisions)
        else:
            tasks = Problems(setup).tasks("train", config.env.kind.levels[-1])
            dataset = setup.taskset.settings.dataset
            decisions = [labelled_decision(task.data, dataset) for task in tasks]
        rows = {"sft": _decision_rows(decisions, config, progress)}
        return _finish(current, rows, target, config)


def _write_hindsight(config: GenSFTConfig, source_run: Path, progress: Progress) -> Report:
    """Write the rows of a typed reflector from outcomes of episodes. Raises DataError."""
    source = source_run / "episodes.jsonl" if source_run.is_dir() else source_run
    target = config.out_dir or config.setup.folder
    write_permission(target)
    with open_run("gen-sft", config, [source]) as current:
        if current.done:
            return current.done
        rows = {TYPED.stem: _typed(hindsight_lessons(source), config, source, progress)}
        return _finish(current, rows, target, config)


def _typed(
    steps: Sequence[Lesson], config: GenSFTConfig, source: Path, progress: Progress
) -> list[dict[str, Any]]:
    """The rows of a typed reflector. Raises DataError if there are none."""
    questions = config.env.kind.questions()
    decisions = [decision for step in steps for decision in typed_decisions(step, questions)]
    if not decisions:
        names = ", ".join(question.name for question in questions)
        raise DataError(
            source, f"no answer to a question of env '{config.env.name}' is known: {names}"
        )
    return _decision_rows(decisions, config, progress)


def _decision_rows(
    decisions: Sequence[LabelledDecision], config: GenSFTConfig, progress: Progress
) -> list[dict[str, Any]]:
    """Their rows, in the form of --answer; where nobody says in which, the options do."""
    questions = [decision.question for decision in decisions]
    offers = [(question.instructions, question.options) for question in questions]
    form = config.answer or usual_form(offers)
    if form == TEXT and not config.answer:
        progress.news("options change, so questions are answered in words (--answer text)")
    return [decision_row(decision, form) for decision in decisions]


def _compare(records: Sequence[Record], newest: Path, progress: Progress) -> None:
    """Warn if the split was made from other demonstrations than `newest` has now, where that can be
    read.
    """
    with contextlib.suppress(DataError):
        newest_records = read_records(newest, records[0].task.env)
        trajectories_of = {record.task.id: record.trajectories for record in newest_records}
        for record in records:
            if record.trajectories and record.trajectories != trajectories_of.get(record.task.id):
                split = newest.with_name("train.json")
                difference = f"{split} has other demonstrations than {newest}"
                progress.news(f"warning: {difference}; run split if that is newer")
                return


def _reflector_comments(
    config: GenSFTConfig,
    steps: Sequence[Lesson],
    progress: Progress,
) -> dict[str, str]:
    """The trained reflector's comment on each step, by the step's text; empty if only the teacher
    comments.
    """
    if config.reflector is None:
        return {}
    from reflectkit.agents.typed import reflector_of
    from reflectkit.models.load import load_player
    from reflectkit.sampling.hf import LocalSampler

    # 1. The different observations; conversations share their steps
    parts = {id(part): part for step in steps for part in (*step.earlier, step)}
    observation_of = {part.observation.text: part.observation for part in parts.values()}
    observations = list(observation_of.values())

    # 2. A comment on each, on as many at once as the sampler takes
    sampler = LocalSampler(load_player(config.reflector.text, "reflection"), frozen=True)
    reflector: Any = reflector_of(sampler, config.reflector.facts, config.reflector.text)
    comments: list[str] = []
    with progress.bar("The reflector comments", len(observations)) as bar:
        for start in range(0, len(observations), sampler.batch):
            batch = observations[start : start + sampler.batch]
            comments += run_sync(reflector.comments(batch, [0] * len(batch)))
            bar.advance(len(batch))
    return dict(zip(observation_of, comments, strict=True))


def _policy_rows(
    config: GenSFTConfig,
    steps: Sequence[Lesson],
    reflector_comments: Mapping[str, str],
) -> list[dict[str, Any]]:
    """The rows of a policy that reads the comments of --comments. reflector_comments: by the text of
    an observation.
    """
    rows: list[dict[str, Any]] = []
    if not steps:
        return rows
    for name in ("teacher", "reflector") if config.comments == "both" else (config.comments,):
        # 1. Comments on the last states
        chance = generator(derive(config.run.seed, "mismatch"), name)
        comments = [_comment_on(step, name, reflector_comments) for step in steps]
        comments = mismatched(comments, config.mismatch, chance)

        # 2. Comments on earlier states: those that the policy has read there
        read: dict[str, str] = {}
        parts = []
        for step, comment in zip(steps, comments, strict=True):
            read[step.observation.text] = comment
            earlier = []
            for part in step.earlier:
                usual = _comment_on(part, name, reflector_comments)
                earlier.append(read.get(part.observation.text, usual))
            parts.append(policy_row(step, comment, earlier))
        rows += joined(parts)
    return rows


def _comment_on(step: Lesson, source: str, reflector_comments: Mapping[str, str]) -> str:
    """The comment on a step. source: "teacher", "reflector" or "nothing"."""
    if source == "teacher":
        return step.reflection
    if source == "reflector":
        return reflector_comments.get(step.observation.text, "")
    return ""
