"""What sft and rlft train with: the optimizers by name, the weights that decay, and dropout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from reflectkit.core.errors import ConfigError

MOMENTUM = 0.9
_CLASSES: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {}),
    "adafactor": (torch.optim.Adafactor, {}),
    "sgd": (torch.optim.SGD, {"momentum": MOMENTUM}),
}
"""The optimizers by name, each with its settings besides learning rate and weight decay."""


def optimizer_class(name: str) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The optimizer `name`, and its own settings."""
    kind, settings = _CLASSES[name]
    return kind, dict(settings)


def new_optimizer(name: str, weights: Iterable[nn.Parameter], rate: float, decay: float) -> torch.optim.Optimizer:
    """The optimizer `name` over `weights`, of which those that decay must come first.

    rate: learning rate. decay: weight decay; 0: none.
    """
    kind, settings = optimizer_class(name)
    every = list(weights)
    if not decay:
        return kind(every, lr=rate, weight_decay=0.0, **settings)  # type: ignore[call-arg]
    groups = [
        {"params": [weight for weight in every if decays(weight)], "weight_decay": decay},
        {"params": [weight for weight in every if not decays(weight)], "weight_decay": 0.0},
    ]
    return kind([group for group in groups if group["params"]], lr=rate, **settings)  # type: ignore[call-arg]


def decays(weight: torch.Tensor) -> bool:
    """Whether weight decay applies: to matrices, embeddings and convolutions, but not to biases and norms."""
    return weight.ndim > 1


def set_dropout(model: nn.Module, probability: float) -> None:
    """Change every dropout of `model` in place, but not that of adapters; its config stays as it is.

    Raises ConfigError if it has none.
    """
    places = 0
    for name, module in model.named_modules():
        if "lora_" in name:
            continue
        if isinstance(module, nn.Dropout):
            module.p = probability
            places += 1
        for attribute, value in list(vars(module).items()):
            if "dropout" in attribute and isinstance(value, float):  # of attention, which has no module for it
                setattr(module, attribute, probability)
                places += 1
    if not places:
        raise ConfigError("--dropout: this model has no dropout; leave it out, or use --lora-dropout or --weight-decay")
