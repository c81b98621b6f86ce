"""What a model's architecture allows: its parts, and whether reading parts of rows apart is exact."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

OUTPUT_FIELDS = {field.name for field in fields(BaseModelOutputWithPast)}
CACHE = "cache" if "cache" in OUTPUT_FIELDS else "past_key_values"
"""A model's argument and its output's field: `cache` since transformers 5.24, `past_key_values`
before.
"""

PLAIN_HEAD_BLOCKERS = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "logits_mup_width_multiplier",
)
"""Config entries of models that change their logits after the head; such a model's own forward
computes them.
"""


def unwrapped(model: Any) -> Any:
    """The Hugging Face model inside a LoRA wrapper (whose layers stay in place), or the model
    itself.
    """
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def trunk_of(model: Any) -> Any:
    """The model below its LM head."""
    bare = unwrapped(model)
    return getattr(bare, bare.base_model_prefix)


def text_config(model: Any) -> Any:
    """The configuration of the model, or of the language part of a model that reads images too."""
    return unwrapped(model).config.get_text_config()


def takes_positions(model: Any) -> bool:
    """Whether the model's forward takes positions."""
    return "position_ids" in inspect.signature(unwrapped(model).forward).parameters


def takes_masks(model: Any) -> bool:
    """Whether the model's attention takes a mask of pairs of tokens."""
    return getattr(unwrapped(model).config, "_attn_implementation", None) == "sdpa"


def has_plain_head(model: Any) -> bool:
    """Whether the logits are those of the head, unchanged."""
    config = text_config(model)
    return not any(
        getattr(config, name, None) not in (None, 1, 1.0) for name in PLAIN_HEAD_BLOCKERS
    )


def attends_to_all(model: Any) -> bool:
    """Whether each layer attends to all earlier positions, and caches nothing but keys and values."""
    config = text_config(model)
    if "local" in getattr(config, "attention_layers", ()):
        return False  # GPT-Neo's window counts columns, and its cache does not tell
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)


def continues_states(model: Any) -> bool:
    """Whether the model's linear attention can continue from the state after any prompt (Qwen3.5)."""
    return str(text_config(model).model_type).startswith("qwen3_5")


def continues_prefixes(model: Any) -> bool:
    """Whether reading after a cached prefix is exact: each layer attends to all earlier positions,
    is a short convolution (LFM2), or is linear attention that continues from a state; and the model
    takes positions.
    """
    config = text_config(model)
    kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    allowed: set[type] = {DynamicLayer}
    if hasattr(config, "conv_L_cache") or continues_states(model):
        allowed.add(LinearAttentionLayer)
    return kinds <= allowed and has_plain_head(model) and takes_positions(model)


def recomputes_activations(model: Any) -> bool:
    """Whether the backward pass recomputes the activations of some layers (gradient checkpointing)."""
    return any(
        getattr(module, "gradient_checkpointing", False) for module in unwrapped(model).modules()
    )
