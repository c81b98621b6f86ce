"""--plan: parameters, memory and tokens of a training run, by arithmetic on the loaded model; nothing is trained."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reflectkit.core.reports import Report, Table

PLAN_HELP = "Only estimate parameters, memory and tokens; trains nothing and writes nothing."


def plan_report(
    stage: str,
    results: Path,
    models: Iterable[Any],
    optimizer: str,
    batch_tokens: int,
    *,
    recompute: bool,
    tokens: dict[str, int],
) -> Report:
    """The estimate as a table.

    models: the one that is trained first, then frozen ones. batch_tokens: of the largest forward and backward pass.
    recompute: whether activations are recomputed (gradient checkpointing). tokens: further counts, by what they count.
    """
    from reflectkit.models.measure import activation_size, count, optimizer_size, size, split_parameters

    models = list(models)
    trained, frozen = split_parameters(models)
    memory = {
        "weights": size([*trained, *frozen]),
        "gradients": size(trained),
        "optimizer": optimizer_size(optimizer, trained),
        "activations": activation_size(models[0], batch_tokens, recompute=recompute),
    }
    figures = {"trained": count(trained), "frozen": count(frozen), **memory, "memory": sum(memory.values()), **tokens}
    rows = [
        ("trainable parameters", f"{figures['trained']:,}"),
        ("frozen parameters", f"{figures['frozen']:,}"),
        *((name, shown_bytes(figures[name])) for name in (*memory, "memory")),
        *((name.replace("_", " "), f"{value:,}") for name, value in tokens.items()),
    ]
    return Report(
        stage, results, figures, tables=(Table(f"Plan of {stage}, estimated", ("what", "value"), tuple(rows)),)
    )


def shown_bytes(count: float) -> str:
    """Bytes in MiB or GiB.

    >>> shown_bytes(3 * 2**20), shown_bytes(5 * 2**31)
    ('3.0 MiB', '10.0 GiB')
    """
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
