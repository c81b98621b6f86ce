"""Text to tokens, the same way in training and inference; labels as paths of tokens, and the trie
that the legal labels of a state form.

The probability of a label is the product, along its path, of the softmax over the tokens that may
come next. Where one label begins another (" 1", " 14"), the end token is among them, so the
probabilities of all labels sum to 1. A label of one token is a path of one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from cachetools import LRUCache, cached

from reflectkit.errors import CheckpointError
from reflectkit.prompts import answers, label

LabelPath = tuple[int, ...]
"""The token ids of a label, the end token included where it is needed."""
LabelPaths = tuple[LabelPath, ...]
"""Those of several labels."""
Steps = tuple[tuple[int, int], ...]
"""The (node, child) pairs along the path of a label, as indices."""
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result", LabelPath, LabelPaths, "Trie")
CACHED_NUMBERS = 2**22
"""How many numbers the results in each cache here hold, at some 40 bytes each. What was used least
recently goes first.
"""


@dataclass(frozen=True, slots=True)
class Node:
    """A place where the labels differ in their next token."""

    prefix: LabelPath
    """The tokens after the prompt that lead here; empty at the root."""
    children: LabelPath
    """The tokens that may come next, in the order of the labels."""


@dataclass(frozen=True, slots=True)
class Trie:
    """The legal labels of a state."""

    nodes: tuple[Node, ...]
    """The root, and every other place with several children; elsewhere the next token is certain.
    """
    steps: tuple[Steps, ...]
    """For each label, the steps along its path.

    The root is part of every path. A label that is left out has no steps.
    """
    chains: LabelPaths
    """What the model must read after the prompt to reach all nodes.

    These are the prefixes that do not begin another one.
    """
    chain_of: tuple[int, ...]
    """For each node, the index of a chain that its prefix begins; 0 for a root without chains."""

    @property
    def depth(self) -> int:
        """Tokens of the longest chain: how many the model reads after the prompt."""
        return max(map(len, self.chains), default=0)


def _numbers_in(result: LabelPath | LabelPaths | Trie) -> int:
    """About how many numbers a result holds."""
    if isinstance(result, Trie):
        in_nodes = sum(len(node.prefix) + len(node.children) for node in result.nodes)
        return in_nodes + 2 * sum(map(len, result.steps))
    return sum(1 if isinstance(part, int) else len(part) for part in result)


def _cached(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`function` with a cache that is bounded by the size of its results.

    Their number would be no bound: 255 options of 200 characters take half a megabyte.
    """
    cache: LRUCache[Any, Result] = LRUCache(CACHED_NUMBERS, getsizeof=_numbers_in)
    return cached(cache, lock=Lock())(function)


@_cached
def separate_labels(labels: LabelPaths) -> Trie:
    """`labels` that are each read alone and given a score.

    After the root there is a node at the end of each label. Its only child is the end token, whose
    logit is the score. Raises ValueError if a label is empty.
    """
    if not labels or not all(labels) or _has_equal(labels):
        raise ValueError(f"labels must not be empty or equal: {labels!r:.200}")
    root = Node(prefix=(), children=labels[0][-1:])
    nodes = [root]
    steps: list[Steps] = []
    for path in labels:
        step = (len(nodes), 0)
        steps.append((step,))
        end = path[-1:]
        nodes.append(Node(path, children=end))
    return Trie(
        nodes=tuple(nodes),
        steps=tuple(steps),
        chains=labels,
        chain_of=(0, *range(len(labels))),
    )


@_cached
def trie(labels: LabelPaths) -> Trie:
    """The trie of `labels`. Raises ValueError if a label is empty, or begins another one."""
    # 1. The tokens that may follow each beginning of a label, numbered in the order of the labels
    children: dict[LabelPath, dict[int, int]] = {}
    for path in labels:
        for place, token in enumerate(path):
            numbers = children.setdefault(path[:place], {})
            numbers.setdefault(token, len(numbers))

    # 2. No label may be a place on the way to another one
    has_beginning = any(not path or path in children for path in labels)
    if not labels or has_beginning or _has_equal(labels):
        raise ValueError(
            f"labels must not be empty, and none may begin another one: {labels!r:.200}"
        )

    # 3. Nodes where there are several such tokens
    nodes = []
    for prefix, numbers in children.items():
        if len(numbers) > 1 or not prefix:
            nodes.append(Node(prefix, tuple(numbers)))
    node_at = {node.prefix: index for index, node in enumerate(nodes)}

    # 4. The steps of each label through them
    steps: list[Steps] = []
    for path in labels:
        pairs = []
        for place, token in enumerate(path):
            prefix = path[:place]
            if prefix in node_at:
                child = children[prefix][token]
                pairs.append((node_at[prefix], child))
        steps.append(tuple(pairs))
    return _with_chains(nodes, steps)


def _has_equal(paths: Sequence[LabelPath]) -> bool:
    """Whether two of `paths` are equal."""
    return len(set(paths)) < len(paths)


def on_paths(tree: Trie, labels: Iterable[int]) -> Trie:
    """`tree` with only the nodes on the paths of these labels, given as their numbers.

    The other labels have no steps.
    """
    # 1. The nodes that stay, in their order
    numbers = set(labels)
    nodes_to_keep: set[int] = set()
    for number in numbers:
        nodes_to_keep.update(node for node, _ in tree.steps[number])
    nodes = sorted(nodes_to_keep)

    # 2. The steps through them
    new_index = {node: index for index, node in enumerate(nodes)}
    steps: list[Steps] = []
    for number, pairs in enumerate(tree.steps):
        if number not in numbers:
            pairs = ()
        steps.append(tuple((new_index[node], child) for node, child in pairs))
    return _with_chains([tree.nodes[node] for node in nodes], steps)


def _with_chains(nodes: Sequence[Node], steps: Sequence[Steps]) -> Trie:
    """The trie of these nodes, with the chains that lead to them."""
    # 1. Chains are prefixes that begin no other one. When sorted, a prefix comes right before those
    # that it begins
    prefixes = sorted(node.prefix for node in nodes)
    next_prefixes = [*prefixes[1:], ()]
    chains = []
    for prefix, next_prefix in zip(prefixes, next_prefixes, strict=True):
        begins_next = next_prefix[: len(prefix)] == prefix
        if prefix and not begins_next:
            chains.append(prefix)

    # 2. The first chain that each node's prefix begins
    chain_of = [_first_chain(chains, node.prefix) for node in nodes]
    return Trie(tuple(nodes), tuple(steps), tuple(chains), tuple(chain_of))


def _first_chain(chains: Sequence[LabelPath], prefix: LabelPath) -> int:
    """The index of the first of `chains` that begins with `prefix`; 0 if there are none."""
    size = len(prefix)
    for index, chain in enumerate(chains):
        if chain[:size] == prefix:
            return index
    return 0


def with_ends(paths: Sequence[LabelPath], end: int | None) -> LabelPaths | None:
    """`paths` with the end token after each that begins another one.

    end: the end token; None if there is none. Returns None if two paths are then equal, or one
    still begins another.

    >>> with_ends([(1,), (2,), (1, 4)], 0)
    ((1, 0), (2,), (1, 4))
    """
    # 1. The paths, with the end token where it is needed
    suffix = () if end is None else (end,)
    prefixes = _prefixes(paths)
    result = []
    for path in paths:
        begins_other = path in prefixes
        result.append(path + suffix if begins_other else path)

    # 2. No path may be equal to another one, or begin it
    if _has_equal(result):
        return None
    if not _prefixes(result).isdisjoint(result):
        return None
    return tuple(result)


def _prefixes(paths: Sequence[LabelPath]) -> set[LabelPath]:
    """All prefixes of all paths, shorter than the path and not empty."""
    prefixes = set()
    for path in paths:
        for size in range(1, len(path)):
            prefixes.add(path[:size])
    return prefixes


SPACE = "\u2581"
"""How SentencePiece writes a space. Some tokenizers put one before each text."""


def encodable(text: str) -> str:
    """`text` with a question mark for each lone surrogate, which no tokenizer can read."""
    return text.encode("utf-8", "replace").decode("utf-8")


def prompt_ids(tokenizer: Any, text: str) -> list[int]:
    """The ids of the prompt `text`, with the special tokens that the tokenizer puts in front.

    An end token that it puts at the end is removed.
    """
    ids: list[int] = tokenizer(encodable(text))["input_ids"]
    if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
        return ids[:-1]
    return ids


def check_embedded(
    tokenizer: Any,
    token_ids: Iterable[int],
    vocabulary: int,
) -> None:
    """Raises CheckpointError for a token that the model cannot read.

    vocabulary: the number of tokens that the model has embeddings for. A tokenizer may have more
    tokens, e.g. that of Gemma 3 1B, as long as no text has them.
    """
    last = max(token_ids, default=0)
    if last >= vocabulary:
        token = tokenizer.convert_ids_to_tokens(last)
        raise CheckpointError(
            f"a prompt has token {last}, {token!r:.40}, and the model has embeddings for tokens 0"
            f" to {vocabulary - 1}; add some with model.resize_token_embeddings({len(tokenizer)}),"
            " or use the model's own tokenizer"
        )


def completion_ids(tokenizer: Any, text: str) -> list[int]:
    """The ids of `text` after a prompt.

    A text that is a single token only without its leading space loses the space.
    """
    ids = _plain_ids(tokenizer, text)
    if len(ids) > 1 and text.startswith(" "):
        bare_ids = _plain_ids(tokenizer, text[1:])
        if len(bare_ids) == 1:
            return bare_ids
    return ids


def _plain_ids(tokenizer: Any, text: str) -> list[int]:
    """The ids of `text`, without special tokens."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


@lru_cache(maxsize=2**14)
def completion_length(tokenizer: Any, text: str) -> int:
    """The number of tokens of `text` after a prompt. Cached, since a run repeats its comments."""
    completion = f" {text}".rstrip()
    return len(completion_ids(tokenizer, completion))


def choice_ids(
    tokenizer: Any,
    choices: tuple[str, ...],
    form: str,
) -> LabelPaths:
    """The tokens of the answer for each of `choices`. form: see `types.Answer`.

    Raises CheckpointError, ConfigError.
    """
    if form == "score":
        return option_ids(tokenizer, choices)
    if form == "label":
        return label_ids(tokenizer, len(choices))
    return text_ids(tokenizer, choices)


@lru_cache(maxsize=64)
def label_ids(tokenizer: Any, count: int) -> LabelPaths:
    """The tokens of each of the first `count` labels. Raises CheckpointError; see `answer_ids`."""
    texts = tuple(label(index) for index in range(count))
    return answer_ids(tokenizer, texts)


@_cached
def text_ids(tokenizer: Any, choices: tuple[str, ...]) -> LabelPaths:
    """The tokens of each of `choices` as an answer in its own words.

    Raises CheckpointError, ConfigError.
    """
    return answer_ids(tokenizer, answers(choices, "text"))


@_cached
def option_ids(tokenizer: Any, choices: tuple[str, ...]) -> LabelPaths:
    """The tokens of each of `choices` to be read alone, the end token included.

    Raises CheckpointError, ConfigError.
    """
    end = tokenizer.eos_token_id
    if end is None:
        raise CheckpointError(
            "--answer score needs a tokenizer with an end token; set eos_token in its config"
        )
    texts = answers(choices, "score")
    bare_paths = _encode_answers(tokenizer, texts)
    paths = [(*path, end) for path in bare_paths]
    _check_distinct(paths, texts, "use another")
    return tuple(paths)


def answer_ids(tokenizer: Any, texts: tuple[str, ...]) -> LabelPaths:
    """The tokens of each of the legal answers `texts`, with the end token where one begins another.

    Raises CheckpointError: two answers are the same tokens, or one begins another and there is no
    end token.
    """
    paths = [_encode_answer(tokenizer, text) for text in texts]
    with_end = with_ends(paths, tokenizer.eos_token_id)
    if with_end is not None:
        return with_end
    _check_distinct(paths, texts, "use another model")
    raise CheckpointError(
        "one answer begins another, and this model has no end token to tell them apart; use another"
    )


def _check_distinct(paths: Sequence[LabelPath], texts: Sequence[str], fix: str) -> None:
    """Raises CheckpointError if two different texts are the same tokens."""
    text_of: dict[LabelPath, str] = {}
    for path, text in zip(paths, texts, strict=True):
        other = text_of.setdefault(path, text)
        if other != text:
            raise CheckpointError(
                f"the answers{other} and{text} are the same tokens of this model; {fix}"
            )


@_cached
def _encode_answer(tokenizer: Any, text: str) -> LabelPath:
    """The ids of an answer after a prompt; see `_encode_answers`."""
    return _encode_answers(tokenizer, (text,))[0]


def _encode_answers(tokenizer: Any, texts: Sequence[str]) -> list[LabelPath]:
    """The ids of each of these answers after a prompt.

    An answer loses its leading space where that costs a token, or where the tokenizer puts one
    there anyway.
    """
    # 1. The texts as they are
    texts = list(map(encodable, texts))
    encoding = tokenizer(texts, add_special_tokens=False)
    paths = list(map(tuple, encoding["input_ids"]))

    # 2. Those that begin with a space and are several tokens, also without the space
    numbers = []
    for number, text in enumerate(texts):
        is_long = len(paths[number]) > 1
        if is_long and text.startswith(" "):
            numbers.append(number)
    if not numbers:
        return paths
    bare_texts = [texts[number][1:] for number in numbers]
    bare_encoding = tokenizer(bare_texts, add_special_tokens=False)

    # 3. Take these where they are shorter, or have a space all the same
    for number, ids in zip(numbers, bare_encoding["input_ids"], strict=True):
        if not ids:
            continue
        is_shorter = len(ids) < len(paths[number])
        if is_shorter or _has_space(tokenizer, ids[0]):
            paths[number] = tuple(ids)
    return paths


def _has_space(tokenizer: Any, token: int) -> bool:
    """Whether a token stands for text that begins with a space."""
    return bool(tokenizer.convert_ids_to_tokens(token).startswith(SPACE))
