"""TRL's SFTTrainer, with the LM head applied only where a token is trained on.

On a CPU, TRL computes the logits of the whole vocabulary at every position, of prompts and padding too, and again in
the backward pass, and then drops all but those of the completions. With the 49,152 tokens of SmolLM2's vocabulary and
answers of a few tokens, that is about as much work as everything else. On a GPU, TRL does without it itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from trl import SFTTrainer

from reflectkit.models.scoring import unwrapped

SMALL_VOCABULARY = 4096
"""Up to this size all positions are computed as in TRL: leaving some out changes the rounding of the gradients, and
with it the weights of every seed of the tiny models."""


class CompletionTrainer(SFTTrainer):
    """SFTTrainer with the same loss, gradients and metrics, up to rounding, for less work."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a batch as TRL computes it. inputs: its labels_BT are -100 where no token is trained on."""
        causal = unwrapped(self.model)
        labels_BT = inputs["labels"]
        if labels_BT.device.type != "cpu" or causal.get_output_embeddings().weight.shape[0] <= SMALL_VOCABULARY:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        next_BT = labels_BT[:, 1:]
        trained_BT = next_BT != -100
        kept = {name: value for name, value in inputs.items() if name != "labels"}
        kept["shift_labels"] = next_BT[trained_BT][None]
        with _only(causal.base_model, trained_BT):
            return super().compute_loss(model, kept, return_outputs, num_items_in_batch)


@contextmanager
def _only(trunk: nn.Module, kept_BT: torch.Tensor) -> Iterator[None]:
    """While it is open, `trunk` returns the hidden states of the kept positions as one row (1, N, D).

    kept_BT: which they are, of all positions but the last.
    """

    def select(_: nn.Module, __: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[:, :-1][kept_BT][None]
        return output

    hook = trunk.register_forward_hook(select)
    try:
        yield
    finally:
        hook.remove()
