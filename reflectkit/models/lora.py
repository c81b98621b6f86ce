"""LoRA layers on a base in bfloat16, each of them one function of autograd.

peft casts what such a layer reads to float32, multiplies it by both matrices of the adapter, scales
the result, adds it to the base's, and casts the sum back. With short rows on a CPU, these steps
cost a seventh of an update. Here all products are of bfloat16, as the base's are, with sums in
float32. The scale is in the smaller matrix, and the adapter's part is added where the base's is.
The adapter's weights stay in float32. In float16, small gradients would be lost.

Shapes: N tokens, I inputs, O outputs, R the rank.
"""

from __future__ import annotations

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


class BFloat16Linear(PeftLinear):
    """peft's LoRA layer, on a linear layer in bfloat16."""

    _state: tuple[Any, ...] = ()
    """What the rounding was made of: the scale, and the place and version of each matrix."""
    _memory: tuple[torch.Tensor, ...] = ()
    """The matrices as they were, so that no other ones can come to lie in their place."""
    _rounding: tuple[torch.Tensor, torch.Tensor]
    """The matrices in bfloat16, see `_rounded`."""

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
            down, up = self._kept_rounding(down_RI, up_OR, scale)
            outputs_NO = linear(inputs_NI, base.weight, base.bias)
            outputs_NO.addmm_(inputs_NI @ down.T, up.T)
        return outputs_NO.view(*x.shape[:-1], -1)

    def _kept_rounding(
        self, down_RI: torch.Tensor, up_OR: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`_rounded` of the adapter. It is kept until the adapter changes: a pass over one token,
        as in decoding, would spend a fifth of its time on it.
        """
        matrices = (down_RI, up_OR)
        state = (scale, *((matrix.data_ptr(), matrix._version) for matrix in matrices))
        if self._state != state:
            self._state = state
            self._memory = tuple(matrix.detach() for matrix in matrices)
            self._rounding = _rounded(down_RI, up_OR, scale)
        return self._rounding

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
