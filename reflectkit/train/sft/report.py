"""Report, the last of sft's four steps: the figures of a run, and its log."""

from __future__ import annotations

import shutil
from typing import Any

from reflectkit.console import Report, figures_table
from reflectkit.jsonl import TEMPORARY_PREFIX, write_jsonl
from reflectkit.models.checkpoint_metadata import best_checkpoint, model_facts
from reflectkit.runs.run import Run, checkpoints
from reflectkit.train.sft.build import TRAINER_FOLDER
from reflectkit.train.sft.fit import SFTFit
from reflectkit.train.sft.measure import ACCURACY, LOSS, PROBABILITY
from reflectkit.train.sft.on_service import ServiceFit


def report(fit: SFTFit | ServiceFit, current: Run) -> Report:
    """The report of a run that has ended; the first process writes it."""
    training, metrics = fit.training, fit.metrics
    config, rows = training.run.config, training.run.rows

    # 1. The figures, and the best checkpoint
    losses = [row["loss"] for row in metrics if "loss" in row]
    figures: dict[str, Any] = {"rows": len(rows.every)}
    if training.parameters is not None:
        figures["parameters"] = training.parameters
    figures |= {
        "longest_group" if config.share_prefixes else "longest_row": training.longest,
        "steps": fit.steps,
        "loss": losses[-1] if losses else None,
    }
    best = best_checkpoint(checkpoints(current.folder))
    if best is not None:
        facts = model_facts(best)
        figures |= {"held_out_rows": len(training.held_out), "best_checkpoint": best.name}
        for name in (PROBABILITY, LOSS, ACCURACY):
            if name in facts:  # a service does not tell the accuracy
                figures[f"best_{name}"] = facts[name]
    output = best or fit.checkpoint
    if not training.processes.first:
        return Report("sft", current.folder, figures, (output,))

    # 2. The files
    write_jsonl(current.folder / "metrics.jsonl", metrics)
    title = f"SFT ({config.role}) in {fit.checkpoint}"
    current.tables.append(figures_table(title, "value", figures))
    finished = current.finish(figures, [output])

    # 3. The trainer's checkpoints, which are needed until then. What a kill leaves of them is
    #    removed when the run is opened again
    trainer_folder = current.folder / TRAINER_FOLDER
    if trainer_folder.exists():
        leftover = trainer_folder.rename(current.folder / f"{TEMPORARY_PREFIX}{TRAINER_FOLDER}")
        shutil.rmtree(leftover, ignore_errors=True)
    return finished
