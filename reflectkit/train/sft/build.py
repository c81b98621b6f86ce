"""Build, the second of sft's four steps: the model of an `SFTRun`, its rows as tokens, and TRL's
trainer.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import trl
from datasets import Dataset
from transformers import PrinterCallback

from reflectkit.console import Progress, Report
from reflectkit.data.sft_rows import SFTRow, read_rows
from reflectkit.errors import CheckpointError, ConfigError
from reflectkit.models.chat import Dialogue
from reflectkit.models.fast_pass import compile_notice
from reflectkit.models.load import (
    LoadedModel,
    checkpoint_gradients,
    load_player,
    pick_device,
    with_adapter,
)
from reflectkit.models.processor import dtype_advice
from reflectkit.models.tiny import (
    CONVOLUTION_FIRST,
    PAIRS,
    SCORING_LAYERS,
    build_model,
    build_relative,
    build_tokenizer,
    context_for,
    relative_context,
    teach_copying,
)
from reflectkit.prompts import LABELS
from reflectkit.runs.run import CHECKSUMS, checkpoints, damage_told, verify
from reflectkit.text import pluralize
from reflectkit.train.optimizers import CopyingAdamW, is_rounded, set_dropout
from reflectkit.train.plan import plan_report
from reflectkit.train.processes import Processes
from reflectkit.train.sft.config import LEARNED_POSITIONS, SFTConfig
from reflectkit.train.sft.packing import can_pack, collate, pack
from reflectkit.train.sft.resolve import FEWEST_ROWS, SFTRows, SFTRun
from reflectkit.train.sft.tokens import encode_for, row_length
from reflectkit.train.sft.trainers import (
    CompletionTrainer,
    DecisionTrainer,
    PackTrainer,
    collate_decisions,
    keeping_activations,
)

SCRATCH_STEPS, PRETRAINED_STEPS = (20, 600, 3000), (5, 100, 3000)
"""(passes over the rows, fewest steps, most steps) by default, for random weights and for others.
"""
TRAINER_FOLDER = "trainer"
"""The folder of TRL's own checkpoints in the folder of a run. It is removed after training."""


@dataclass(frozen=True)
class Training:
    """The model, the rows and the number of steps that `train.sft.fit` trains with."""

    run: SFTRun
    folder: Path
    """The folder of the run."""
    processes: Processes
    player: LoadedModel
    rows: list[dict[str, Any]]
    """The rows to train on as tokens, or groups of them."""
    held_out: list[dict[str, Any]]
    """The held-out rows, on which the model is measured."""
    steps: int
    """The number of gradient steps, at most."""
    resume: Path | None
    """The trainer's checkpoint that training starts from."""
    parameters: int
    """The number of the model's parameters, over all processes."""

    @property
    def decides(self) -> bool:
        """Whether the rows are decisions between options, rather than texts."""
        return "options" in self.rows[0]

    @property
    def longest(self) -> int:
        """Tokens of the longest row or group."""
        return max(map(row_length, self.rows))


def build(
    run: SFTRun,
    folder: Path,
    processes: Processes,
    progress: Progress,
) -> Training:
    """The model and the rows as tokens. folder: the run's, with the checkpoints to resume from.

    Raises DataError: a row is too long. CheckpointError: the model cannot be loaded, or does not
    know a token. ConfigError: it cannot read several rows at once, for --share-prefixes.
    """
    config, rows = run.config, run.rows

    # 1. Where training starts
    with processes.first_then_rest():
        resume = last_checkpoint(folder / TRAINER_FOLDER, progress)

    # 2. The model
    device = str(processes.accelerator.device) if processes.count > 1 else config.device
    player = replace(starting_model(run, device), answer=rows.answer)
    if advice := dtype_advice(player):
        progress.news(advice)
    if player.tokenizer.chat_template:
        plain = "the rows are plain text: from here on, the model's chat template is not used"
        progress.news(plain)
    if config.gradient_checkpointing:
        checkpoint_gradients(player.model)
    elif notice := compile_notice(player.model):
        progress.news(notice)

    # 3. The rows as tokens; those to train on first, since some may not fit
    encoded = training_rows(run, player, progress)
    held_out = encode_for(config, rows.held_out_source, rows.held_out, player)
    training = Training(
        run,
        folder,
        processes,
        player,
        encoded,
        held_out,
        steps=gradient_steps(config, len(encoded)),
        resume=resume,
        parameters=sum(weight.numel() for weight in player.model.parameters()),
    )
    for line in _plans(training):
        progress.news(line)

    # 4. What a model from scratch learns before them
    if config.tiny.copy_steps and resume is None:
        with progress.bar("Copying", config.tiny.copy_steps) as bar:
            teach_copying(
                player.model,
                config.tiny.copy_steps,
                config.run.seed,
                lambda loss: bar.advance(1, loss=loss),
            )
    return training


def last_checkpoint(folder: Path, progress: Progress) -> Path | None:
    """The latest undamaged checkpoint in `folder`; damaged ones after it are removed."""
    for checkpoint in reversed(checkpoints(folder)):
        try:
            verify(checkpoint)
            return checkpoint
        except CheckpointError as error:
            if (checkpoint / CHECKSUMS).exists():
                has_earlier = checkpoint != checkpoints(folder)[0]
                progress.news(damage_told(error, has_earlier=has_earlier))
            shutil.rmtree(checkpoint)
    return None


def _plans(training: Training) -> Iterator[str]:
    """Lines that tell how long a run may take, where nobody says, and what is measured."""
    config, rows = training.run.config, training.run.rows
    if not config.max_length:
        longest = f"the longest row has {training.longest:,} tokens"
        yield f"{longest}, of {training.player.context:,} that the model reads"
    if config.follows_rows:
        count = pluralize(len(rows.training), "row")
        until = ", or until held-out rows gain nothing" if training.held_out else ""
        yield f"at most {pluralize(training.steps, 'step')} on {count}{until}; or set --max-steps"
    if training.held_out:
        yield f"held out: {pluralize(len(training.held_out), 'row')} of {rows.held_out_source}"
    elif config.follows_rows and config.hold_out is None and rows.held_out_source == rows.source:
        yield f"fewer than {FEWEST_ROWS} rows: none is held out; or set --hold-out 0.2"


def gradient_steps(config: SFTConfig, rows: int) -> int:
    """The number of gradient steps, at most, on `rows` rows, or groups of them."""
    steps_a_pass = -(-rows // config.batch_size)
    if not config.follows_rows:
        return config.epochs * steps_a_pass or config.max_steps
    passes, fewest, most = SCRATCH_STEPS if config.is_from_scratch else PRETRAINED_STEPS
    return min(max(passes * steps_a_pass, fewest), most)


def training_rows(
    run: SFTRun,
    player: LoadedModel,
    progress: Progress,
) -> list[dict[str, Any]]:
    """The rows to train on as tokens, or with --share-prefixes packs of them.

    Raises DataError, CheckpointError, and ConfigError if the model cannot read packs.
    """
    config, rows = run.config, run.rows
    prompt_loss = config.prompt_loss
    encoded = encode_for(config, rows.source, rows.training, player, prompt_loss=prompt_loss)
    if not config.share_prefixes:
        return encoded
    if not can_pack(player.model):
        how = " with --gradient-checkpointing" if config.gradient_checkpointing else ""
        cannot = f"{config.model} cannot read several rows at once{how}"
        raise ConfigError(f"--share-prefixes: {cannot}; leave it out")
    longest = max(len(row["input_ids"]) for row in encoded)
    limit = min(config.max_length or longest, player.context)
    packs = pack(encoded, limit, player.model.config.get_text_config().hidden_size)
    before, now = (sum(len(row["input_ids"]) for row in group) for group in (encoded, packs))
    in_rows = f"{pluralize(before, 'token')} in {pluralize(len(encoded), 'row')}"
    in_groups = f"{now:,} in {pluralize(len(packs), 'group')}"
    progress.news(f"--share-prefixes: {in_rows}, {in_groups}")
    return packs


def starting_model(run: SFTRun, device: str) -> LoadedModel:
    """The model to train: a tiny one, or a pretrained one, perhaps with a new adapter.

    Raises CheckpointError, and ConfigError for --dropout if it has none.
    """
    config, lora = run.config, run.config.lora
    if run.start is None:
        player = _tiny_player(config, run.rows, device)
    else:
        source, dtype, quantize = run.start.text, config.dtype, config.quantize
        player = load_player(source, device=device, dtype=dtype, quantize=quantize)
    if lora.r:
        seed = config.run.seed
        player = with_adapter(player, lora.r, lora.alpha, seed, config.lora_dropout, lora.targets)
    if config.dropout is not None:
        set_dropout(player.model, config.dropout)
    return replace(player, role=config.role)


def _tiny_player(
    config: SFTConfig,
    rows: SFTRows,
    device: str,
) -> LoadedModel:
    """A model with random weights, with a tokenizer of its own for the rows."""
    # 1. The tokenizer, and how many tokens the longest row has
    texts = _texts(rows)
    tokenizer = _tiny_tokenizer(config, rows, texts)
    held_out_texts = (text for row in rows.held_out for text in row.texts)
    all_texts = list(dict.fromkeys([*texts, *held_out_texts]))
    longest = max(map(len, tokenizer(all_texts)["input_ids"]))

    # 2. The model; one that reads each option alone has attention only
    has_learned_positions = config.model == LEARNED_POSITIONS
    default_context = context_for if has_learned_positions else relative_context
    context = config.max_length or default_context(longest)
    seed = config.run.seed
    if rows.are_options_scored and config.model == "tiny":
        model = build_relative(tokenizer, context, seed, SCORING_LAYERS)
    else:
        layers_of = {"tiny": CONVOLUTION_FIRST, "tiny-hybrid": PAIRS, LEARNED_POSITIONS: ()}
        init_range = config.tiny.init_range or (0.06 if config.model == "tiny" else 0.04)
        model = build_model(tokenizer, context, seed, init_range, layers_of[config.model])
    return LoadedModel(model.to(pick_device(device)), tokenizer, config.role)


def _texts(rows: SFTRows) -> list[str]:
    """The texts for which the tokenizer and the context of a tiny model are made."""
    more: list[SFTRow] = [] if rows.policy_source is None else read_rows(rows.policy_source)
    texts = [text for row in (*rows.every, *more) for text in row.texts]
    return list(dict.fromkeys(texts)) if rows.are_options_scored else texts


def _tiny_tokenizer(
    config: SFTConfig,
    rows: SFTRows,
    texts: list[str],
) -> Any:
    """The tokenizer of a tiny model, trained on `texts`.

    The labels that these list, or that the rows answer with, become single tokens; if they list
    different numbers of actions, other states may list more, so twice as many labels do.
    """
    answers = {completion for row in rows.every for _, completion in row.parts}
    all_text = "\n".join(set(texts))
    labels = []
    for label in LABELS:
        if f" {label}" in answers or f"\n {label} " in all_text:
            labels.append(f" {label}")
    lists = [text.rpartition("\nActions:\n")[2] for text in texts if "\nActions:\n" in text]
    if len({actions.count("\n") for actions in lists}) > 1:
        labels = [f" {label}" for label in LABELS[: 2 * len(labels)]]
    return build_tokenizer(texts, labels, config.tiny.vocabulary, config.tiny.token_pattern)


def build_trainer(training: Training) -> Any:
    """TRL's trainer of the model, without the callbacks of `train.sft.fit`."""
    config, player, processes = training.run.config, training.player, training.processes
    if player.tokenizer.pad_token_id is None:
        player.tokenizer.pad_token = player.tokenizer.eos_token

    # 1. The class for this form of rows
    pad_id = player.tokenizer.pad_token_id
    kind, collator = CompletionTrainer, None
    if config.share_prefixes:
        kind, collator = PackTrainer, partial(collate, pad_id=pad_id)
    if training.decides:
        kind, collator = DecisionTrainer, partial(collate_decisions, pad_id=pad_id)

    # 2. The optimizer: weights of 16 bits learn by copies in float32
    weights = [weight for weight in player.model.parameters() if weight.requires_grad]
    optimizer = None
    if any(is_rounded(weight) for weight in weights):
        optimizer = CopyingAdamW, {"lr": config.optim.rate}

    # 3. The trainer
    is_prepared = config.share_prefixes or training.decides
    trainer: Any = kind(
        model=player.model,
        args=_arguments(training, is_prepared=is_prepared),
        optimizer_cls_and_kwargs=optimizer,
        train_dataset=Dataset.from_list(training.rows),
        data_collator=collator,
        processing_class=player.tokenizer,
    )
    if processes.count > 1:
        trainer.share(processes)
    trainer.pop_callback(PrinterCallback)
    return trainer


def _arguments(training: Training, *, is_prepared: bool) -> Any:
    """The arguments of TRL's trainer. is_prepared: whether TRL leaves the columns of rows as they
    are.
    """
    config, optim, steps = training.run.config, training.run.config.optim, training.steps
    model = training.player.model
    on_cpu = next(model.parameters()).device.type == "cpu"
    has_experts = "expert" in str(model.config.to_dict().keys())
    is_constant = optim.schedule == "constant"
    default_warmup = max(1, steps // 20)
    arguments = trl.SFTConfig(
        output_dir=str(training.folder / TRAINER_FOLDER),
        max_steps=steps,
        per_device_train_batch_size=config.batch_size // config.gradient_accumulation,
        gradient_accumulation_steps=config.gradient_accumulation,
        learning_rate=optim.rate,
        lr_scheduler_type="constant_with_warmup" if is_constant else optim.schedule,
        warmup_steps=default_warmup if optim.warmup_steps is None else optim.warmup_steps,
        weight_decay=optim.weight_decay,
        max_grad_norm=optim.max_grad_norm,
        logging_steps=min(20, steps),
        logging_nan_inf_filter=False,
        save_steps=config.checkpoints.save_steps,
        seed=config.run.seed % 2**32,
        use_cpu=on_cpu,
        bf16=not on_cpu and config.dtype == "bfloat16",
        fp16=not on_cpu and config.dtype == "float16",
        max_length=None,
        train_sampling_strategy="group_by_length" if config.group_by_length else "random",
        **keeping_activations(),
        # the balance of experts, which depends on the other rows of a batch
        router_aux_loss_coef=0.0,
        # experts that no row of a share is sent to
        ddp_find_unused_parameters=has_experts,
        report_to="none",
        disable_tqdm=True,
        dataset_num_proc=None,
        remove_unused_columns=not is_prepared,
        dataset_kwargs={"skip_prepare_dataset": True} if is_prepared else None,
    )
    if arguments.n_gpu > 1:
        # or the trainer would split each batch over all GPUs that this process sees
        arguments._n_gpu = 1
    return arguments


def plan(run: SFTRun, progress: Progress) -> Report:
    """What training takes, by arithmetic (--plan)."""
    config = run.config
    player = starting_model(run, config.device)
    lengths = [row_length(row) for row in training_rows(run, player, progress)]
    mean = sum(lengths) / len(lengths)
    steps = gradient_steps(config, len(lengths))
    rows_at_once = config.batch_size // config.gradient_accumulation
    return plan_report(
        "sft",
        config.run.results_dir,
        [player.model],
        batch_tokens=rows_at_once * max(lengths),
        logits=rows_at_once * max(lengths),
        recompute=config.gradient_checkpointing,
        tokens={
            "longest_row": max(lengths),
            "tokens_an_update": round(config.batch_size * mean),
            "steps": steps,
            "tokens": round(steps * config.batch_size * mean),
        },
        stop_tokens=Dialogue(player.tokenizer, plain=True).stop_tokens,
    )
