"""Log-probabilities of choices and text, for the agent that samples and for the learner that
differentiates.

A choice among labels of one token takes one forward pass over the prompt: the LM head's rows of the
legal labels are applied to the last hidden state alone, and the log-softmax is over the legal
labels. Longer labels are read as a tree up to where they part (`models/labels.py`). For text, the
head is applied only where tokens were sampled. The softmax of the Reflect-RL code was over 252
labels, legal or not.

`models/rows.py` lays out the rows and reads once what they begin with. On a GPU, where many small
passes are slow, a prompt and all branches of its labels are one row.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from reflectkit.models.architecture import (
    attends_to_all,
    has_plain_head,
    recomputes_activations,
    takes_masks,
    takes_positions,
    trunk_of,
    unwrapped,
)
from reflectkit.models.labels import Path, Trie, apart, trie
from reflectkit.models.rows import (
    Plan,
    Row,
    pass_arguments,
    plan_common_prefix,
    plan_tree,
    read,
    right_pad,
)

CHAINS = 16  # at least so many rows are in one pass when sampling
ROW, PASS = 256, 16384
"""Tokens of labels that are read together after a short prompt, and tokens of a pass where labels
are read alone.
"""
BLOCK = {"cpu": 2**23, "cuda": 2**26}  # logits that are computed at once, by device


class Scorer(nn.Module):
    """A model's hidden states and logits at given positions, as the one `forward` for everything.

    What shards the model (FSDP) wraps this, and so sees every use of its weights.
    """

    scores_tokens = True

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        # The layers that FSDP wraps one by one
        self._no_split_modules = getattr(unwrapped(model), "_no_split_modules", None)

    def forward(
        self,
        input_ids_BT: torch.Tensor,
        row_N: torch.Tensor,
        place_N: torch.Tensor,
        label_ids_NK: torch.Tensor | None = None,
        **arguments: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(hidden_ND, logits) at place_N of rows row_N; logits of the labels (N, K), or of the
        whole vocabulary (N, V). arguments: the model's others, of `rows.pass_arguments`.
        """
        if has_plain_head(self.model):
            output = trunk_of(self.model)(input_ids=input_ids_BT, use_cache=False, **arguments)
            hidden_ND = output.last_hidden_state[row_N, place_N]
            return hidden_ND, head_logits(self.model, hidden_ND, label_ids_NK)
        places_U, index_N = torch.unique(place_N, return_inverse=True)
        output = unwrapped(self.model)(
            input_ids=input_ids_BT,
            use_cache=False,
            logits_to_keep=places_U,
            output_hidden_states=True,
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
    """Log-probabilities of the legal labels after each prompt. Gradients flow unless the caller
    disables them; then the common prefix of the prompts is read once.

    model: a model or its Scorer. prompts: token ids of B prompts. labels: the tokens of each
    prompt's legal labels, K at most. temperature: divides the logits wherever labels part, > 0.
    share: read what prompts begin with once, if the model allows. separately: each label is read
    alone, and its score is `label_scores`.

    Returns ------- logprobs_BK: normalised over each row's own labels; -inf where a row has fewer
    than K. hidden_BD: the last position's hidden state, for a critic.
    """
    if separately:
        scores_BK, hidden_BD = label_scores(model, prompts, labels, pad_id=pad_id)
        return torch.log_softmax(scores_BK / temperature, dim=-1), hidden_BD
    # 1. The nodes of all rows, where labels part: row by row, the root first
    device = next(model.parameters()).device
    tries = [trie(tuple(row)) for row in labels]
    children = [node.children for tree in tries for node in tree.nodes]
    width = max(map(len, children))
    children_NC = torch.tensor(
        [[*row, *[row[0]] * (width - len(row))] for row in children], device=device
    )
    count_N1 = torch.tensor([[len(row)] for row in children], device=device)
    legal_NC = torch.arange(width, device=device) < count_N1
    # 2. Their hidden states and logits
    has_chains = any(tree.chains for tree in tries)
    together = has_chains and not share and reads_branches(model)
    rows, nodes = _rows_and_nodes(prompts, tries, together)
    plan = None
    if not together:
        plan = _plan(model, [row.stem for row in rows], len(prompts), share or has_chains)
    if plan is not None:
        bare = model.model if is_scorer(model) else model
        hidden_ND = read(trunk_of(bare), plan, pad_id).hidden_at(nodes)
        logits_NC = head_logits(bare, hidden_ND, children_NC)
    else:
        hidden_ND, logits_NC = _score_rows(model, rows, nodes, children_NC, pad_id)
    # 3. Log-probabilities of the children of each node, and of the labels as sums along their paths
    logits_NC = logits_NC.float().masked_fill(~legal_NC, float("-inf"))
    logprobs_NC = torch.log_softmax(logits_NC / temperature, dim=-1)
    if len(children) == len(prompts):  # labels part at the root alone
        return logprobs_NC, hidden_ND
    roots = list(itertools.accumulate((len(tree.nodes) for tree in tries), initial=0))[:-1]
    logprobs_BK = along_paths(logprobs_NC, tries, roots)
    return logprobs_BK, hidden_ND[torch.tensor(roots, device=device)]


def _plan(
    model: Any,
    rows: Sequence[Sequence[int]],
    prompts: int,
    share: bool,
) -> Plan | None:
    """How to read `rows`, which begin with so many prompts; None: in one pass, each in whole."""
    bare = model.model if type(model) is Scorer else model
    sampling = not torch.is_grad_enabled()
    if share and can_share(bare):
        return plan_tree(rows, most=max(CHAINS, prompts) if sampling else None)
    if sampling and not is_scorer(model) and has_plain_head(bare) and attends_to_all(bare):
        return plan_common_prefix(rows)
    return None


def _score_rows(
    model: Any,
    rows: Sequence[Row],
    nodes: Sequence[tuple[int, int]],
    label_ids_NK: torch.Tensor | None,
    pad_id: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(hidden_ND, logits) at N (row, place) pairs in one pass; see `Scorer.forward`."""
    device = next(model.parameters()).device
    scorer = model if is_scorer(model) else Scorer(model)
    row_N, place_N = (torch.tensor(column, device=device) for column in zip(*nodes, strict=True))
    arguments = pass_arguments(rows, pad_id, device)
    return scorer(arguments.pop("input_ids"), row_N, place_N, label_ids_NK, **arguments)


def label_scores(
    model: Any,
    prompts: Sequence[Sequence[int]],
    labels: Sequence[tuple[Path, ...]],
    *,
    pad_id: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The score of each label, read alone after its prompt: the logit of its last token, the end
    token, at that token.

    A label that several rows with the same prompt have is read once. Where the model allows, a
    prompt and as many of its labels as fit into a row are read together, hidden from one another.
    Arguments are those of `choice_logprobs`.

    Returns ------- scores_BK: in float32; -inf where a row has fewer than K. hidden_BD: the
    prompts' last hidden state.
    """
    device = next(model.parameters()).device
    # 1. The different labels of each prompt, in parts that fit into a row
    labels_of: dict[tuple[int, ...], dict[Path, int]] = {}
    for prompt, row in zip(map(tuple, prompts), labels, strict=True):
        numbers = labels_of.setdefault(prompt, {})
        for path in row:
            numbers.setdefault(path, len(numbers))
    bare = model.model if is_scorer(model) else model
    together = (
        takes_masks(bare)
        and has_plain_head(bare)
        and takes_positions(bare)
        and attends_to_all(bare)
    )
    parts: list[tuple[tuple[int, ...], Trie]] = []
    for prompt, numbers in labels_of.items():
        for group in _groups(tuple(numbers), together, max(ROW, 2 * len(prompt))):
            parts.append((prompt, apart(group)))
    # 2. Several passes of similar rows; only one of a model that is spread over processes
    order = sorted(range(len(parts)), key=lambda number: _row_length(parts[number]))
    spread = is_scorer(model) and type(model) is not Scorer
    most = len(parts) if spread else max(1, PASS // max(1, _row_length(parts[order[-1]])))
    scores: dict[int, torch.Tensor] = {}
    hidden: dict[int, torch.Tensor] = {}
    for first in range(0, len(order), most):
        numbers_here = order[first : first + most]
        stems = [parts[number][0] for number in numbers_here]
        tries = [parts[number][1] for number in numbers_here]
        rows, nodes = _rows_and_nodes(stems, tries, together)
        end_N1 = torch.tensor(
            [node.children for tree in tries for node in tree.nodes], device=device
        )
        hidden_ND, logits_N1 = _score_rows(model, rows, nodes, end_N1, pad_id)
        sizes = [len(tree.nodes) for tree in tries]
        for number, states, logits in zip(
            numbers_here, hidden_ND.split(sizes), logits_N1.split(sizes), strict=True
        ):
            scores[number] = logits[1:, 0].float()
            hidden[number] = states[0]
    # 3. The labels of each row
    no_score = hidden_ND.new_zeros(1).float()
    scores_P = torch.cat([*(scores[number] for number in range(len(parts))), no_score])
    begins: dict[tuple[int, ...], int] = {}
    state_of: dict[tuple[int, ...], torch.Tensor] = {}
    count = 0
    for number, (prompt, tree) in enumerate(parts):
        begins.setdefault(prompt, count)
        state_of.setdefault(prompt, hidden[number])
        count += len(tree.chains)
    index_BK = torch.full((len(prompts), max(map(len, labels))), count)
    for place, (prompt, row) in enumerate(zip(map(tuple, prompts), labels, strict=True)):
        numbers, start = labels_of[prompt], begins[prompt]
        index_BK[place, : len(row)] = torch.tensor([start + numbers[path] for path in row])
    index_BK = index_BK.to(device)
    scores_BK = scores_P[index_BK].masked_fill(index_BK == count, float("-inf"))
    return scores_BK, torch.stack([state_of[tuple(prompt)] for prompt in prompts])


def _groups(
    labels: tuple[Path, ...],
    together: bool,
    most: int,
) -> list[tuple[Path, ...]]:
    """`labels` in groups of at most `most` tokens; a longer label is alone. All in one where they
    are rows anyway.
    """
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
    """Log-probabilities of the tokens that each row's mask marks with 1, given all tokens before
    them. share: see `choice_logprobs`. whole: return the distributions too. entropy_learns: whether
    the entropy needs gradients.

    Returns ------- logprob_N, entropy_N: of the N marked tokens, row by row, and of the
    distributions that they are from. hidden_ND: of the position before each marked token.
    logprobs_NV: over the vocabulary at the same positions; (N, 0) unless `whole`. Raises ValueError
    if a row's first token is marked.
    """
    device = next(model.parameters()).device
    places_of_tokens: list[tuple[int, int]] = []
    for row, mask in enumerate(masks):
        places_of_tokens += [(row, place) for place, is_marked in enumerate(mask) if is_marked]
    if any(place == 0 for _, place in places_of_tokens):
        raise ValueError("a row's first token has nothing before it and cannot be scored")
    tokens_N1 = torch.tensor([[rows[row][place]] for row, place in places_of_tokens], device=device)
    # 1. The hidden states before the marked tokens, and their logits where these fit into memory at
    # once
    places = [(row, place - 1) for row, place in places_of_tokens]
    bare = model.model if type(model) is Scorer else model
    blockwise = not whole and logits_at_once(bare, len(places_of_tokens)) < len(places_of_tokens)
    if blockwise or (share and can_share(bare)):
        hidden_ND = _hidden(bare, rows, places, pad_id, share)
        logits_NV = None if blockwise else head_logits(bare, hidden_ND, None)
    else:
        hidden_ND, logits_NV = _score_rows(model, [Row(row) for row in rows], places, None, pad_id)
    # 2. Log-probabilities and entropies, for a block of tokens at a time or for all
    none_NV = hidden_ND.new_zeros(len(places_of_tokens), 0)
    if logits_NV is None:
        head = unwrapped(bare).get_output_embeddings()
        blocks = _Blockwise.apply(hidden_ND, head, tokens_N1, temperature, entropy_learns)
        return *blocks, hidden_ND, none_NV
    logits_NV = logits_NV.float()
    if temperature != 1:
        logits_NV = logits_NV / temperature
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
    logprob_N = logprobs_NV.gather(1, tokens_N1).squeeze(1)
    return logprob_N, entropy(logprobs_NV), hidden_ND, logprobs_NV if whole else none_NV.float()


def _hidden(
    model: Any,
    rows: Sequence[Sequence[int]],
    places: Sequence[tuple[int, int]],
    pad_id: int,
    share: bool,
) -> torch.Tensor:
    """The last hidden states (N, D) at N (row, place) pairs, with gradients. share: see
    `choice_logprobs`.
    """
    if share and can_share(model):
        return read(trunk_of(model), plan_tree(rows), pad_id).hidden_at(places)
    device = next(model.parameters()).device
    hidden_BTD = trunk_of(model)(
        input_ids=right_pad(rows, pad_id, device), use_cache=False
    ).last_hidden_state
    index_N2 = torch.tensor(places, device=device)
    return hidden_BTD[index_N2[:, 0], index_N2[:, 1]]


def logits_at_once(model: Any, count: int) -> int:
    """How many of `count` tokens have their logits at once: a block where the head does not learn,
    else all.
    """
    if is_scorer(model) or not has_plain_head(model):
        return count
    head = unwrapped(model).get_output_embeddings()
    return (
        min(count, _block(head))
        if type(head) is nn.Linear and not head.weight.requires_grad
        else count
    )


def _block(head: nn.Linear) -> int:
    return max(1, BLOCK.get(head.weight.device.type, BLOCK["cuda"]) // len(head.weight))


class _Blockwise(torch.autograd.Function):
    """(log-probability, entropy) of each token (N) under a head that does not learn, a block of
    tokens at a time.

    A row of logits is as long as the vocabulary. Only those of a block exist at once, as their
    gradients, down to the hidden states, are computed with them. entropy_learns: whether the
    entropies have gradients.
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
        parts: list[list[torch.Tensor]] = [[], [], [], []]
        for hidden, tokens in zip(
            hidden_ND.split(_block(head)), tokens_N1.split(_block(head)), strict=True
        ):
            # 1. Log-probabilities and entropies of a block
            logprobs = torch.log_softmax(head(hidden).float().div_(temperature), dim=-1)
            shares = logprobs.exp()
            parts[0].append(logprobs.gather(1, tokens).squeeze(1))
            entropies = torch.linalg.vecdot(shares, logprobs).neg_()
            parts[1].append(entropies)
            # 2. Their gradients down to the hidden states, in the memory of the logits
            if ctx.needs_input_grad[0] and entropy_learns:
                slope = logprobs.add_(entropies[:, None]).mul_(shares).div_(-temperature)
                parts[3].append(slope.to(head.weight.dtype) @ head.weight)
            if ctx.needs_input_grad[0]:
                slope = (
                    shares.neg_()
                    .scatter_add_(1, tokens, shares.new_ones(tokens.shape))
                    .div_(temperature)
                )
                parts[2].append(slope.to(head.weight.dtype) @ head.weight)
        ctx.save_for_backward(*(torch.cat(slopes) for slopes in parts[2:] if slopes))
        return torch.cat(parts[0]), torch.cat(parts[1])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        slopes = zip(ctx.saved_tensors, gradients, strict=False)
        return (
            sum(slope * gradient[:, None].to(slope.dtype) for slope, gradient in slopes),
            None,
            None,
            None,
            None,
        )


class _Entropy(torch.autograd.Function):
    """Keeps nothing but its input, which for a text has a row of the whole vocabulary for each
    token.
    """

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
    """Entropy of each row's distribution over its legal choices, in nats (B); entries of -inf are
    ignored.
    """
    return _Entropy.apply(logprobs_BK)


def is_scorer(model: Any) -> bool:
    """Whether `model` is a Scorer, wrapped or not."""
    return bool(getattr(model, "scores_tokens", False))


def can_share(model: Any) -> bool:
    """Whether reading rows as a tree is exact for the model: its layers attend to all earlier
    positions and cache nothing but keys and values, it takes positions, and it does not recompute
    activations, which needs passes without a cache.
    """
    if is_scorer(model) or not has_plain_head(model):  # a Scorer is sharded over processes
        return False
    recomputes = torch.is_grad_enabled() and recomputes_activations(model)
    return takes_positions(model) and not recomputes and attends_to_all(model)


def reads_branches(model: Any) -> bool:
    """Whether a prompt and the branches of its labels are read as one row: on a GPU, where that is
    exact.
    """
    if next(model.parameters()).device.type == "cpu":
        return False
    inner = model.model if is_scorer(model) else model
    return (
        takes_masks(inner)
        and has_plain_head(inner)
        and takes_positions(inner)
        and attends_to_all(inner)
    )


def _rows_and_nodes(
    prompts: Sequence[Sequence[int]],
    tries: Sequence[Trie],
    together: bool,
) -> tuple[list[Row], list[tuple[int, int]]]:
    """(rows, the row and place of every node). together: each prompt and the chains of its labels
    are one row, with the chains as branches; else each chain is the end of a row.
    """
    rows: list[Row] = []
    nodes: list[tuple[int, int]] = []
    for prompt, tree in zip(prompts, tries, strict=True):
        starts = [len(prompt)] * max(1, len(tree.chains))
        if together:
            starts = list(itertools.accumulate(map(len, tree.chains), initial=len(prompt)))
        for node, chain in zip(tree.nodes, tree.chain_of, strict=True):
            row = len(rows) if together else len(rows) + chain
            start = starts[chain] if node.prefix else len(prompt)
            nodes.append((row, start + len(node.prefix) - 1))
        if together or not tree.chains:
            rows.append(Row(prompt, tree.chains))
        else:
            rows += [Row([*prompt, *chain]) for chain in tree.chains]
    return rows, nodes


def along_paths(
    logprobs_NC: torch.Tensor,
    tries: Sequence[Trie],
    roots: Sequence[int],
) -> torch.Tensor:
    """logprobs_BK of the labels: the sums of logprobs_NC along their paths; -inf where a row has
    fewer than K. roots: the index of each row's root among the nodes of all rows.
    """
    width = logprobs_NC.shape[1]
    certain = logprobs_NC.numel()  # index of a 0, for paths with fewer steps than the longest
    most = max(len(tree.steps) for tree in tries)
    longest = max(len(path) for tree in tries for path in tree.steps)
    index_BKS = torch.full((len(tries), most, longest), certain)
    for row, (root, tree) in enumerate(zip(roots, tries, strict=True)):
        for label, path in enumerate(tree.steps):
            index_BKS[row, label, : len(path)] = torch.tensor(
                [(root + node) * width + child for node, child in path]
            )
    flat = torch.cat([logprobs_NC.flatten(), logprobs_NC.new_zeros(1)])
    legal_BK = torch.tensor(
        [[True] * len(tree.steps) + [False] * (most - len(tree.steps)) for tree in tries]
    )
    logprobs_BK = flat[index_BKS.to(flat.device)].sum(dim=-1)
    return logprobs_BK.masked_fill(~legal_BK.to(flat.device), float("-inf"))


def head_logits(
    model: Any,
    hidden_ND: torch.Tensor,
    label_ids_NK: torch.Tensor | None,
) -> torch.Tensor:
    """Logits of the labels (N, K), or of the whole vocabulary (N, V).

    Those of labels are in float32: in bfloat16, a logit of 18 is a multiple of 1/16, and labels that
    are equally likely would differ.
    """
    head = unwrapped(model).get_output_embeddings()
    if (
        label_ids_NK is not None
        and type(head) is nn.Linear
        and head.weight.shape[-1] == hidden_ND.shape[-1]
    ):
        rows_NKD = head.weight[label_ids_NK].float()
        logits_NK = torch.einsum("nd,nkd->nk", hidden_ND.float(), rows_NKD)
        return logits_NK if head.bias is None else logits_NK + head.bias[label_ids_NK]
    logits_NV = head(hidden_ND)  # a LoRA, quantised or sharded head computes its own rows
    return logits_NV if label_ids_NK is None else logits_NV.gather(1, label_ids_NK)
