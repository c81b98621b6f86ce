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

    Returns (logprobs_BK, hidden_BD): normalised over each row's own labels, and -inf where a row
    has fewer than K; the last position's hidden state, for a critic.
    """
    if separately:
        scores_BK, hidden_BD = label_scores(model, prompts, labels, pad_id=pad_id)
        return torch.log_softmax(scores_BK / temperature, dim=-1), hidden_BD
    # 1. The nodes of all rows, where labels part: row by row, the root first
    device = next(model.parameters()).device
    tries = [trie(tuple(row)) for row in labels]
    children = [node.children for tree in tries for node in tree.nodes]
    width = max(map(len, children))
    padded = [[*row, *[row[0]] * (width - len(row))] for row in children]
    children_NC = torch.tensor(padded, device=device)
    count_N1 = torch.tensor([[len(row)] for row in children], device=device)
    legal_NC = torch.arange(width, device=device) < count_N1

    # 2. Their hidden states and logits
    has_chains = any(tree.chains for tree in tries)
    together = has_chains and not share and reads_branches(model)
    rows, nodes = _rows_and_nodes(prompts, tries, together)
    plan = None
    if not together:
        stems = [row.stem for row in rows]
        plan = _plan(model, stems, len(prompts), share or has_chains)
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
    sizes = [len(tree.nodes) for tree in tries]
    roots = list(itertools.accumulate(sizes, initial=0))[:-1]
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
        most = max(CHAINS, prompts) if sampling else None
        return plan_tree(rows, most=most)
    if not sampling or is_scorer(model):
        return None
    if has_plain_head(bare) and attends_to_all(bare):
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
    row_N, place_N = torch.tensor(nodes, device=device).unbind(dim=1)
    arguments = pass_arguments(rows, pad_id, device)
    input_ids_BT = arguments.pop("input_ids")
    return scorer(input_ids_BT, row_N, place_N, label_ids_NK, **arguments)


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

    Returns (scores_BK, hidden_BD): in float32, and -inf where a row has fewer than K; the prompts'
    last hidden state.
    """
    device = next(model.parameters()).device
    keys = [tuple(prompt) for prompt in prompts]

    # 1. The different labels of each prompt, in parts that fit into a row
    labels_of: dict[tuple[int, ...], dict[Path, int]] = {}
    for prompt, row in zip(keys, labels, strict=True):
        numbers = labels_of.setdefault(prompt, {})
        for path in row:
            numbers.setdefault(path, len(numbers))
    together = _hides_branches(model.model if is_scorer(model) else model)
    parts: list[tuple[tuple[int, ...], Trie]] = []
    for prompt, numbers in labels_of.items():
        most_tokens = max(ROW, 2 * len(prompt))
        for group in _groups(tuple(numbers), together, most_tokens):
            parts.append((prompt, apart(group)))

    # 2. Several passes of similar rows; only one of a model that is spread over processes
    order = sorted(range(len(parts)), key=lambda number: _row_length(parts[number]))
    is_spread = is_scorer(model) and type(model) is not Scorer
    longest = max(1, _row_length(parts[order[-1]]))
    most_parts = len(parts) if is_spread else max(1, PASS // longest)
    scores: dict[int, torch.Tensor] = {}
    hidden: dict[int, torch.Tensor] = {}
    for first in range(0, len(order), most_parts):
        numbers_here = order[first : first + most_parts]
        stems = [parts[number][0] for number in numbers_here]
        tries = [parts[number][1] for number in numbers_here]
        rows, nodes = _rows_and_nodes(stems, tries, together)
        ends = [node.children for tree in tries for node in tree.nodes]
        end_N1 = torch.tensor(ends, device=device)
        hidden_ND, logits_N1 = _score_rows(model, rows, nodes, end_N1, pad_id)
        # The root of a part is the prompt's end; each other node is the end of a label
        sizes = [len(tree.nodes) for tree in tries]
        hidden_of_parts = hidden_ND.split(sizes)
        logits_of_parts = logits_N1.split(sizes)
        for place, number in enumerate(numbers_here):
            hidden[number] = hidden_of_parts[place][0]
            scores[number] = logits_of_parts[place][1:, 0].float()

    # 3. All scores, one after another, and where those of each prompt begin
    score_parts = [scores[number] for number in range(len(parts))]
    no_score = hidden_ND.new_zeros(1).float()
    scores_P = torch.cat([*score_parts, no_score])
    begins: dict[tuple[int, ...], int] = {}
    state_of: dict[tuple[int, ...], torch.Tensor] = {}
    count = 0
    for number, (prompt, tree) in enumerate(parts):
        begins.setdefault(prompt, count)
        state_of.setdefault(prompt, hidden[number])
        count += len(tree.chains)

    # 4. The labels of each row
    width = max(map(len, labels))
    index_BK = torch.full((len(prompts), width), count)
    for place, (prompt, row) in enumerate(zip(keys, labels, strict=True)):
        start = begins[prompt]
        numbers = labels_of[prompt]
        index = [start + numbers[path] for path in row]
        index_BK[place, : len(row)] = torch.tensor(index)
    index_BK = index_BK.to(device)
    scores_BK = scores_P[index_BK].masked_fill(index_BK == count, float("-inf"))
    hidden_BD = torch.stack([state_of[prompt] for prompt in keys])
    return scores_BK, hidden_BD


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
    prompt, tree = part
    return len(prompt) + sum(map(len, tree.chains))


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

    Returns (logprob_N, entropy_N, hidden_ND, logprobs_NV): of the N marked tokens, row by row; of
    the distributions that they are from; the hidden state before each; over the vocabulary at the
    same positions, (N, 0) unless `whole`. Raises ValueError if a row's first token is marked.
    """
    device = next(model.parameters()).device
    # 1. The marked tokens, and the places before them
    tokens: list[list[int]] = []
    places: list[tuple[int, int]] = []
    for number, (row, mask) in enumerate(zip(rows, masks, strict=True)):
        for place, is_marked in enumerate(mask):
            if is_marked:
                tokens.append([row[place]])
                places.append((number, place - 1))
    if any(place < 0 for _, place in places):
        raise ValueError("a row's first token has nothing before it and cannot be scored")
    tokens_N1 = torch.tensor(tokens, device=device)
    count = len(places)

    # 2. The hidden states there, and their logits where these fit into memory at once
    bare = model.model if type(model) is Scorer else model
    blockwise = not whole and logits_at_once(bare, count) < count
    if blockwise or (share and can_share(bare)):
        hidden_ND = _hidden(bare, rows, places, pad_id, share)
        logits_NV = None if blockwise else head_logits(bare, hidden_ND, None)
    else:
        stems = [Row(row) for row in rows]
        hidden_ND, logits_NV = _score_rows(model, stems, places, None, pad_id)

    # 3. Log-probabilities and entropies, for a block of tokens at a time or for all
    none_NV = hidden_ND.new_zeros(count, 0)
    if logits_NV is None:
        head = unwrapped(bare).get_output_embeddings()
        blocks = _Blockwise.apply(hidden_ND, head, tokens_N1, temperature, entropy_learns)
        return *blocks, hidden_ND, none_NV
    logits_NV = logits_NV.float()
    if temperature != 1:
        logits_NV = logits_NV / temperature
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
    logprob_N = logprobs_NV.gather(1, tokens_N1).squeeze(1)
    entropy_N = entropy(logprobs_NV)
    distributions = logprobs_NV if whole else none_NV.float()
    return logprob_N, entropy_N, hidden_ND, distributions


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
    trunk = trunk_of(model)
    if share and can_share(model):
        reading = read(trunk, plan_tree(rows), pad_id)
        return reading.hidden_at(places)
    device = next(model.parameters()).device
    input_ids_BT = right_pad(rows, pad_id, device)
    output = trunk(input_ids=input_ids_BT, use_cache=False)
    row_N, place_N = torch.tensor(places, device=device).unbind(dim=1)
    return output.last_hidden_state[row_N, place_N]


def logits_at_once(model: Any, count: int) -> int:
    """How many of `count` tokens have their logits at once: a block where the head does not learn,
    else all.
    """
    if is_scorer(model) or not has_plain_head(model):
        return count
    head = unwrapped(model).get_output_embeddings()
    if type(head) is not nn.Linear or head.weight.requires_grad:
        return count
    return min(count, _block(head))


def _block(head: nn.Linear) -> int:
    """How many tokens have their logits at once."""
    numbers = BLOCK.get(head.weight.device.type, BLOCK["cuda"])
    vocabulary = len(head.weight)
    return max(1, numbers // vocabulary)


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
        learns = ctx.needs_input_grad[0]
        logprob_parts: list[torch.Tensor] = []
        entropy_parts: list[torch.Tensor] = []
        logprob_slopes: list[torch.Tensor] = []
        entropy_slopes: list[torch.Tensor] = []
        size = _block(head)
        blocks = zip(hidden_ND.split(size), tokens_N1.split(size), strict=True)
        for hidden, tokens in blocks:
            # 1. Log-probabilities and entropies of a block
            logprobs = torch.log_softmax(head(hidden).float().div_(temperature), dim=-1)
            shares = logprobs.exp()
            logprob_parts.append(logprobs.gather(1, tokens).squeeze(1))
            entropies = torch.linalg.vecdot(shares, logprobs).neg_()
            entropy_parts.append(entropies)

            # 2. Their gradients down to the hidden states, in the memory of the logits
            if learns and entropy_learns:
                slope = logprobs.add_(entropies[:, None]).mul_(shares).div_(-temperature)
                entropy_slopes.append(slope.to(head.weight.dtype) @ head.weight)
            if learns:
                ones = shares.new_ones(tokens.shape)
                slope = shares.neg_().scatter_add_(1, tokens, ones).div_(temperature)
                logprob_slopes.append(slope.to(head.weight.dtype) @ head.weight)

        # 3. All blocks; what has no gradient is not kept
        slopes = [torch.cat(part) for part in (logprob_slopes, entropy_slopes) if part]
        ctx.save_for_backward(*slopes)
        return torch.cat(logprob_parts), torch.cat(entropy_parts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        parts = []
        for slope, gradient_N in zip(ctx.saved_tensors, gradients, strict=False):
            parts.append(slope * gradient_N[:, None].to(slope.dtype))
        hidden_gradient_ND = sum(parts)
        return hidden_gradient_ND, None, None, None, None


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
        share_BK = logprobs_BK.exp()
        down_B1 = -gradient_B[..., None]
        # -gradient · p · (log p + 1), in the memory of its two terms
        first_BK = _finite(logprobs_BK).mul_(down_B1).mul_(share_BK)
        second_BK = share_BK.mul_(down_B1)
        return first_BK.add_(second_BK)


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
    return _hides_branches(model.model if is_scorer(model) else model)


def _hides_branches(model: Any) -> bool:
    """Whether the model reads branches exactly: a mask can hide them from one another, and
    positions can begin again. model: no Scorer.
    """
    takes_layout = takes_masks(model) and takes_positions(model)
    return takes_layout and has_plain_head(model) and attends_to_all(model)


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
            index = [(root + node) * width + child for node, child in path]
            index_BKS[row, label, : len(path)] = torch.tensor(index)
    # The sums, of which those without a path are not legal
    flat = torch.cat([logprobs_NC.flatten(), logprobs_NC.new_zeros(1)])
    count_B1 = torch.tensor([[len(tree.steps)] for tree in tries], device=flat.device)
    legal_BK = torch.arange(most, device=flat.device) < count_B1
    logprobs_BK = flat[index_BKS.to(flat.device)].sum(dim=-1)
    return logprobs_BK.masked_fill(~legal_BK, float("-inf"))


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
    # A LoRA, quantised or sharded head computes its own rows
    has_rows = type(head) is nn.Linear and head.weight.shape[-1] == hidden_ND.shape[-1]
    if label_ids_NK is not None and has_rows:
        rows_NKD = head.weight[label_ids_NK].float()
        logits_NK = torch.einsum("nd,nkd->nk", hidden_ND.float(), rows_NKD)
        return logits_NK if head.bias is None else logits_NK + head.bias[label_ids_NK]
    logits_NV = head(hidden_ND)
    return logits_NV if label_ids_NK is None else logits_NV.gather(1, label_ids_NK)
