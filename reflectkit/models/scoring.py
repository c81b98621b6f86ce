"""Log-probabilities of choices and text, for the agent that samples and for the learner that differentiates.

A choice takes one forward pass over the prompt: the LM head's rows of the legal labels are applied to the last hidden
state alone, and the log-softmax is over the legal labels. For text, the head is applied only where tokens were sampled.
Rows are padded on the right, which a causal model never sees. Departs from the Reflect-RL code, whose softmax was over
252 labels, legal or not.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from reflectkit.models.padding import position_ids, right_pad

PLAIN_HEAD_BLOCKERS = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "logit_softcapping",
)
"""Config entries of models that change their logits after the head; such a model's own forward computes them."""
SHORTEST_PREFIX = 8  # tokens; a shorter common prefix is not worth a separate pass


class Scorer(nn.Module):
    """A model's hidden states and logits at given positions, as the one `forward` for everything.

    What shards the model (FSDP) wraps this, and so sees every use of its weights.
    """

    scores_tokens = True

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._no_split_modules = getattr(
            unwrapped(model), "_no_split_modules", None
        )  # the layers that FSDP wraps one by one

    def forward(
        self,
        input_ids_BT: torch.Tensor,
        row_N: torch.Tensor,
        place_N: torch.Tensor,
        label_ids_NK: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(hidden_ND, logits) at place_N of rows row_N; logits of the labels (N, K), or of the whole
        vocabulary (N, V).
        """
        if _plain(self.model):  # no mask: a position never sees what is right of it
            hidden_ND = trunk_of(self.model)(input_ids=input_ids_BT, use_cache=False).last_hidden_state[row_N, place_N]
            return hidden_ND, _head_logits(self.model, hidden_ND, label_ids_NK)
        places_U, index_N = torch.unique(place_N, return_inverse=True)
        output = unwrapped(self.model)(
            input_ids=input_ids_BT, use_cache=False, logits_to_keep=places_U, output_hidden_states=True
        )
        logits_NV = output.logits[row_N, index_N]
        hidden_ND = output.hidden_states[-1][row_N, place_N]
        return hidden_ND, logits_NV if label_ids_NK is None else logits_NV.gather(1, label_ids_NK)


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
    model: a model or its Scorer. prompts: token ids of B prompts of any lengths. labels: ids of each prompt's legal
    labels, K at most. temperature: divides the logits, > 0.

    Returns
    -------
    logprobs_BK: normalised over each row's own labels; -inf where a row has fewer than K. hidden_BD: the last
    position's hidden state, for a critic. Gradients flow unless the caller disables them; without them, the common
    prefix of the prompts is read once.
    """
    device = next(model.parameters()).device
    width = max(map(len, labels))
    label_ids_BK = torch.tensor([[*row, *[row[0]] * (width - len(row))] for row in labels], device=device)
    legal_BK = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in labels], device=device)
    shared_BD = None if torch.is_grad_enabled() or is_scorer(model) else _last_hidden(model, prompts, pad_id)
    if shared_BD is not None:
        hidden_BD, logits_BK = shared_BD, _head_logits(model, shared_BD, label_ids_BK)
    else:
        scorer = model if is_scorer(model) else Scorer(model)
        row_B = torch.arange(len(prompts), device=device)
        place_B = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
        hidden_BD, logits_BK = scorer(right_pad(prompts, pad_id, device), row_B, place_B, label_ids_BK)
    logits_BK = logits_BK.float().masked_fill(~legal_BK, float("-inf"))
    return torch.log_softmax(logits_BK / temperature, dim=-1), hidden_BD


def token_logprobs(
    model: Any,
    rows: Sequence[Sequence[int]],
    masks: Sequence[Sequence[int]],
    *,
    pad_id: int,
    temperature: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities of the tokens that each row's mask marks with 1, given all tokens before them.

    Returns
    -------
    logprobs_N: of the N marked tokens, row by row. logprobs_NV: over the vocabulary at the same positions, for an
    entropy. hidden_ND: of the position before each marked token. Raises ValueError if a row's first token is marked.
    """
    device = next(model.parameters()).device
    marked = [(row, place) for row, mask in enumerate(masks) for place, one in enumerate(mask) if one]
    if any(place == 0 for _, place in marked):
        raise ValueError("a row's first token has nothing before it and cannot be scored")
    scorer = model if is_scorer(model) else Scorer(model)
    row_N = torch.tensor([row for row, _ in marked], device=device)
    place_N = torch.tensor([place - 1 for _, place in marked], device=device)
    hidden_ND, logits_NV = scorer(right_pad(rows, pad_id, device), row_N, place_N)
    logprobs_NV = torch.log_softmax(logits_NV.float() / temperature, dim=-1)
    tokens_N1 = torch.tensor([[rows[row][place]] for row, place in marked], device=device)
    return logprobs_NV.gather(1, tokens_N1).squeeze(1), logprobs_NV, hidden_ND


def is_scorer(model: Any) -> bool:
    """Whether `model` is a Scorer, wrapped or not."""
    return bool(getattr(model, "scores_tokens", False))


def unwrapped(model: Any) -> Any:
    """The Hugging Face model inside a LoRA wrapper (whose layers stay in place), or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def trunk_of(model: Any) -> Any:
    """The model below its LM head."""
    bare = unwrapped(model)
    return getattr(bare, bare.base_model_prefix)


def forward_arguments(model: Any, attention_mask_BT: torch.Tensor) -> dict[str, torch.Tensor]:
    """The arguments that make left padding harmless: the mask, and positions if the model takes them."""
    arguments = {"attention_mask": attention_mask_BT}
    if "position_ids" in inspect.signature(unwrapped(model).forward).parameters:
        arguments["position_ids"] = position_ids(attention_mask_BT)
    return arguments


def behind_prefix(model: Any, rows: Sequence[Sequence[int]]) -> tuple[Any, int]:
    """(key-value cache of the common prefix of `rows`, one copy per row; its number of tokens); (None, 0) if it is too
    short to be worth it, or if the model caches other things than keys and values. At least one token of each row is
    left to read.
    """
    cache, length = read_prefix(model, rows)
    if cache is not None:
        cache.batch_repeat_interleave(len(rows))
    return cache, length


def read_prefix(model: Any, rows: Sequence[Sequence[int]]) -> tuple[Any, int]:
    """As `behind_prefix`, with one copy for all rows."""
    length = _common_prefix(rows)
    if length < SHORTEST_PREFIX or len(rows) < 2 or not _plain(model):
        return None, 0
    device = next(model.parameters()).device
    prefix = torch.tensor([rows[0][:length]], device=device)
    cache = trunk_of(model)(input_ids=prefix, use_cache=True).past_key_values
    if not isinstance(cache, DynamicCache) or any(type(layer) is not DynamicLayer for layer in cache.layers):
        return None, 0
    return cache, length


def _last_hidden(model: Any, prompts: Sequence[Sequence[int]], pad_id: int) -> torch.Tensor | None:
    """hidden_BD of the prompts' last positions, with their common prefix read once; None if that saves nothing."""
    cache, length = behind_prefix(model, prompts)
    if cache is None:
        return None
    rest = [prompt[length:] for prompt in prompts]
    input_ids_BT = right_pad(rest, pad_id, next(model.parameters()).device)
    hidden_BTD = trunk_of(model)(input_ids=input_ids_BT, past_key_values=cache, use_cache=True).last_hidden_state
    places = [len(row) - 1 for row in rest]
    return hidden_BTD[torch.arange(len(rest), device=hidden_BTD.device), torch.tensor(places, device=hidden_BTD.device)]


def _common_prefix(rows: Sequence[Sequence[int]]) -> int:
    """The length of the common prefix of `rows`, at most one less than the shortest."""
    keys = [tuple(row) for row in rows]
    first, last = min(keys), max(keys)  # what these two share, all share
    shared = next(
        (place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first)
    )
    return min(shared, min(map(len, rows)) - 1)


def _plain(model: Any) -> bool:
    """Whether the logits are those of the head, unchanged."""
    config = unwrapped(model).config.get_text_config()
    return not any(getattr(config, name, None) not in (None, 1, 1.0) for name in PLAIN_HEAD_BLOCKERS)


def _head_logits(model: Any, hidden_ND: torch.Tensor, label_ids_NK: torch.Tensor | None) -> torch.Tensor:
    """Logits of the labels (N, K), or of the whole vocabulary (N, V)."""
    head = unwrapped(model).get_output_embeddings()
    if label_ids_NK is not None and type(head) is nn.Linear and head.weight.shape[-1] == hidden_ND.shape[-1]:
        rows_NKD = head.weight[label_ids_NK]
        logits_NK = torch.einsum("nd,nkd->nk", hidden_ND.to(rows_NKD.dtype), rows_NKD)
        return logits_NK if head.bias is None else logits_NK + head.bias[label_ids_NK]
    logits_NV = head(hidden_ND)  # a LoRA, quantised or sharded head computes its own rows
    return logits_NV if label_ids_NK is None else logits_NV.gather(1, label_ids_NK)
