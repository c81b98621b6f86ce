"""TRL's SFTTrainer for each form of rows: texts, packs and decisions; in one process or several.

For texts, the LM head is applied only before trained tokens. A pack is read in one pass. Shapes: B
rows, packs or decisions, T tokens of the longest, N trained tokens of all, D numbers of a hidden
state, K options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from transformers import TrainingArguments
from trl import SFTTrainer

from reflectkit.models.architecture import trunk_of, unwrapped
from reflectkit.models.fast_pass import fast_pass
from reflectkit.models.scoring import choice_logprobs
from reflectkit.train.processes import Processes
from reflectkit.train.sft.packing import Encoded, reading, selecting
from reflectkit.train.sft.tokens import NOT_TRAINED

SMALL_VOCABULARY = 4096
"""Up to this size of the vocabulary, the LM head is applied to all tokens, as in TRL. Leaving some
out would change the rounding of the gradients, and so the weights of every seed of the tiny models.
"""


def keeping_activations() -> dict[str, bool]:
    """The argument that makes a trainer of TRL keep all activations.

    TRL's default recomputes them in the backward pass. The name of the argument depends on the
    version of transformers.
    """
    if hasattr(TrainingArguments, "activation_checkpointing"):
        return {"activation_checkpointing": False}
    return {"gradient_checkpointing": False}


class Share:
    """Collates the rows of this process, from batches that all processes get whole.

    If there are fewer rows than processes, some processes read a row of a single token that is not
    trained on. `missing` in the result is their number.
    """

    def __init__(
        self, collate: Callable[[list[Any]], dict[str, Any]], processes: Processes
    ) -> None:
        self.collate = collate
        self.processes = processes

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        """This process's share of `rows`, as tensors."""
        share = self.processes.share(rows) or [self._filler(rows[0])]
        missing = max(0, self.processes.count - len(rows))
        return self.collate(share) | {"missing": missing}

    @staticmethod
    def _filler(row: Encoded) -> dict[str, Sequence[int]]:
        """A row or a pack, as `row` is, of one token that is not trained on."""
        token = row["input_ids"][:1]
        if "parents" in row:
            return {"input_ids": token, "parents": [-1], "sources": [], "targets": []}
        return {"input_ids": token, "labels": [NOT_TRAINED]}


class SharingTrainer(SFTTrainer):
    """SFTTrainer whose batches do not depend on the number of processes.

    Each process takes its share of every batch that one process would have. That includes the last
    batch of an epoch, which accelerate would fill up with rows of the first.
    """

    data_collator: Any

    def share(self, processes: Processes) -> None:
        """Train in several processes."""
        self.data_collator = Share(self.data_collator, processes)
        # No rows were added to a batch, so none have to be removed from what is gathered
        self.accelerator.gather_for_metrics = self.accelerator.gather

    def get_train_dataloader(self) -> Any:
        """The batches of one process, which all processes read."""
        loader = super().get_train_dataloader()
        shard = loader.batch_sampler
        if isinstance(shard, BatchSamplerShard):
            shard.num_processes = 1
            shard.process_index = 0
            shard.even_batches = False
        return loader

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The loss of a batch, or of this process's share of one."""
        missing = inputs.pop("missing", 0)
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if missing:
            # TRL has counted the tokens of the fillers
            self._total_train_tokens -= missing
            self._metrics["train"]["num_tokens"] = [self._total_train_tokens]
        return loss


class PackTrainer(SharingTrainer):
    """SFTTrainer on packs, in batches from `packing.collate`.

    The loss is the mean over the trained tokens of all rows in a batch.
    """

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The loss of a batch. inputs: from `packing.collate`."""
        not_for_trl = ("parents", "sources", "labels")
        for_trl = {name: value for name, value in inputs.items() if name not in not_for_trl}
        with reading(self.model, inputs["parents"], inputs["sources"][0]):
            return super().compute_loss(model, for_trl, return_outputs, num_items_in_batch)


class CompletionTrainer(SharingTrainer):
    """SFTTrainer that applies the LM head only before trained tokens.

    Loss, gradients and metrics are the same, up to rounding.
    """

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The loss of a batch, as TRL computes it.

        inputs: with labels_BT, which are NOT_TRAINED for tokens that are not trained on.
        """
        # 1. If the LM head is cheap, TRL's own pass
        causal = unwrapped(self.model)
        labels_BT = inputs["labels"]
        vocabulary = causal.get_output_embeddings().weight.shape[0]
        trunk = trunk_of(causal)
        fast = fast_pass(trunk, inputs)
        if labels_BT.device.type != "cpu" or vocabulary <= SMALL_VOCABULARY:
            with fast:
                return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

        # 2. Otherwise a pass whose N hidden states before trained tokens are one row
        next_BT = labels_BT[:, 1:]
        trained_BT = next_BT != NOT_TRAINED
        for_trl = {name: value for name, value in inputs.items() if name != "labels"}
        for_trl["shift_labels"] = next_BT[trained_BT][None]
        with fast, selecting(trunk, lambda hidden_BTD: hidden_BTD[:, :-1][trained_BT]):
            return super().compute_loss(model, for_trl, return_outputs, num_items_in_batch)


def collate_decisions(rows: Sequence[Mapping[str, Any]], pad_id: int) -> dict[str, Any]:
    """B decisions, or groups of decisions with the same prompt, as a batch.

    Returns
    -------
    input_ids, attention_mask: of the prompts (B, T), padded on the right.
    options, offered, shares: as in the rows.
    labels, shift_labels: a number for each decision, by which the trainer counts them. It would
    leave out the first of labels that are not shifted.
    """
    # 1. The prompts
    width = max(len(row["input_ids"]) for row in rows)
    ids_BT = torch.full((len(rows), width), pad_id)
    mask_BT = torch.zeros((len(rows), width), dtype=torch.long)
    for number, row in enumerate(rows):
        size = len(row["input_ids"])
        ids_BT[number, :size] = torch.tensor(row["input_ids"])
        mask_BT[number, :size] = 1

    # 2. The decisions; a row that is no group has one
    decision_count = sum(len(row.get("offered", [()])) for row in rows)
    labels = torch.zeros((1, decision_count), dtype=torch.long)
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
    *,
    learns: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of B decisions, the loss and whether the model agrees with the label.

    The loss is the cross-entropy, in nats, of the model's probabilities of the options with respect
    to the label's. They agree if both have the same likeliest option. A row may be a group of
    decisions whose options each have a score of their own (`encode_options`). learns: only the
    losses are needed, so that only options with a share are read.

    Returns (losses_B, agrees_B).
    """
    # 1. The decisions of all rows: a prompt, the tokens of its options and their probabilities
    separately = bool(rows[0].get("offered"))
    prompts = []
    labels = []
    targets = []
    for row in rows:
        paths = tuple(map(tuple, row["options"]))
        row_offers = row["offered"] if separately else [range(len(paths))]
        row_targets = row["shares"] if separately else [row["shares"]]
        for offer, target in zip(row_offers, row_targets, strict=True):
            prompts.append(row["input_ids"])
            labels.append(tuple(paths[number] for number in offer))
            targets.append(target)

    # 2. The model's log-probabilities, and the label's probabilities, which are 0 in padding
    subset = None
    if learns:
        subset = [[number for number, share in enumerate(target) if share] for target in targets]
    logprobs_BK, _ = choice_logprobs(
        model, prompts, labels, pad_id=pad_id, separately=separately, subset=subset
    )
    target_BK = torch.zeros_like(logprobs_BK)
    for number, target in enumerate(targets):
        target_BK[number, : len(target)] = torch.tensor(target)

    # 3. Their cross-entropy, in which 0 times -inf is 0
    finite_BK = logprobs_BK.masked_fill(logprobs_BK.isneginf(), 0.0)
    losses_B = -(target_BK * finite_BK).sum(dim=-1)
    agrees_B = logprobs_BK.argmax(dim=-1) == target_BK.argmax(dim=-1)
    return losses_B, agrees_B


class DecisionTrainer(SharingTrainer):
    """SFTTrainer on decisions, in batches from `collate_decisions`.

    The loss is the mean of `decision_losses`. The probabilities in it are those with which the
    policy plays: over the legal options only.
    """

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The loss of a batch.

        num_items_in_batch: the number of decisions in the whole batch, if it is read in parts.
        """
        # 1. The rows again, without their padding
        rows = []
        lengths = inputs["attention_mask"].sum(dim=1).tolist()
        for number, ids in enumerate(inputs["input_ids"].tolist()):
            row = {name: inputs[name][number] for name in ("options", "offered", "shares")}
            rows.append({"input_ids": ids[: lengths[number]], **row})

        # 2. Their mean loss
        losses_B, _ = decision_losses(model, rows, self.processing_class.pad_token_id, learns=True)
        self._total_train_tokens += sum(lengths)
        self._metrics["train"]["num_tokens"] = [self._total_train_tokens]
        count = len(losses_B) if num_items_in_batch is None else num_items_in_batch
        loss = losses_B.sum() / count
        return (loss, {}) if return_outputs else loss
