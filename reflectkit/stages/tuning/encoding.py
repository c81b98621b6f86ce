"""Rows of demonstrations as tokens: by the same functions as prompts at inference, with nothing cut off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectkit.core.errors import DataError
from reflectkit.core.prompts import ACTION_MARKER, CALLS_MARKER, listed_answers
from reflectkit.core.types import AGENT_MARKER
from reflectkit.data.sft import Row

if TYPE_CHECKING:
    from reflectkit.models.chat import Dialogue
    from reflectkit.models.load import Player


def encode(
    source: Path, rows: Sequence[Row], player: Player, *, role: str, prompt_loss: bool, max_length: int
) -> list[dict[str, list[int]]]:
    """input_ids and labels of each row; the prompt's labels are -100 unless it is trained on too, and the first one is.

    Text ends with the end token, the answer for a choice only where another one goes on from it. source: the rows'
    file. role: whose rows they are. Raises DataError for a row of more than `max_length` tokens, or than the model
    reads, and for an answer of several tokens that is not listed.
    """
    limit = min(max_length, player.context)
    encoded = []
    for row, input_ids, labels in tokenised(source, rows, player.tokenizer, role=role, prompt_loss=prompt_loss):
        if len(input_ids) > limit:
            raise DataError(
                source,
                f"the row has {len(input_ids)} tokens and {limit} fit; raise --max-length"
                f"{' and use a model with a longer context' if limit == player.context else ''}",
                line=row.line,
            )
        encoded.append({"input_ids": input_ids, "labels": labels})
    return encoded


def tokenised(
    source: Path, rows: Sequence[Row], tokenizer: Any, *, role: str, prompt_loss: bool
) -> Iterator[tuple[Row, list[int], list[int]]]:
    """(row, input_ids, labels) of each row, as in `encode`. Raises DataError for an answer of several tokens that is
    not listed.
    """
    from reflectkit.models.chat import Dialogue
    from reflectkit.models.tokens import completion_ids, prompt_ids

    dialogue = Dialogue(tokenizer, plain=True)
    for row in rows:
        input_ids: list[int] = []
        labels: list[int] = []
        for prompt, completion in row.parts:
            text = _as_read(dialogue, prompt)
            before = completion_ids(tokenizer, text) if input_ids else prompt_ids(tokenizer, text)
            if role == "reflection" or _in_words(prompt):
                after = [*completion_ids(tokenizer, completion), tokenizer.eos_token_id]
            else:
                after = _choice_ids(source, row, prompt, completion, tokenizer)
            input_ids += before + after
            labels += (before if prompt_loss else [-100] * len(before)) + after
        labels[0] = -100  # nothing comes before it
        yield row, input_ids, labels


def _in_words(prompt: str) -> bool:
    """Whether a policy answers `prompt` with calls or in words, since it lists no actions."""
    return prompt.endswith((CALLS_MARKER, AGENT_MARKER)) or (
        prompt.endswith(ACTION_MARKER) and "\nActions:\n" not in prompt
    )


def _as_read(dialogue: Dialogue, prompt: str) -> str:
    """The row's prompt as the agent reads it."""
    if prompt.endswith(AGENT_MARKER):
        return dialogue.conversation(prompt)
    return dialogue.harmless(prompt) if prompt.endswith(CALLS_MARKER) else prompt


def _choice_ids(source: Path, row: Row, prompt: str, completion: str, tokenizer: Any) -> list[int]:
    """The tokens of an answer among those that `prompt` lists: its path in their trie. A prompt that lists none, as of
    other programs, has answers of one token. Raises DataError.
    """
    from reflectkit.models.tokens import answer_ids, completion_ids

    legal = listed_answers(prompt, row.form)
    if completion in legal:
        return list(answer_ids(tokenizer, legal)[legal.index(completion)])
    tokens = completion_ids(tokenizer, completion)
    if len(tokens) != 1:
        raise DataError(
            source,
            f"the answer {completion!r} is {len(tokens)} tokens of this tokenizer, and the prompt does not list it",
            line=row.line,
            field="completion",
        )
    return tokens
