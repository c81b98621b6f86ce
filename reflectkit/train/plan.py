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

MOST_TOKENS, CPU_BYTES = 16384, 2**31
"""Limits of `tokens_a_pass`."""


def split_parameters(models: Iterable[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(trained, frozen) parameters of `models`, each once although models may share them."""
    every = {id(weight): weight for model in models for weight in model.parameters()}.values()
    trained = [weight for weight in every if weight.requires_grad]
    return trained, [weight for weight in every if not weight.requires_grad]


def size(weights: Iterable[torch.Tensor]) -> int:
    """Bytes of `weights`."""
    return sum(weight.numel() * weight.element_size() for weight in weights)


def optimizer_size(weights: Iterable[torch.Tensor]) -> int:
    """Bytes of AdamW's state: two numbers for each weight; for a weight of 16 bits three, of 32
    bits each.
    """
    return sum(
        weight.numel() * (12 if weight.element_size() == 2 else 2 * weight.element_size())
        for weight in weights
    )


def activation_size(
    model: Any,
    tokens: int,
    logits: int,
    *,
    recompute: bool,
) -> int:
    """Approximate bytes that a forward pass over `tokens` tokens keeps for the backward pass.
    logits: how many of the tokens have logits at once.

    17 values of the hidden size for each token and layer (Korthikanti et al., arXiv 2205.05198, eq.
    2, without the attention scores, which fused attention recomputes), or with `recompute` one, and
    17 in the current layer; and the float32 logits with their gradient.
    """
    config, element = model.config, next(model.parameters()).element_size()
    layer = 17 * config.hidden_size * element
    layers = config.num_hidden_layers
    bytes_a_token = layers * config.hidden_size * element + layer if recompute else layers * layer
    return int(tokens * bytes_a_token + logits * 2 * 4 * config.vocab_size)


def tokens_a_pass(model: Any, *, recompute: bool) -> int:
    """How many tokens a pass of an update has, padding included, where nobody says: MOST_TOKENS,
    but on a CPU, where long passes are no faster, not more than those whose activations take
    CPU_BYTES.
    """
    if next(model.parameters()).device.type != "cpu":
        return MOST_TOKENS
    return max(1, min(MOST_TOKENS, CPU_BYTES // activation_size(model, 1, 0, recompute=recompute)))


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

    models: the one that is trained first, then frozen ones. batch_tokens: of the largest forward
    and backward pass. logits: how many of these have logits at once. recompute: whether activations
    are recomputed (gradient checkpointing). tokens: further counts, by what they count.
    stop_tokens: those that end what the model writes, if it writes. A weight packed into bytes by
    quantisation counts as often as it has bytes.
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
    counts = {
        name: sum(weight.numel() for weight in part)
        for name, part in (("trained", trained), ("frozen", frozen))
    }
    # 2. The table
    rows = [
        ("trainable parameters", f"{counts['trained']:,}"),
        ("frozen parameters", f"{counts['frozen']:,}"),
        *((name, shown_bytes(value)) for name, value in memory.items()),
        *((name.replace("_", " "), f"{value:,}") for name, value in tokens.items()),
    ]
    figures: dict[str, Any] = {**counts, **memory, **tokens}
    if stop_tokens:
        rows.append(("stop tokens", ", ".join(stop_tokens)))
        figures["stop_tokens"] = list(stop_tokens)
    table = Table(f"Plan of {stage}, estimated", ("what", "value"), tuple(rows))
    return Report(stage, results, figures, tables=(table,))


def shown_bytes(count: float) -> str:
    """Bytes in MiB or GiB.

    >>> shown_bytes(3 * 2**20), shown_bytes(5 * 2**31)
    ('3.0 MiB', '10.0 GiB')
    """
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
