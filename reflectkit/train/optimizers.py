"""The policy's optimizer: weights, gradients and state are replicated in every process or sharded (FSDP2, ZeRO).

All three have one interface for the learner: it runs the scorer, passes losses to `backward` and calls `step`. Loading
what `tensors` returned continues training exactly. ZeRO: Rajbhandari et al. 2020; its shards are saved as tensors, not
as DeepSpeed's pickles.
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
from typing_extensions import override

from reflectkit.errors import ConfigError, ReflectkitError
from reflectkit.models.scoring import Scorer
from reflectkit.text import pluralize
from reflectkit.train.processes import Processes

_CLASSES: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {}),
    "adafactor": (torch.optim.Adafactor, {}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
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
    kind, settings = _CLASSES[name]
    every = list(weights)
    groups = [{"params": every, "weight_decay": 0.0}]
    if decay:
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


Tensors = dict[str, torch.Tensor]


class Replicated:
    """Every process holds everything; gradients are summed once per step.

    model: its trainable weights are optimised. name: of the optimizer; sharded policies have AdamW. rate: peak learning
    rate. max_norm: maximum gradient norm. decay: weight decay, see `decays`.
    """

    def __init__(
        self, model: nn.Module, processes: Processes, *, name: str, rate: float, max_norm: float, decay: float
    ) -> None:
        self.model, self.processes, self.rate, self.max_norm = model, processes, rate, max_norm
        trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
        if decay:  # in the order of the optimizer's groups, by which it numbers its state
            trained.sort(key=lambda entry: not decays(entry[1]))
        self.weights = [weight for _, weight in trained]
        self.names = [name for name, _ in trained]
        self.scorer: Any = Scorer(model)
        self.optimizer: Any = new_optimizer(name, self.weights, rate, decay)

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

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Accumulate the gradients of `loss`; last: a step follows."""
        loss.backward()

    def step(self) -> float:
        """Update the weights and return the gradient norm before clipping. If it is not finite, the weights are
        unchanged.
        """
        self.processes.add_gradients(self.weights)
        return self._clip_and_step()

    def _clip_and_step(self) -> float:
        norm: Any = nn.utils.clip_grad_norm_(self.weights, self.max_norm)
        value = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        if math.isfinite(value):
            self.optimizer.step()
        return value

    def parts(self) -> list[torch.Tensor]:
        """The trained weights, or this process's shards of them."""
        return list(self.weights)

    def tensors(self) -> Tensors:
        """The optimizer's state as `<number of the weight>.<name>`. All processes must call this; the first one's
        result is the complete one.
        """
        return flat(self.optimizer.state_dict()["state"])

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what `tensors` returned. Raises KeyError or ValueError if it belongs to another model."""
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": nested(tensors)})

    def model_state(self) -> Tensors | None:
        """The policy's full weights if they are sharded; None if the model holds them. All processes must call this."""
        return None


class Fsdp2(Replicated):
    """Every process holds a shard of everything, as DTensors."""

    def __init__(self, model: nn.Module, processes: Processes, **settings: Any) -> None:
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
        named: Any = get_optimizer_state_dict(self.scorer, self.optimizer.optimizer, options=options)
        named = named.get("state", {})  # empty in all processes but the first, which writes
        return flat({number: named.get(f"model.{name}", {}) for number, name in enumerate(self.names)})

    @override
    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        inner, options = self.optimizer.optimizer, StateDictOptions(full_state_dict=True)
        groups = get_optimizer_state_dict(self.scorer, inner, options=options)["param_groups"]
        named: Any = {f"model.{self.names[number]}": values for number, values in nested(tensors).items()}
        set_optimizer_state_dict(self.scorer, inner, {"state": named, "param_groups": groups}, options=options)

    @override
    def model_state(self) -> Tensors | None:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        whole: Any = get_model_state_dict(self.scorer, options=options)
        once = {name for name, _ in self.model.named_parameters()}  # tied weights have two names in a state dict
        return {name: value for key, value in whole.items() if (name := key.removeprefix("model.")) in once}


class Zero(Replicated):
    """DeepSpeed's ZeRO: stage 2 shards the gradients and Adam's state, stage 3 the weights too."""

    def __init__(self, model: nn.Module, processes: Processes, **settings: Any) -> None:
        super().__init__(model, processes, **settings)
        processes.accelerator.deepspeed_plugin.deepspeed_config.update(
            {
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": 1,
                "gradient_clipping": self.max_norm,
                "bf16": {"enabled": self.weights[0].dtype is torch.bfloat16},
            }
        )
        self.scorer, self.optimizer = processes.accelerator.prepare(self.scorer, self.optimizer)
        self.zero = self.optimizer.optimizer
        self._state.clear()  # stage 3 makes one empty step, which would be counted

    @property
    @override
    def loss_scale(self) -> int:
        return self.processes.count

    @property
    def _state(self) -> dict[torch.Tensor, Tensors]:
        state: dict[torch.Tensor, Tensors] = self.zero.optimizer.state
        return state

    @override
    def parts(self) -> list[torch.Tensor]:
        """This process's flat shards in 32 bits, as Adam sees them."""
        three = getattr(self.zero, "fp32_partitioned_groups_flat", None)
        return list(three if three is not None else self.zero.single_partition_of_fp32_groups)

    @override
    def zero_grad(self) -> None:
        pass  # a step clears them

    @override
    def backward(self, loss: torch.Tensor, last: bool) -> None:
        self.scorer.set_gradient_accumulation_boundary(is_boundary=last)
        self.scorer.backward(loss)

    @override
    def step(self) -> float:
        self.scorer.step()
        return float(self.scorer.get_global_grad_norm())

    @override
    def tensors(self) -> Tensors:
        """The shards of all processes as `<process>.<shard>.<name>`; they fit the same number of processes only."""
        mine = {
            f"{self.processes.rank}.{number}.{name}": value.detach().cpu()
            for number, part in enumerate(self.parts())
            for name, value in {"weights": part, **self._state.get(part, {})}.items()
        }
        return {key: value for theirs in self.processes.gather(mine) for key, value in theirs.items()}

    @override
    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        ranks = {key.partition(".")[0] for key in tensors}
        mine = {
            key.partition(".")[2]: value for key, value in tensors.items() if key.startswith(f"{self.processes.rank}.")
        }
        saved = nested(mine)
        same = [
            saved[number]["weights"].shape == part.shape for number, part in enumerate(self.parts()) if number in saved
        ]
        if len(ranks) != self.processes.count or len(same) != len(self.parts()) or not all(same):
            raise ReflectkitError(
                f"the checkpoint was made under ZeRO by {pluralize(len(ranks), 'process', 'processes')} and resumes"
                " only with as many and the same configuration; --policy starts a new run from its weights"
            )
        for number, part in enumerate(self.parts()):
            values = {name: value.to(part.device) for name, value in saved[number].items()}
            part.data.copy_(values.pop("weights"))
            self._state[part] = {name: value.cpu() if name == "step" else value for name, value in values.items()}

    @override
    def model_state(self) -> Tensors | None:
        if not hasattr(self.weights[0], "ds_id"):
            return None
        import deepspeed

        whole = {}
        for name, weight in self.model.named_parameters():
            with deepspeed.zero.GatheredParameters([weight]):
                if self.processes.first:
                    whole[name] = weight.detach().to("cpu", copy=True)
        return whole


def make_optimizer(model: nn.Module, processes: Processes, **settings: Any) -> Replicated:
    """The optimizer for the way in which the processes were started. settings: see `Replicated`."""
    kind = {"FSDP": Fsdp2, "DEEPSPEED": Zero}.get(processes.kind, Replicated)
    return kind(model, processes, **settings)


def flat(state: Mapping[int, Mapping[str, torch.Tensor]]) -> Tensors:
    """An optimizer's state under `<number of the weight>.<name>`."""
    return {f"{number}.{name}": value for number, values in state.items() for name, value in values.items()}


def nested(tensors: Mapping[str, torch.Tensor]) -> dict[int, Tensors]:
    """The inverse of `flat`."""
    state: dict[int, Tensors] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    return state
