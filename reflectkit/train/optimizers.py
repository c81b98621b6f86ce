"""The policy's optimizer, AdamW: weights, gradients and state are replicated in every process or
sharded (FSDP2).

Weights of 16 bits are optimised in float32 copies. bfloat16 has 8 significant bits, so a step below
1/512 of a weight would be rounded away, and most steps of a rate of 1e-5 are (mixed precision
training, arXiv 1710.03740, section 3.1).

Both have one interface for the learner: it runs the scorer, computes gradients and calls `step`.
Loading what `tensors` returned continues training exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim.adamw import adamw
from typing_extensions import override

from reflectkit.errors import ConfigError
from reflectkit.models.scoring import Scorer
from reflectkit.train.processes import Processes

COPY = "float32"
"""The name of a weight's float32 copy in the optimizer's state."""


def is_rounded(weight: torch.Tensor) -> bool:
    """Whether a weight has too few bits for small steps."""
    return weight.dtype in (torch.bfloat16, torch.float16)


class CopyingAdamW(torch.optim.AdamW):
    """AdamW whose state and steps are in float32 for weights of 16 bits, which are rounded after
    each step.

    A weight's state then has its float32 copy, too. Other weights are treated as AdamW treats them.
    """

    @override
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        # 1. Weights of 32 bits, as AdamW does it. It leaves out weights without a gradient.
        gradients = {}
        for weight in self._rounded_weights():
            if weight.grad is not None:
                gradients[weight] = weight.grad
                weight.grad = None
        loss = super().step(closure)

        # 2. Those of 16 bits, by their copies.
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight in gradients]
            states = [self._state_of(weight) for weight in weights]
            if not weights:
                continue
            adamw(
                [state[COPY] for state in states],
                [gradients[weight].float() for weight in weights],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
            for weight, state in zip(weights, states, strict=True):
                weight.copy_(state[COPY])

        # 3. What the caller finds is as after any step.
        for weight, gradient in gradients.items():
            weight.grad = gradient
        return loss

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)  # which rounds a weight's state to the weight's type
        every = [weight for group in self.param_groups for weight in group["params"]]
        for number, values in state_dict["state"].items():
            weight = every[number]
            if is_rounded(weight):
                self.state[weight] = {
                    name: value.clone()
                    if name == "step"
                    else value.to(weight.device, torch.float32, copy=True)
                    for name, value in values.items()
                }

    def _rounded_weights(self) -> list[torch.Tensor]:
        return [
            weight
            for group in self.param_groups
            for weight in group["params"]
            if is_rounded(weight)
        ]

    def _state_of(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """The state of a weight of 16 bits, which begins with its first step."""
        state: dict[str, torch.Tensor] = self.state[weight]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state[COPY] = weight.detach().float()
            state["exp_avg"] = torch.zeros_like(state[COPY])
            state["exp_avg_sq"] = torch.zeros_like(state[COPY])
        return state


def new_optimizer(
    weights: Iterable[nn.Parameter],
    rate: float,
    decay: float,
) -> torch.optim.Optimizer:
    """AdamW over `weights`, of which those that decay must come first.

    rate: learning rate. decay: weight decay; 0: none.
    """
    every = list(weights)
    groups = [{"params": every, "weight_decay": 0.0}]
    if decay:
        groups = [
            {"params": [weight for weight in every if decays(weight)], "weight_decay": decay},
            {"params": [weight for weight in every if not decays(weight)], "weight_decay": 0.0},
        ]
    kind = CopyingAdamW if any(map(is_rounded, every)) else torch.optim.AdamW
    return kind([group for group in groups if group["params"]], lr=rate)


def decays(weight: torch.Tensor) -> bool:
    """Whether weight decay applies: to matrices, embeddings and convolutions, but not to biases and
    norms.
    """
    return weight.ndim > 1


def set_dropout(model: nn.Module, probability: float) -> None:
    """Change every dropout of `model` in place, but not that of adapters; its config stays as it
    is.

    Raises ConfigError if it has none.
    """
    places = 0
    for name, module in model.named_modules():
        if "lora_" in name:
            continue
        # A module of its own, or a number that attention uses
        if isinstance(module, nn.Dropout):
            module.p = probability
            places += 1
        for attribute, value in list(vars(module).items()):
            if "dropout" in attribute and isinstance(value, float):
                setattr(module, attribute, probability)
                places += 1
    if not places:
        raise ConfigError(
            "--dropout: this model has no dropout; leave it out, or use --lora-dropout or"
            " --weight-decay"
        )


Tensors = dict[str, torch.Tensor]


class Replicated:
    """Every process holds everything; gradients are summed once per step.

    model: its trainable weights are optimised. rate: peak learning rate. max_norm: maximum gradient
    norm. decay: weight decay, see `decays`.
    """

    def __init__(
        self,
        model: nn.Module,
        processes: Processes,
        *,
        rate: float,
        max_norm: float,
        decay: float,
    ) -> None:
        self.model, self.processes, self.rate, self.max_norm = model, processes, rate, max_norm
        trained = [
            (name, weight) for name, weight in model.named_parameters() if weight.requires_grad
        ]
        if decay:  # in the order of the optimizer's groups, by which it numbers its state
            trained.sort(key=lambda entry: not decays(entry[1]))
        self.weights = [weight for _, weight in trained]
        self.names = [name for name, _ in trained]
        self.scorer: Any = Scorer(model)
        self.optimizer: Any = new_optimizer(self.weights, rate, decay)

    @property
    def loss_scale(self) -> int:
        """Factor for the loss, so that the gradients of all processes add up."""
        return 1

    def schedule(self, rate: float) -> None:
        """Set the learning rate to the fraction `rate` of its peak."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * rate

    def zero_grad(self) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def step(self) -> float:
        """Update the weights and return the gradient norm before clipping. If it is not finite, the
        weights are unchanged.
        """
        self.processes.add_gradients(self.weights)
        return self._clip_and_step()

    def _clip_and_step(self) -> float:
        # A sharded norm is a DTensor
        norm: Any = nn.utils.clip_grad_norm_(self.weights, self.max_norm)
        value = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        if math.isfinite(value):
            self.optimizer.step()
        return value

    def parts(self) -> list[torch.Tensor]:
        """The trained weights, or this process's shards of them."""
        return list(self.weights)

    def tensors(self) -> Tensors:
        """The optimizer's state as `<number of the weight>.<name>`. All processes must call this;
        the first one's result is the complete one.
        """
        return flat(self.optimizer.state_dict()["state"])

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what `tensors` returned. Raises KeyError or ValueError if it belongs to another
        model.
        """
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": nested(tensors)})

    def model_state(self) -> Tensors | None:
        """The policy's full weights if they are sharded; None if the model holds them. All
        processes must call this.
        """
        return None


class Fsdp2(Replicated):
    """Every process holds a shard of everything, as DTensors."""

    def __init__(
        self,
        model: nn.Module,
        processes: Processes,
        **settings: Any,
    ) -> None:
        super().__init__(model, processes, **settings)
        self.scorer, self.optimizer = processes.accelerator.prepare(self.scorer, self.optimizer)
        parts = dict(self.scorer.named_parameters())
        self.weights = [parts[f"model.{name}"] for name in self.names]

    @property
    @override
    def loss_scale(self) -> int:
        return self.processes.count  # gradients are averaged

    @override
    def step(self) -> float:
        return self._clip_and_step()

    @override
    def parts(self) -> list[torch.Tensor]:
        parts: list[Any] = list(self.weights)
        return [part.to_local() for part in parts]

    @override
    def tensors(self) -> Tensors:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        inner = self.optimizer.optimizer
        whole: Any = get_optimizer_state_dict(self.scorer, inner, options=options)
        by_name = whole.get("state", {})  # empty in all processes but the first, which writes
        return flat(
            {number: by_name.get(f"model.{name}", {}) for number, name in enumerate(self.names)}
        )

    @override
    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        inner, options = self.optimizer.optimizer, StateDictOptions(full_state_dict=True)
        groups = get_optimizer_state_dict(self.scorer, inner, options=options)["param_groups"]
        states: Any = {
            f"model.{self.names[number]}": values for number, values in nested(tensors).items()
        }
        set_optimizer_state_dict(
            self.scorer, inner, {"state": states, "param_groups": groups}, options=options
        )

    @override
    def model_state(self) -> Tensors | None:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        whole: Any = get_model_state_dict(self.scorer, options=options)
        # Tied weights have two names in a state dict
        distinct = {name for name, _ in self.model.named_parameters()}
        return {
            name: value
            for key, value in whole.items()
            if (name := key.removeprefix("model.")) in distinct
        }


def make_optimizer(
    model: nn.Module,
    processes: Processes,
    **settings: Any,
) -> Replicated:
    """The optimizer for the way in which the processes were started. settings: see `Replicated`."""
    kind = Fsdp2 if processes.sharded else Replicated
    return kind(model, processes, **settings)


def flat(state: Mapping[int, Mapping[str, torch.Tensor]]) -> Tensors:
    """An optimizer's state under `<number of the weight>.<name>`."""
    return {
        f"{number}.{name}": value
        for number, values in state.items()
        for name, value in values.items()
    }


def nested(tensors: Mapping[str, torch.Tensor]) -> dict[int, Tensors]:
    """The inverse of `flat`."""
    state: dict[int, Tensors] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    return state
