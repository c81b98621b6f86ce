"""Log-probabilities of choices and text, for the agent that samples and for the learner that differentiates.

A choice among labels of one token takes one forward pass over the prompt: the LM head's rows of the legal labels are
applied to the last hidden state alone, and the log-softmax is over the legal labels. Longer labels are read as a tree
up to where they part (`models/labels.py`). For text, the head is applied only where tokens were sampled. Rows are
padded on the right, which a causal model never sees. The softmax of the Reflect-RL code was over 252 labels, legal or
not.

Rows that begin alike are read as a tree where that is asked for: what several of them begin with is read once, with
gradients. The longest rows are trunks. Every other row is read only from where it leaves one that was read already,
with that one's keys and values before it. So an episode whose prompts grow costs little more than its last prompt.
Gradients flow through the keys and values. This is exact for plain causal attention, up to the rounding of sums.

On a GPU, many small passes are slow. There, a prompt and all branches of its labels are one row, in which a branch does
not see the others.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from reflectkit.models.labels import Path, Trie, apart, trie

# A model's argument and its output's field: `cache` since transformers 5.24, `past_key_values` before.
CACHE = "cache" if "cache" in {field.name for field in fields(BaseModelOutputWithPast)} else "past_key_values"

PLAIN_HEAD_BLOCKERS = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "logits_mup_width_multiplier",
)
"""Config entries of models that change their logits after the head; such a model's own forward computes them."""
CHAINS = 16  # at least so many rows are in one pass when sampling
SHORTEST_PREFIX = 8  # tokens; a shorter common prefix is not worth a separate pass
ROW, PASS = 256, 16384
"""Tokens of labels that are read together after a short prompt, and tokens of a pass where labels are read alone."""
BLOCK = {"cpu": 2**23, "cuda": 2**26}  # logits that are computed at once, by device


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
        **branches: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(hidden_ND, logits) at place_N of rows row_N; logits of the labels (N, K), or of the whole
        vocabulary (N, V). branches: see `_branched`.
        """
        if has_plain_head(self.model):  # no other mask: a position never sees what is right of it
            output = trunk_of(self.model)(input_ids=input_ids_BT, use_cache=False, **branches)
            hidden_ND = output.last_hidden_state[row_N, place_N]
            return hidden_ND, head_logits(self.model, hidden_ND, label_ids_NK)
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
    labels: Sequence[tuple[Path, ...]],
    *,
    pad_id: int,
    temperature: float = 1.0,
    share: bool = False,
    separately: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the legal labels after each prompt. Gradients flow unless the caller disables them; then the
    common prefix of the prompts is read once.

    model: a model or its Scorer. prompts: token ids of B prompts. labels: the tokens of each prompt's legal labels, K
    at most. temperature: divides the logits wherever labels part, > 0. share: read what prompts begin with once, if the
    model allows. separately: each label is read alone, and its score is `label_scores`.

    Returns
    -------
    logprobs_BK: normalised over each row's own labels; -inf where a row has fewer than K. hidden_BD: the last
    position's hidden state, for a critic.
    """
    if separately:
        scores_BK, hidden_BD = label_scores(model, prompts, labels, pad_id=pad_id)
        return torch.log_softmax(scores_BK / temperature, dim=-1), hidden_BD
    device = next(model.parameters()).device
    tries = [trie(tuple(row)) for row in labels]
    children = [node.children for tree in tries for node in tree.nodes]  # of N nodes, row by row, the root first
    width = max(map(len, children))
    children_NC = torch.tensor([[*row, *[row[0]] * (width - len(row))] for row in children], device=device)
    legal_NC = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in children], device=device)
    bare, parts = model.model if type(model) is Scorer else model, any(tree.chains for tree in tries)
    hidden: torch.Tensor | None = None
    branched = parts and not share and reads_branches(model)
    if (share or parts) and not branched and can_share(bare):
        at_once = None if torch.is_grad_enabled() else max(CHAINS, len(prompts))
        hidden = hidden_at(trunk_of(bare), *_rows_and_nodes(prompts, tries), pad_id, at_once)
    elif not parts and not torch.is_grad_enabled() and not is_scorer(model):
        hidden = _last_hidden(model, prompts, pad_id)
    if hidden is not None:
        hidden_ND, logits_NC = hidden, head_logits(bare, hidden, children_NC)
    else:
        rows, nodes, branches = (
            _branched(prompts, tries, device) if branched else (*_rows_and_nodes(prompts, tries), {})
        )
        row_N, place_N = (torch.tensor(column, device=device) for column in zip(*nodes, strict=True))
        scorer = model if is_scorer(model) else Scorer(model)
        hidden_ND, logits_NC = scorer(right_pad(rows, pad_id, device), row_N, place_N, children_NC, **branches)
    logits_NC = logits_NC.float().masked_fill(~legal_NC, float("-inf"))
    logprobs_NC = torch.log_softmax(logits_NC / temperature, dim=-1)
    if len(children) == len(prompts):  # labels part at the root alone
        return logprobs_NC, hidden_ND
    roots = [0, *itertools.accumulate(len(tree.nodes) for tree in tries)][:-1]
    return along_paths(logprobs_NC, tries, roots), hidden_ND[torch.tensor(roots, device=device)]


def label_scores(
    model: Any, prompts: Sequence[Sequence[int]], labels: Sequence[tuple[Path, ...]], *, pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The score of each label, read alone after its prompt: the logit of its last token, the end token, at that token.

    A label that several rows with the same prompt have is read once. Where the model allows, a prompt and as many of
    its labels as fit into a row are read together, hidden from one another. Arguments are those of `choice_logprobs`.

    Returns
    -------
    scores_BK: in float32; -inf where a row has fewer than K. hidden_BD: the prompts' last hidden state.
    """
    device = next(model.parameters()).device
    # 1. The different labels of each prompt, in parts that fit into a row
    labels_of: dict[tuple[int, ...], dict[Path, int]] = {}
    for prompt, row in zip(map(tuple, prompts), labels, strict=True):
        known = labels_of.setdefault(prompt, {})
        for path in row:
            known.setdefault(path, len(known))
    bare = model.model if is_scorer(model) else model
    together = has_plain_head(bare) and takes_positions(bare) and attends_to_all(bare) and _takes_masks(bare)
    parts: list[tuple[tuple[int, ...], Trie]] = []
    for prompt, known in labels_of.items():
        for group in _groups(tuple(known), together, max(ROW, 2 * len(prompt))):
            parts.append((prompt, apart(group)))
    # 2. Several passes of similar rows; only one of a model that is spread over processes
    order = sorted(range(len(parts)), key=lambda number: _row_length(parts[number]))
    spread = is_scorer(model) and type(model) is not Scorer
    most = len(parts) if spread else max(1, PASS // max(1, _row_length(parts[order[-1]])))
    scorer = model if is_scorer(model) else Scorer(model)
    scores: dict[int, torch.Tensor] = {}
    hidden: dict[int, torch.Tensor] = {}
    for first in range(0, len(order), most):
        numbers = order[first : first + most]
        read, tries = [parts[number][0] for number in numbers], [parts[number][1] for number in numbers]
        rows, nodes, branches = _branched(read, tries, device) if together else (*_rows_and_nodes(read, tries), {})
        row_N, place_N = (torch.tensor(column, device=device) for column in zip(*nodes, strict=True))
        end_N1 = torch.tensor([node.children for tree in tries for node in tree.nodes], device=device)
        hidden_ND, logits_N1 = scorer(right_pad(rows, pad_id, device), row_N, place_N, end_N1, **branches)
        sizes = [len(tree.nodes) for tree in tries]
        for number, states, logits in zip(numbers, hidden_ND.split(sizes), logits_N1.split(sizes), strict=True):
            scores[number], hidden[number] = logits[1:, 0].float(), states[0]
    # 3. The labels of each row
    scores_P = torch.cat([scores[number] for number in range(len(parts))] + [hidden_ND.new_zeros(1).float()])
    begins: dict[tuple[int, ...], int] = {}
    state_of: dict[tuple[int, ...], torch.Tensor] = {}
    count = 0
    for number, (prompt, tree) in enumerate(parts):
        begins.setdefault(prompt, count)
        state_of.setdefault(prompt, hidden[number])
        count += len(tree.chains)
    width = max(map(len, labels))
    index_BK = torch.full((len(prompts), width), count)
    for place, (prompt, row) in enumerate(zip(map(tuple, prompts), labels, strict=True)):
        known, start = labels_of[prompt], begins[prompt]
        index_BK[place, : len(row)] = torch.tensor([start + known[path] for path in row])
    index_BK = index_BK.to(device)
    scores_BK = scores_P[index_BK].masked_fill(index_BK == count, float("-inf"))
    return scores_BK, torch.stack([state_of[tuple(prompt)] for prompt in prompts])


def _groups(labels: tuple[Path, ...], together: bool, most: int) -> list[tuple[Path, ...]]:
    """`labels` in groups of at most `most` tokens; a longer label is alone. All in one where they are rows anyway."""
    if not together:
        return [labels]
    groups: list[list[Path]] = []
    size = 0
    for path in labels:
        if not groups or size + len(path) > most:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += len(path)
    return [tuple(group) for group in groups]


def _row_length(part: tuple[Sequence[int], Trie]) -> int:
    return len(part[0]) + sum(map(len, part[1].chains))


def _takes_masks(model: Any) -> bool:
    """Whether the model's attention takes a mask of pairs of tokens."""
    return getattr(unwrapped(model).config, "_attn_implementation", None) == "sdpa"


def token_logprobs(
    model: Any,
    rows: Sequence[Sequence[int]],
    masks: Sequence[Sequence[int]],
    *,
    pad_id: int,
    temperature: float = 1.0,
    share: bool = False,
    whole: bool = False,
    entropy_learns: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities of the tokens that each row's mask marks with 1, given all tokens before them. share: see
    `choice_logprobs`. whole: return the distributions too. entropy_learns: whether the entropy needs gradients.

    Returns
    -------
    logprob_N, entropy_N: of the N marked tokens, row by row, and of the distributions that they are from.
    hidden_ND: of the position before each marked token. logprobs_NV: over the vocabulary at the same positions; (N, 0)
    unless `whole`. Raises ValueError if a row's first token is marked.
    """
    device = next(model.parameters()).device
    marked = [(row, place) for row, mask in enumerate(masks) for place, one in enumerate(mask) if one]
    if any(place == 0 for _, place in marked):
        raise ValueError("a row's first token has nothing before it and cannot be scored")
    tokens_N1 = torch.tensor([[rows[row][place]] for row, place in marked], device=device)
    row_N = torch.tensor([row for row, _ in marked], device=device)
    place_N = torch.tensor([place - 1 for _, place in marked], device=device)
    bare = model.model if type(model) is Scorer else model
    blockwise = not whole and logits_at_once(bare, len(marked)) < len(marked)
    if share and can_share(bare):
        hidden_ND = hidden_at(trunk_of(bare), rows, [(row, place - 1) for row, place in marked], pad_id)
        logits_NV = None if blockwise else head_logits(bare, hidden_ND, None)
    elif blockwise:
        output = trunk_of(bare)(input_ids=right_pad(rows, pad_id, device), use_cache=False)
        hidden_ND, logits_NV = output.last_hidden_state[row_N, place_N], None
    else:
        scorer = model if is_scorer(model) else Scorer(model)
        hidden_ND, logits_NV = scorer(right_pad(rows, pad_id, device), row_N, place_N)
    if logits_NV is None:
        head = unwrapped(bare).get_output_embeddings()
        found = _Blockwise.apply(hidden_ND, head, tokens_N1, temperature, entropy_learns)
        return *found, hidden_ND, hidden_ND.new_zeros(len(marked), 0)
    logits_NV = logits_NV.float() if temperature == 1 else logits_NV.float() / temperature  # without a copy
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
    logprob_N = logprobs_NV.gather(1, tokens_N1).squeeze(1)
    return logprob_N, entropy(logprobs_NV), hidden_ND, logprobs_NV if whole else logprobs_NV.new_zeros(len(marked), 0)


def logits_at_once(model: Any, count: int) -> int:
    """How many of `count` tokens have their logits at once: a block where the head does not learn, else all."""
    if is_scorer(model) or not has_plain_head(model):
        return count
    head = unwrapped(model).get_output_embeddings()
    return min(count, _block(head)) if type(head) is nn.Linear and not head.weight.requires_grad else count


def _block(head: nn.Linear) -> int:
    return max(1, BLOCK.get(head.weight.device.type, BLOCK["cuda"]) // len(head.weight))


class _Blockwise(torch.autograd.Function):
    """(log-probability, entropy) of each token (N) under a head that does not learn, a block of tokens at a time.

    A row of logits is as long as the vocabulary. Only those of a block exist at once, as their gradients, down to the
    hidden states, are computed with them. entropy_learns: whether the entropies have gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: torch.Tensor,
        head: nn.Linear,
        tokens_N1: torch.Tensor,
        temperature: float,
        entropy_learns: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found: list[list[torch.Tensor]] = [[], [], [], []]
        for hidden, tokens in zip(hidden_ND.split(_block(head)), tokens_N1.split(_block(head)), strict=True):
            logprobs = torch.log_softmax(head(hidden).float().div_(temperature), dim=-1)
            shares = logprobs.exp()
            found[0].append(logprobs.gather(1, tokens).squeeze(1))
            entropies = torch.linalg.vecdot(shares, logprobs).neg_()
            found[1].append(entropies)
            if ctx.needs_input_grad[0] and entropy_learns:
                slope = logprobs.add_(entropies[:, None]).mul_(shares).div_(-temperature)
                found[3].append(slope.to(head.weight.dtype) @ head.weight)
            if ctx.needs_input_grad[0]:
                slope = shares.neg_().scatter_add_(1, tokens, shares.new_ones(tokens.shape)).div_(temperature)
                found[2].append(slope.to(head.weight.dtype) @ head.weight)
        ctx.save_for_backward(*(torch.cat(slopes) for slopes in found[2:] if slopes))
        return torch.cat(found[0]), torch.cat(found[1])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        slopes = zip(ctx.saved_tensors, gradients, strict=False)
        return sum(slope * gradient[:, None].to(slope.dtype) for slope, gradient in slopes), None, None, None, None


class _Entropy(torch.autograd.Function):
    """Keeps nothing but its input, which for a text has a row of the whole vocabulary for each token."""

    @staticmethod
    def forward(ctx: Any, logprobs_BK: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logprobs_BK)
        return -logprobs_BK.exp().mul_(_finite(logprobs_BK)).sum(dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient_B: torch.Tensor) -> torch.Tensor:
        (logprobs_BK,) = ctx.saved_tensors
        share_BK, down_B1 = logprobs_BK.exp(), -gradient_B[..., None]
        return _finite(logprobs_BK).mul_(down_B1).mul_(share_BK).add_(share_BK.mul_(down_B1))


def _finite(logprobs_BK: torch.Tensor) -> torch.Tensor:
    return logprobs_BK.masked_fill(logprobs_BK.isinf(), 0.0)


def entropy(logprobs_BK: torch.Tensor) -> torch.Tensor:
    """Entropy of each row's distribution over its legal choices, in nats (B); entries of -inf are ignored."""
    return _Entropy.apply(logprobs_BK)


def is_scorer(model: Any) -> bool:
    """Whether `model` is a Scorer, wrapped or not."""
    return bool(getattr(model, "scores_tokens", False))


def unwrapped(model: Any) -> Any:
    """The Hugging Face model inside a LoRA wrapper (whose layers stay in place), or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def takes_positions(model: Any) -> bool:
    """Whether the model's forward takes positions."""
    return "position_ids" in inspect.signature(unwrapped(model).forward).parameters


def trunk_of(model: Any) -> Any:
    """The model below its LM head."""
    bare = unwrapped(model)
    return getattr(bare, bare.base_model_prefix)


def can_share(model: Any) -> bool:
    """Whether reading rows as a tree is exact for the model: its layers attend to all earlier positions and cache
    nothing but keys and values, it takes positions, and it does not recompute activations, which needs passes without a
    cache.
    """
    if is_scorer(model) or not has_plain_head(model):  # a Scorer is sharded over processes
        return False
    recomputes = torch.is_grad_enabled() and recomputes_activations(model)
    return takes_positions(model) and not recomputes and attends_to_all(model)


def recomputes_activations(model: Any) -> bool:
    """Whether the backward pass recomputes the activations of some layers (gradient checkpointing)."""
    return any(getattr(module, "gradient_checkpointing", False) for module in unwrapped(model).modules())


def attends_to_all(model: Any) -> bool:
    """Whether each layer attends to all earlier positions, and caches nothing but keys and values."""
    config = unwrapped(model).config.get_text_config()
    counts_columns = "local" in getattr(config, "attention_layers", ())  # GPT-Neo's window, which its cache ignores
    return not counts_columns and only_keys_and_values(DynamicCache(config=config))


def only_keys_and_values(cache: Any) -> bool:
    """Whether the cache holds the keys and values of all positions, and nothing else."""
    return isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in cache.layers)


def reads_branches(model: Any) -> bool:
    """Whether a prompt and the branches of its labels are read as one row: on a GPU, where that is exact."""
    inner = model.model if is_scorer(model) else model
    attention = getattr(unwrapped(inner).config, "_attn_implementation", None)
    if next(model.parameters()).device.type == "cpu" or attention != "sdpa":
        return False
    return has_plain_head(inner) and takes_positions(inner) and attends_to_all(inner)


def _branched(
    prompts: Sequence[Sequence[int]], tries: Sequence[Trie], device: torch.device
) -> tuple[list[Sequence[int]], list[tuple[int, int]], dict[str, torch.Tensor]]:
    """(each prompt with all of its chains, one after another; the row and place of every node; the model's other
    arguments: positions, and a mask that hides a chain from the others).
    """
    rows: list[Sequence[int]] = []
    nodes: list[tuple[int, int]] = []
    chains_of: list[list[int]] = []  # of each token: 0 in the prompt, then the number of its chain
    positions: list[list[int]] = []
    for prompt, tree in zip(prompts, tries, strict=True):
        length = len(prompt)
        starts = list(itertools.accumulate(map(len, tree.chains), initial=length))
        for node, chain in zip(tree.nodes, tree.chain_of, strict=True):
            nodes.append((len(rows), (starts[chain] if node.prefix else length) + len(node.prefix) - 1))
        rows.append([*prompt, *itertools.chain(*tree.chains)])
        chains_of.append([0] * length + [number for number, chain in enumerate(tree.chains, 1) for _ in chain])
        positions.append([*range(length), *(length + step for chain in tree.chains for step in range(len(chain)))])
    chain_BT = right_pad(chains_of, -1, device)
    seen_BTT = (chain_BT[:, None, :] == 0) | (chain_BT[:, None, :] == chain_BT[:, :, None])
    mask_B1TT = seen_BTT.tril()[:, None]
    return rows, nodes, {"attention_mask": mask_B1TT, "position_ids": right_pad(positions, 0, device)}


def _rows_and_nodes(
    prompts: Sequence[Sequence[int]], tries: Sequence[Trie]
) -> tuple[list[Sequence[int]], list[tuple[int, int]]]:
    """(each prompt with each of its chains; the row and place of every node)."""
    rows: list[Sequence[int]] = []
    nodes: list[tuple[int, int]] = []
    for prompt, tree in zip(prompts, tries, strict=True):
        places = [len(prompt) + len(node.prefix) - 1 for node in tree.nodes]
        nodes += [(len(rows) + chain, place) for chain, place in zip(tree.chain_of, places, strict=True)]
        rows += [[*prompt, *chain] for chain in tree.chains] or [prompt]
    return rows, nodes


def along_paths(logprobs_NC: torch.Tensor, tries: Sequence[Trie], roots: Sequence[int]) -> torch.Tensor:
    """logprobs_BK of the labels: the sums of logprobs_NC along their paths; -inf where a row has fewer than K. roots:
    the index of each row's root among the nodes of all rows.
    """
    width = logprobs_NC.shape[1]
    certain = logprobs_NC.numel()  # index of a 0, for paths with fewer steps than the longest
    most = max(len(tree.steps) for tree in tries)
    longest = max(len(path) for tree in tries for path in tree.steps)
    index_BKS = torch.full((len(tries), most, longest), certain)
    for row, (root, tree) in enumerate(zip(roots, tries, strict=True)):
        for label, path in enumerate(tree.steps):
            index_BKS[row, label, : len(path)] = torch.tensor([(root + node) * width + child for node, child in path])
    flat = torch.cat([logprobs_NC.flatten(), logprobs_NC.new_zeros(1)])
    legal_BK = torch.tensor([[True] * len(tree.steps) + [False] * (most - len(tree.steps)) for tree in tries])
    logprobs_BK = flat[index_BKS.to(flat.device)].sum(dim=-1)
    return logprobs_BK.masked_fill(~legal_BK.to(flat.device), float("-inf"))


def _last_hidden(model: Any, prompts: Sequence[Sequence[int]], pad_id: int) -> torch.Tensor | None:
    """hidden_BD of the prompts' last positions, with their common prefix read once; None if that is too short to be
    worth a pass, or if the model caches other things than keys and values.
    """
    keys = [tuple(row) for row in prompts]
    length = min(shared_length(min(keys), max(keys)), min(map(len, keys)) - 1)  # what these two share, all share
    if length < SHORTEST_PREFIX or len(keys) < 2 or not has_plain_head(model) or not attends_to_all(model):
        return None
    prefix = torch.tensor([keys[0][:length]], device=next(model.parameters()).device)
    cache = getattr(trunk_of(model)(input_ids=prefix, use_cache=True), CACHE)
    if not only_keys_and_values(cache):
        return None
    cache.batch_repeat_interleave(len(keys))
    rest = [prompt[length:] for prompt in prompts]
    input_ids_BT = right_pad(rest, pad_id, next(model.parameters()).device)
    hidden_BTD = trunk_of(model)(input_ids=input_ids_BT, use_cache=True, **{CACHE: cache}).last_hidden_state
    places_B = torch.tensor([len(row) - 1 for row in rest], device=hidden_BTD.device)
    hidden_BD: torch.Tensor = hidden_BTD[torch.arange(len(rest), device=hidden_BTD.device), places_B]
    return hidden_BD


def has_plain_head(model: Any) -> bool:
    """Whether the logits are those of the head, unchanged."""
    config = unwrapped(model).config.get_text_config()
    return not any(getattr(config, name, None) not in (None, 1, 1.0) for name in PLAIN_HEAD_BLOCKERS)


def head_logits(model: Any, hidden_ND: torch.Tensor, label_ids_NK: torch.Tensor | None) -> torch.Tensor:
    """Logits of the labels (N, K), or of the whole vocabulary (N, V)."""
    head = unwrapped(model).get_output_embeddings()
    if label_ids_NK is not None and type(head) is nn.Linear and head.weight.shape[-1] == hidden_ND.shape[-1]:
        rows_NKD = head.weight[label_ids_NK]
        logits_NK = torch.einsum("nd,nkd->nk", hidden_ND.to(rows_NKD.dtype), rows_NKD)
        return logits_NK if head.bias is None else logits_NK + head.bias[label_ids_NK]
    logits_NV = head(hidden_ND)  # a LoRA, quantised or sharded head computes its own rows
    return logits_NV if label_ids_NK is None else logits_NV.gather(1, label_ids_NK)


DEPTH = 3  # how often a row may leave another one; deeper branches are read again
NARROW = 16  # tokens; chunks as short as this are read together, whatever their lengths


@dataclass(frozen=True)
class Chunk:
    """What is read of one row: its tokens from `start` on, after the read tokens with the numbers `before` (start)."""

    row: int
    start: int
    before: list[int]


@dataclass
class Tree:
    """How R rows are read."""

    levels: list[list[list[Chunk]]] = field(default_factory=list)
    """Passes, each of several chunks; those of a level need only what earlier levels have read."""
    paths: list[list[int]] = field(default_factory=list)
    """For each row, the numbers of its tokens among all that are read, in reading order."""


def right_pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> torch.Tensor:
    """`rows` as one tensor (B, T), padded on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows], device=device)


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of tokens that both begin with."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def read_together(length: int, widest: int) -> bool:
    """Whether `length` tokens go into a pass of `widest`: at least half as many, or all of them few."""
    return 2 * length >= widest or widest <= NARROW


def tree_of(rows: Sequence[Sequence[int]], at_once: int | None = None) -> Tree:
    """The tree of `rows`, none of which is empty. at_once: most chunks in a pass."""
    owner: list[int] = [-1]  # of each node of the trie of rows: the row that reads it; the root has none
    below: list[dict[int, int]] = [{}]
    chunks: dict[int, tuple[int, int, int]] = {}  # of each row: level, start, the row that it leaves
    for row in sorted(range(len(rows)), key=lambda index: -len(rows[index])):  # longer rows first, as trunks
        tokens, node, shared, usable, leaves = rows[row], 0, 0, 0, -1
        for token in tokens:
            following = below[node].get(token)
            if following is None:
                break
            node, shared = following, shared + 1
            if chunks[owner[node]][0] < DEPTH or shared == len(tokens):
                usable, leaves = shared, owner[node]
        if usable < SHORTEST_PREFIX:
            usable, leaves = 0, -1
        chunks[row] = (0 if leaves < 0 else chunks[leaves][0] + 1, usable, leaves)
        for token in tokens[shared:]:
            below[node][token] = len(owner)
            node = len(owner)
            owner.append(row)
            below.append({})
    tree, count = Tree(paths=[[] for _ in rows]), 0
    for row in sorted(range(len(rows)), key=lambda index: (chunks[index][0], chunks[index][1] - len(rows[index]))):
        level, start, leaves = chunks[row]
        before = tree.paths[leaves][:start] if start else []
        length = len(rows[row]) - start
        tree.paths[row] = before + list(range(count, count + length))
        count += length
        if not length:
            continue  # another row begins with it
        while len(tree.levels) <= level:
            tree.levels.append([])
        passes = tree.levels[level]
        widest = len(rows[passes[-1][0].row]) - passes[-1][0].start if passes else 0
        if passes and read_together(length, widest) and len(passes[-1]) < (at_once or len(rows)):
            passes[-1].append(Chunk(row, start, before))
        else:
            passes.append([Chunk(row, start, before)])
    return tree


def _are_read_beside(trunk: Any, chunks: Sequence[Chunk]) -> bool:
    """Whether several chunks are read in one row, in which they do not see each other: where all follow the same
    tokens, whose keys and values are then not copied for each. Only without gradients, so that training rounds as ever.
    """
    first = chunks[0].before
    if torch.is_grad_enabled() or len(chunks) < 2 or not first or trunk.config._attn_implementation != "sdpa":
        return False
    return all(chunk.before == first for chunk in chunks)


def _side_by_side(tokens: Sequence[Sequence[int]], past: int, device: torch.device) -> dict[str, torch.Tensor]:
    """The model's arguments that read `tokens` in one row (W), each after `past` earlier tokens and its own."""
    owners_W = torch.tensor([number for number, own in enumerate(tokens) for _ in own], device=device)
    own_WW = (owners_W[:, None] == owners_W[None, :]).tril()
    before_WP = torch.ones(len(owners_W), past, dtype=torch.bool, device=device)
    return {
        "input_ids": torch.tensor([[token for own in tokens for token in own]], device=device),
        "attention_mask": torch.cat([before_WP, own_WW], dim=1)[None, None],
        "position_ids": torch.tensor([[past + step for own in tokens for step in range(len(own))]], device=device),
    }


def hidden_at(
    trunk: Any,
    rows: Sequence[Sequence[int]],
    places: Sequence[tuple[int, int]],
    pad_id: int,
    at_once: int | None = None,
) -> torch.Tensor:
    """The last hidden states (N, D) at N (row, place) pairs.

    trunk: a model below its head, which attends to all earlier positions and takes positions. at_once: see `tree_of`.
    """
    device = next(trunk.parameters()).device
    tree = tree_of(rows, at_once)
    states: list[torch.Tensor] = []  # of the read tokens (n, D), pass by pass
    keys: list[list[torch.Tensor]] = []  # by layer: (n, heads, size) of the read tokens
    values: list[list[torch.Tensor]] = []
    for number, level in enumerate(tree.levels):
        last = number == len(tree.levels) - 1
        keys, values = ([[torch.cat(parts)] for parts in layers] for layers in (keys, values))
        for chunks in level:
            tokens = [rows[chunk.row][chunk.start :] for chunk in chunks]
            beside = _are_read_beside(trunk, chunks)
            past, width = max(len(chunk.before) for chunk in chunks), max(map(len, tokens))
            cache = DynamicCache()
            if past:
                index_MP = right_pad([chunk.before for chunk in (chunks[:1] if beside else chunks)], 0, device)
                for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
                    cache.update(key[0][index_MP].transpose(1, 2), value[0][index_MP].transpose(1, 2), layer)
            if beside:
                output = trunk(**_side_by_side(tokens, past, device), **{CACHE: cache}, use_cache=True)
                states.append(output.last_hidden_state[0])
                if not last:
                    for layer, held in enumerate(getattr(output, CACHE).layers):
                        keys[layer].append(held.keys[0, :, past:].transpose(0, 1))
                        values[layer].append(held.values[0, :, past:].transpose(0, 1))
                continue
            seen, positions = [], []
            for chunk, own in zip(chunks, tokens, strict=True):
                gap, rest = past - chunk.start, width - len(own)
                seen.append([1] * chunk.start + [0] * gap + [1] * len(own) + [0] * rest)
                positions.append([chunk.start + min(step, len(own) - 1) for step in range(width)])
            output = trunk(
                input_ids=right_pad(tokens, pad_id, device),
                **{CACHE: cache},
                attention_mask=torch.tensor(seen, device=device),
                position_ids=torch.tensor(positions, device=device),
                use_cache=True,
            )
            own_MW = torch.tensor([row[past:] for row in seen], device=device, dtype=torch.bool)
            states.append(output.last_hidden_state[own_MW])
            if not last:
                for layer, held in enumerate(getattr(output, CACHE).layers):
                    if len(keys) <= layer:
                        keys.append([])
                        values.append([])
                    keys[layer].append(held.keys[:, :, past:].transpose(1, 2)[own_MW])
                    values[layer].append(held.values[:, :, past:].transpose(1, 2)[own_MW])
    index_N = torch.tensor([tree.paths[row][place] for row, place in places], device=device)
    return torch.cat(states)[index_N]
