"""The embedded default: a GPT-2 of about 1 M parameters and a byte-level BPE tokenizer, both made from a stage's own rows.

No hub and no download: the classes are the standard ones, so `AutoModelForCausalLM` and `AutoTokenizer` load what is saved.
Learned absolute positions suit it: a map printed behind a constant text has each cell at a constant position.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

END, PAD = "<|end|>", "<|pad|>"
WIDTH = 128
VOCABULARY = 640  # 256 bytes, 2 specials, and merges enough for the few words of a small env


def build_tokenizer(texts: Iterable[str], labels: Iterable[str], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of `vocabulary` entries trained on `texts`; each of `labels` (with its leading space) is
    one token.

    Words are cut before merging as in GPT-2, so cells that stand apart by spaces stay apart.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    corpus = list(texts)
    often = max(2, len(corpus)) * 2  # so that a label's merge is among the first
    tokenizer.train_from_iterator([*corpus, *(text for text in labels for _ in range(often))], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, padding_side="left", clean_up_tokenization_spaces=False
    )


def build_model(tokenizer: PreTrainedTokenizerFast, context: int, seed: int, init_range: float = 0.04) -> GPT2LMHeadModel:
    """A fresh model for `tokenizer` that reads up to `context` tokens: 4 layers, 4 heads, tied embeddings.

    init_range: standard deviation of the fresh weights. GPT-2's 0.02 is for widths from 768; at width 128 a model that
    learns from one token a row needs several times the steps with it.
    """
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=context,
        n_embd=WIDTH,
        n_layer=4,
        n_head=4,
        initializer_range=init_range,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        return GPT2LMHeadModel(config)
