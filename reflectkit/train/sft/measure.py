"""Measurements of a model on held-out rows: how likely it makes their answers.

Shapes: B rows, T tokens of a row, N trained tokens of all rows, V tokens in the vocabulary, D
numbers of a hidden state.
"""

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

PROBABILITY = "validation_probability"
"""The mean probability of a trained token. It decides which checkpoint is best, since it says how
often sampled play takes the demonstrated action.
"""
LOSS = "validation_loss"
"""The loss in nats. It rises as soon as a model is sure of a wrong answer, long before the model
plays best.
"""
ACCURACY = "validation_accuracy"
"""The share of answers that are the most likely ones."""
LEAST_GAIN = 0.001
"""The smallest rise in probability that counts. Even a model that is sure of all answers gains a
little more with each epoch.
"""


@torch.no_grad()
def measure(
    model: Any,
    rows: Sequence[Encoded],
    batch_size: int,
) -> dict[str, float]:
    """Measure the model, without dropout, on the answers in `rows`.

    An answer is a stretch of trained tokens. PROBABILITY and LOSS are means over the trained
    tokens. ACCURACY is the share of answers whose tokens are each the most likely one after those
    before.
    """
    was_training = model.training
    device = next(model.parameters()).device
    model.eval()
    loss_sum = 0.0
    probability_sum = 0.0
    token_count = 0
    correct_count = 0
    answer_count = 0
    for first in range(0, len(rows), batch_size):
        # 1. The B rows as tensors, padded on the right
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

        # 2. The logits of the N trained tokens
        next_BT = labels_BT[:, 1:].to(device)
        trained_BT = next_BT != NOT_TRAINED
        targets_N = next_BT[trained_BT]
        with selecting(trunk_of(model), partial(_before_trained, next_BT)):
            output = model(
                input_ids=ids_BT.to(device), attention_mask=mask_BT.to(device), use_cache=False
            )
        logits_NV = output.logits[0].float()

        # 3. Their losses and probabilities
        losses_N = nn.functional.cross_entropy(logits_NV, targets_N, reduction="none")
        loss_sum += float(losses_N.sum())
        probability_sum += float(losses_N.neg().exp().sum())
        token_count += len(targets_N)

        # 4. The answers: each begins after a token that is not trained
        trained_before_BT = nn.functional.pad(trained_BT, (1, 0))[:, :-1]
        starts_BT = trained_BT & ~trained_before_BT
        answers_here = int(starts_BT.sum())

        # 5. One wrong token makes its answer wrong; answers have the numbers 1, 2, …
        number_N = starts_BT.flatten().cumsum(0)[trained_BT.flatten()]
        is_wrong_N = logits_NV.argmax(-1) != targets_N
        wrong_answers = len(number_N[is_wrong_N].unique())
        answer_count += answers_here
        correct_count += answers_here - wrong_answers
    model.train(was_training)
    return {
        PROBABILITY: probability_sum / token_count,
        LOSS: loss_sum / token_count,
        ACCURACY: correct_count / answer_count,
    }


def _before_trained(next_BT: torch.Tensor, hidden_BTD: torch.Tensor) -> torch.Tensor:
    """The hidden states (N, D) before the trained tokens. next_BT: the label of each next token."""
    states_ND: torch.Tensor = hidden_BTD[:, :-1][next_BT != NOT_TRAINED]
    return states_ND


@torch.no_grad()
def measure_decisions(
    model: Any,
    rows: Sequence[Mapping[str, Any]],
    batch_size: int,
    pad_id: int,
) -> dict[str, float]:
    """Measure the model, without dropout, on the labels of decisions.

    LOSS is the mean cross-entropy between the labels and the model's probabilities, a proper score.
    PROBABILITY is exp(-LOSS), a geometric mean. ACCURACY is the share of decisions whose likeliest
    option is the label's.
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
    """The number of measurements since the last gain.

    A gain is a rise of at least LEAST_GAIN in probability, or any rise in accuracy.
    """
    best_probability = -1.0
    best_accuracy = -1.0
    count = 0
    for figures in measurements:
        count += 1
        is_likelier = figures[PROBABILITY] >= best_probability + LEAST_GAIN
        if is_likelier or figures[ACCURACY] > best_accuracy:
            count = 0
            best_probability = max(best_probability, figures[PROBABILITY])
            best_accuracy = max(best_accuracy, figures[ACCURACY])
    return count
