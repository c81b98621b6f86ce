"""Writing free text, token by token, with a key-value cache: how the reflector comments.

Greedy by default, so that a comment is a function of its prompt. Sampling draws from each row's own seed, so that what a row
samples does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from reflectkit.core.seeding import uniform
from reflectkit.models.scoring import forward_arguments
from reflectkit.models.tokens import left_pad


@torch.no_grad()
def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    pad_id: int,
    stop_ids: frozenset[int],
    max_new_tokens: int,
    temperature: float = 0.0,
    seeds: Sequence[int] = (),
) -> list[list[int]]:
    """The tokens written after each of B prompts, the stop token left out.

    Parameters
    ----------
    stop_ids: a row ends with any of these. max_new_tokens: at most so many a row. temperature: 0 is greedy.
    seeds: one a row, needed where temperature > 0.
    """
    device = next(model.parameters()).device
    input_ids_BT, attention_mask_BT = left_pad(prompts, pad_id, device)
    written: list[list[int]] = [[] for _ in prompts]
    open_rows = set(range(len(prompts)))
    cache = None
    positions_B1 = attention_mask_BT.sum(dim=1, keepdim=True)
    arguments = forward_arguments(model, attention_mask_BT)
    takes_positions = "position_ids" in arguments
    step_ids = input_ids_BT
    for step in range(max_new_tokens):
        output = model(input_ids=step_ids, past_key_values=cache, use_cache=True, logits_to_keep=1, **arguments)
        cache = output.past_key_values
        logits_BV = output.logits[:, -1].float()
        chosen_B = _sample(logits_BV, temperature, seeds, step) if temperature > 0 else logits_BV.argmax(dim=-1)
        for row in list(open_rows):
            token = int(chosen_B[row])
            if token in stop_ids:
                open_rows.discard(row)
            else:
                written[row].append(token)
        if not open_rows:
            break
        step_ids = chosen_B[:, None]
        attention_mask_BT = torch.cat([attention_mask_BT, torch.ones_like(step_ids)], dim=1)
        arguments = {"attention_mask": attention_mask_BT}
        if takes_positions:
            arguments["position_ids"] = positions_B1 + step
    return written


def _sample(logits_BV: torch.Tensor, temperature: float, seeds: Sequence[int], step: int) -> torch.Tensor:
    """One token a row by inverting the cumulative distribution at the row's own number."""
    cumulative_BV = torch.softmax(logits_BV.double() / temperature, dim=-1).cumsum(dim=-1)
    draws_B1 = torch.tensor([[uniform(seed, "token", step)] for seed in seeds], dtype=torch.float64, device=logits_BV.device)
    return (
        torch.searchsorted(cumulative_BV, draws_B1 * cumulative_BV[:, -1:], right=True)
        .squeeze(1)
        .clamp(max=logits_BV.shape[1] - 1)
    )
