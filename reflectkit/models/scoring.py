"""The one function that scores enumerated actions: called by the agent that samples and by the learner that differentiates.

One forward pass over the prompt; only the last position's hidden state meets only the label rows of the LM head; the
log-softmax is over the legal labels alone. Departs from the Reflect-RL code, which took it over 252 labels, legal or not.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from reflectkit.models.tokens import left_pad, position_ids

PLAIN_HEAD_BLOCKERS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier", "logit_softcapping")
"""Config entries with which a model changes its logits behind the head; such a model's own forward computes them."""


def choice_logprobs(
    model: Any,
    prompts: Sequence[Sequence[int]],
    labels: Sequence[Sequence[int]],
    *,
    pad_id: int,
    temperature: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the legal labels after each prompt.

    Parameters
    ----------
    prompts: token ids of B prompts, of any lengths. labels: ids of each prompt's legal labels, K at most.
    temperature: divides the logits, > 0.

    Returns
    -------
    logprobs_BK: normalised over each row's own labels; -inf where a row has fewer than K. hidden_BD: the last position's
    hidden state, for a critic. Gradients flow unless the caller forbids them.
    """
    device = next(model.parameters()).device
    input_ids_BT, attention_mask_BT = left_pad(prompts, pad_id, device)
    width = max(map(len, labels))
    label_ids_BK = torch.tensor([[*row, *[row[0]] * (width - len(row))] for row in labels], device=device)
    legal_BK = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in labels], device=device)

    hidden_BD, logits_BK = _last_position(model, input_ids_BT, attention_mask_BT, label_ids_BK)
    logits_BK = logits_BK.float().masked_fill(~legal_BK, float("-inf"))
    return torch.log_softmax(logits_BK / temperature, dim=-1), hidden_BD


def forward_arguments(model: Any, attention_mask_BT: torch.Tensor) -> dict[str, torch.Tensor]:
    """The arguments that make left padding harmless: the mask, and positions where the model's class takes them."""
    arguments = {"attention_mask": attention_mask_BT}
    if "position_ids" in inspect.signature(unwrapped(model).forward).parameters:
        arguments["position_ids"] = position_ids(attention_mask_BT)
    return arguments


def unwrapped(model: Any) -> Any:
    """The Hugging Face model below a LoRA wrapper (whose layers stay in place), or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _last_position(
    model: Any, input_ids_BT: torch.Tensor, attention_mask_BT: torch.Tensor, label_ids_BK: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    bare = unwrapped(model)
    head = bare.get_output_embeddings()
    arguments = forward_arguments(model, attention_mask_BT)
    config = bare.config.get_text_config()
    if not any(getattr(config, name, None) not in (None, 1, 1.0) for name in PLAIN_HEAD_BLOCKERS):
        trunk = getattr(bare, bare.base_model_prefix)
        hidden_BD = trunk(input_ids=input_ids_BT, use_cache=False, **arguments).last_hidden_state[:, -1]
        if type(head) is nn.Linear:
            rows_BKD = head.weight[label_ids_BK]
            logits_BK = torch.einsum("bd,bkd->bk", hidden_BD.to(rows_BKD.dtype), rows_BKD)
            if head.bias is not None:
                logits_BK = logits_BK + head.bias[label_ids_BK]
            return hidden_BD, logits_BK
        return hidden_BD, head(hidden_BD).gather(1, label_ids_BK)  # a LoRA or quantised head computes its own rows
    output = bare(input_ids=input_ids_BT, use_cache=False, logits_to_keep=1, output_hidden_states=True, **arguments)
    return output.hidden_states[-1][:, -1], output.logits[:, -1].gather(1, label_ids_BK)
