"""Training passes in bfloat16 on a CPU, made faster: eager attention and compiled layers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
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
"""The most tokens of a row, past included, that are read with eager attention. It keeps a matrix of
all pairs of them for the backward pass.
"""
SHORT_COMPILED = 512
"""The same for compiled layers."""
TURNED_OFF = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
"""torch's own environment variables against compiling, which are then "1"."""


@contextmanager
def fast_pass(
    trunk: Any,
    arguments: Mapping[str, Any],
    past: int = 0,
) -> Iterator[None]:
    """A context for a pass of `trunk` with `arguments`, whose rows continue `past` tokens.

    On a CPU in bfloat16, torch computes the gradients of scaled dot product attention slowly, so
    that short rows get eager attention. Where matrix products are fast (AMX), the steps between
    them take half of the time, and layers are compiled.
    """
    # 1. What this pass may have
    if not _is_slow(trunk, arguments):
        yield
        return
    width = past + arguments["input_ids"].shape[1]
    is_compiled = width <= SHORT_COMPILED and _is_batch(arguments) and compiles(trunk)
    is_eager = is_compiled or width <= SHORT
    layers = trunk.layers if is_compiled else ()

    # 2. The pass
    if is_eager:
        trunk.set_attn_implementation("eager")
    for layer in layers:
        kind: Any = type(layer)
        layer.forward = partial(_compiled(kind), layer)
    try:
        with _compiling() if is_compiled else nullcontext():
            yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)
        if is_eager:
            trunk.set_attn_implementation("sdpa")


def compile_notice(model: Any) -> str:
    """A line for a model whose layers are about to be compiled; "" for others. Not for one whose
    backward pass recomputes activations.
    """
    if not compiles(trunk_of(model)):
        return ""
    return (
        "in bfloat16 this CPU takes compiled layers: a minute once, and 20 seconds in later runs"
        f" ({TURNED_OFF[0]}=1 turns it off)"
    )


def compiles(trunk: Any) -> bool:
    """Whether training passes of `trunk` have compiled layers: it is large, on a CPU with AMX, in
    bfloat16, and of plain layers.
    """
    if not _is_half_on_cpu(trunk) or not can_compile():
        return False
    is_large = sum(weight.numel() for weight in trunk.parameters()) >= LARGE
    return is_large and _has_plain_layers(trunk)


def _has_plain_layers(trunk: Any) -> bool:
    """Whether the layers of `trunk` are alike, so that one of them is compiled for all, and have
    nothing that takes long to compile: no states or windows, no experts, whose weights have three
    axes, and no quantised or sharded weights.
    """
    layers = list(getattr(trunk, "layers", ()))
    if len({type(layer) for layer in layers}) != 1 or not attends_to_all(trunk):
        return False
    for weight in layers[0].parameters():
        is_plain = type(weight.data) is torch.Tensor and weight.is_floating_point()
        if not is_plain or weight.ndim > 2:
            return False
    return True


def _is_half_on_cpu(model: Any) -> bool:
    """Whether `model` is on a CPU, with a base in bfloat16."""
    weight = next(model.parameters())
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16


@cache
def can_compile() -> bool:
    """Whether compiling helps and is possible here: a CPU with AMX, and a C++ compiler."""
    is_on = not any(os.environ.get(name) == "1" for name in TURNED_OFF)
    compiler = os.environ.get("CXX", "g++")
    return is_on and has_matrix_unit() and shutil.which(compiler) is not None


def _is_slow(trunk: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether a pass is one with gradients, in bfloat16 on a CPU. Not one that hides branches by a
    mask of pairs, whose form differs, nor one that is read again in the backward pass.
    """
    if not torch.is_grad_enabled() or not takes_masks(trunk):
        return False
    mask = arguments.get("attention_mask")
    if mask is not None and mask.ndim > 2:
        return False
    return _is_half_on_cpu(trunk) and not recomputes_activations(trunk)


def _is_batch(arguments: Mapping[str, Any]) -> bool:
    """Whether a pass has several rows, of several tokens, without a past. Others would be compiled
    apart.
    """
    rows, width = arguments["input_ids"].shape
    return rows > 1 and width > 1 and arguments.get(CACHE) is None


@contextmanager
def _compiling() -> Iterator[None]:
    """torch's settings for passes in which layers may be compiled.

    Numbers that happen to be equal, as those of rows and heads, are not taken for one: torch would
    compile again where they differ. What cannot be compiled is computed as it is.
    """
    from torch._dynamo import config
    from torch.fx.experimental import _config

    shapes: Any = _config  # its `patch` has no type
    with shapes.patch(use_duck_shape=False), config.patch(suppress_errors=True):
        yield


@cache
def _compiled(kind: Any) -> Callable[..., Any]:
    """The forward of layers of the class `kind`, compiled when it is first called, for rows of any
    number and length.
    """
    function: Callable[..., Any] = torch.compile(kind.forward, dynamic=True)
    return function
