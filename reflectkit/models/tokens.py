"""Text to tokens, the same way in training and inference, and the check that labels are single tokens."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from reflectkit.core.errors import CheckpointError
from reflectkit.core.prompts import label


def encodable(text: str) -> str:
    """`text` with a question mark for each lone surrogate, which an env may show but no tokenizer can read."""
    return text.encode("utf-8", "replace").decode("utf-8")


def prompt_ids(tokenizer: Any, text: str) -> list[int]:
    """The ids of the prompt `text`, with the special tokens that the tokenizer puts in front."""
    ids: list[int] = tokenizer(encodable(text))["input_ids"]
    return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids


def completion_ids(tokenizer: Any, text: str) -> list[int]:
    """The ids of `text` after a prompt. A label that is a single token only without its leading space loses it."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) > 1 and text.startswith(" "):
        bare: list[int] = tokenizer(text[1:], add_special_tokens=False)["input_ids"]
        return bare if len(bare) == 1 else ids
    return ids


@lru_cache(maxsize=64)
def label_ids(tokenizer: Any, count: int) -> tuple[int, ...]:
    """The token of each of the first `count` labels.

    Raises
    ------
    CheckpointError: a label is more than one token of this tokenizer, or two labels share a token.
    """
    ids = []
    for index in range(count):
        token = completion_ids(tokenizer, label(index))
        if len(token) != 1:
            raise CheckpointError(
                f"the label {label(index)!r} is {len(token)} tokens of this model's tokenizer, but a choice must be"
                " one; train on rows with as many choices, or use a model whose tokenizer has it"
            )
        ids.append(token[0])
    if len(set(ids)) < len(ids):
        raise CheckpointError("two labels are the same token of this model's tokenizer; use another model")
    return tuple(ids)
