"""Rows as token ids, by the same functions that make prompts at inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from reflectkit.data.sft_rows import SFTRow
from reflectkit.errors import CheckpointError, DataError
from reflectkit.models.chat import Dialogue
from reflectkit.models.labels import (
    answer_ids,
    check_embedded,
    completion_ids,
    option_ids,
    prompt_ids,
)
from reflectkit.prompts import (
    ACTION_MARKER,
    CALLS_MARKER,
    REFLECTION_MARKER,
    THEN_ACT,
    listed_answers,
)
from reflectkit.train.sft.config import SFTConfig
from reflectkit.types import AGENT_MARKER

NOT_TRAINED = -100
"""The label of a token that is not trained on."""
ANY_LENGTH = 2**31
SAME_PROMPT = 16
"""Up to this many neighbouring rows with the same prompt are read together."""


class TokenReader(Protocol):
    """The properties of a model that encoding needs."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        ...

    @property
    def context(self) -> int:
        """The maximum length of a row, in tokens."""
        ...

    @property
    def vocabulary(self) -> int:
        """The number of tokens that have a vector."""
        ...


def encode_for(
    config: SFTConfig,
    source: Path,
    rows: Sequence[SFTRow],
    player: TokenReader,
    *,
    prompt_loss: bool = False,
) -> list[dict[str, Any]]:
    """The tokens of `rows`, as texts, decisions or groups with options, whichever they are.

    Raises DataError if a row is too long, and CheckpointError if the model has no vector for a
    token.
    """
    tokenizer = player.tokenizer
    limits: Any = {"max_length": config.max_length, "context": player.context}
    if rows and rows[0].options:
        encoded = encode_options(source, rows, tokenizer, **limits)
    elif any(row.probabilities for row in rows):
        encoded = encode_decisions(source, rows, tokenizer, **limits)
    else:
        role = config.role
        encoded = encode(source, rows, tokenizer, role=role, prompt_loss=prompt_loss, **limits)
    for row in encoded:
        tokens_of_options = chain(*row["options"]) if "offered" in row else ()
        check_embedded(tokenizer, [*row["input_ids"], *tokens_of_options], player.vocabulary)
    return encoded


def row_length(row: Mapping[str, Any]) -> int:
    """The tokens of an encoded row, or of the prompt of a group of rows with its longest option."""
    return len(row["input_ids"]) + max(map(len, row.get("options", [()])))


def encode(
    source: Path,
    rows: Sequence[SFTRow],
    tokenizer: Any,
    *,
    role: str,
    prompt_loss: bool = False,
    max_length: int = 0,
    context: int = ANY_LENGTH,
) -> list[dict[str, Any]]:
    """The input_ids and labels of each row.

    The label of the first token is NOT_TRAINED, and so are those of the prompt unless
    `prompt_loss`. A text ends with the end token. An answer to a choice is its path in the trie of
    the answers that the prompt lists. If a prompt lists none, as prompts of other programs, answers
    are one token.

    source: the file of the rows. role: of the model that they are for. max_length: the maximum
    length of a row in tokens; 0 for `context`, which is the model's.

    Raises DataError if a row is longer than that, or an answer of several tokens is not listed.
    Raises CheckpointError if a text needs an end token, and the tokenizer has none.
    """
    dialogue = Dialogue(tokenizer, plain=True)
    encoded: list[dict[str, Any]] = []
    for row in rows:
        input_ids: list[int] = []
        labels: list[int] = []
        for prompt, completion in row.parts:
            # 1. The prompt, and the text that lists its answers
            text, listing = prompt, prompt
            if prompt.endswith(AGENT_MARKER):
                text = dialogue.conversation(prompt)
            elif prompt.endswith(CALLS_MARKER):
                text = dialogue.harmless(prompt)
            elif prompt == THEN_ACT:
                listing = row.parts[0][0].removesuffix(REFLECTION_MARKER) + ACTION_MARKER
            is_first = not input_ids
            before = prompt_ids(tokenizer, text) if is_first else completion_ids(tokenizer, text)

            # 2. The completion: a text, or a label
            is_comment = prompt.endswith(REFLECTION_MARKER) or role == "reflection"
            if is_comment or _takes_words(listing):
                after = [*completion_ids(tokenizer, completion), _end_token(tokenizer)]
            else:
                after = _label_ids(source, row, listing, completion, tokenizer)

            input_ids += before + after
            labels += (before if prompt_loss else [NOT_TRAINED] * len(before)) + after
        labels[0] = NOT_TRAINED  # nothing comes before it
        encoded.append({"input_ids": input_ids, "labels": labels})
    _check_lengths(source, rows, encoded, max_length, context)
    return encoded


def _takes_words(prompt: str) -> bool:
    """Whether a policy answers `prompt` with calls or in words, since it lists no actions."""
    lists_actions = "\nActions:\n" in prompt
    is_dialogue = prompt.endswith((CALLS_MARKER, AGENT_MARKER))
    return is_dialogue or (prompt.endswith(ACTION_MARKER) and not lists_actions)


def _end_token(tokenizer: Any) -> int:
    """The token after which an answer ends. Raises CheckpointError if there is none."""
    if tokenizer.eos_token_id is None:
        raise CheckpointError(
            "the model's tokenizer has no end token, so its answers would never end; set eos_token"
            " in tokenizer_config.json"
        )
    return int(tokenizer.eos_token_id)


def _label_ids(
    source: Path,
    row: SFTRow,
    listing: str,
    completion: str,
    tokenizer: Any,
) -> list[int]:
    """The tokens of the label `completion`. listing: the text with the answers, if they are listed.

    Raises DataError if they are not, and the label has several tokens.
    """
    answers = listed_answers(listing, row.form)
    if completion in answers:
        return list(answer_ids(tokenizer, answers)[answers.index(completion)])
    tokens = completion_ids(tokenizer, completion)
    if len(tokens) != 1:
        raise DataError(
            source,
            (
                f"the answer {completion!r} is {len(tokens)} tokens of this tokenizer, and the"
                " prompt does not list it"
            ),
            line=row.line,
            field="completion",
        )
    return tokens


def _check_lengths(
    source: Path,
    rows: Sequence[SFTRow],
    encoded: Sequence[Mapping[str, Any]],
    most: int,
    context: int,
) -> None:
    """Raises DataError if the longest row has more tokens than fit. most: --max-length."""
    lengths = [len(row["input_ids"]) for row in encoded]
    longest, limit = max(lengths, default=0), min(most or context, context)
    if longest <= limit:
        return
    fixes = []
    if most:
        fixes.append("raise --max-length")
    if limit == context:
        fixes.append("use a model with a longer context")
    raise DataError(
        source,
        f"the longest row has {longest} tokens and {limit} fit; {' and '.join(fixes)}",
        line=rows[lengths.index(longest)].line,
    )


def encode_decisions(
    source: Path,
    rows: Sequence[SFTRow],
    tokenizer: Any,
    *,
    max_length: int = 0,
    context: int = ANY_LENGTH,
) -> list[dict[str, Any]]:
    """Decisions: the input_ids of each prompt, the tokens of its options (K), and their shares (K).

    The shares are the row's probabilities, or 1 and 0 for a row with an answer. At least one row
    has probabilities, so all must list their answers. Raises DataError if a row lists none, or is
    too long.
    """
    limit = min(max_length or context, context)
    encoded: list[dict[str, Any]] = []
    for row in rows:
        # 1. The answers that the prompt lists
        prompt, completion = row.parts[0]
        answers = listed_answers(prompt, row.form)
        if len(row.parts) > 1 or completion not in answers:
            what = "it has no probabilities, nor lists its answer; keep such rows in another file"
            raise DataError(source, what, line=row.line)
        one_hot = tuple(float(answer == completion) for answer in answers)

        # 2. The tokens of the prompt and of its answers
        ids = prompt_ids(tokenizer, prompt)
        options = [list(path) for path in answer_ids(tokenizer, answers)]
        if len(ids) + max(map(len, options)) > limit:
            what = f"it has {len(ids)} tokens and more, and {limit} fit"
            raise DataError(source, what, line=row.line)
        shares = list(row.probabilities or one_hot)
        encoded.append({"input_ids": ids, "options": options, "shares": shares})
    return encoded


def encode_options(
    source: Path,
    rows: Sequence[SFTRow],
    tokenizer: Any,
    *,
    max_length: int = 0,
    context: int = ANY_LENGTH,
) -> list[dict[str, Any]]:
    """Groups of neighbouring `rows` with the same prompt, whose options each have a score.

    Returns
    -------
    For each group, lists by name:

    input_ids: the prompt.
    options: the tokens of each different option.
    offered: for each row, the numbers of its options.
    shares: for each row, the probabilities of these.

    Raises CheckpointError, and DataError if a prompt with an option is longer than `max_length` or
    `context`.
    """
    # 1. The tokens of all different options
    limit = min(max_length or context, context)
    texts = dict.fromkeys(option.removeprefix(" ") for row in rows for option in row.options)
    path_of = dict(zip(texts, option_ids(tokenizer, tuple(texts)), strict=True)) if texts else {}

    # 2. The groups
    groups: list[dict[str, Any]] = []
    numbers: dict[tuple[int, ...], int] = {}
    before = ""
    for row in rows:
        prompt, completion = row.parts[0]
        if prompt != before or len(groups[-1]["offered"]) == SAME_PROMPT:
            ids = prompt_ids(tokenizer, prompt)
            groups.append({"input_ids": ids, "options": [], "offered": [], "shares": []})
            numbers, before = {}, prompt

        group = groups[-1]
        paths = [path_of[option.removeprefix(" ")] for option in row.options]
        for path in paths:
            if path not in numbers:
                numbers[path] = len(numbers)
                group["options"].append(list(path))
        one_hot = [float(option == completion) for option in row.options]
        group["offered"].append([numbers[path] for path in paths])
        group["shares"].append(list(row.probabilities) or one_hot)

        length = len(group["input_ids"]) + max(map(len, paths))
        if length > limit:
            what = f"a prompt with an option has {length} tokens and {limit} fit"
            raise DataError(source, what, line=row.line)
    return groups
