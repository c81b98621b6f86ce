"""Writing free text, token by token, with a key-value cache: how the reflector comments, and a policy answers without choices.

Greedy by default, so that a comment is a function of its prompt. Sampling draws from each row's own seed, so that what a row
samples does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from reflectkit.core.seeding import uniform
from reflectkit.models.scoring import behind_prefix, forward_arguments
from reflectkit.models.tokens import left_pad


@dataclass
class Written:
    """What was written behind one prompt. token_ids: with the stop token, where one came (`stopped`). logprobs: of each token,
    natural-log, under the distribution it was drawn from (temperature 1 for greedy rows).
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False

    @property
    def text_ids(self) -> list[int]:
        """The tokens without the stop token."""
        return self.token_ids[:-1] if self.stopped else self.token_ids


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
) -> list[Written]:
    """What is written after each of B prompts.

    Parameters
    ----------
    stop_ids: a row ends with any of these. max_new_tokens: at most so many a row. temperature: 0 is greedy.
    seeds: one a row, needed where temperature > 0.
    """
    device = next(model.parameters()).device
    takes_positions = "position_ids" in forward_arguments(model, torch.ones(1, 1, dtype=torch.long, device=device))
    cache, shared = behind_prefix(model, prompts) if takes_positions else (None, 0)
    step_ids, rest_mask_BT = left_pad([prompt[shared:] for prompt in prompts], pad_id, device)
    attention_mask_BT = torch.cat([rest_mask_BT.new_ones(len(prompts), shared), rest_mask_BT], dim=1)
    arguments = forward_arguments(model, attention_mask_BT)
    if takes_positions:
        arguments["position_ids"] = arguments["position_ids"][:, shared:]
    positions_B1 = attention_mask_BT.sum(dim=1, keepdim=True)
    written = [Written() for _ in prompts]
    open_rows = set(range(len(prompts)))
    for step in range(max_new_tokens):
        output = model(input_ids=step_ids, past_key_values=cache, use_cache=True, logits_to_keep=1, **arguments)
        cache = output.past_key_values
        logprobs_BV = torch.log_softmax(output.logits[:, -1].float() / (temperature or 1.0), dim=-1)
        chosen_B = _sample(logprobs_BV, seeds, step) if temperature > 0 else logprobs_BV.argmax(dim=-1)
        for row, token, logprob in zip(
            range(len(prompts)), chosen_B.tolist(), logprobs_BV.gather(1, chosen_B[:, None])[:, 0].tolist(), strict=True
        ):
            if row in open_rows:
                written[row].token_ids.append(token)
                written[row].logprobs.append(logprob)
                if token in stop_ids:
                    written[row].stopped = True
                    open_rows.discard(row)
        if not open_rows:
            break
        step_ids = chosen_B[:, None]
        attention_mask_BT = torch.cat([attention_mask_BT, torch.ones_like(step_ids)], dim=1)
        arguments = {"attention_mask": attention_mask_BT}
        if takes_positions:
            arguments["position_ids"] = positions_B1 + step
    return written


def _sample(logprobs_BV: torch.Tensor, seeds: Sequence[int], step: int) -> torch.Tensor:
    """One token a row by inverting the cumulative distribution at the row's own number."""
    cumulative_BV = logprobs_BV.double().exp().cumsum(dim=-1)
    draws_B1 = torch.tensor([[uniform(seed, "token", step)] for seed in seeds], dtype=torch.float64, device=logprobs_BV.device)
    return (
        torch.searchsorted(cumulative_BV, draws_B1 * cumulative_BV[:, -1:], right=True)
        .squeeze(1)
        .clamp(max=logprobs_BV.shape[1] - 1)
    )
