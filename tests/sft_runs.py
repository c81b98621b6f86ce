"""sft as tests run it, in this process: a few rows, and Ctrl-C at a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reflectkit.commands import sft
from reflectkit.console import Bar, Quiet
from reflectkit.jsonl import write_jsonl

LABELS = " 0", " 1"


class Interrupting(Quiet):
    """Presses Ctrl-C at the end of a step, and keeps the news."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.step, self.lines = at, 0, []

    def advance(self, amount: int = 1, **figures: float) -> None:
        self.step += amount
        if self.step == self.at:
            raise KeyboardInterrupt

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


def train(rows: Path, results: Path, progress: Quiet | None = None, **settings: Any) -> Path:
    """The checkpoint of an sft run in `results`."""
    return sft.run(config(rows, results, **settings), progress or Quiet()).outputs[0]
