"""The built-in models: a Qwen3, an LFM2 or a GPT-2 of 0.5 to 1 M parameters, with a byte-level BPE
tokenizer.

They need no hub and no download. Their classes are the standard ones, so `AutoModelForCausalLM` and
`AutoTokenizer` load them. RL from random weights begins with a Qwen3, of which some heads are not
random (`models.copying`), and SFT with an LFM2. Both have relative positions, so states may be
longer than those of training, and normalise queries and keys, so attention differs between tokens
from the start. GPT-2's is nearly even at first, and all prompts have nearly the same hidden state:
RL then learns which action is best everywhere, and no longer tries the others. SFT needs wide
initial weights then, or more steps.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from reflectkit.errors import DivergedError
from reflectkit.models.architecture import trunk_of
from reflectkit.models.device import on_device
from reflectkit.models.hub import PASSAGE
from reflectkit.models.labels import encodable
from reflectkit.models.load import all_finite
from reflectkit.models.rows import right_pad

END, PAD = "<|end|>", "<|pad|>"
WIDTH = 128
LAYERS, HEADS = 2, 4
STEP = 64  # context lengths of a GPT-2 are multiples of this
CONTEXT = 2**14
"""Tokens, at least. Relative positions cost nothing, and the conformance suite of decision servers
asks a question of 10,000 tokens, as a tokenizer counts them that knows only the words of its task.
"""
VOCABULARY = 640  # 256 bytes, 2 special tokens, and enough merges for the few words of a small env


def build_tokenizer(
    texts: Iterable[str],
    labels: Iterable[str],
    vocabulary: int = VOCABULARY,
    pattern: str = "",
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of `vocabulary` entries trained on `texts`; each of `labels` (with
    its leading space) is one token.

    Text is split into words before merging, as in GPT-2, so cells separated by spaces stay separate
    tokens; or into the matches of the regular expression `pattern`, and what is between them.
    """
    # 1. How texts are split before merges
    tokenizer = Tokenizer(models.BPE())
    if pattern:
        pieces = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, bytewise])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # 2. Merges, of the labels first
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    corpus = list(map(encodable, texts))
    often = max(2, len(corpus)) * 2  # so that the merges of labels come first
    tokenizer.train_from_iterator(
        [*corpus, *(text for text in labels for _ in range(often))], trainer
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def context_for(longest: int) -> int:
    """A context length for prompts of which those seen have at most `longest` tokens: a quarter
    more, rounded up.

    >>> context_for(51), context_for(52)
    (64, 128)
    """
    return STEP * -(-5 * longest // (4 * STEP))


PAIRS = ("conv", "full_attention", "conv", "full_attention")
"""The layers of `tiny-hybrid`."""
CONVOLUTION_FIRST = ("conv", "full_attention", "full_attention")
"""The layers of `tiny` in SFT."""


def build_model(
    tokenizer: PreTrainedTokenizerFast,
    context: int,
    seed: int,
    init_range: float = 0.04,
    layers: Sequence[str] = (),
) -> PreTrainedModel:
    """A fresh model for `tokenizer` that reads up to `context` tokens: 4 heads, tied embeddings.

    init_range: standard deviation of the initial weights. GPT-2's 0.02 is meant for widths from
    768; at width 128 a model that learns from one token per row needs several times as many steps
    with it. layers: of an LFM2 (Liquid AI, 2025), gated convolutions over three tokens and
    attention, which learns sooner to find a word elsewhere in its prompt; without them, it is a
    GPT-2 of 4 layers.
    """
    # Sizes by the names of each architecture
    common = {
        "vocab_size": len(tokenizer),
        "initializer_range": init_range,
        "bos_token_id": tokenizer.eos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config: Any
    if layers:
        config = Lfm2Config(
            **common,
            hidden_size=WIDTH,
            intermediate_size=3 * WIDTH,
            block_auto_adjust_ff_dim=False,
            num_hidden_layers=len(layers),
            layer_types=list(layers),
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=context,
            tie_word_embeddings=True,
        )
    else:
        config = GPT2Config(
            **common,
            n_positions=context,
            n_embd=WIDTH,
            n_layer=4,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        return Lfm2ForCausalLM(config) if layers else GPT2LMHeadModel(config)


def relative_context(longest: int) -> int:
    """A context length for relative positions: four times the `longest` prompt that was seen, and
    CONTEXT at least.

    >>> relative_context(20), relative_context(5000)
    (16384, 20000)
    """
    return max(CONTEXT, 4 * longest)


SCORING_LAYERS = 4
"""The layers of `tiny` in SFT where it reads each choice alone: 1 M parameters."""


def build_relative(
    tokenizer: PreTrainedTokenizerFast,
    context: int,
    seed: int,
    layers: int = LAYERS,
    heads: int = HEADS,
    theta: float = 10_000.0,
) -> PreTrainedModel:
    """A fresh Qwen3 for `tokenizer` that reads up to `context` tokens: relative positions.

    The LM head starts small, so that all actions are about equally likely at first. heads: of
    attention. theta: RoPE's base.
    """
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=WIDTH // HEADS,
        max_position_embeddings=context,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        initializer_range=0.06,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        model = Qwen3ForCausalLM(config)
        nn.init.normal_(model.lm_head.weight, std=0.02)
    return model


COPY_RATE = 3e-3


def teach_copying(
    model: PreTrainedModel,
    steps: int,
    seed: int,
    advance: Callable[[float], None] = lambda loss: None,
) -> None:
    """Train a fresh `model` in place to continue a repeated passage of random tokens, with 16 rows
    per step.

    It gives rise to heads that find a word again and copy what followed (induction heads, Olsson et
    al. 2022), which a task's few rows do not. The passages have different lengths, so that no fixed
    distance helps. advance: called with each step's loss in nats per token.

    Raises DivergedError: a loss or a weight became NaN or infinite.
    """
    chance = torch.Generator().manual_seed(seed % 2**63)
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=COPY_RATE, weight_decay=0.0, betas=(0.9, 0.95)
    )
    model.train()
    for step in range(steps):
        # 1. The learning rate rises for 50 steps, and falls in the second half
        for group in optimizer.param_groups:
            group["lr"] = (
                COPY_RATE * min(1.0, (step + 1) / 50) * min(1.0, 2 * (steps - step) / steps)
            )
        # 2. Passages of random length, repeated; what is not a repetition is not learned
        rows_BT = torch.randint(model.config.vocab_size, (16, PASSAGE), generator=chance)
        labels_BT = torch.full_like(rows_BT, -100)
        for row, label in zip(rows_BT, labels_BT, strict=True):
            period = int(torch.randint(PASSAGE // 8, PASSAGE // 2 + 1, (1,), generator=chance))
            row[:] = row[:period].repeat(PASSAGE // period + 1)[:PASSAGE]
            label[period + 1 :] = row[period + 1 :]
        loss = model(input_ids=rows_BT.to(device), labels=labels_BT.to(device)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        nats = float(loss.detach())
        if not math.isfinite(nats) or not all_finite(model.parameters()):
            raise DivergedError(
                f"learning to copy diverged at step {step + 1} (loss {nats:.4g}); lower"
                " --init-range"
            )
        advance(nats)


ORTHOGONAL = 0.02
"""The mean squared cosine at which hidden states are far enough apart."""
SPREAD_RATE = 1e-3
SPREAD_STEPS = 100
"""At most. Most tasks take 5 to 40."""
SPREAD_ROWS = 32
SPREAD_TOKENS = 8192
"""Tokens of a step at most, so that long prompts are fewer."""


def spread_apart(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    seed: int,
    advance: Callable[[float], None] = lambda loss: None,
    restore: Callable[[], None] | None = None,
) -> None:
    """Train a fresh `model` in place until different prompts end in nearly orthogonal hidden states.

    Random weights read all states of a task nearly alike: the eleven of a 4 x 4 grid have a mean
    cosine of 0.95. What RL learns in one of them is then done in all, and a critic that reads the
    hidden states cannot tell them apart.

    prompts: token ids, each prompt once; with fewer than two nothing is done. advance: called with
    each step's mean squared cosine, 0 … 1. restore: called after each step, to write again what
    training should keep.
    """
    # 1. Rows of a step: few if prompts are long
    longest = max(map(len, prompts), default=1)
    count = min(SPREAD_ROWS, len(prompts), max(2, SPREAD_TOKENS // longest))
    if count < 2:
        return

    # 2. Steps of Adam
    chance = random.Random(seed)
    trunk = trunk_of(model)
    weights = list(trunk.parameters())
    device = weights[0].device
    row_R = torch.arange(count, device=device)
    is_other_RR = ~torch.eye(count, dtype=torch.bool, device=device)
    optimizer = torch.optim.Adam(weights, lr=SPREAD_RATE)
    for _ in range(SPREAD_STEPS):
        # The last hidden states of some prompts, and the cosines between them
        rows = chance.sample(prompts, count)
        ends_R = on_device([len(row) - 1 for row in rows], device)
        input_ids_RT = right_pad(rows, model.config.pad_token_id, device)
        hidden_RTD = trunk(input_ids=input_ids_RT, use_cache=False).last_hidden_state
        unit_RD = nn.functional.normalize(hidden_RTD[row_R, ends_R], dim=-1)
        loss = (unit_RD @ unit_RD.T)[is_other_RR].square().mean()

        # A step, unless they are far apart
        square = float(loss.detach())
        if square < ORTHOGONAL:
            break
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        if restore is not None:
            restore()
        advance(square)
    model.zero_grad(set_to_none=True)
