"""TRL's SFTTrainer for each form of rows: texts, packs and decisions; in one process or several.

Texts get the LM head only where tokens are trained, and packs are read in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from transformers import TrainingArguments
from trl import SFTTrainer

from reflectkit.models.architecture import unwrapped
from reflectkit.models.scoring import choice_logprobs
from reflectkit.train.processes import Processes
from reflectkit.train.sft.packing import Encoded, reading, selecting
from reflectkit.train.sft.tokens import NOT_TRAINED

SMALL_VOCABULARY = 4096
"""Up to this size all positions are computed as in TRL: leaving some out changes the rounding of
the gradients, and with it the weights of every seed of the tiny models."""


def keeping_activations() -> dict[str, bool]:
    """The argument that makes a trainer of TRL keep all activations, under its name in this version
    of transformers. TRL's default recomputes them in the backward pass.
    """
    if hasattr(TrainingArguments, "activation_checkpointing"):
        return {"activation_checkpointing": False}
    return {"gradient_checkpointing": False}


class Share:
    """Collates this process's rows of each batch, which all processes get whole. Where there are
    fewer rows than processes, those without one read a single token that is not trained on;
    `missing` counts them.
    """

    def __init__(
        self, collate: Callable[[list[Any]], dict[str, Any]], processes: Processes
    ) -> None:
        self.collate, self.processes = collate, processes

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        """The share of `rows` as tensors."""
        share = self.processes.share(rows) or [self._filler(rows[0])]
        return self.collate(share) | {"missing": max(0, self.processes.count - len(rows))}

    @staticmethod
    def _filler(row: Encoded) -> dict[str, Sequence[int]]:
        """A row, or a pack, of one token that is not trained on."""
        token = row["input_ids"][:1]
        if "parents" in row:
            return {"input_ids": token, "parents": [-1], "sources": [], "targets": []}
        return {"input_ids": token, "labels": [NOT_TRAINED]}


class SharingTrainer(SFTTrainer):
    """SFTTrainer whose batches do not depend on the number of processes: each process takes its
    share of every batch of one process, also of the last in an epoch, where accelerate would fill
    up with rows of the first.
    """

    data_collator: Any

    def share(self, processes: Processes) -> None:
        """Train in several processes."""
        self.data_collator = Share(self.data_collator, processes)
        # as there are no rows to leave out
        self.accelerator.gather_for_metrics = self.accelerator.gather

    def get_train_dataloader(self) -> Any:
        """The batches of one process, for all processes."""
        loader = super().get_train_dataloader()
        shard = loader.batch_sampler
        if isinstance(shard, BatchSamplerShard):
            shard.num_processes, shard.process_index = 1, 0
            shard.even_batches = False
        return loader

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The loss of a batch, or of a share of one."""
        missing = inputs.pop("missing", 0)
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if missing:
            # TRL has counted the filler's token
            self._total_train_tokens -= missing
            self._metrics["train"]["num_tokens"] = [self._total_train_tokens]
        return loss


class PackTrainer(SharingTrainer):
    """SFTTrainer on packs, which `packing.collate` makes batches of. The loss is the mean over the
    trained tokens of the rows in a batch.
    """

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The loss of a batch. inputs: from `collate`."""
        of_packs = ("parents", "sources", "labels")
        for_trl = {name: value for name, value in inputs.items() if name not in of_packs}
        with reading(self.model, inputs["parents"], inputs["sources"][0]):
            return super().compute_loss(model, for_trl, return_outputs, num_items_in_batch)


class CompletionTrainer(SharingTrainer):
    """SFTTrainer with the same loss, gradients and metrics, up to rounding, for less work: the LM
    head is applied only before trained tokens.
    """

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The loss of a batch as TRL computes it.

        inputs: its labels_BT are NOT_TRAINED where no token is trained on.
        """
        # 1. Where the LM head costs little, TRL's pass as it is
        causal = unwrapped(self.model)
        labels_BT = inputs["labels"]
        vocabulary = causal.get_output_embeddings().weight.shape[0]
        if labels_BT.device.type != "cpu" or vocabulary <= SMALL_VOCABULARY:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

        # 2. Else the N hidden states before trained tokens, as one row
        next_BT = labels_BT[:, 1:]
        trained_BT = next_BT != NOT_TRAINED
        for_trl = {name: value for name, value in inputs.items() if name != "labels"}
        for_trl["shift_labels"] = next_BT[trained_BT][None]
        with selecting(causal.base_model, lambda hidden_BTD: hidden_BTD[:, :-1][trained_BT]):
            return super().compute_loss(model, for_trl, return_outputs, num_items_in_batch)


def collate_decisions(rows: Sequence[Mapping[str, Any]], pad_id: int) -> dict[str, Any]:
    """B decisions, or groups of them that share a prompt, as a batch, padded on the right to T
    tokens.

    Returns
    -------
    input_ids and attention_mask (B, T); the options' tokens, which are offered, and
    shares as they are; and as labels one number for each decision, for the trainer to count: of
    labels that are not shifted it would leave out the first.
    """
    width = max(len(row["input_ids"]) for row in rows)
    ids_BT = torch.full((len(rows), width), pad_id)
    mask_BT = torch.zeros((len(rows), width), dtype=torch.long)
    for number, row in enumerate(rows):
        ids_BT[number, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
        mask_BT[number, : len(row["input_ids"])] = 1
    decisions = sum(len(row.get("offered", [()])) for row in rows)
    labels = torch.zeros((1, decisions), dtype=torch.long)
    return {
        "input_ids": ids_BT,
        "attention_mask": mask_BT,
        "options": [row["options"] for row in rows],
        "offered": [row.get("offered") for row in rows],
        "shares": [row["shares"] for row in rows],
        "labels": labels,
        "shift_labels": labels,
    }


def decision_losses(
    model: Any,
    rows: Sequence[Mapping[str, Any]],
    pad_id: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(cross-entropy of the shares and the policy's probabilities of the options, in nats (B);
    whether the likeliest options agree (B)).

    A row may be a group of decisions whose options are each given a score (`encode_options`).
    """
    # 1. The decisions of all rows: a prompt, the labels and their shares
    separately = bool(rows[0].get("offered"))
    prompts, labels, shares = [], [], []
    for row in rows:
        paths = tuple(map(tuple, row["options"]))
        offers = row["offered"] if separately else [range(len(paths))]
        targets = row["shares"] if separately else [row["shares"]]
        for offer, target in zip(offers, targets, strict=True):
            prompts.append(row["input_ids"])
            labels.append(tuple(paths[number] for number in offer))
            shares.append(target)

    # 2. Their cross-entropy; an option without probability has none in its share, either
    logprobs_BK, _ = choice_logprobs(model, prompts, labels, pad_id=pad_id, separately=separately)
    shares_BK = torch.zeros_like(logprobs_BK)
    for number, target in enumerate(shares):
        shares_BK[number, : len(target)] = torch.tensor(target)
    finite_BK = logprobs_BK.masked_fill(logprobs_BK.isneginf(), 0.0)
    losses_B = -(shares_BK * finite_BK).sum(dim=-1)
    return losses_B, logprobs_BK.argmax(dim=-1) == shares_BK.argmax(dim=-1)


class DecisionTrainer(SharingTrainer):
    """SFTTrainer on decisions, which `collate_decisions` makes batches of. The loss is the mean
    cross-entropy of the labels' probabilities and the policy's, which are those it plays with: over
    the legal options.
    """

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The loss of a batch.

        num_items_in_batch: decisions in the whole batch, if it is read in parts.
        """
        rows = []
        lengths = inputs["attention_mask"].sum(dim=1).tolist()
        for number, ids in enumerate(inputs["input_ids"].tolist()):
            row = {name: inputs[name][number] for name in ("options", "offered", "shares")}
            rows.append({"input_ids": ids[: lengths[number]], **row})
        losses_B, _ = decision_losses(model, rows, self.processing_class.pad_token_id)
        self._total_train_tokens += sum(lengths)
        count = len(losses_B) if num_items_in_batch is None else num_items_in_batch
        loss = losses_B.sum() / count
        return (loss, {}) if return_outputs else loss
