"""LoRA layers on a base in bfloat16, each of them one function of autograd.

peft casts what such a layer reads to float32, multiplies it by both matrices of the adapter, scales
the result, adds it to the base's, and casts the sum back. With short rows on a CPU, these steps
cost a seventh of an update. Here all products are of bfloat16, as the base's are, with sums in
float32. The scale is in the smaller matrix, and the adapter's part is added where the base's is.
The adapter's weights stay in float32. In float16, small gradients would be lost.

Shapes: N tokens, I inputs, O outputs, R the rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora import Linear as PeftLinear
from torch import nn
from torch.nn.functional import linear
from typing_extensions import override


def join_products(model: Any) -> None:
    """Compute the LoRA layers of `model` as this module does, as far as they are on a base in
    bfloat16. Layers that are quantised stay as they are.
    """
    for layer in model.modules():
        if type(layer) is not PeftLinear:
            continue
        base = layer.get_base_layer()
        if type(base) is nn.Linear and base.weight.dtype == torch.bfloat16:
            layer.__class__ = BFloat16Linear


def roundings(model: Any) -> list[torch.Tensor]:
    """The matrices in bfloat16 that passes without gradients multiply by, made anew where an adapter
    has changed.

    Passes that are compiled or recorded cannot look whether it has: they need this before them. A
    matrix stays in its place in memory, as long as its shape is the same.
    """
    matrices: list[torch.Tensor] = []
    for layer in model.modules():
        if isinstance(layer, BFloat16Linear):
            matrices.extend(layer.rounding())
    return matrices


@dataclass
class _Rounding:
    """An adapter's matrices in bfloat16, see `_rounded`."""

    matrices: tuple[torch.Tensor, ...] = ()
    state: tuple[Any, ...] = ()
    """What they were made of: the scale, and the place and version of each matrix."""
    sources: tuple[torch.Tensor, ...] = ()
    """These matrices, so that no other ones can come to lie in their place."""


class BFloat16Linear(PeftLinear):
    """peft's LoRA layer, on a linear layer in bfloat16."""

    @override
    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The layer's outputs (…, O) of inputs (…, I)."""
        # 1. What is more than LoRA on a frozen layer is left to peft
        name = self._plain_adapter()
        base = self.get_base_layer()
        is_frozen = not base.weight.requires_grad
        is_half = x.dtype == base.weight.dtype == torch.bfloat16
        is_plain = name and is_frozen and is_half and not args and not kwargs
        if not is_plain:
            output: torch.Tensor = super().forward(x, *args, **kwargs)
            return output

        # 2. The product, which is remembered for the backward pass if there may be one
        down_RI = self.lora_A[name].weight
        up_OR = self.lora_B[name].weight
        inputs_NI = x.reshape(-1, x.shape[-1])
        scale = self.scaling[name]
        if torch.is_grad_enabled():
            outputs_NO = _LoRAProduct.apply(
                inputs_NI, base.weight, base.bias, down_RI, up_OR, scale
            )
        else:
            down, up = self._kept(name).matrices if _is_recorded(x) else self.rounding()
            outputs_NO = linear(inputs_NI, base.weight, base.bias)
            outputs_NO.addmm_(inputs_NI @ down.T, up.T)
        return outputs_NO.view(*x.shape[:-1], -1)

    def rounding(self) -> tuple[torch.Tensor, ...]:
        """`_rounded` of the adapter; nothing if there is none that is plain. It is kept until the
        adapter changes: a pass over one token, as in decoding, would spend a fifth of its time on
        it.
        """
        # 1. Whether the adapter is as it was
        name = self._plain_adapter()
        if not name:
            return ()
        kept = self._kept(name)
        scale = self.scaling[name]
        down_RI = self.lora_A[name].weight
        up_OR = self.lora_B[name].weight
        sources = (down_RI, up_OR)
        state = (scale, *((matrix.data_ptr(), matrix._version) for matrix in sources))
        if kept.state == state:
            return kept.matrices
        kept.state = state
        kept.sources = tuple(matrix.detach() for matrix in sources)
        # 2. Otherwise it is rounded, into the same memory if that has room
        new = _rounded(down_RI.detach(), up_OR.detach(), scale)
        places = [(matrix.shape, matrix.device) for matrix in kept.matrices]
        if places == [(matrix.shape, matrix.device) for matrix in new]:
            for old, matrix in zip(kept.matrices, new, strict=True):
                old.copy_(matrix)
        else:
            kept.matrices = new
        return kept.matrices

    def _kept(self, name: str) -> _Rounding:
        """What is kept of the adapter `name`."""
        kept: dict[str, _Rounding] = self.__dict__.setdefault("_roundings", {})
        return kept.setdefault(name, _Rounding())

    def _plain_adapter(self) -> str:
        """The name of the adapter, if it is the only one that is active, and is neither merged nor
        of another kind than LoRA; else "".
        """
        if self.disable_adapters or self.merged:
            return ""
        names = [name for name in self.active_adapters if name in self.lora_A]
        if len(names) != 1 or names[0] in self.lora_variant:
            return ""
        (name,) = names
        dropout = self.lora_dropout[name]
        drops = isinstance(dropout, nn.Dropout) and self.training
        has_bias = self.lora_B[name].bias is not None
        return "" if drops or has_bias else name


def _is_recorded(inputs: torch.Tensor) -> bool:
    """Whether what is done to `inputs` is compiled or recorded, and must not depend on Python."""
    if torch.compiler.is_compiling():
        return True
    return inputs.is_cuda and torch.cuda.is_current_stream_capturing()


def _rounded(
    down_RI: torch.Tensor, up_OR: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """An adapter's matrices in bfloat16, the scale in the second."""
    return down_RI.bfloat16(), (up_OR * scale).bfloat16()


class _LoRAProduct(torch.autograd.Function):
    """x Wᵀ + b + s (x Aᵀ) Bᵀ of inputs x (N, I), frozen weights W (O, I) and b (O), and an adapter's
    A (R, I), B (O, R) and scale s (Hu et al., arXiv 2106.09685, eq. 3).
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs_NI: torch.Tensor,
        weight_OI: torch.Tensor,
        bias_O: torch.Tensor | None,
        down_RI: torch.Tensor,
        up_OR: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        down, up = _rounded(down_RI, up_OR, scale)
        narrow_NR = inputs_NI @ down.T
        outputs_NO = linear(inputs_NI, weight_OI, bias_O).addmm_(narrow_NR, up.T)
        ctx.save_for_backward(inputs_NI, weight_OI, down, up, narrow_NR)
        ctx.scale = scale
        # peft keeps adapters in float32
        ctx.adapter_dtypes = down_RI.dtype, up_OR.dtype
        return outputs_NO

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient_NO,) = gradients
        inputs_NI, weight_OI, down, up, narrow_NR = ctx.saved_tensors
        down_dtype, up_dtype = ctx.adapter_dtypes
        needs_inputs, _, _, needs_down, needs_up, _ = ctx.needs_input_grad
        narrow_gradient_NR = gradient_NO @ up
        inputs_gradient = down_gradient = up_gradient = None
        if needs_inputs:
            inputs_gradient = (gradient_NO @ weight_OI).addmm_(narrow_gradient_NR, down)
        if needs_down:
            down_gradient = (narrow_gradient_NR.T @ inputs_NI).to(down_dtype)
        if needs_up:
            up_gradient = (gradient_NO.T @ narrow_NR).to(up_dtype) * ctx.scale
        return inputs_gradient, None, None, down_gradient, up_gradient, None
