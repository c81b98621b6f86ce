"""What sft trains and what it reads: the model with its tokenizer, and the rows as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectkit.core.config import with_values
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError
from reflectkit.core.prompts import LABELS
from reflectkit.core.text import counted
from reflectkit.data.sft import FILE_OF_ROLE, Row, read_rows
from reflectkit.models.hub import TINY
from reflectkit.stages.tuning.encoding import encode

if TYPE_CHECKING:
    from reflectkit.models.load import Player
    from reflectkit.stages.tuning.sft_config import SFTConfig


def inputs_of(config: SFTConfig, source: Path) -> list[Path]:
    """The rows and the model folder to start from; for a tiny reflector also the policy's rows next to its own, if any.

    With their words in its tokenizer, a tiny policy can start from its weights (`--model REFLECTOR`).
    """
    policy_rows = source.with_name(FILE_OF_ROLE["policy"])
    if config.model in TINY:
        return [source, policy_rows] if config.role == "reflection" and policy_rows.is_file() else [source]
    return [source, Path(config.model)] if Path(config.model).is_dir() else [source]


def player_of(config: SFTConfig, source: Path, rows: Sequence[Row]) -> Player:
    """The model to train. Raises CheckpointError."""
    from reflectkit.models.load import Player, load_player, pick_device, with_adapter
    from reflectkit.models.silence import silence_libraries
    from reflectkit.models.training import set_dropout

    silence_libraries()
    if config.model in TINY:
        from reflectkit.models.tiny import build_model

        tokenizer = tiny_tokenizer(config, source, rows)
        model = build_model(
            tokenizer, config.max_length, config.run.seed, config.tiny.init_range, hybrid=config.model == "tiny-hybrid"
        )
        if config.dropout is not None:
            set_dropout(model, config.dropout)
        return Player(model.to(pick_device(config.device)), tokenizer, config.role)
    loaded = load_player(config.model, device=config.device, dtype=config.dtype, quantize=config.quantize)
    if config.lora.r:
        loaded = with_adapter(
            loaded, config.lora.r, config.lora.alpha, config.run.seed, config.lora_dropout, config.lora.targets
        )
    if config.dropout is not None:
        set_dropout(loaded.model, config.dropout)
    return replace(loaded, role=config.role)


def tiny_tokenizer(config: SFTConfig, source: Path, rows: Sequence[Row]) -> Any:
    """The tokenizer of a tiny model, trained on the rows."""
    from reflectkit.models.tiny import build_tokenizer

    texts = [row.text for row in (*rows, *(row for other in inputs_of(config, source)[1:] for row in read_rows(other)))]
    used = {completion for row in rows for _, completion in row.parts}
    return build_tokenizer(texts, _labels(texts, used), config.tiny.vocabulary)


def _labels(texts: list[str], used: set[str]) -> list[str]:
    """The labels that become single tokens of a tiny model: all that the rows list or answer with.

    If rows list different numbers of actions, other states may list more, so twice as many labels are used.
    """
    listed = "\n".join(set(texts))
    labels = [f" {label}" for label in LABELS if f" {label}" in used or f"\n {label} " in listed]
    behind = {text.rpartition("\nActions:\n")[2].count("\n") for text in texts if "\nActions:\n" in text}
    return [f" {label}" for label in LABELS[: 2 * len(labels)]] if len(behind) > 1 else labels


def encoded_rows(
    config: SFTConfig, source: Path, rows: Sequence[Row], player: Player, progress: Progress
) -> list[dict[str, list[int]]]:
    """What to train on: the rows, or with --share-prefixes packs of them.

    Raises DataError, and ConfigError if the model cannot read packs.
    """
    encoded = encode(
        source, rows, player, role=config.role, prompt_loss=config.prompt_loss, max_length=config.max_length
    )
    if not config.share_prefixes:
        return encoded
    from reflectkit.models.packing import can_pack, pack

    if not can_pack(player.model):
        how = " with --gradient-checkpointing" if config.gradient_checkpointing else ""
        raise ConfigError(f"--share-prefixes: {config.model} cannot read several rows at once{how}; leave it out")
    packs = pack(encoded, min(config.max_length, player.context), player.model.config.get_text_config().hidden_size)
    before, now = (sum(len(row["input_ids"]) for row in rows) for rows in (encoded, packs))
    read = f"{counted(before, 'token')} in {counted(len(encoded), 'row')}"
    progress.news(f"--share-prefixes: {read}, {now:,} in {counted(len(packs), 'group')}")
    return packs


def with_steps(config: SFTConfig, rows: int) -> SFTConfig:
    """`config` with --epochs as a number of steps. rows: how many there are, or groups of them."""
    return with_values(config, max_steps=config.epochs * -(-rows // config.batch_size)) if config.epochs else config
