"""`bench sft`: the training steps of `sft` against bare forward and backward passes over the same batches.

After each step of the trainer, its batch goes through the same model once more: that is the floor, with the same rows
and padding, the trunk over all positions, the LM head and the cross-entropy in float32 where a token is trained on, and
the backward pass. It has no optimizer, no clipping, no data loader, no metrics and no checks. Step and floor alternate
in one process and count its CPU time, so that the ratio holds on a busy machine too.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import TrainerCallback

from reflectkit.console import Bar, Quiet, Table
from reflectkit.jsonl import write_jsonl
from reflectkit.models.architecture import unwrapped
from reflectkit.text import STOP_WORDS
from reflectkit.train.processes import Processes
from reflectkit.train.sft.build import build
from reflectkit.train.sft.config import SFTConfig
from reflectkit.train.sft.fit import prepare
from reflectkit.train.sft.resolve import resolve, resolve_rows

PROMPT_WORDS, COMPLETION_WORDS = (80, 239), (1, 16)
WORDS = sorted(STOP_WORDS)  # mostly single tokens, of a pretrained tokenizer too


@dataclass(frozen=True)
class Measured:
    """One or several training steps and their floor."""

    sft: float
    """CPU seconds of the steps, from the end of one to the end of the next."""
    optimizer: float
    """CPU seconds of the optimizer in them."""
    floor: float
    """CPU seconds of the bare passes."""
    tokens: int
    """Tokens of the rows."""
    padded: int
    """The same with padding."""
    trained: int
    """Tokens with a loss."""

    @property
    def ratio(self) -> float:
        """Time of the floor as a share of that of the steps; 1: nothing is added to the bare passes."""
        return self.floor / self.sft


def write_rows(path: Path, count: int, seed: int) -> None:
    """Rows of random words: prompts of 80 to 239, completions of 1 to 16."""
    chance = random.Random(seed)

    def text(fewest: int, most: int) -> str:
        return "".join(f" {word}" for word in chance.choices(WORDS, k=chance.randint(fewest, most)))

    write_jsonl(path, [{"prompt": text(*PROMPT_WORDS), "completion": text(*COMPLETION_WORDS)} for _ in range(count)])


def open_training(config: SFTConfig, folder: Path, bar: Bar) -> Any:
    """The trainer that `sft` makes for these settings, to be measured. It saves nothing.

    folder: for what it may write nevertheless. Raises DataError, CheckpointError.
    """
    processes, progress = Processes(), Quiet()
    run = resolve(config, resolve_rows(config), processes, progress)
    trainer = prepare(build(run, folder, processes, progress), bar).trainer
    trainer.args.save_strategy = "no"
    return trainer


def measure(config: SFTConfig, rounds: int, bar: Bar) -> list[Measured]:
    """The sums of each round of `config.max_steps` / (`rounds` + 1) steps; one more, the first, warms up."""
    with tempfile.TemporaryDirectory(prefix="reflectkit-bench-") as scratch:
        trainer = open_training(config, Path(scratch), bar)
        watch = _Watch(trainer)
        trainer.add_callback(watch)  # the last one, so that a step includes what the others do at its end
        trainer.train()
    share = config.max_steps // (rounds + 1)
    return [summed(watch.steps[share * number : share * (number + 1)]) for number in range(1, rounds + 1)]


def summed(steps: Sequence[Measured]) -> Measured:
    """The steps as one."""
    return Measured(*(sum(getattr(step, field.name) for step in steps) for field in fields(Measured)))


def figures(rounds: Sequence[Measured]) -> dict[str, float]:
    """Medians over the rounds, with the lowest and highest ratio, and tokens of all rounds."""
    every, ratios = summed(rounds), [one.ratio for one in rounds]
    return {
        "sft_tokens_per_cpu_second": statistics.median(one.tokens / one.sft for one in rounds),
        "floor_tokens_per_cpu_second": statistics.median(one.tokens / one.floor for one in rounds),
        "sft_to_bare_forward_backward": statistics.median(ratios),
        "lowest_ratio": min(ratios),
        "highest_ratio": max(ratios),
        "optimizer_share": statistics.median(one.optimizer / one.sft for one in rounds),
        "tokens": every.tokens,
        "padded_tokens": every.padded,
        "trained_tokens": every.trained,
    }


def table(title: str, models: dict[str, dict[str, float]]) -> Table:
    """The figures, a column for each model."""
    columns = [_cells(values) for values in models.values()]
    rows = tuple((name, *(column[name] for column in columns)) for name in columns[0])
    return Table(title, ("what", *models), rows)


def _cells(values: dict[str, float]) -> dict[str, str]:
    """The figures of a model as they are shown."""
    return {
        "sft, tokens/s": f"{values['sft_tokens_per_cpu_second']:,.0f}",
        "floor (bare forward + backward), tokens/s": f"{values['floor_tokens_per_cpu_second']:,.0f}",
        "time of the floor / of sft": f"{values['sft_to_bare_forward_backward']:.0%}",
        "lowest and highest round": f"{values['lowest_ratio']:.0%}, {values['highest_ratio']:.0%}",
        "time of the optimizer / of sft": f"{values['optimizer_share']:.1%}",
        "tokens": f"{values['tokens']:,}",
        "tokens with padding": f"{values['padded_tokens']:,}",
        "tokens with a loss": f"{values['trained_tokens']:,}",
    }


def bare_pass(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The floor: forward and backward over `batch`; returns its mean loss per trained token, in nats.

    batch: input_ids, attention_mask and labels (B, T), padded on the right. Gradients are left in the weights.
    """
    causal = unwrapped(model)
    hidden_BTD = causal.base_model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False
    ).last_hidden_state
    next_BT = batch["labels"][:, 1:]
    trained_BT = next_BT != -100
    logits_NV = causal.get_output_embeddings()(hidden_BTD[:, :-1][trained_BT]).float()
    loss = functional.cross_entropy(logits_NV, next_BT[trained_BT])
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Counts the CPU time of the trainer's steps, and makes the bare passes over the batch of each after it."""

    def __init__(self, trainer: Any) -> None:
        self.steps: list[Measured] = []
        self._model, self._batch = trainer.model, dict[str, torch.Tensor]()
        self._started = self._optimizing = self._optimizer = 0.0
        step = trainer.training_step

        def noted(model: Any, inputs: dict[str, torch.Tensor], count: Any = None) -> Any:
            self._batch = dict(inputs)
            return step(model, inputs, count)

        trainer.training_step = noted

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._started = time.process_time()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._optimizing = time.process_time()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._optimizer = time.process_time() - self._optimizing

    def on_step_end(self, *_: Any, **__: Any) -> None:
        ended = time.process_time()
        bare_pass(self._model, self._batch)
        floor = time.process_time() - ended
        self._model.zero_grad()
        mask_BT, labels_BT = self._batch["attention_mask"], self._batch["labels"]
        tokens, trained = int(mask_BT.sum()), int((labels_BT[:, 1:] != -100).sum())
        self.steps.append(Measured(ended - self._started, self._optimizer, floor, tokens, mask_BT.numel(), trained))
        self._started = time.process_time()
