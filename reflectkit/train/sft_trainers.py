"""TRL's SFTTrainer with less work: rows that begin alike in one pass, and the LM head where tokens are trained.

A pack holds the tokens of a trie, in the order in which the sorted rows add them; what rows share is read once. A token
attends to its own ancestors alone and has their number as its position. Hidden states, loss and gradients are those of
the rows one by one, up to the rounding of sums. Unlike the trees of `models.scoring` this is one plain pass with a
mask, so it works with adapters, recomputed activations and TRL's trainer, and for the short convolutions of LFM2.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import BatchSamplerShard
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import TrainerCallback, TrainingArguments
from trl import SFTTrainer

from reflectkit.console import Bar
from reflectkit.errors import CheckpointError, DataError, DivergedError
from reflectkit.jsonl import read_json
from reflectkit.models.load import all_finite
from reflectkit.models.scoring import (
    attends_to_all,
    choice_logprobs,
    recomputes_activations,
    shared_length,
    takes_positions,
    trunk_of,
    unwrapped,
)
from reflectkit.runs.run import checkpoints, seal
from reflectkit.train.processes import Processes
from reflectkit.train.settings import Log

Encoded = Mapping[str, Sequence[int]]
NOT_TRAINED = -100
ARGUMENTS = "training_args.bin"  # the one file of a trainer checkpoint with code in it; not needed to resume
ORDER = "epoch_order.safetensors"  # torch's random state at the start of the epoch
FIGURES = "figures.json"  # what the next row of the log is made of: sums since the last one, and the tokens so far
SMALL_VOCABULARY = 4096
"""Up to this size all positions are computed as in TRL: leaving some out changes the rounding of the gradients, and
with it the weights of every seed of the tiny models."""
EXPLODED = 10  # times the loss of guessing; no working training comes near it
PAIRS_PER_TOKEN = 6
"""Times a model's width: pairs of tokens whose attention costs as much as the rest of reading a token. A layer has 12
D² weights, and a pair takes 2 D products."""


def pack(rows: Sequence[Encoded], limit: int, width: int) -> list[dict[str, list[int]]]:
    """Packs of all `rows`, each of at most `limit` tokens unless one row alone has more.

    A row joins the pack of the row before it in sorted order where the tokens that it shares with it cost more to read
    than the attention between what it adds and the rest of the pack.

    rows: input_ids and labels of each, not empty; labels are -100 where nothing is trained. width: of the model's
    hidden states.

    Returns
    -------
    For each pack: input_ids of its T tokens; parents, the number of the token before each, or -1; sources and targets,
    for every trained token of every row the number of the token before it, and the token. A token that two rows train
    on is there twice.
    """
    packs: list[dict[str, list[int]]] = []
    before: Sequence[int] = ()
    path: list[int] = []  # numbers of the tokens of the row before
    for row in sorted(rows, key=lambda row: list(row["input_ids"])):
        tokens = row["input_ids"]
        shared = shared_length(before, tokens)
        added = len(tokens) - shared
        size = len(packs[-1]["input_ids"]) if packs else 0
        if not packs or size + added > limit or PAIRS_PER_TOKEN * width * shared < 2 * size * added:
            packs.append({"input_ids": [], "parents": [], "sources": [], "targets": []})
            shared, size = 0, 0
        path = path[:shared] + list(range(size, size + len(tokens) - shared))
        columns = packs[-1]
        columns["input_ids"] += tokens[shared:]
        columns["parents"] += [path[place - 1] if place else -1 for place in range(shared, len(tokens))]
        for parent, label in zip(path, row["labels"][1:], strict=False):
            if label != NOT_TRAINED:
                columns["sources"].append(parent)
                columns["targets"].append(label)
        before = tokens
    return packs


def can_pack(model: Any) -> bool:
    """Whether packs are read exactly by the model: it takes positions and a mask of pairs, and each layer attends to
    all tokens before or is a short convolution of LFM2 whose activations are not recomputed.
    """
    bare = unwrapped(model)
    config = bare.config.get_text_config()
    if not takes_positions(model) or getattr(config, "alibi", False):  # Falcon's, made of a mask of tokens
        return False
    if config._attn_implementation not in ("sdpa", "eager"):
        return False
    if config.model_type == "lfm2":
        return not recomputes_activations(model)
    return attends_to_all(model)


def keeping_activations() -> dict[str, bool]:
    """The argument that makes a trainer of TRL keep all activations, under its name in this version of transformers.

    TRL's own default recomputes them in the backward pass.
    """
    names = ("activation_checkpointing", "gradient_checkpointing")
    return {next(name for name in names if hasattr(TrainingArguments, name)): False}


def collate(packs: Sequence[Encoded], pad_id: int) -> dict[str, torch.Tensor]:
    """B packs as tensors, padded on the right to T tokens.

    Returns
    -------
    input_ids, attention_mask (1 for a token of a pack), position_ids and parents, each (B, T); sources, the numbers
    among the B x T tokens of the N tokens before a trained one, and shift_labels, the trained ones, both (1, N), which
    are also the labels, for the trainer to count.
    """
    width = max(len(columns["input_ids"]) for columns in packs)
    ids_BT = torch.full((len(packs), width), pad_id)
    mask_BT = torch.zeros((len(packs), width), dtype=torch.long)
    parents_BT = torch.full((len(packs), width), -1)
    places_BT = torch.zeros((len(packs), width), dtype=torch.long)
    sources: list[int] = []
    targets: list[int] = []
    for row, columns in enumerate(packs):
        size = len(columns["input_ids"])
        places: list[int] = []
        for parent in columns["parents"]:
            places.append(places[parent] + 1 if parent >= 0 else 0)
        ids_BT[row, :size] = torch.tensor(columns["input_ids"])
        mask_BT[row, :size] = 1
        parents_BT[row, :size] = torch.tensor(columns["parents"])
        places_BT[row, :size] = torch.tensor(places)
        sources += [row * width + source for source in columns["sources"]]
        targets += columns["targets"]
    return {
        "input_ids": ids_BT,
        "attention_mask": mask_BT,
        "position_ids": places_BT,
        "parents": parents_BT,
        "sources": torch.tensor([sources], dtype=torch.long),
        "shift_labels": torch.tensor([targets], dtype=torch.long),
        "labels": torch.tensor([targets], dtype=torch.long),
    }


class Share:
    """Collates this process's rows of each batch, which all processes are given whole. Where there are fewer rows than
    processes, those without one read a single token that is not trained on; `missing` counts them.
    """

    def __init__(self, collate: Callable[[list[Any]], dict[str, Any]], processes: Processes) -> None:
        self.collate, self.processes = collate, processes

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        """The share of `rows` as tensors."""
        mine = self.processes.share(rows) or [self._unread(rows[0])]
        return self.collate(mine) | {"missing": max(0, self.processes.count - len(rows))}

    @staticmethod
    def _unread(row: Encoded) -> dict[str, Sequence[int]]:
        if "parents" in row:
            return {"input_ids": row["input_ids"][:1], "parents": [-1], "sources": [], "targets": []}
        return {"input_ids": row["input_ids"][:1], "labels": [NOT_TRAINED]}


class SharingTrainer(SFTTrainer):
    """SFTTrainer whose batches do not depend on the number of processes: each process takes its share of every batch of
    one process, also of the last in an epoch, where accelerate would fill up with rows of the first.
    """

    data_collator: Any
    stopped = False
    """Whether one of the processes was told to stop."""

    def share(self, processes: Processes) -> None:
        """Train in several processes."""
        self.data_collator = Share(self.data_collator, processes)
        self.accelerator.gather_for_metrics = self.accelerator.gather  # as there are no rows to leave out

    def get_train_dataloader(self) -> Any:
        """The batches of one process, for all processes."""
        loader = super().get_train_dataloader()
        shard = loader.batch_sampler
        if isinstance(shard, BatchSamplerShard):
            shard.num_processes, shard.process_index, shard.even_batches = 1, 0, False
        return loader

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a batch, or of a share of one."""
        missing = inputs.pop("missing", 0)
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if missing:
            self._total_train_tokens -= missing
            self._metrics["train"]["num_tokens"] = [self._total_train_tokens]
        return loss


class PackTrainer(SharingTrainer):
    """SFTTrainer on packs, which `collate` makes batches of. The loss is the mean over the trained tokens of the rows
    in a batch.
    """

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a batch. inputs: from `collate`."""
        kept = {name: value for name, value in inputs.items() if name not in ("parents", "sources", "labels")}
        with reading(self.model, inputs["parents"], inputs["sources"][0]):
            return super().compute_loss(model, kept, return_outputs, num_items_in_batch)


class CompletionTrainer(SharingTrainer):
    """SFTTrainer with the same loss, gradients and metrics, up to rounding, for less work: the LM head is applied only
    before trained tokens.
    """

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a batch as TRL computes it. inputs: its labels_BT are -100 where no token is trained on."""
        causal = unwrapped(self.model)
        labels_BT = inputs["labels"]
        if labels_BT.device.type != "cpu" or causal.get_output_embeddings().weight.shape[0] <= SMALL_VOCABULARY:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        next_BT = labels_BT[:, 1:]
        trained_BT = next_BT != NOT_TRAINED
        kept = {name: value for name, value in inputs.items() if name != "labels"}
        kept["shift_labels"] = next_BT[trained_BT][None]
        with _selecting(causal.base_model, lambda hidden_BTD: hidden_BTD[:, :-1][trained_BT]):
            return super().compute_loss(model, kept, return_outputs, num_items_in_batch)


def collate_decisions(rows: Sequence[Mapping[str, Any]], pad_id: int) -> dict[str, Any]:
    """B decisions, or groups of them that share a prompt, as a batch, padded on the right to T tokens: input_ids and
    attention_mask (B, T), the options' tokens, which are offered, and shares as they are, and as labels one number for
    each decision, for the trainer to count; of labels that are not shifted it would leave out the first.
    """
    width = max(len(row["input_ids"]) for row in rows)
    ids_BT, mask_BT = torch.full((len(rows), width), pad_id), torch.zeros((len(rows), width), dtype=torch.long)
    for number, row in enumerate(rows):
        ids_BT[number, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
        mask_BT[number, : len(row["input_ids"])] = 1
    counted = torch.zeros((1, sum(len(row.get("offered", [()])) for row in rows)), dtype=torch.long)
    return {
        "input_ids": ids_BT,
        "attention_mask": mask_BT,
        "options": [row["options"] for row in rows],
        "offered": [row.get("offered") for row in rows],
        "shares": [row["shares"] for row in rows],
        "labels": counted,
        "shift_labels": counted,
    }


def decision_losses(model: Any, rows: Sequence[Mapping[str, Any]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(cross-entropy of the shares and the policy's probabilities of the options, in nats (B); whether the likeliest
    options agree (B)). A row may be a group of decisions whose options are each given a score
    (`train.sft.encode_options`).
    """
    separately = bool(rows[0].get("offered"))
    prompts, labels, shares = [], [], []
    for row in rows:
        paths = tuple(map(tuple, row["options"]))
        decisions = (
            zip(row["offered"], row["shares"], strict=True) if separately else [(range(len(paths)), row["shares"])]
        )
        for offered, target in decisions:
            prompts.append(row["input_ids"])
            labels.append(tuple(paths[number] for number in offered))
            shares.append(target)
    logprobs_BK, _ = choice_logprobs(model, prompts, labels, pad_id=pad_id, separately=separately)
    shares_BK = torch.zeros_like(logprobs_BK)
    for number, target in enumerate(shares):
        shares_BK[number, : len(target)] = torch.tensor(target)
    losses_B = -(shares_BK * logprobs_BK.masked_fill(logprobs_BK.isneginf(), 0.0)).sum(dim=-1)
    return losses_B, logprobs_BK.argmax(dim=-1) == shares_BK.argmax(dim=-1)


class DecisionTrainer(SharingTrainer):
    """SFTTrainer on decisions, which `collate_decisions` makes batches of. The loss is the mean cross-entropy of the
    labels' probabilities and the policy's, which are those it plays with: over the legal options.
    """

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a batch. num_items_in_batch: decisions in the whole batch, if it is read in parts."""
        lengths = inputs["attention_mask"].sum(dim=1).tolist()
        rows = [
            {"input_ids": ids[:length], "options": options, "offered": offered, "shares": shares}
            for ids, length, options, offered, shares in zip(
                inputs["input_ids"].tolist(),
                lengths,
                inputs["options"],
                inputs["offered"],
                inputs["shares"],
                strict=True,
            )
        ]
        losses_B, _ = decision_losses(model, rows, self.processing_class.pad_token_id)
        self._total_train_tokens += sum(lengths)
        loss = losses_B.sum() / (len(losses_B) if num_items_in_batch is None else num_items_in_batch)
        return (loss, {}) if return_outputs else loss


@torch.no_grad()
def measure_decisions(model: Any, rows: Sequence[Mapping[str, Any]], batch_size: int, pad_id: int) -> dict[str, float]:
    """How well the model, without dropout, foretells the labels of decisions. LOSS: their mean cross-entropy, a proper
    score. PROBABILITY: of that, the geometric mean. ACCURACY: share whose likeliest option is the label's.
    """
    was_training = model.training
    model.eval()
    losses: list[float] = []
    agree: list[bool] = []
    for first in range(0, len(rows), batch_size):
        losses_B, agree_B = decision_losses(model, rows[first : first + batch_size], pad_id)
        losses += losses_B.tolist()
        agree += agree_B.tolist()
    model.train(was_training)
    loss = sum(losses) / len(losses)
    return {PROBABILITY: math.exp(-loss), LOSS: loss, ACCURACY: sum(agree) / len(agree)}


@contextmanager
def _selecting(trunk: nn.Module, select: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """While it is open, `trunk` returns the hidden states that `select` takes (N, D) from all (B, T, D), as one row."""

    def selected(_: nn.Module, __: Any, output: Any) -> Any:
        output.last_hidden_state = select(output.last_hidden_state)[None]
        return output

    hook = trunk.register_forward_hook(selected)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def reading(model: Any, parents_BT: torch.Tensor, sources_N: torch.Tensor) -> Iterator[None]:
    """While it is open, the model reads packs, and its trunk returns the hidden states (1, N, D) at N of the B x T
    tokens.

    model: one that `can_pack`; its positions are up to the caller. parents_BT: of each token, -1 for a first one.
    """
    trunk = trunk_of(model)
    mask = _mask(parents_BT, trunk)

    def masked(_: nn.Module, arguments: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return arguments, named | {"attention_mask": mask}

    hook = trunk.register_forward_pre_hook(masked, with_kwargs=True)
    layers = [module for module in trunk.modules() if type(module).__name__ == "Lfm2ShortConv"]
    try:
        for layer in layers:
            layer.forward = partial(_convolve, layer, parents_BT)
        with _selecting(trunk, lambda hidden_BTD: hidden_BTD.flatten(0, 1)[sources_N]):
            yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)
        hook.remove()


def _mask(parents_BT: torch.Tensor, trunk: Any) -> torch.Tensor:
    """Which tokens each one attends to (B, 1, T, T): itself and its ancestors; padding attends to itself."""
    rows, size = parents_BT.shape
    seen = np.tile(np.eye(size, dtype=bool), (rows, 1, 1))
    for row, parents in enumerate(parents_BT.tolist()):
        for token, parent in enumerate(parents):
            if parent >= 0:
                seen[row, token] |= seen[row, parent]
    mask = torch.from_numpy(seen)[:, None].to(parents_BT.device)
    if trunk.config._attn_implementation == "sdpa":
        return mask
    dtype = next(weight.dtype for weight in trunk.parameters() if weight.is_floating_point())
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def _convolve(layer: Any, parents_BT: torch.Tensor, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
    """The forward of LFM2's short convolution `layer`, along each token's ancestors instead of its left neighbours."""
    gate_BTD, out_BTD, value_BTD = layer.in_proj(hidden_states).chunk(3, dim=-1)
    gated_BTD = gate_BTD * value_BTD
    weight_DK = layer.conv.weight.squeeze(1)
    mixed_BTD = gated_BTD * weight_DK[:, -1]
    padded = torch.cat([gated_BTD, torch.zeros_like(gated_BTD[:, :1])], dim=1)  # index -1: no ancestor
    parents = torch.cat([parents_BT, torch.full_like(parents_BT[:, :1], -1)], dim=1)
    ancestors = parents_BT
    for back in range(2, weight_DK.shape[1] + 1):
        index = (ancestors % padded.shape[1])[..., None].expand(-1, -1, padded.shape[-1])
        mixed_BTD = mixed_BTD + padded.gather(1, index) * weight_DK[:, -back]
        ancestors = parents.gather(1, ancestors % padded.shape[1])
    if layer.conv.bias is not None:
        mixed_BTD = mixed_BTD + layer.conv.bias
    mixed: torch.Tensor = layer.out_proj(out_BTD * mixed_BTD)
    return mixed


@dataclass(frozen=True)
class Validation:
    """Held-out rows, on which the model is measured while it learns.

    rows: input_ids and labels of each, or decisions. every: steps between two measurements; there is one after the last
    step. patience: measurements in a row without a gain (`since_gain`) that end training; 0: none do. keep: called by
    all processes with the step and the measurement where the probability is the highest so far.
    """

    rows: Sequence[Mapping[str, Any]]
    every: int
    patience: int
    keep: Callable[[int, dict[str, float]], None]


PROBABILITY, LOSS, ACCURACY = "validation_probability", "validation_loss", "validation_accuracy"
"""The figures of a measurement. The first decides which checkpoint is best: it is how often sampled play takes the
demonstrated action. The loss rises as soon as a model is sure of a wrong answer, long before it plays best.
"""
LEAST_GAIN = 0.001
"""By how much the probability has to rise; a model that is sure of all answers gains less for ever."""


@torch.no_grad()
def measure(model: Any, rows: Sequence[Encoded], batch_size: int) -> dict[str, float]:
    """How well the model, without dropout, gives the answers in `rows`, which are their stretches of trained tokens.

    PROBABILITY, LOSS: means over the trained tokens; the latter in nats. ACCURACY: share of the answers each token of
    which is the most likely one after those before it.
    """
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    total, probability, tokens, right, answers = 0.0, 0.0, 0, 0, 0
    for first in range(0, len(rows), batch_size):
        batch = rows[first : first + batch_size]
        width = max(len(row["input_ids"]) for row in batch)
        ids_BT = torch.zeros((len(batch), width), dtype=torch.long)
        mask_BT = torch.zeros_like(ids_BT)
        labels_BT = torch.full_like(ids_BT, NOT_TRAINED)
        for place, row in enumerate(batch):
            size = len(row["input_ids"])
            ids_BT[place, :size] = torch.tensor(row["input_ids"])
            mask_BT[place, :size] = 1
            labels_BT[place, :size] = torch.tensor(row["labels"])
        next_BT = labels_BT[:, 1:].to(device)
        trained_BT = next_BT != NOT_TRAINED
        targets_N = next_BT[trained_BT]
        with _selecting(trunk_of(model), partial(_before_trained, next_BT)):
            output = model(input_ids=ids_BT.to(device), attention_mask=mask_BT.to(device), use_cache=False)
        logits_NV = output.logits[0].float()
        losses_N = nn.functional.cross_entropy(logits_NV, targets_N, reduction="none")
        total += float(losses_N.sum())
        probability += float(losses_N.neg().exp().sum())
        tokens += len(targets_N)

        begins_BT = trained_BT & ~nn.functional.pad(trained_BT, (1, 0))[:, :-1]
        answer_N = begins_BT.flatten().cumsum(0)[trained_BT.flatten()]  # the number of each token's answer, from 1
        wrong_N = logits_NV.argmax(-1) != targets_N
        answers += int(begins_BT.sum())
        right += int(begins_BT.sum()) - len(answer_N[wrong_N].unique())
    model.train(was_training)
    return {PROBABILITY: probability / tokens, LOSS: total / tokens, ACCURACY: right / answers}


def since_gain(measurements: Sequence[Mapping[str, float]]) -> int:
    """The number of measurements since the last one that gained LEAST_GAIN in probability, or anything in accuracy."""
    probability, accuracy, since = -1.0, -1.0, 0
    for measured in measurements:
        since += 1
        if measured[PROBABILITY] >= probability + LEAST_GAIN or measured[ACCURACY] > accuracy:
            since = 0
            probability = max(probability, measured[PROBABILITY])
            accuracy = max(accuracy, measured[ACCURACY])
    return since


def _before_trained(next_BT: torch.Tensor, hidden_BTD: torch.Tensor) -> torch.Tensor:
    """The hidden states (N, D) before the trained tokens."""
    selected: torch.Tensor = hidden_BTD[:, :-1][next_BT != NOT_TRAINED]
    return selected


class RunCallback(TrainerCallback):
    """What a run adds to each step: the progress bar, the tracker, the stop of a run that diverges, the loss on
    held-out rows, and checkpoints that are sealed once complete and resume to the same bytes and figures.

    log: for the figures. keep: number of checkpoints. guessing: loss of the uniform distribution over tokens, in nats
    per token. stop: not empty once training is to stop after the step, with a checkpoint. resume: the checkpoint that
    training starts from. processes: of which each keeps its own sum of losses, and the first writes. validation: the
    held-out rows, if there are any.
    """

    def __init__(
        self,
        trainer: Any,
        bar: Bar,
        log: Log,
        keep: int,
        guessing: float,
        stop: Sequence[int],
        resume: Path | None,
        processes: Processes,
        validation: Validation | None = None,
    ) -> None:
        self.trainer, self.bar, self.log, self.keep, self.guessing = trainer, bar, log, keep, guessing
        self.stop, self.processes, self.validation = stop, processes, validation
        self.resume = resume
        self.order = resume / ORDER if resume is not None and (resume / ORDER).is_file() else None
        self.epoch_state = torch.get_rng_state()
        self.figures: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore what the trainer had summed since it last logged, which it begins anew. Raises CheckpointError."""
        if self.resume is None or not (self.resume / FIGURES).is_file():
            return
        try:
            kept = read_json(self.resume / FIGURES)
            losses = list(map(float, kept["losses"]))
            same = len(losses) == self.processes.count
            loss = losses[self.processes.rank] if same else sum(losses) / len(losses)
            self.trainer._tr_loss = torch.tensor(loss, device=args.device)
            self.trainer._globalstep_last_logged = int(kept["logged"])
            self.trainer._total_train_tokens = kept["tokens"]
            self.trainer._metrics["train"].update(kept["metrics"])
        except (DataError, ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self.resume / FIGURES} is damaged ({error})") from None

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore the random state from which the epoch's order of rows is drawn. With `group_by_length` that is
        torch's own, and the trainer would read a later epoch's rows in the order of the first. Raises CheckpointError.
        """
        if self.order is not None:
            try:
                torch.set_rng_state(load_file(self.order)["state"])
            except (SafetensorError, KeyError, RuntimeError, TypeError) as error:
                raise CheckpointError(f"{self.order} is damaged ({error})") from None
            self.order = None
        self.epoch_state = self.processes.gather(torch.get_rng_state())[0]
        torch.set_rng_state(self.epoch_state)  # dropout may have taken more numbers in one process than in another

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Pass the figures on. Raises DivergedError for a loss that no working training comes near."""
        if logs and "loss" in logs:
            self.figures["loss"] = logs["loss"]
            self.log(logs, state.global_step)
            self.bar.advance(0, **self.figures)
            if not logs["loss"] <= EXPLODED * self.guessing:  # NaN too
                what = f"the loss is {logs['loss']:.4g} nats per token, and that of guessing {self.guessing:.2g}"
                raise _diverged(what, args, state)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Advance the bar. Raises DivergedError for a weight that is not finite."""
        finite = all_finite(weight for weight in model.parameters() if weight.requires_grad)
        self.bar.advance(1, **self.figures)
        told = self.processes.gather((finite, bool(self.stop)))  # a process alone would let the others wait
        if not all(finite for finite, _ in told):
            raise _diverged("a weight became NaN or infinite", args, state)
        if any(stop for _, stop in told):
            control.should_save = control.should_training_stop = self.trainer.stopped = True
        is_last = state.global_step == args.max_steps
        if self.validation is not None and (is_last or state.global_step % self.validation.every == 0):
            self._validate(self.validation, args, state, control)

    def _validate(self, validation: Validation, args: Any, state: Any, control: Any) -> None:
        """Measure on held-out rows. The figures are part of the trainer's log, and so of its checkpoints."""
        model, size = self.trainer.model, args.per_device_train_batch_size
        if "options" in validation.rows[0]:
            mine = measure_decisions(model, validation.rows, size, self.trainer.processing_class.pad_token_id)
        else:
            mine = measure(model, validation.rows, size)
        measured = self.processes.gather(mine)[0]
        state.log_history.append({"epoch": state.epoch, "step": state.global_step, **measured})
        self.figures |= {"held-out loss": measured[LOSS], "held-out accuracy": measured[ACCURACY]}
        self.bar.advance(0, **self.figures)
        self.log(measured, state.global_step)
        measurements = [record for record in state.log_history if LOSS in record]
        if measured[PROBABILITY] == max(record[PROBABILITY] for record in measurements):
            validation.keep(state.global_step, measured)
        if validation.patience and since_gain(measurements) >= validation.patience:
            control.should_training_stop = True
            control.should_save = False  # a run that is resumed would go on from there

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Complete the checkpoint and seal it; only then are older ones removed."""
        losses = self.processes.gather(self.trainer._tr_loss.item())  # by now, all have written their parts
        if self.processes.first:
            folder = Path(args.output_dir)
            checkpoint = folder / f"checkpoint-{state.global_step}"
            ended = state.epoch == int(state.epoch)  # a resumed run begins with the next epoch
            save_file({"state": torch.get_rng_state() if ended else self.epoch_state}, checkpoint / ORDER)
            kept = {
                "losses": losses,
                "logged": self.trainer._globalstep_last_logged,
                "tokens": self.trainer._total_train_tokens,
                "metrics": self.trainer._metrics["train"],
            }
            (checkpoint / FIGURES).write_text(json.dumps(kept), encoding="utf-8")  # NaN too
            (checkpoint / ARGUMENTS).unlink(missing_ok=True)
            seal(checkpoint)
            for old in checkpoints(folder)[: -self.keep]:
                shutil.rmtree(old, ignore_errors=True)
        self.processes.wait()


def _diverged(what: str, args: Any, state: Any) -> DivergedError:
    return DivergedError(
        f"training diverged at step {state.global_step} ({what}); lower --learning-rate, which is"
        f" {args.learning_rate:g}"
    )
