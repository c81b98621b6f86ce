"""Memory of training: weights and optimizer state by their sizes, activations by a formula."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch


def split_parameters(models: Iterable[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(trained, frozen) parameters of `models`, each once although models may share them."""
    every = {id(weight): weight for model in models for weight in model.parameters()}.values()
    return [weight for weight in every if weight.requires_grad], [
        weight for weight in every if not weight.requires_grad
    ]


def count(weights: Iterable[torch.Tensor]) -> int:
    """The number of parameters; a weight packed into bytes by quantisation counts as often as it has bytes."""
    return sum(weight.numel() for weight in weights)


def size(weights: Iterable[torch.Tensor]) -> int:
    """Bytes of `weights`."""
    return sum(weight.numel() * weight.element_size() for weight in weights)


def activation_size(model: Any, tokens: int, *, recompute: bool) -> int:
    """Approximate bytes that a forward pass over `tokens` tokens keeps for the backward pass.

    17 values of the hidden size for each token and layer (Korthikanti et al., arXiv 2205.05198, eq. 2, without the
    attention scores, which fused attention recomputes), or with `recompute` one, and 17 in the layer at hand; and the
    float32 logits with their gradient.
    """
    config, element = model.config, next(model.parameters()).element_size()
    layer = 17 * config.hidden_size * element
    layers = config.num_hidden_layers
    kept = layers * config.hidden_size * element + layer if recompute else layers * layer
    return int(tokens * (kept + 2 * 4 * config.vocab_size))


def optimizer_size(name: str, weights: Iterable[torch.Tensor]) -> int:
    """Bytes of the state of optimizer `name` (see `models.training`) over `weights`, but for its step counters.

    AdamW holds two numbers for each weight, SGD with momentum one, Adafactor one for each row and column of a matrix.
    """
    total = 0
    for weight in weights:
        shape, each = weight.shape, weight.element_size()
        if name == "adafactor" and weight.ndim > 1:
            outer = math.prod(shape[:-2])
            total += outer * (shape[-2] + shape[-1]) * each
        else:
            total += {"adamw": 2, "sgd": 1, "adafactor": 1}[name] * weight.numel() * each
    return total
