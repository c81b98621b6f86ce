"""Passes in bfloat16, made faster: compiled layers, and eager attention on a CPU."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch

from reflectkit.models.architecture import (
    CACHE,
    attends_to_all,
    recomputes_activations,
    takes_masks,
    trunk_of,
)
from reflectkit.models.processor import LARGE, has_matrix_unit

SHORT = 128
"""The most tokens of a row, past included, that are read with eager attention on a CPU. It keeps a
matrix of all pairs of them for the backward pass.
"""
SHORT_COMPILED = 512
"""The same for compiled layers."""
PASSES_BEFORE = 200
"""Passes on a GPU after which layers are compiled: it takes a minute, which a short run has not.
Their launches take about as long until then.
"""
MOST_GRAPHS = 64
"""Compiled forms of a class of layers: with gradients or not, with a mask or not, for each model
and adapter.
"""
TURNED_OFF = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
"""torch's own environment variables against compiling, which are then "1"."""

_passes_of: dict[type, int] = {}
"""The passes on a GPU so far, by the class of the layers."""


@contextmanager
def fast_pass(
    trunk: Any,
    arguments: Mapping[str, Any],
    past: int = 0,
) -> Iterator[None]:
    """A context for a pass of `trunk` with `arguments`, whose rows continue `past` tokens.

    On a CPU in bfloat16, torch computes the gradients of scaled dot product attention slowly, so
    that short rows get eager attention. Where matrix products are fast (AMX), the steps between
    them take half of the time, and layers are compiled. On a GPU these steps are bound by memory,
    or by launching them, and layers are compiled in all passes of batches in bfloat16.
    """
    # 1. What this pass may have
    width = past + arguments["input_ids"].shape[1]
    is_slow = _is_slow_on_cpu(trunk, arguments)
    if is_slow:
        is_compiled = width <= SHORT_COMPILED and _is_batch(arguments) and compiles(trunk)
    else:
        is_compiled = _is_batch(arguments) and _is_compiled_on_gpu(trunk)
    is_eager = is_slow and (is_compiled or width <= SHORT)

    # 2. The pass
    with ExitStack() as stack:
        if is_eager:
            trunk.set_attn_implementation("eager")
            stack.callback(trunk.set_attn_implementation, "sdpa")
        if is_compiled and not torch.is_grad_enabled():
            from reflectkit.models.lora import roundings

            roundings(trunk)
        if is_compiled:
            stack.enter_context(_compiled_layers(trunk.layers))
        yield


def compile_notice(model: Any) -> str:
    """A line for a model whose layers are about to be compiled; "" for others. Not for one whose
    backward pass recomputes activations.
    """
    trunk = trunk_of(model)
    if not compiles(trunk):
        return ""
    off = f"({TURNED_OFF[0]}=1 turns it off)"
    if _is_half_on(trunk, "cpu"):
        return (
            "in bfloat16 this CPU takes compiled layers: a minute once, and 20 seconds in later"
            f" runs {off}"
        )
    return f"after {PASSES_BEFORE} passes on this GPU, layers are compiled: a minute {off}"


def compiles(trunk: Any) -> bool:
    """Whether passes of `trunk` have compiled layers, on a GPU after PASSES_BEFORE of them: it is
    large, in bfloat16, on a GPU or a CPU with AMX, and of plain layers.
    """
    if _is_half_on(trunk, "cpu"):
        can = can_compile()
    elif _is_half_on(trunk, "cuda"):
        can = can_compile_for_gpu()
    else:
        return False
    is_large = sum(weight.numel() for weight in trunk.parameters()) >= LARGE
    return can and is_large and has_plain_layers(trunk)


def _is_compiled_on_gpu(trunk: Any) -> bool:
    """Whether this pass, of a batch, has compiled layers since it is on a GPU. Counts it."""
    if not _is_half_on(trunk, "cuda") or not takes_masks(trunk) or not compiles(trunk):
        return False
    if torch.is_grad_enabled() and recomputes_activations(trunk):
        return False
    kind = type(trunk.layers[0])
    passes = _passes_of.get(kind, 0)
    _passes_of[kind] = passes + 1
    return passes >= PASSES_BEFORE


def has_plain_layers(trunk: Any) -> bool:
    """Whether the layers of `trunk` are alike, so that one of them is compiled for all, and have
    nothing that takes long to compile: no states or windows, no experts, whose weights have three
    axes, and no quantised or sharded weights.
    """
    layers = list(getattr(trunk, "layers", ()))
    if len({type(layer) for layer in layers}) != 1 or not attends_to_all(trunk):
        return False
    for weight in trunk.layers.parameters():
        is_plain = type(weight.data) is torch.Tensor and weight.is_floating_point()
        if not is_plain or weight.ndim > 2:
            return False
    return True


def _is_half_on(model: Any, device: str) -> bool:
    """Whether `model` is on that type of device, with a base in bfloat16."""
    weight = next(model.parameters())
    return weight.device.type == device and weight.dtype == torch.bfloat16


def is_turned_off() -> bool:
    """Whether the user wants nothing compiled."""
    return any(os.environ.get(name) == "1" for name in TURNED_OFF)


@cache
def can_compile() -> bool:
    """Whether compiling helps and is possible on this CPU: it has AMX and a C++ compiler."""
    compiler = os.environ.get("CXX", "g++")
    return not is_turned_off() and has_matrix_unit() and shutil.which(compiler) is not None


@cache
def can_compile_for_gpu() -> bool:
    """Whether compiling is possible for this GPU: torch has Triton for it."""
    from torch.utils._triton import has_triton

    return not is_turned_off() and bool(has_triton())


def _is_slow_on_cpu(trunk: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether a pass is one with gradients, in bfloat16 on a CPU. Not one that hides branches by a
    mask of pairs, whose form differs, nor one that is read again in the backward pass.
    """
    if not torch.is_grad_enabled() or not takes_masks(trunk):
        return False
    mask = arguments.get("attention_mask")
    if mask is not None and mask.ndim > 2:
        return False
    return _is_half_on(trunk, "cpu") and not recomputes_activations(trunk)


def _is_batch(arguments: Mapping[str, Any]) -> bool:
    """Whether a pass has several rows, of several tokens, without a past. Others would be compiled
    apart.
    """
    rows, width = arguments["input_ids"].shape
    return rows > 1 and width > 1 and arguments.get(CACHE) is None


@contextmanager
def _compiled_layers(layers: Sequence[Any]) -> Iterator[None]:
    """The layers are compiled, and called in that form."""
    first = layers[0]
    for layer in layers:
        kind: Any = type(layer)
        compiled = partial(compiled_forward(kind), layer)
        layer.forward = partial(_with_gradient, compiled) if layer is first else compiled
    try:
        with compiling():
            yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _with_gradient(
    forward: Callable[..., Any],
    hidden_BTD: torch.Tensor,
    *others: Any,
    **arguments: Any,
) -> Any:
    """The first layer's forward. It is compiled with gradients of its input, as those of the others
    are, also where embeddings do not learn: else it would be compiled apart.
    """
    if torch.is_grad_enabled() and not hidden_BTD.requires_grad:
        hidden_BTD = hidden_BTD.detach().requires_grad_()
    return forward(hidden_BTD, *others, **arguments)


@contextmanager
def compiling() -> Iterator[None]:
    """torch's settings for passes in which layers may be compiled.

    Numbers that happen to be equal, as those of rows and heads, are not taken for one: torch would
    compile again where they differ. What cannot be compiled is computed as it is.
    """
    from torch._dynamo import config
    from torch.fx.experimental import _config

    shapes: Any = _config  # its `patch` has no type
    dynamo = config.patch(suppress_errors=True, recompile_limit=MOST_GRAPHS)
    with shapes.patch(use_duck_shape=False), dynamo:
        yield


@cache
def compiled_forward(kind: Any) -> Callable[..., Any]:
    """The forward of layers of the class `kind`, compiled when it is first called, for rows of any
    number and length.
    """
    function: Callable[..., Any] = torch.compile(kind.forward, dynamic=True)
    return function
