"""sft: supervised fine-tuning of one player with TRL's SFTTrainer, with the loss on the completions only.

Rows are tokenised by the same functions as prompts at inference; a row that is too long is an error rather than cut
off. A killed run resumes from its last trainer checkpoint with valid checksums. With `--processes N`, or under torchrun
or `accelerate launch`, several processes train together, with the same result.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reflectkit.commands import Traits
from reflectkit.config import flag, with_values
from reflectkit.console import Progress, Quiet, Report, figures_table
from reflectkit.data.sft_rows import ROWS_SETTINGS, VERSION, Row, form_of, read_rows
from reflectkit.envs import env_class
from reflectkit.errors import DataError, memory_explained, refuse
from reflectkit.jsonl import read_json, write_jsonl
from reflectkit.models.checkpoint_metadata import QUESTIONS, best_checkpoint, model_facts
from reflectkit.models.hub import hub_options
from reflectkit.models.processor import dtype_advice
from reflectkit.models.refs import ModelRef
from reflectkit.prompts import PROMPT_VERSION, REFLECTION_MARKER, listed_answers
from reflectkit.runs.run import checkpoints, seal
from reflectkit.text import pluralize
from reflectkit.train.estimate import plan_report
from reflectkit.train.processes import Processes, check_launch, launch, shared_run, start_processes
from reflectkit.train.settings import require_trackers
from reflectkit.train.sft import (
    FEWEST_ROWS,
    MEASUREMENTS,
    TINY,
    encoded_rows,
    gradient_steps,
    held_out_rows,
    inputs_of,
    last_checkpoint,
    row_length,
    split_rows,
    starting_model,
    train,
)
from reflectkit.train.sft import SFTConfig as SFTConfig
from reflectkit.types import SCORE, to_json

EXAMPLES = (
    "reflectkit sft --env taxi --role reflection --max-steps 700",
    "reflectkit sft --env taxi --role reflection --typed",
    "reflectkit sft --env taxi --role policy --model results/taxi-tiny/reflector/checkpoint-700 --task-file"
    " data/taxi/both/sft_policy.jsonl",
    "reflectkit sft --env taxi --role plain --model smollm2-135m --lora-r 16 --learning-rate 5e-4 --max-length 512",
    "reflectkit sft --env taxi --role policy --model gpt2-xl --lora-r 16 --learning-rate 2e-4 --dtype bfloat16",
)
TRAITS = Traits(trains=True, makes_arm=True)


CONFIG = SFTConfig


def run(config: SFTConfig, progress: Progress) -> Report:
    """Train and write `checkpoint-<steps>/`.

    Raises
    ------
    DataError: a row is too long. CheckpointError: the model cannot be loaded. DivergedError: a loss or a weight became
    NaN or infinite. ReflectkitError: out of memory.
    """
    check_launch(config.processes)
    if config.processes > 1 and not config.checkpoints.plan:
        return launch("sft", config, run)

    # 1. The processes, the rows and the model to start from
    require_trackers(config.checkpoints.report_to)
    source = config.rows_file
    config.setup.require(source)
    rows = read_rows(source)
    inputs = [] if config.held_out_file is None else [config.held_out_file]
    for file in inputs:
        read_rows(file)  # wrong ones are told of before torch is imported
    trained, held_out = split_rows(config, rows)
    form = "" if config.role == "reflection" else form_of(source, rows)
    if form == SCORE:
        given = [name for name in ("prompt_loss", "share_prefixes", "group_by_length") if getattr(config, name)]
        given += ["processes"] if config.processes > 1 or "RANK" in os.environ else []
        refuse(given, f"{flag(given[0]) if given else ''} is not for rows whose choices are given scores; leave it out")
    launched = "RANK" in os.environ  # by torchrun, accelerate or `launch`
    processes = start_processes("sft", config.device, config.run.threads) if launched else Processes()
    progress = progress if processes.first else Quiet()
    if config.model not in TINY:
        with processes.first_then_rest():
            start = ModelRef.parse(config.model).source(config.run.data_dir, progress)
        config = with_values(config, model=start.text)
    if config.checkpoints.plan:
        return _plan(config, source, rows, trained, progress)

    with shared_run("sft", config, [*inputs_of(config, source), *inputs], processes) as current:
        if current.done:
            return current.done
        progress.news(f"sft ({config.role}): {pluralize(len(rows), 'row')} of {source} → {current.folder}")
        shown = source.with_name(ROWS_SETTINGS)
        version, facts = PROMPT_VERSION, {}
        if shown.is_file():
            facts["env_settings"] = read_json(shown)
            version = facts["env_settings"].pop(VERSION, version)
        if config.model not in TINY:
            hub_options(config.model)  # whether it can be fetched is known before torch is imported
        from reflectkit.models.load import checkpoint_gradients, save_player
        from reflectkit.train.sft_trainers import ACCURACY, LOSS, PROBABILITY, Validation

        facts |= {"env": config.env, "prompts": version, "model": config.model}
        if config.typed:
            facts[QUESTIONS] = _questions(config, source, rows)
        if config.role != "reflection" and any(
            row.options or listed_answers(row.parts[0][0], row.form) for row in rows
        ):
            facts["acts"] = "choice"
        if config.role == "policy" and any(REFLECTION_MARKER not in row.parts[0][0] for row in rows):
            facts["acts_alone"] = True  # some rows have no comment

        # 2. Train
        with processes.first_then_rest():
            resume = last_checkpoint(current.folder / "trainer", progress)
        smaller = "--max-length" if config.model in TINY else "use --lora-r, --quantize or a smaller model"
        with memory_explained(f"lower --batch-size, which is {config.batch_size}, or {smaller}"):
            if processes.count > 1:
                config = with_values(config, device=str(processes.accelerator.device))
            player = replace(starting_model(config, source, rows), answer=form)
            if advice := dtype_advice(player):
                progress.news(advice)
            if player.tokenizer.chat_template:
                progress.news("the rows are plain text: from here on, the model's chat template is not used")
            if config.gradient_checkpointing:
                checkpoint_gradients(player.model)
            encoded = encoded_rows(config, source, trained, player, progress)  # first, since some rows may not fit
            measured_rows = held_out_rows(config, source, held_out, player)
            longest = max(map(row_length, encoded))
            parameters = sum(weight.numel() for weight in player.model.parameters())
            if not config.max_length:
                progress.news(f"the longest row has {longest:,} tokens, of {player.context:,} that the model reads")
            steps = gradient_steps(config, len(encoded))
            for line in _intentions(config, len(trained), len(measured_rows), steps):
                progress.news(line)
            if config.tiny.copy_steps and not resume:
                from reflectkit.models.tiny import teach_copying

                with progress.bar("Copying", config.tiny.copy_steps) as bar:
                    teach_copying(
                        player.model, config.tiny.copy_steps, config.run.seed, lambda loss: bar.advance(1, loss=loss)
                    )

            def save(step: int, measured: Mapping[str, float]) -> Path:
                target = current.folder / f"checkpoint-{step}"
                weights = processes.whole_weights(player.model)
                if processes.first:
                    save_player(target, player, {**facts, "step": step, **measured}, seal, weights)
                processes.wait()
                return target

            def keep_best(step: int, measured: Mapping[str, float]) -> None:
                target = save(step, measured)
                for other in checkpoints(current.folder) if processes.first else ():
                    if other != target:
                        shutil.rmtree(other)

            validation = None
            if measured_rows:
                every = config.validate_steps or -(-steps // MEASUREMENTS)
                validation = Validation(measured_rows, every, config.most_measurements, keep_best)
            config = with_values(config, max_steps=steps)
            steps, log = train(
                config, current.folder / "trainer", resume, player, encoded, progress, processes, validation
            )

        # 3. Save
        if validation and steps < config.max_steps:
            failures = pluralize(validation.patience, "measurement")
            progress.news(
                f"ended after {pluralize(steps, 'step')}: no gain on held-out rows in {failures} (--patience)"
            )
        measured = {name: log[-1][name] for name in (PROBABILITY, LOSS, ACCURACY)} if validation else {}
        target = save(steps, measured)
        losses = [row["loss"] for row in log if "loss" in row]
        figures = {
            "rows": len(rows),
            "parameters": parameters,
            "longest_group" if config.share_prefixes else "longest_row": longest,
            "steps": steps,
            "loss": losses[-1] if losses else None,
        }
        best = best_checkpoint(checkpoints(current.folder))
        if best is not None:
            facts = model_facts(best)
            figures |= {"held_out_rows": len(measured_rows), "best_checkpoint": best.name}
            figures |= {f"best_{name}": facts[name] for name in (PROBABILITY, LOSS, ACCURACY)}
        if not processes.first:
            return Report("sft", current.folder, figures, (best or target,))
        write_jsonl(current.folder / "metrics.jsonl", log)
        shutil.rmtree(current.folder / "trainer", ignore_errors=True)
        current.tables.append(figures_table(f"SFT ({config.role}) in {target}", "value", figures))
        return current.finish(figures, [best or target])


def _questions(config: SFTConfig, source: Path, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The env's questions that `rows` ask, which the typed reflector will be asked. Raises DataError for other rows."""
    for row in rows:
        if not row.probabilities:
            raise DataError(source, "is no row of gen-sft --questions", line=row.line)
    prompts = [row.parts[0][0] for row in rows]
    known = env_class(config.env).questions()
    asked = [each for each in known if any(f"\n{each.text}\n" in prompt for prompt in prompts)]
    if not asked:
        raise DataError(source, f"asks none of the questions of env '{config.env}'")
    return [to_json(each) for each in asked]


def _intentions(config: SFTConfig, trained: int, held_out: int, steps: int) -> Iterator[str]:
    """Lines that tell how long a run may take, where nobody says, and what is measured."""
    if config.follows_rows:
        until = ", or until held-out rows gain nothing" if held_out else ""
        yield f"at most {pluralize(steps, 'step')} on {pluralize(trained, 'row')}{until}; or set --max-steps"
    if held_out:
        yield f"held out: {pluralize(held_out, 'row')} of {config.held_out_file or config.rows_file}"
    elif config.held_out_share and not config.hold_out:
        yield f"fewer than {FEWEST_ROWS} rows: none is held out; or set --hold-out 0.2"


def _plan(config: SFTConfig, source: Path, rows: Sequence[Row], trained: Sequence[Row], progress: Progress) -> Report:
    """What training takes, by arithmetic."""
    from reflectkit.models.chat import Dialogue

    player = starting_model(config, source, rows)
    lengths = [row_length(row) for row in encoded_rows(config, source, trained, player, progress)]
    tokens = config.batch_size // config.gradient_accumulation * max(lengths)
    steps = gradient_steps(config, len(lengths))
    mean = sum(lengths) / len(lengths)
    return plan_report(
        "sft",
        config.run.results_dir,
        [player.model],
        tokens,
        tokens,
        recompute=config.gradient_checkpointing,
        tokens={
            "longest_row": max(lengths),
            "tokens_an_update": round(config.batch_size * mean),
            "steps": steps,
            "tokens": round(steps * config.batch_size * mean),
        },
        stop_tokens=Dialogue(player.tokenizer, plain=True).stop_tokens,
    )
