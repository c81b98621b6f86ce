"""Tokenizers built offline in the manner of well-known ones: how they split numbers, and what they do with spaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from reflectkit.models.tiny import build_tokenizer
from reflectkit.prompts import LABELS

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""How Llama 3 and Qwen split text before merging; a number stands apart from the space before it."""
VOCABULARY = 1500


def gpt2(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level, with a number and the space before it in one token."""
    return build_tokenizer(texts, [f" {label}" for label in LABELS], VOCABULARY)


def llama3(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level, with groups of up to three digits, and a first token before each text."""
    numbers = [str(number) for number in range(200)] * 50
    tokenizer = _byte_level([*texts, *numbers], r"\p{N}{1,3}")
    from tokenizers.processors import TemplateProcessing

    begin = tokenizer.backend_tokenizer.token_to_id(BEGIN)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, begin)]
    )
    return tokenizer


def qwen(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level, with a token for each digit."""
    return _byte_level([*texts, *("0123456789")], r"\p{N}")


def mistral(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """SentencePiece, which begins each text with a space of its own, with a token for each digit, as Llama 2's too."""
    return _sentence_piece(texts, [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def gemma(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """SentencePiece without a space of its own, with a token for each digit."""
    return _sentence_piece(texts, [normalizers.Replace(" ", "▁")])


FAMILIES: dict[str, Callable[[Iterable[str]], PreTrainedTokenizerFast]] = {
    family.__name__: family for family in (gpt2, llama3, qwen, mistral, gemma)
}


def _byte_level(texts: Iterable[str], numbers: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT.format(numbers=numbers)), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return _trained(tokenizer, texts, sorted(pre_tokenizers.ByteLevel.alphabet()))


def _sentence_piece(texts: Iterable[str], steps: list[normalizers.Normalizer]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token=UNKNOWN, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("(?<!▁)▁|\n"), "merged_with_next"), pre_tokenizers.Digits(individual_digits=True)]
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _trained(tokenizer, [*texts, "0123456789"], ["▁", *(chr(code) for code in range(33, 127))])


def _trained(tokenizer: Tokenizer, texts: Iterable[str], alphabet: list[str]) -> PreTrainedTokenizerFast:
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[UNKNOWN, BEGIN, END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(list(texts), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        bos_token=BEGIN,
        eos_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
