"""--plan: parameters, memory and tokens of a training run, by arithmetic on the loaded model;
nothing is trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectkit.console import Report, Table

if TYPE_CHECKING:
    import torch

MOST_TOKENS = 16384
"""The most tokens of a pass, padding included."""
CPU_BYTES = 2**31
"""The most bytes of activations of a pass on a CPU."""


def split_parameters(models: Iterable[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(trained, frozen) parameters of `models`, each once although models may share them."""
    by_identity = {id(weight): weight for model in models for weight in model.parameters()}
    trained = [weight for weight in by_identity.values() if weight.requires_grad]
    frozen = [weight for weight in by_identity.values() if not weight.requires_grad]
    return trained, frozen


def size(weights: Iterable[torch.Tensor]) -> int:
    """Bytes of `weights`."""
    return sum(weight.numel() * weight.element_size() for weight in weights)


def optimizer_size(weights: Iterable[torch.Tensor]) -> int:
    """Bytes of AdamW's state: two numbers for each weight, as large as the weight.

    For a weight of 16 bits it is three numbers of 32 bits.
    """
    total = 0
    for weight in weights:
        element = weight.element_size()
        bytes_a_weight = 3 * 4 if element == 2 else 2 * element
        total += weight.numel() * bytes_a_weight
    return total


def activation_size(
    model: Any,
    tokens: int,
    logits: int,
    *,
    recompute: bool,
) -> int:
    """Approximate bytes that a forward pass over `tokens` tokens keeps for the backward pass.

    logits: how many of the tokens have logits at once. recompute: whether activations are
    recomputed (gradient checkpointing).

    A layer keeps 17 values of the hidden size for each token (Korthikanti et al., arXiv 2205.05198,
    eq. 2, without the attention scores, which fused attention recomputes). With `recompute` only
    the current layer does, and every layer keeps one. The float32 logits and their gradient are
    added.
    """
    # 1. The activations of a token
    config = model.config
    layers = config.num_hidden_layers
    state_bytes = config.hidden_size * next(model.parameters()).element_size()
    layer_bytes = 17 * state_bytes
    bytes_a_token = layers * layer_bytes
    if recompute:
        bytes_a_token = layers * state_bytes + layer_bytes

    # 2. The logits of a token
    logits_bytes = 2 * 4 * config.vocab_size
    return int(tokens * bytes_a_token + logits * logits_bytes)


def tokens_a_pass(model: Any, *, recompute: bool) -> int:
    """The default number of tokens in a pass of an update, padding included.

    It is MOST_TOKENS. On a CPU, where long passes are no faster, their activations take at most
    CPU_BYTES.
    """
    if next(model.parameters()).device.type != "cpu":
        return MOST_TOKENS
    tokens = CPU_BYTES // activation_size(model, 1, 0, recompute=recompute)
    return max(1, min(MOST_TOKENS, tokens))


def plan_report(
    stage: str,
    results: Path,
    models: Iterable[Any],
    batch_tokens: int,
    logits: int,
    *,
    recompute: bool,
    tokens: dict[str, int],
    stop_tokens: Sequence[str] = (),
) -> Report:
    """The estimate as a table.

    Parameters
    ----------
    models: the one that is trained first, then frozen ones.
    batch_tokens: of the largest forward and backward pass.
    logits: how many of these tokens have logits at once.
    recompute: whether activations are recomputed (gradient checkpointing).
    tokens: further counts, by what they count.
    stop_tokens: those that end what the model writes, if it writes.

    A weight packed into bytes by quantisation counts as often as it has bytes.
    """
    # 1. Memory, by what needs it
    models = list(models)
    trained, frozen = split_parameters(models)
    memory = {
        "weights": size([*trained, *frozen]),
        "gradients": size(trained),
        "optimizer": optimizer_size(trained),
        "activations": activation_size(models[0], batch_tokens, logits, recompute=recompute),
    }
    memory["memory"] = sum(memory.values())

    # 2. Numbers of parameters
    trained_count = sum(weight.numel() for weight in trained)
    frozen_count = sum(weight.numel() for weight in frozen)
    figures: dict[str, Any] = {"trained": trained_count, "frozen": frozen_count}
    figures |= memory
    figures |= tokens

    # 3. The table
    rows = [("trainable parameters", f"{trained_count:,}")]
    rows.append(("frozen parameters", f"{frozen_count:,}"))
    for name, value in memory.items():
        rows.append((name, bytes_text(value)))
    for name, value in tokens.items():
        rows.append((name.replace("_", " "), f"{value:,}"))
    if stop_tokens:
        rows.append(("stop tokens", ", ".join(stop_tokens)))
        figures["stop_tokens"] = list(stop_tokens)
    table = Table(f"Plan of {stage}, estimated", ("what", "value"), tuple(rows))
    return Report(stage, results, figures, tables=(table,))


def bytes_text(count: float) -> str:
    """Bytes in MiB or GiB.

    >>> bytes_text(3 * 2**20), bytes_text(5 * 2**31)
    ('3.0 MiB', '10.0 GiB')
    """
    if count >= 2**30:
        return f"{count / 2**30:.1f} GiB"
    return f"{count / 2**20:.1f} MiB"
