"""Text to tokens, the same way in training and inference: prompts, completions, and the legal answers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from reflectkit.errors import CheckpointError
from reflectkit.models.labels import Path, with_ends
from reflectkit.prompts import answers, label

SPACE = "\u2581"
"""How SentencePiece writes a space. Some tokenizers put one before each text."""


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


@lru_cache(maxsize=2**14)
def length_behind(tokenizer: Any, text: str) -> int:
    """The number of tokens of `text` after a prompt. Cached, since a run repeats its comments."""
    return len(completion_ids(tokenizer, f" {text}".rstrip()))


@lru_cache(maxsize=64)
def label_ids(tokenizer: Any, count: int) -> tuple[Path, ...]:
    """The tokens of each of the first `count` labels. Raises CheckpointError; see `answer_ids`."""
    return answer_ids(tokenizer, tuple(label(index) for index in range(count)))


@lru_cache(maxsize=2**14)
def text_ids(tokenizer: Any, choices: tuple[str, ...]) -> tuple[Path, ...]:
    """The tokens of each of `choices` as an answer in its own words. Raises CheckpointError, ConfigError."""
    return answer_ids(tokenizer, answers(choices, "text"))


def choice_ids(tokenizer: Any, choices: tuple[str, ...], form: str) -> tuple[Path, ...]:
    """The tokens of the answer for each of `choices`, a "label" or "text". Raises CheckpointError, ConfigError."""
    return label_ids(tokenizer, len(choices)) if form == "label" else text_ids(tokenizer, choices)


def answer_ids(tokenizer: Any, texts: tuple[str, ...]) -> tuple[Path, ...]:
    """The tokens of each of the legal answers `texts`, with the end token where one begins another.

    Raises
    ------
    CheckpointError: this tokenizer cannot tell two of them apart.
    """
    paths = [_answer(tokenizer, text) for text in texts]
    ended = with_ends(paths, tokenizer.eos_token_id)
    if ended is not None:
        return ended
    same = dict(zip(reversed(paths), reversed(texts), strict=True))
    clash = next(((same[path], text) for path, text in zip(paths, texts, strict=True) if same[path] != text), None)
    if clash:
        raise CheckpointError(
            f"the answers{clash[0]} and{clash[1]} are the same tokens of this model; use another model"
        )
    raise CheckpointError("one answer begins another, and this model has no end token to tell them apart; use another")


@lru_cache(maxsize=2**16)
def _answer(tokenizer: Any, text: str) -> Path:
    """The ids of an answer after a prompt. It loses its leading space where that costs a token, or where the tokenizer
    puts one there anyway.
    """
    text = encodable(text)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) > 1 and text.startswith(" "):
        bare: list[int] = tokenizer(text[1:], add_special_tokens=False)["input_ids"]
        if bare and (len(bare) < len(ids) or tokenizer.convert_ids_to_tokens(bare[0]).startswith(SPACE)):
            return tuple(bare)
    return tuple(ids)
