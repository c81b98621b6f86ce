"""How well a model gives the answers in held-out rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from reflectkit.models.architecture import trunk_of
from reflectkit.train.sft.packing import Encoded, selecting
from reflectkit.train.sft.tokens import NOT_TRAINED
from reflectkit.train.sft.trainers import decision_losses

PROBABILITY, LOSS, ACCURACY = "validation_probability", "validation_loss", "validation_accuracy"
"""The figures of a measurement. The first decides which checkpoint is best: it is how often sampled
play takes the demonstrated action. The loss rises as soon as a model is sure of a wrong answer,
long before it plays best.
"""
LEAST_GAIN = 0.001
"""By how much the probability has to rise; a model that is sure of all answers gains less for ever.
"""


@torch.no_grad()
def measure(
    model: Any,
    rows: Sequence[Encoded],
    batch_size: int,
) -> dict[str, float]:
    """How well the model, without dropout, gives the answers in `rows`, which are their stretches
    of trained tokens.

    PROBABILITY, LOSS: means over the trained tokens; the latter in nats. ACCURACY: share of the
    answers each token of which is the most likely one after those before it.
    """
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    loss, probability, tokens, correct, answers = 0.0, 0.0, 0, 0, 0
    for first in range(0, len(rows), batch_size):
        # 1. The rows as tensors, padded on the right
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

        # 2. The N trained tokens, and their logits
        next_BT = labels_BT[:, 1:].to(device)
        trained_BT = next_BT != NOT_TRAINED
        targets_N = next_BT[trained_BT]
        with selecting(trunk_of(model), partial(_before_trained, next_BT)):
            output = model(
                input_ids=ids_BT.to(device), attention_mask=mask_BT.to(device), use_cache=False
            )
        logits_NV = output.logits[0].float()
        losses_N = nn.functional.cross_entropy(logits_NV, targets_N, reduction="none")
        loss += float(losses_N.sum())
        probability += float(losses_N.neg().exp().sum())
        tokens += len(targets_N)

        # 3. The answers: a wrong token makes its answer wrong
        starts_BT = trained_BT & ~nn.functional.pad(trained_BT, (1, 0))[:, :-1]
        answer_N = starts_BT.flatten().cumsum(0)[trained_BT.flatten()]  # its number, from 1
        wrong_N = logits_NV.argmax(-1) != targets_N
        answers += int(starts_BT.sum())
        correct += int(starts_BT.sum()) - len(answer_N[wrong_N].unique())
    model.train(was_training)
    return {PROBABILITY: probability / tokens, LOSS: loss / tokens, ACCURACY: correct / answers}


def _before_trained(next_BT: torch.Tensor, hidden_BTD: torch.Tensor) -> torch.Tensor:
    """The hidden states (N, D) before the trained tokens."""
    states_ND: torch.Tensor = hidden_BTD[:, :-1][next_BT != NOT_TRAINED]
    return states_ND


@torch.no_grad()
def measure_decisions(
    model: Any,
    rows: Sequence[Mapping[str, Any]],
    batch_size: int,
    pad_id: int,
) -> dict[str, float]:
    """How well the model, without dropout, foretells the labels of decisions.

    LOSS: their mean cross-entropy, a proper score. PROBABILITY: of that, the geometric mean.
    ACCURACY: share whose likeliest option is the label's.
    """
    was_training = model.training
    model.eval()
    losses: list[float] = []
    agreements: list[bool] = []
    for first in range(0, len(rows), batch_size):
        losses_B, agrees_B = decision_losses(model, rows[first : first + batch_size], pad_id)
        losses += losses_B.tolist()
        agreements += agrees_B.tolist()
    model.train(was_training)
    loss = sum(losses) / len(losses)
    accuracy = sum(agreements) / len(agreements)
    return {PROBABILITY: math.exp(-loss), LOSS: loss, ACCURACY: accuracy}


def since_gain(measurements: Sequence[Mapping[str, float]]) -> int:
    """The number of measurements since the last one that gained LEAST_GAIN in probability, or
    anything in accuracy.
    """
    probability, accuracy, since = -1.0, -1.0, 0
    for figures in measurements:
        since += 1
        is_likelier = figures[PROBABILITY] >= probability + LEAST_GAIN
        if is_likelier or figures[ACCURACY] > accuracy:
            since = 0
            probability = max(probability, figures[PROBABILITY])
            accuracy = max(accuracy, figures[ACCURACY])
    return since
