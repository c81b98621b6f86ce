"""sft as tests run it, in this process: a few rows, and Ctrl-C at a step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.sft import open_training
from reflectkit.commands import sft
from reflectkit.console import Bar, Quiet
from reflectkit.jsonl import write_jsonl
from reflectkit.models.load import LoadedModel, save_player
from reflectkit.train.processes import Processes
from reflectkit.train.sft.build import starting_model
from reflectkit.train.sft.resolve import resolve, resolve_rows

LABELS = " 0", " 1"


class Interrupting(Quiet):
    """Presses Ctrl-C at the end of a step, and keeps the news. signals: as the user does, else as if at once."""

    def __init__(self, at: int = 0, *, signals: bool = False) -> None:
        self.at, self.signals, self.step, self.lines = at, signals, 0, []

    def advance(self, amount: int = 1, **figures: float) -> None:
        self.step += amount
        if self.step == self.at and amount:
            if not self.signals:
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        self.step = done
        yield self

    def news(self, text: str) -> None:
        self.lines.append(text)


def write_rows(folder: Path) -> Path:
    """A file of nine rows."""
    path = folder / "rows.jsonl"
    write_jsonl(path, [{"prompt": f"cell {number} of 9", "completion": LABELS[number % 2]} for number in range(9)])
    return path


def config(rows: Path, results: Path, **settings: Any) -> sft.SFTConfig:
    known = {"env": "corridor", "role": "plain", "task_file": rows, "max_steps": 7, "save_steps": 2, "batch_size": 4,
             "max_length": 32, "vocabulary": 300, "device": "cpu"}  # fmt: skip
    return sft.SFTConfig.from_flat(results_dir=results, **(known | settings))


def fresh_model(settings: sft.SFTConfig) -> LoadedModel:
    """The model that an sft run with these settings starts from."""
    run = resolve(settings, resolve_rows(settings), Processes(), Quiet())
    return starting_model(run, settings.device)


def open_trainer(folder: Path, kind: str, **settings: Any) -> Any:
    """The trainer of an sft run of a fresh model of `kind`, or of an "adapter" on one, that has not begun."""
    rows = write_rows(folder)
    own: dict[str, Any] = {"model": kind}
    if kind == "adapter":
        save_player(folder / "base", fresh_model(config(rows, folder, **settings)))
        own = {"model": str(folder / "base"), "lora_r": 2}
    with Quiet().bar("sft", 1) as bar:
        return open_training(config(rows, folder, **settings | own), folder / "scratch", bar)


def learnt(trainer: Any, kind: Any, inputs: Any, count: int | None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(loss, gradient of each weight) of a batch with the class `kind`. count: of the tokens the loss is divided by."""
    trainer.model.zero_grad()
    loss = kind.compute_loss(trainer, trainer.model, dict(inputs), num_items_in_batch=count)
    loss.backward()
    weights = trainer.model.named_parameters()
    return loss.detach(), {name: weight.grad.clone() for name, weight in weights if weight.requires_grad}


def train(rows: Path, results: Path, progress: Quiet | None = None, **settings: Any) -> Path:
    """The checkpoint of an sft run in `results`."""
    return sft.run(config(rows, results, **settings), progress or Quiet()).outputs[0]
