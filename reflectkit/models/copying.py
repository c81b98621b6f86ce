"""Attention heads that copy words, written by hand into a Qwen3 with random weights.

"Door 12 is open" asks for the choice "door 12". From random weights, RL learns each door alone.
With a head that finds the word "door" in the state and copies what follows it there, what is learned
of one door holds for all. Such induction heads (Olsson et al. 2022, arXiv 2209.11895) are linear in
the embeddings, so they can be written down instead of trained:

1. A head of the first layer tells each token which word stands before it. Another one tells the
   tokens of the list of choices that they belong to it, as copying from there is of no use.
2. A head of the second layer looks for tokens of the state before which its own word stands, and
   writes their words for the LM head.

They are added to the random heads, and use directions of the residual stream in which the random
weights write nothing. RL trains them like all other weights.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from reflectkit.models.architecture import trunk_of
from reflectkit.models.tiny import HEADS, build_relative
from reflectkit.prompts import ACTIONS_MARKER

COPYING_THETA = 1e6
"""RoPE's base, that of pretrained Qwen3. With 10,000, few pairs of dimensions turn slowly."""
SLOW = 0.01
"""Radians a token: pairs of dimensions that turn more slowly compare words at a distance."""
FAST_PAIRS = (0.6, 0.25, 0.15)
"""The shares of a head's three fastest pairs in a query. The sum of their cosines has one peak."""
LOOK_BACK_GAIN, COMPARISON_GAIN = 1.7, 1.5
"""Weights of the norms of queries and keys: how sharply heads of the two layers attend."""
SHARED_SIZE, MARKER_SIZE = 0.35, 1.0
"""The lengths of what all embeddings share, from which constant queries are made, and of what only
the marker of the list has.
"""
BEFORE_SIZE, LISTED_SIZE, COPY_SIZE = 0.5, 0.2, 3.0
"""How strongly the heads write the word before, that a token is of the list, and the copied word."""
LM_HEAD_SIZE = 0.05
"""The standard deviation of the weights by which the LM head reads a copied word."""
ALIKE = 0.8
"""The cosine between tokens of the same letters, such as "Door" and " door"."""
BROKEN = "\ufffd"
"""What a part of a character is decoded to."""


def build_copying(
    tokenizer: PreTrainedTokenizerFast,
    context: int,
    seed: int,
) -> tuple[PreTrainedModel, CopyingHeads]:
    """A fresh Qwen3 that reads up to `context` tokens and copies words, and its copying heads."""
    model = build_relative(tokenizer, context, seed, heads=HEADS + 2, theta=COPYING_THETA)
    embed_alike(model, tokenizer, seed)
    return model, CopyingHeads(model, tokenizer, seed)


@torch.no_grad()
def embed_alike(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
) -> None:
    """Give tokens that differ only in capitals and spaces similar embeddings, in place.

    A single letter keeps its case, as in grids and codes it is a name.
    """
    generator = torch.Generator().manual_seed(seed % 2**63)
    weight_VD = trunk_of(model).embed_tokens.weight
    word_parts: dict[str, torch.Tensor] = {}
    for index in range(len(tokenizer)):
        word = tokenizer.decode([index]).strip()
        if len(word) > 1:
            word = word.lower()
        if not word or BROKEN in word:
            continue
        if word not in word_parts:
            part_D = torch.randn(weight_VD.shape[1], generator=generator)
            word_parts[word] = model.config.initializer_range * part_D
        shared_part_D = ALIKE**0.5 * word_parts[word]
        own_part_D = (1 - ALIKE) ** 0.5 * weight_VD[index]
        weight_VD[index] = shared_part_D + own_part_D


class CopyingHeads:
    """The written heads of a fresh Qwen3 `model`, the last two of the first layer and the one
    before the last of the second. Making it writes them, and `restore` writes them again.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        seed: int,
    ) -> None:
        config = model.config
        width, size = config.hidden_size, config.head_dim
        trunk = trunk_of(model)
        self._layers = trunk.layers[:2]
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

        # 1. How far RoPE turns each pair of dimensions of a head, in radians a token. Slow pairs
        # compare words, except for the slowest, which tells the list
        half = size // 2
        turn_P = config.rope_parameters["rope_theta"] ** (-torch.arange(half) / half)
        slow = (turn_P < SLOW).nonzero()[:-1, 0]
        compared_M = torch.cat([slow, slow + half])
        flag, no_flag = half - 1, size - 1
        count = len(compared_M)

        # 2. Orthogonal directions of the residual stream
        generator = torch.Generator().manual_seed(seed % 2**63)
        random_DD = torch.randn(width, width, generator=generator)
        basis_DD = torch.linalg.qr(random_DD).Q.T
        shared_D, marker_D, listed_D = basis_DD[:3]
        word_MD, before_MD, copied_MD = basis_DD[3 : 3 + 3 * count].split(count)
        self._written_KD = (basis_DD[: 3 + 3 * count], copied_MD)
        self._clear(rescale=True)

        # 3. Embeddings: what all share, what the marker has, and words where there are letters
        weight_VD = trunk.embed_tokens.weight
        weight_VD -= weight_VD @ copied_MD.T @ copied_MD
        for direction_D, length in ((shared_D, SHARED_SIZE), (marker_D, 0.0), (listed_D, 0.0)):
            weight_VD += (length - weight_VD @ direction_D)[:, None] * direction_D
        marker = tokenizer(ACTIONS_MARKER.removesuffix(":"))["input_ids"]
        if len(marker) == 1:  # prompts that list no choices have no such token
            weight_VD[marker] += MARKER_SIZE * marker_D
        is_word_V = torch.tensor([_is_word(tokenizer, index) for index in range(len(tokenizer))])
        weight_VD -= ~is_word_V[:, None] * (weight_VD @ word_MD.T @ word_MD)
        self._keep(weight_VD)

        # 4. The first layer: a head whose constant queries and keys are a place apart, and one
        # that finds the marker
        looking, copying = (layer.self_attn for layer in self._layers)
        last = config.num_attention_heads - 1
        amounts_P = torch.zeros(half)
        amounts_P[: len(FAST_PAIRS)] = torch.tensor(FAST_PAIRS).sqrt()
        query_H = torch.cat([amounts_P, torch.zeros(half)])
        key_H = torch.cat([amounts_P * turn_P.cos(), amounts_P * turn_P.sin()])
        self._write(
            looking,
            last - 1,
            query_HD=query_H[:, None] * shared_D,
            key_HD=key_H[:, None] * shared_D,
            value_MD=word_MD,
            output_MD=BEFORE_SIZE * before_MD,
        )
        query_HD, key_HD = torch.zeros(2, size, width)
        query_HD[flag] = shared_D
        key_HD[flag] = 10 * marker_D  # long, as keys are normalised
        key_HD[no_flag] = shared_D
        self._write(
            looking,
            last,
            query_HD=query_HD,
            key_HD=key_HD,
            value_MD=marker_D[None],
            output_MD=LISTED_SIZE * listed_D[None],
        )
        fast = [*range(len(FAST_PAIRS)), *range(half, half + len(FAST_PAIRS))]
        for norm in (looking.q_norm, looking.k_norm):
            norm.weight[[*fast, flag, no_flag]] = LOOK_BACK_GAIN

        # 5. The second layer: a head that compares a word with the words before others
        query_HD, key_HD = torch.zeros(2, size, width)
        query_HD[compared_M] = word_MD
        key_HD[compared_M] = before_MD
        query_HD[flag] = shared_D
        key_HD[flag] = -listed_D
        self._write(
            copying,
            last - 1,
            query_HD=query_HD,
            key_HD=key_HD,
            value_MD=word_MD,
            output_MD=COPY_SIZE * copied_MD,
        )
        for norm in (copying.q_norm, copying.k_norm):
            norm.weight[[*compared_M.tolist(), flag]] = COMPARISON_GAIN

        # 6. The norms stay, too. The LM head knows copied words
        for layer in self._layers:
            self._keep(layer.input_layernorm.weight)
            self._keep(layer.self_attn.q_norm.weight)
            self._keep(layer.self_attn.k_norm.weight)
        word_VM = weight_VD @ word_MD.T
        model.lm_head.weight += LM_HEAD_SIZE / word_VM.std() * word_VM @ copied_MD

    @torch.no_grad()
    def restore(self) -> None:
        """Write the heads and the embeddings again, and clear their directions, after a step that
        trained the other weights.
        """
        self._clear()
        for weight, value in self._kept:
            weight.copy_(value)

    def _write(
        self,
        attention: Any,
        head: int,
        *,
        query_HD: torch.Tensor,
        key_HD: torch.Tensor,
        value_MD: torch.Tensor,
        output_MD: torch.Tensor,
    ) -> None:
        """Write a head that attends by its queries and keys, and takes what is along the directions
        of its values to those of its output.
        """
        size, count = len(query_HD), len(value_MD)
        part = slice(head * size, (head + 1) * size)
        queries, keys, values = (
            projection.weight[part]
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        output = attention.o_proj.weight[:, part]
        queries.copy_(query_HD)
        keys.copy_(key_HD)
        values.zero_()
        values[:count] = value_MD
        output.zero_()
        output[:, :count] = output_MD.T
        for view in (queries, keys, values, output):
            self._keep(view)

    def _keep(self, weight: torch.Tensor) -> None:
        """Let `restore` write the weight, or the part of one that it is a view of, as it is now."""
        self._kept.append((weight, weight.clone()))

    def _clear(self, rescale: bool = False) -> None:
        """Take the written directions out of what the layers write.

        rescale: make up for the length that is lost.
        """
        for layer, written_KD in zip(self._layers, self._written_KD, strict=True):
            count, width = written_KD.shape
            scale = (width / (width - count)) ** 0.5 if rescale else 1.0
            for weight_DI in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
                weight_DI -= written_KD.T @ (written_KD @ weight_DI)
                weight_DI *= scale


def _is_word(tokenizer: PreTrainedTokenizerFast, index: int) -> bool:
    """Whether the token has a letter, a digit or a part of a character. Nothing is copied after
    other tokens, such as the colon that ends each prompt.
    """
    if index in tokenizer.all_special_ids:
        return False
    text = tokenizer.decode([index])
    return BROKEN in text or any(map(str.isalnum, text))
