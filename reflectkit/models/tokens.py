"""Text to tokens, one way for training and for inference, and the check that labels are single tokens."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from reflectkit.core.errors import CheckpointError
from reflectkit.core.prompts import label


def encodable(text: str) -> str:
    """`text` with a question mark for each half of a surrogate pair, which an env may show and no tokenizer
    can read.
    """
    return text.encode("utf-8", "replace").decode("utf-8")


def prompt_ids(tokenizer: Any, text: str) -> list[int]:
    """The ids that a model reads for `text`, with the special tokens that its tokenizer puts in front."""
    ids: list[int] = tokenizer(encodable(text))["input_ids"]
    return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids


def completion_ids(tokenizer: Any, text: str) -> list[int]:
    """The ids of `text` behind a prompt. A label that is one token only without its leading space is taken
    without it.
    """
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
        found = completion_ids(tokenizer, label(index))
        if len(found) != 1:
            raise CheckpointError(
                f"the label {label(index)!r} is {len(found)} tokens of this model's tokenizer, but a choice must be"
                " one; train on rows with as many choices, or take a model whose tokenizer has it"
            )
        ids.append(found[0])
    if len(set(ids)) < len(ids):
        raise CheckpointError("two labels are the same token of this model's tokenizer; take another model")
    return tuple(ids)
