"""Log-probabilities of choices and of text, the same for sampling and for the loss.

A choice among labels of one token takes one forward pass over the prompt. Of the LM head, only the
rows of the legal labels are applied, and only to the last hidden state; the log-softmax is over the
legal labels. Longer labels are read as a tree, as far as they differ (`models/labels.py`). For
text, the head is applied only before sampled tokens. In the Reflect-RL code, the softmax was over
252 labels, legal or not.

`models/rows.py` lays out the rows, and reads a common beginning once. On a GPU, where many small
passes are slow, a prompt and all branches of its labels are one row.

Shapes: B prompts or rows, T tokens of the longest, K labels of a prompt, N nodes of trees or tokens
of texts, C children of a node, D numbers of a hidden state, V tokens of the vocabulary.
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
from reflectkit.models.device import on_device
from reflectkit.models.fast_pass import fast_pass
from reflectkit.models.labels import LabelPath, Trie, on_paths, separate_labels, trie
from reflectkit.models.recording import recorded_hidden, recorder_of
from reflectkit.models.rows import (
    Plan,
    Row,
    pass_arguments,
    plan_common_prefix,
    plan_tree,
    read,
    right_pad,
)

PASS_ROWS = 16
"""A pass of sampling has at most this many rows, or as many as there are prompts."""
LABEL_TOKENS = 256
"""Tokens of separate labels that are read in one row after a short prompt."""
PASS_TOKENS = 16384
"""Tokens of a pass that reads separate labels."""
BLOCK = {"cpu": 2**23, "cuda": 2**26}
"""Logits that are in memory at once, by device."""

Part = tuple[tuple[int, ...], Trie]
"""A prompt, and separate labels to read after it."""


class Scorer(nn.Module):
    """A module whose `forward` has a model's hidden states and logits at given places.

    FSDP, which shards the model, wraps this module. So all uses of the weights are in one
    `forward`.
    """

    scores_tokens = True
    """Marks a Scorer, also one that is wrapped; see `is_scorer`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        # The classes of layers that FSDP wraps one by one
        self._no_split_modules = getattr(unwrapped(model), "_no_split_modules", None)

    def forward(
        self,
        input_ids_BT: torch.Tensor,
        row_N: torch.Tensor,
        place_N: torch.Tensor,
        label_ids_NK: torch.Tensor | None = None,
        **arguments: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(hidden_ND, logits) at N places of rows.

        row_N, place_N: the row and the place in it. label_ids_NK: the labels at each place; None
        for the whole vocabulary. The logits are (N, K) or (N, V). arguments: the model's other
        arguments, from `rows.pass_arguments`.
        """
        # 1. The trunk, then the head at these places
        if has_plain_head(self.model):
            trunk = trunk_of(self.model)
            arguments["input_ids"] = input_ids_BT
            hidden_BTD = recorded_hidden(trunk, arguments)
            if hidden_BTD is None:
                with fast_pass(trunk, arguments):
                    hidden_BTD = trunk(**arguments, use_cache=False).last_hidden_state
            hidden_ND = hidden_BTD[row_N, place_N]
            return hidden_ND, head_logits(self.model, hidden_ND, label_ids_NK)

        # 2. A model that changes its logits after the head computes them itself, at the different
        # places of all rows
        places_U, index_N = torch.unique(place_N, return_inverse=True)
        output = unwrapped(self.model)(
            input_ids=input_ids_BT,
            use_cache=False,
            logits_to_keep=places_U,
            output_hidden_states=True,
        )
        logits_NV = output.logits[row_N, index_N]
        hidden_ND = output.hidden_states[-1][row_N, place_N]
        if label_ids_NK is None:
            return hidden_ND, logits_NV
        return hidden_ND, logits_NV.gather(1, label_ids_NK)


def choice_logprobs(
    model: Any,
    prompts: Sequence[Sequence[int]],
    labels: Sequence[tuple[LabelPath, ...]],
    *,
    pad_id: int,
    temperature: float = 1.0,
    share: bool = False,
    separately: bool = False,
    subset: Sequence[Sequence[int]] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the legal labels after each prompt.

    Gradients flow unless the caller disables them; without them, the common beginning of the
    prompts is read once.

    Parameters
    ----------
    model: a model or its Scorer.
    prompts: the token ids of B prompts.
    labels: the token ids of each prompt's legal labels, at most K.
    temperature: divides the logits at each node of the tree of labels, > 0.
    share: whether a common beginning of prompts is read once with gradients too, if the model
        allows.
    separately: whether each label is read alone, see `label_scores`.
    subset: for each prompt, the numbers of the labels to score. Only their paths are read, and the
        log-probabilities of others may be -inf. Default: all labels.

    Returns
    -------
    logprobs_BK: normalised over the labels of a prompt; -inf for a prompt with fewer than K.
    hidden_BD: the last hidden state of each prompt, for a critic.
    """
    if separately:
        scores_BK, hidden_BD = label_scores(model, prompts, labels, pad_id=pad_id)
        return torch.log_softmax(scores_BK / temperature, dim=-1), hidden_BD

    # 1. The nodes of all trees of labels, prompt by prompt, the root first; at a node labels differ
    device = next(model.parameters()).device
    tries = [trie(tuple(row)) for row in labels]
    if subset is not None:
        tries = [on_paths(tree, numbers) for tree, numbers in zip(tries, subset, strict=True)]
    children = [node.children for tree in tries for node in tree.nodes]
    children_NC, legal_NC = _padded(children, device)

    # 2. How the rows are read: with branches, as a plan says, or each from its start
    has_chains = any(tree.chains for tree in tries)
    together = has_chains and not share and reads_branches(model)
    rows, nodes = _rows_and_nodes(prompts, tries, together)
    plan = None
    if not together:
        stems = [row.stem for row in rows]
        plan = _plan(model, stems, len(prompts), share or has_chains)

    # 3. Hidden states and logits at the nodes
    if plan is None:
        hidden_ND, logits_NC = _score_rows(model, rows, nodes, children_NC, pad_id)
    else:
        bare = model.model if is_scorer(model) else model
        reading = read(trunk_of(bare), plan, pad_id)
        hidden_ND = reading.hidden_at(nodes)
        logits_NC = head_logits(bare, hidden_ND, children_NC)

    # 4. Log-probabilities of the children of each node
    logits_NC = logits_NC.float().masked_fill(~legal_NC, float("-inf"))
    logprobs_NC = torch.log_softmax(logits_NC / temperature, dim=-1)

    # 5. Log-probabilities of the labels, unless they are the children of the roots
    if len(children) == len(prompts):
        return logprobs_NC, hidden_ND
    sizes = [len(tree.nodes) for tree in tries]
    roots = list(itertools.accumulate(sizes, initial=0))[:-1]
    logprobs_BK = along_paths(logprobs_NC, tries, roots)
    root_B = on_device(roots, device)
    return logprobs_BK, hidden_ND[root_B]


def _padded(
    children: Sequence[LabelPath],
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the tokens of the children of N nodes (N, C), whether each is one and no padding)."""
    width = max(map(len, children))
    rows = []
    for tokens in children:
        padding = [tokens[0]] * (width - len(tokens))
        rows.append([*tokens, *padding])
    children_NC = on_device(rows, device)
    count_N1 = on_device([[len(tokens)] for tokens in children], device)
    legal_NC = torch.arange(width, device=device) < count_N1
    return children_NC, legal_NC


def _plan(
    model: Any,
    rows: Sequence[Sequence[int]],
    prompt_count: int,
    share: bool,
) -> Plan | None:
    """The plan for reading `rows`; None: in one pass, each row from its start.

    prompt_count: the number of prompts that the rows begin with. share: whether rows may be read as
    a tree.
    """
    # 1. As a tree of their tokens
    bare = model.model if type(model) is Scorer else model
    is_sampling = not torch.is_grad_enabled()
    if share and can_share(bare):
        most_rows = max(PASS_ROWS, prompt_count) if is_sampling else None
        return plan_tree(rows, most=most_rows)

    # 2. First the common beginning of all rows, unless one pass is a recording
    if not is_sampling or is_scorer(model):
        return None
    recorder = recorder_of(trunk_of(bare))
    width = max(map(len, rows))
    if recorder is not None and recorder.size_of(len(rows), width, masked=False) is not None:
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
    """(hidden_ND, logits) at N (row, place) pairs `nodes`, in one pass; see `Scorer.forward`."""
    # 1. The rows and the nodes as tensors
    device = next(model.parameters()).device
    arguments = pass_arguments(rows, pad_id, device)
    input_ids_BT = arguments.pop("input_ids")
    row_N, place_N = on_device(nodes, device).unbind(dim=1)

    # 2. The pass
    scorer = model if is_scorer(model) else Scorer(model)
    return scorer(input_ids_BT, row_N, place_N, label_ids_NK, **arguments)


def label_scores(
    model: Any,
    prompts: Sequence[Sequence[int]],
    labels: Sequence[tuple[LabelPath, ...]],
    *,
    pad_id: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The score of each label, which is read alone after its prompt.

    The last token of a label is an end token. The score is its logit there, at that token. A label
    that several equal prompts have is read once. If the model allows, a row has a prompt and
    several of its labels, hidden from one another. Arguments are those of `choice_logprobs`.

    Returns
    -------
    scores_BK: in float32; -inf for a prompt with fewer than K labels.
    hidden_BD: the last hidden state of each prompt.
    """
    # 1. The different labels of each different prompt, numbered
    device = next(model.parameters()).device
    keys = [tuple(prompt) for prompt in prompts]
    numbers_of: dict[tuple[int, ...], dict[LabelPath, int]] = {}
    for prompt, row in zip(keys, labels, strict=True):
        numbers = numbers_of.setdefault(prompt, {})
        for path in row:
            numbers.setdefault(path, len(numbers))

    # 2. Parts, each of a prompt and labels that fit into a row
    together = _hides_branches(model.model if is_scorer(model) else model)
    parts: list[Part] = []
    for prompt, numbers in numbers_of.items():
        most_tokens = max(LABEL_TOKENS, 2 * len(prompt))
        for group in _groups(tuple(numbers), together, most_tokens):
            parts.append((prompt, separate_labels(group)))

    # 3. The S scores of all parts in one tensor, with one more at the end for no label
    scores, hidden = _score_parts(model, parts, together, pad_id)
    no_score = hidden[0].new_zeros(1).float()
    scores_S = torch.cat([*scores, no_score])

    # 4. The first score and the hidden state of each prompt
    first_of: dict[tuple[int, ...], int] = {}
    hidden_of: dict[tuple[int, ...], torch.Tensor] = {}
    score_count = 0
    for number, (prompt, tree) in enumerate(parts):
        first_of.setdefault(prompt, score_count)
        hidden_of.setdefault(prompt, hidden[number])
        score_count += len(tree.chains)

    # 5. The scores of each prompt's labels
    width = max(map(len, labels))
    index_BK = torch.full((len(prompts), width), score_count)
    for number, (prompt, row) in enumerate(zip(keys, labels, strict=True)):
        first = first_of[prompt]
        numbers = numbers_of[prompt]
        index = [first + numbers[path] for path in row]
        index_BK[number, : len(row)] = torch.tensor(index)
    index_BK = index_BK.to(device)
    is_missing_BK = index_BK == score_count
    scores_BK = scores_S[index_BK].masked_fill(is_missing_BK, float("-inf"))
    hidden_BD = torch.stack([hidden_of[prompt] for prompt in keys])
    return scores_BK, hidden_BD


def _score_parts(
    model: Any,
    parts: Sequence[Part],
    together: bool,
    pad_id: int,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(the scores of its labels, the hidden state of its prompt) of each part.

    together: whether a part is one row.
    """
    # 1. Passes of parts with similar lengths; a model that is spread over processes has one pass
    lengths = [_part_length(part) for part in parts]
    order = sorted(range(len(parts)), key=lengths.__getitem__)
    pass_size = len(parts)
    is_spread = is_scorer(model) and type(model) is not Scorer
    if not is_spread:
        longest = max(1, *lengths)
        pass_size = max(1, PASS_TOKENS // longest)
    device = next(model.parameters()).device
    scores: dict[int, torch.Tensor] = {}
    hidden: dict[int, torch.Tensor] = {}
    for first in range(0, len(order), pass_size):
        # 2. A pass
        numbers = order[first : first + pass_size]
        prompts = [parts[number][0] for number in numbers]
        tries = [parts[number][1] for number in numbers]
        rows, nodes = _rows_and_nodes(prompts, tries, together)
        ends = [node.children for tree in tries for node in tree.nodes]
        end_N1 = on_device(ends, device)
        hidden_ND, logits_N1 = _score_rows(model, rows, nodes, end_N1, pad_id)

        # 3. Its parts. The root is the end of the prompt; each other node is the end of a label
        sizes = [len(tree.nodes) for tree in tries]
        hidden_of_parts = hidden_ND.split(sizes)
        logits_of_parts = logits_N1.split(sizes)
        for place, number in enumerate(numbers):
            hidden[number] = hidden_of_parts[place][0]
            scores[number] = logits_of_parts[place][1:, 0].float()

    # 4. In the order of the parts
    ordered_scores = [scores[number] for number in range(len(parts))]
    ordered_hidden = [hidden[number] for number in range(len(parts))]
    return ordered_scores, ordered_hidden


def _groups(
    labels: tuple[LabelPath, ...],
    together: bool,
    most_tokens: int,
) -> list[tuple[LabelPath, ...]]:
    """`labels` in groups of at most `most_tokens` tokens. A longer label is alone in its group.

    together: whether a group is read as one row; otherwise there is one group, of many rows.
    """
    if not together:
        return [labels]
    groups: list[list[LabelPath]] = []
    size = 0
    for path in labels:
        if not groups or size + len(path) > most_tokens:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += len(path)
    return [tuple(group) for group in groups]


def _part_length(part: Part) -> int:
    """The number of tokens of a prompt and its labels."""
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
    """Log-probabilities of the N tokens that the masks mark with 1, given all tokens before them.

    Parameters
    ----------
    model, pad_id, temperature, share: see `choice_logprobs`.
    rows, masks: the token ids of B rows, and a mask of each.
    whole: whether the distributions are returned, too.
    entropy_learns: whether the entropy needs gradients.

    Returns
    -------
    logprob_N: of the marked tokens, row by row.
    entropy_N: of the distributions that the tokens are from, in nats.
    hidden_ND: the hidden state before each token.
    logprobs_NV: the distributions; (N, 0) unless `whole`.

    Raises ValueError if the first token of a row is marked.
    """
    # 1. The marked tokens, and the places before them
    device = next(model.parameters()).device
    tokens, places = _marked(rows, masks)
    tokens_N1 = on_device(tokens, device)
    count = len(places)

    # 2. The hidden states there, and their logits if all fit into memory at once
    bare = model.model if type(model) is Scorer else model
    is_blockwise = not whole and logits_at_once(bare, count) < count
    if is_blockwise or (share and can_share(bare)):
        hidden_ND = _hidden(bare, rows, places, pad_id, share)
        logits_NV = None if is_blockwise else head_logits(bare, hidden_ND, None)
    else:
        stems = [Row(row) for row in rows]
        hidden_ND, logits_NV = _score_rows(model, stems, places, None, pad_id)

    # 3. Log-probabilities and entropies, a block of tokens at a time
    none_NV = hidden_ND.new_zeros(count, 0)
    if logits_NV is None:
        head = unwrapped(bare).get_output_embeddings()
        logprob_N, entropy_N = _Blockwise.apply(
            hidden_ND, head, tokens_N1, temperature, entropy_learns
        )
        return logprob_N, entropy_N, hidden_ND, none_NV

    # 4. Or of all tokens at once
    logits_NV = logits_NV.float()
    if temperature != 1:
        logits_NV = logits_NV / temperature
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
    logprob_N = logprobs_NV.gather(1, tokens_N1).squeeze(1)
    entropy_N = entropy(logprobs_NV, finite=True)
    distributions = logprobs_NV if whole else none_NV.float()
    return logprob_N, entropy_N, hidden_ND, distributions


def _marked(
    rows: Sequence[Sequence[int]],
    masks: Sequence[Sequence[int]],
) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """(each token that is marked, in a list of its own; the row and the place before each).

    Raises ValueError if the first token of a row is marked.
    """
    tokens = []
    places = []
    for number, (row, mask) in enumerate(zip(rows, masks, strict=True)):
        for place, is_marked in enumerate(mask):
            if not is_marked:
                continue
            if place == 0:
                raise ValueError("a row's first token has nothing before it and cannot be scored")
            tokens.append([row[place]])
            places.append((number, place - 1))
    return tokens, places


def _hidden(
    model: Any,
    rows: Sequence[Sequence[int]],
    places: Sequence[tuple[int, int]],
    pad_id: int,
    share: bool,
) -> torch.Tensor:
    """The last hidden states (N, D) at N (row, place) pairs. share: see `choice_logprobs`."""
    trunk = trunk_of(model)
    if share and can_share(model):
        reading = read(trunk, plan_tree(rows), pad_id)
        return reading.hidden_at(places)
    device = next(model.parameters()).device
    arguments = {"input_ids": right_pad(rows, pad_id, device)}
    with fast_pass(trunk, arguments):
        output = trunk(**arguments, use_cache=False)
    row_N, place_N = on_device(places, device).unbind(dim=1)
    return output.last_hidden_state[row_N, place_N]


def logits_at_once(model: Any, count: int) -> int:
    """How many of `count` tokens have their logits in memory at once.

    It is a block of them if the head does not learn, and otherwise all.
    """
    if is_scorer(model) or not has_plain_head(model):
        return count
    head = unwrapped(model).get_output_embeddings()
    if type(head) is not nn.Linear or head.weight.requires_grad:
        return count
    return min(count, _block(head))


def _block(head: nn.Linear) -> int:
    """The number of tokens in a block."""
    logits = BLOCK.get(head.weight.device.type, BLOCK["cuda"])
    vocabulary = len(head.weight)
    return max(1, logits // vocabulary)


class _Blockwise(torch.autograd.Function):
    """(log-probability (N), entropy (N)) of N tokens, a block of tokens at a time.

    The head does not learn. A token has as many logits as the vocabulary has tokens. Only the
    logits of a block are in memory at once: their gradients with respect to the hidden states are
    computed with them, in the forward pass. entropy_learns: whether the entropies have gradients.
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

            # 2. Their gradients with respect to the hidden states, in the memory of the logits
            if learns and entropy_learns:
                slope = logprobs.add_(entropies[:, None]).mul_(shares)
                slope.div_(-temperature)
                entropy_slopes.append(_through(head, slope))
            if learns:
                ones = shares.new_ones(tokens.shape)
                slope = shares.neg_().scatter_add_(1, tokens, ones)
                slope.div_(temperature)
                logprob_slopes.append(_through(head, slope))

        # 3. The gradients of all blocks, as far as they are needed
        slopes = []
        if logprob_slopes:
            slopes.append(torch.cat(logprob_slopes))
        if entropy_slopes:
            slopes.append(torch.cat(entropy_slopes))
        ctx.save_for_backward(*slopes)
        return torch.cat(logprob_parts), torch.cat(entropy_parts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        parts = []
        for slope, gradient_N in zip(ctx.saved_tensors, gradients, strict=False):
            parts.append(slope * gradient_N[:, None].to(slope.dtype))
        hidden_gradient_ND = sum(parts)
        return hidden_gradient_ND, None, None, None, None


def _through(head: nn.Linear, slope_NV: torch.Tensor) -> torch.Tensor:
    """Gradients with respect to hidden states (N, D), given those with respect to logits."""
    weight_VD = head.weight
    return slope_NV.to(weight_VD.dtype) @ weight_VD


class _Entropy(torch.autograd.Function):
    """The entropy (B) of distributions (B, K), which keeps only its input for the backward pass.

    For a text, that input has the whole vocabulary for each token.
    """

    @staticmethod
    def forward(ctx: Any, logprobs_BK: torch.Tensor, finite: bool) -> torch.Tensor:
        ctx.save_for_backward(logprobs_BK)
        ctx.finite = finite
        terms_BK = logprobs_BK.exp().mul_(logprobs_BK if finite else _finite(logprobs_BK))
        return -terms_BK.sum(dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient_B: torch.Tensor) -> tuple[torch.Tensor, None]:
        (logprobs_BK,) = ctx.saved_tensors
        # -gradient · p · (log p + 1), in the memory of its two terms
        share_BK = logprobs_BK.exp()
        factor_B1 = -gradient_B[..., None]
        if ctx.finite:
            first_BK = (logprobs_BK * factor_B1).mul_(share_BK)
        else:
            first_BK = _finite(logprobs_BK).mul_(factor_B1).mul_(share_BK)
        second_BK = share_BK.mul_(factor_B1)
        return first_BK.add_(second_BK), None


def _finite(logprobs_BK: torch.Tensor) -> torch.Tensor:
    """`logprobs_BK` with 0 in place of -inf."""
    return logprobs_BK.masked_fill(logprobs_BK.isinf(), 0.0)


def entropy(logprobs_BK: torch.Tensor, *, finite: bool = False) -> torch.Tensor:
    """The entropy of each row's distribution in nats (B). Entries of -inf are not legal, and do not
    count. finite: there are none, which saves passes over them.
    """
    return _Entropy.apply(logprobs_BK, finite)


def is_scorer(model: Any) -> bool:
    """Whether `model` is a Scorer, wrapped or not."""
    return bool(getattr(model, "scores_tokens", False))


def can_share(model: Any) -> bool:
    """Whether the model reads rows as a tree exactly, by passes with a cache.

    Its layers must attend to all earlier tokens, and cache only keys and values. It must take
    positions. It must not recompute activations, which excludes a cache.
    """
    # A Scorer is sharded over processes
    if is_scorer(model) or not has_plain_head(model):
        return False
    recomputes = torch.is_grad_enabled() and recomputes_activations(model)
    return takes_positions(model) and not recomputes and attends_to_all(model)


def reads_branches(model: Any) -> bool:
    """Whether a prompt and the branches of its labels are read as one row: on a GPU, if the model
    reads it exactly.
    """
    if next(model.parameters()).device.type == "cpu":
        return False
    return _hides_branches(model.model if is_scorer(model) else model)


def _hides_branches(model: Any) -> bool:
    """Whether the model reads branches in one row exactly. model: no Scorer.

    A mask must hide them from one another, and positions must begin again in each.
    """
    takes_layout = takes_masks(model) and takes_positions(model)
    return takes_layout and has_plain_head(model) and attends_to_all(model)


def _rows_and_nodes(
    prompts: Sequence[Sequence[int]],
    tries: Sequence[Trie],
    together: bool,
) -> tuple[list[Row], list[tuple[int, int]]]:
    """(the rows to read, the row and the place of each node).

    together: whether a prompt and the chains of its labels are one row, with the chains as
    branches. Otherwise there is a row for each chain, which ends with it.
    """
    rows: list[Row] = []
    nodes: list[tuple[int, int]] = []
    for prompt, tree in zip(prompts, tries, strict=True):
        # 1. Where each chain starts in its row
        prompt_size = len(prompt)
        starts = [prompt_size] * max(1, len(tree.chains))
        if together:
            sizes = map(len, tree.chains)
            starts = list(itertools.accumulate(sizes, initial=prompt_size))

        # 2. Where each node is: at the last token before its children
        for node, chain in zip(tree.nodes, tree.chain_of, strict=True):
            row = len(rows) if together else len(rows) + chain
            start = starts[chain] if node.prefix else prompt_size
            place = start + len(node.prefix) - 1
            nodes.append((row, place))

        # 3. The rows
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
    """The log-probabilities of the labels (B, K): sums of `logprobs_NC` along their paths.

    They are -inf for a tree with fewer than K labels, and for labels without steps. roots: for each
    tree, the index of its root among the N nodes of all trees.
    """
    # 1. The index of each of the S steps of a path; shorter paths end with the index of a 0
    width = logprobs_NC.shape[1]
    zero_index = logprobs_NC.numel()
    most_labels = max(len(tree.steps) for tree in tries)
    most_steps = max(len(path) for tree in tries for path in tree.steps)
    rows = []
    for root, tree in zip(roots, tries, strict=True):
        paths = []
        for path in tree.steps:
            index = [(root + node) * width + child for node, child in path]
            paths.append(index + [zero_index] * (most_steps - len(path)))
        rows.append(paths + [[zero_index] * most_steps] * (most_labels - len(paths)))

    # 2. The sums; a label without a path is not legal
    flat = torch.cat([logprobs_NC.flatten(), logprobs_NC.new_zeros(1)])
    index_BKS = on_device(rows, flat.device)
    logprobs_BK = flat[index_BKS].sum(dim=-1)
    is_missing_BK = index_BKS[..., 0] == zero_index
    return logprobs_BK.masked_fill(is_missing_BK, float("-inf"))


def head_logits(
    model: Any,
    hidden_ND: torch.Tensor,
    label_ids_NK: torch.Tensor | None,
) -> torch.Tensor:
    """Logits of the labels (N, K), or of the whole vocabulary (N, V) if there are none.

    Logits of labels are in float32. In bfloat16 a logit of 18 is a multiple of 1/16, and labels
    that are equally likely would differ.
    """
    # 1. Only the head's rows of the labels
    head = unwrapped(model).get_output_embeddings()
    is_plain = type(head) is nn.Linear
    width = hidden_ND.shape[-1]
    if label_ids_NK is not None and is_plain and head.weight.shape[-1] == width:
        rows_NKD = head.weight[label_ids_NK].float()
        logits_NK = torch.einsum("nd,nkd->nk", hidden_ND.float(), rows_NKD)
        return logits_NK if head.bias is None else logits_NK + head.bias[label_ids_NK]

    # 2. All rows: a head with LoRA, quantised or sharded cannot be split
    logits_NV = head(hidden_ND)
    return logits_NV if label_ids_NK is None else logits_NV.gather(1, label_ids_NK)
