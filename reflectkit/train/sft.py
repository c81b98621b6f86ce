"""Supervised fine-tuning: rows as token ids, the model to start from, TRL's trainer, and its checkpoints."""

from __future__ import annotations

import errno
import math
import os
import pickle
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator
from typing_extensions import override

from reflectkit.config import Config, flag, identifying, non_default, option
from reflectkit.console import Bar, Progress
from reflectkit.data.sft_rows import FILE_OF_ROLE, TYPED, Row, read_rows
from reflectkit.envs import ENV_HELP, ENVS, env_class
from reflectkit.envs.setup import EnvSetup, problem_settings
from reflectkit.errors import CheckpointError, ConfigError, DataError, DivergedError, refuse
from reflectkit.models.hub import PASSAGE
from reflectkit.models.hub import TINY as TINY_OF_RL
from reflectkit.prompts import ACTION_MARKER, CALLS_MARKER, LABELS, REFLECTION_MARKER, THEN_ACT, listed_answers
from reflectkit.runs.run import CHECKSUMS, RunConfig, checkpoints, verify
from reflectkit.seeding import generator
from reflectkit.text import pluralize
from reflectkit.train.processes import Processes, stopped_between
from reflectkit.train.settings import CheckpointConfig, Log, LoraConfig, OptimizerConfig, tracking
from reflectkit.types import AGENT_MARKER, DType, Quantize

if TYPE_CHECKING:
    from reflectkit.models.load import LoadedModel
    from reflectkit.train.sft_trainers import Validation


LEARNED_POSITIONS = "tiny-gpt2"
TINY = (*TINY_OF_RL, LEARNED_POSITIONS)
"""Models from scratch."""


class TinyConfig(Config):
    """Tiny models: how they start from scratch."""

    vocabulary: int = option(640, help="Vocabulary size of a tiny model's tokenizer, including 256 bytes.", ge=300)
    token_pattern: str = option(
        "",
        help="Regular expression of the pieces of text that a tiny model's tokens may not cross; default: words,"
        " numbers and signs, as in GPT-2.",
    )
    copy_steps: int = option(0, help="Steps in which a tiny model first learns to copy passages.", ge=0)
    init_range: float | None = option(
        None,
        help="Standard deviation of a tiny model's initial weights; default: 0.06 for tiny, 0.04 for the others.",
        gt=0,
        le=1,
    )


class SFTConfig(Config):
    """Settings of sft."""

    env: str = option(help=ENV_HELP)
    settings: Any = problem_settings("env")
    role: Literal["reflection", "policy", "plain", "think"] = option(
        help="Which player: reflection, policy (acts on comments), plain (acts without), or think (comments, then"
        " acts)."
    )
    typed: bool = option(
        False,
        help="With --role reflection: a reflector that answers the environment's questions with probabilities, on the"
        " rows of gen-sft --questions.",
        essential=True,
    )
    task_file: Path | None = option(
        None, help="JSONL rows with prompt and completion; default: the role's file from gen-sft.", essential=True
    )
    model: str = option(
        "tiny",
        help="tiny, tiny-hybrid or tiny-gpt2 (from scratch), smollm2-135m, a model folder, or a Hugging Face id.",
        essential=True,
    )
    max_steps: int = option(
        0,
        help="Gradient steps; 0: as many as the number of rows asks for, and fewer once held-out rows gain nothing.",
        ge=0,
        essential=True,
    )
    epochs: int = option(
        0, help="Passes over the rows, instead of --max-steps; 0: --max-steps counts.", ge=0, essential=True
    )
    validate_file: Path | None = option(
        None,
        help="Held-out rows to measure on; default without --max-steps and --epochs: the file of the same name in the"
        " folder held-out next to the rows, if there is one.",
    )
    hold_out: float | None = option(
        None,
        help="Share of the rows to hold out and measure on; default: 0.1 without --max-steps, --epochs and other"
        " held-out rows, else 0.",
        ge=0,
        le=0.5,
    )
    validate_steps: int = option(
        0, help="Gradient steps between measurements on held-out rows; 0: a twentieth of all steps.", ge=0
    )
    patience: int | None = option(
        None,
        help="Measurements in a row without a gain in the probability of held-out answers, or in accuracy, that end"
        " training; 0: none do; default: 5 without --max-steps and --epochs, else 0.",
        ge=0,
    )
    batch_size: int = option(16, help="Rows per gradient step, over all processes.", ge=1, essential=True)
    gradient_accumulation: int = option(
        1, help="Parts in which a batch is read, one after the other, to save memory.", ge=1
    )
    dropout: float | None = option(None, help="Dropout of the model in training; default: its own.", ge=0, le=1)
    max_length: int = option(
        0,
        help="Maximum tokens per row, and the context length of a tiny model; 0: what the longest row needs.",
        ge=0,
        essential=True,
    )
    prompt_loss: bool = option(False, help="Train on the prompts too, for a model that starts from scratch.")
    group_by_length: bool = option(False, help="Batch rows of similar lengths, for less padding.")
    share_prefixes: bool = option(
        False,
        help="Train on rows that begin alike together, and read what they share once; --batch-size counts such groups.",
    )
    gradient_checkpointing: bool = option(False, help="Save memory by recomputing activations; about a third slower.")
    processes: int = option(
        1, help="Processes on this machine that share the work; changes rounding alone.", ge=1, identity=False
    )
    device: str = option("auto", help="auto, cpu, cuda, …")
    dtype: DType = option(
        "float32", help="float32; bfloat16, faster on GPUs and CPUs with AMX or AVX-512 BF16; or float16."
    )
    quantize: Quantize = option(
        "none", help="Quantise the base weights to 8bit or 4bit, for training a LoRA adapter; or none."
    )
    lora_dropout: float = option(0.0, help="Dropout of what a new LoRA adapter reads.", ge=0, le=1)
    tiny: TinyConfig = TinyConfig()
    optim: OptimizerConfig = OptimizerConfig(
        learning_rate=2e-3, warmup_steps=None, weight_decay=0.01, max_grad_norm=1.0
    )
    lora: LoraConfig = LoraConfig()
    checkpoints: CheckpointConfig = CheckpointConfig(save_steps=250)
    run: RunConfig = RunConfig()

    @classmethod
    @override
    def implied(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """The role and the environment that the file of the rows is named for: `data/taxi/sft_policy.jsonl`."""
        if not isinstance(values.get("task_file"), str | Path):
            return {}
        path = Path(values["task_file"])
        role_of = {file: role for role, file in FILE_OF_ROLE.items()}
        role = role_of.get(path.name.replace("_positive", ""))
        env = next((part for part in path.parts[:-1] if part in ENVS), None)
        return {name: value for name, value in (("role", role), ("env", env)) if value}

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup(self.env, self.run.data_dir, self.settings)

    @property
    def rows_file(self) -> Path:
        """The rows to train on."""
        return self.task_file or self.setup.folder / (TYPED if self.typed else FILE_OF_ROLE[self.role])

    @property
    def follows_rows(self) -> bool:
        """Whether the number of steps follows from the number of rows, as nobody sets it."""
        return not self.max_steps and not self.epochs

    @property
    def held_out_file(self) -> Path | None:
        """The held-out rows, if they are in a file."""
        beside = self.rows_file.parent / HELD_OUT / self.rows_file.name
        found = self.follows_rows and self.hold_out is None and beside.is_file()
        return self.validate_file or (beside if found else None)

    @property
    def held_out_share(self) -> float:
        """The share of the rows to hold out."""
        if self.hold_out is not None:
            return self.hold_out
        return HELD_OUT_SHARE if self.follows_rows and self.held_out_file is None else 0.0

    @property
    def most_measurements(self) -> int:
        """Measurements in a row without a gain that end training; 0: none do."""
        if self.patience is not None:
            return self.patience
        return PATIENCE if self.follows_rows else 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        env_class(self.env)
        refuse(self.typed and self.role != "reflection", f"--typed is for --role reflection, not {self.role}")
        alone = self.quantize != "none" and not self.lora.r
        refuse(alone, f"--quantize {self.quantize} needs --lora-r: quantised weights cannot be trained")
        if not self.lora.r and (given := non_default(self, "lora_dropout", "lora_targets", "lora_alpha")):
            raise ConfigError(f"{flag(given[0])} is a setting of a new adapter; add --lora-r, or leave it out")
        uneven = f"--gradient-accumulation {self.gradient_accumulation} does not divide --batch-size {self.batch_size}"
        refuse(self.batch_size % self.gradient_accumulation, uneven)
        scratch, copies = self.model in TINY, self.tiny.copy_steps
        for_tiny = f"--copy-steps is for a model that starts from scratch ({', '.join(TINY)}), not {self.model}"
        refuse(copies and not scratch, for_tiny)
        short = f"--copy-steps trains on passages of {PASSAGE} tokens; --max-length must be at least as large"
        refuse(copies and 0 < self.max_length < PASSAGE, short)
        refuse(self.validate_file and self.hold_out, "--hold-out is for rows without a --validate-file; leave one out")
        by_default = self.follows_rows and self.hold_out is None
        unmeasured = not (by_default or self.validate_file or self.hold_out)
        if unmeasured and (given := non_default(self, "validate_steps", "patience")):
            raise ConfigError(f"{flag(given[0])} needs held-out rows: --validate-file or --hold-out 0.1")
        if self.tiny.token_pattern:
            refuse(not scratch, f"--token-pattern is for a model that starts from scratch, not {self.model}")
            try:
                re.compile(self.tiny.token_pattern)
            except re.error as error:
                raise ConfigError(f"--token-pattern {self.tiny.token_pattern}: {error}") from None
        trained = f"--lora-r needs a pretrained model; --model {self.model} starts from scratch"
        refuse(self.lora.r and scratch, trained)
        return self


FULL_DISK_BYTES = 4 * 2**20
HELD_OUT = "held-out"
"""The folder next to rows with held-out ones in a file of the same name."""
HELD_OUT_SHARE, MOST_HELD_OUT, FEWEST_ROWS = 0.1, 1000, 20
"""Of the rows that are held out by default: their share and their most; fewer rows than the last are all trained on."""
STRETCHES = 10
"""In how many stretches of neighbours rows are held out."""
SCRATCH_STEPS, PRETRAINED_STEPS = (20, 600, 3000), (5, 100, 3000)
"""(passes over the rows, fewest steps, most steps) by default, for random weights and for others."""
MEASUREMENTS, PATIENCE = 20, 5
"""Measurements on held-out rows in a run, and how many in a row without a gain end it, by default."""


def split_rows(config: SFTConfig, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """(the rows to train on, those that are held out of them).

    Stretches of neighbouring rows are held out, drawn by the seed: neighbours are mostly steps of one episode, and one
    that is trained on would give the other away.

    Raises ConfigError: --hold-out is too little for one row.
    """
    count = round(config.held_out_share * len(rows))
    none = f"--hold-out {config.hold_out} of {pluralize(len(rows), 'row')} is none"
    refuse(config.hold_out and not count, f"{none}; {'raise it' if len(rows) > 1 else 'leave it out'}")
    if config.hold_out is None:
        count = 0 if len(rows) < FEWEST_ROWS else min(count, MOST_HELD_OUT)
    if not count:
        return list(rows), []
    size = max(1, count // STRETCHES)
    starts = range(0, len(rows) - size + 1, size)
    drawn = generator(config.run.seed, "held-out rows").sample(starts, count // size)
    held_out = {number for start in drawn for number in range(start, start + size)}
    trained = [row for number, row in enumerate(rows) if number not in held_out]
    return trained, [rows[number] for number in sorted(held_out)]


def gradient_steps(config: SFTConfig, rows: int) -> int:
    """The number of gradient steps, at most, on `rows` rows, or groups of them."""
    a_pass = -(-rows // config.batch_size)
    if not config.follows_rows:
        return config.epochs * a_pass or config.max_steps
    passes, fewest, most = SCRATCH_STEPS if config.model in TINY else PRETRAINED_STEPS
    return min(max(passes * a_pass, fewest), most)


def encode(
    source: Path,
    rows: Sequence[Row],
    tokenizer: Any,
    *,
    role: str,
    prompt_loss: bool = False,
    max_length: int = 0,
    context: int = 2**31,
) -> list[dict[str, list[int]]]:
    """input_ids and labels of each row; the prompt's labels are -100 unless it is trained on too, and the first one is.

    A text ends with the end token. An answer to a choice is its path in the trie of the answers that the prompt lists;
    a prompt that lists none, as of other programs, has answers of one token.

    source: the rows' file. role: whose rows they are. max_length: most tokens of a row; 0: as many as context, which
    the model reads.

    Raises DataError: a row has more than `max_length` or `context` tokens, or an answer of several tokens is not
    listed. CheckpointError: a text is to end, and the tokenizer has no end token.
    """
    from reflectkit.models.chat import Dialogue
    from reflectkit.models.labels import answer_ids, completion_ids, prompt_ids

    dialogue = Dialogue(tokenizer, plain=True)
    limit = min(max_length or context, context)
    encoded = []
    for row in rows:
        input_ids: list[int] = []
        labels: list[int] = []
        for prompt, completion in row.parts:
            text = prompt
            listing = row.parts[0][0].removesuffix(REFLECTION_MARKER) + ACTION_MARKER if prompt == THEN_ACT else prompt
            if prompt.endswith(AGENT_MARKER):
                text = dialogue.conversation(prompt)
            elif prompt.endswith(CALLS_MARKER):
                text = dialogue.harmless(prompt)
            before = completion_ids(tokenizer, text) if input_ids else prompt_ids(tokenizer, text)
            after = completion_ids(tokenizer, completion)
            if prompt.endswith(REFLECTION_MARKER) or role == "reflection" or _in_words(listing):
                if tokenizer.eos_token_id is None:
                    raise CheckpointError(
                        "the model's tokenizer has no end token, so its answers would never end; set eos_token in"
                        " tokenizer_config.json"
                    )
                after = [*after, tokenizer.eos_token_id]
            elif completion in (legal := listed_answers(listing, row.form)):
                after = list(answer_ids(tokenizer, legal)[legal.index(completion)])
            elif len(after) != 1:
                raise DataError(
                    source,
                    f"the answer {completion!r} is {len(after)} tokens of this tokenizer, and the prompt does not list"
                    " it",
                    line=row.line,
                    field="completion",
                )
            input_ids += before + after
            labels += (before if prompt_loss else [-100] * len(before)) + after
        labels[0] = -100  # nothing comes before it
        encoded.append({"input_ids": input_ids, "labels": labels})
    lengths = [len(row["input_ids"]) for row in encoded]
    if lengths and max(lengths) > limit:
        fixes = ["use a model with a longer context"] if limit == context else []
        fixes += ["raise --max-length"] if max_length else []
        raise DataError(
            source,
            f"the longest row has {max(lengths)} tokens and {limit} fit; {' and '.join(reversed(fixes))}",
            line=rows[lengths.index(max(lengths))].line,
        )
    return encoded


def encode_decisions(
    source: Path, rows: Sequence[Row], tokenizer: Any, *, max_length: int = 0, context: int = 2**31
) -> list[dict[str, Any]]:
    """Rows of which one has probabilities, and so all list their answers: input_ids of the prompt, the options' tokens
    (K) and their shares (K), which are 1 and 0 for a row with an answer.

    Raises DataError: a row lists no answers, or does not fit.
    """
    from reflectkit.models.labels import answer_ids, prompt_ids

    limit = min(max_length or context, context)
    encoded: list[dict[str, Any]] = []
    for row in rows:
        ((prompt, completion), *then) = row.parts
        listed = listed_answers(prompt, row.form)
        if then or completion not in listed:
            raise DataError(
                source, "it has no probabilities, nor lists its answer; keep such rows in another file", line=row.line
            )
        shares = row.probabilities or tuple(float(answer == completion) for answer in listed)
        options = [list(path) for path in answer_ids(tokenizer, listed)]
        ids = prompt_ids(tokenizer, prompt)
        if len(ids) + max(map(len, options)) > limit:
            raise DataError(source, f"it has {len(ids)} tokens and more, and {limit} fit", line=row.line)
        encoded.append({"input_ids": ids, "options": options, "shares": list(shares)})
    return encoded


SAME_PROMPT = 16
"""Rows in a row with the same prompt, whose options are read together."""


def encode_options(
    source: Path, rows: Sequence[Row], tokenizer: Any, *, max_length: int = 0, context: int = 2**31
) -> list[dict[str, Any]]:
    """Groups of neighbouring `rows` with the same prompt, whose options are each given a score.

    Each has input_ids, the prompt; options, the tokens of each different option; offered, the numbers of the options of
    each row; and shares, the target of each row as the probabilities of these.

    Raises DataError: the prompt and an option have more than `max_length` or `context` tokens. CheckpointError.
    """
    from reflectkit.models.labels import option_ids, prompt_ids

    if not rows:
        return []
    every = tuple(dict.fromkeys(option.removeprefix(" ") for row in rows for option in row.options))
    path_of = dict(zip(every, option_ids(tokenizer, every), strict=True))
    groups: list[dict[str, Any]] = []
    numbers: dict[tuple[int, ...], int] = {}
    before = ""
    for row in rows:
        ((prompt, completion),) = row.parts
        if prompt != before or len(groups[-1]["offered"]) == SAME_PROMPT:
            groups.append({"input_ids": prompt_ids(tokenizer, prompt), "options": [], "offered": [], "shares": []})
            numbers, before = {}, prompt
        group = groups[-1]
        paths = [path_of[option.removeprefix(" ")] for option in row.options]
        for path in paths:
            if numbers.setdefault(path, len(numbers)) == len(group["options"]):
                group["options"].append(list(path))
        group["offered"].append([numbers[path] for path in paths])
        group["shares"].append(list(row.probabilities) or [float(option == completion) for option in row.options])
        length = len(group["input_ids"]) + max(map(len, paths))
        if length > min(max_length or context, context):
            raise DataError(
                source,
                f"a prompt with an option has {length} tokens and {min(max_length or context, context)} fit",
                line=row.line,
            )
    return groups


def row_length(row: Mapping[str, Any]) -> int:
    """The tokens of an encoded row, or of the prompt of a group of rows with its longest option."""
    return len(row["input_ids"]) + max(map(len, row.get("options", [()])))


def _in_words(prompt: str) -> bool:
    """Whether a policy answers `prompt` with calls or in words, since it lists no actions."""
    return prompt.endswith((CALLS_MARKER, AGENT_MARKER)) or (
        prompt.endswith(ACTION_MARKER) and "\nActions:\n" not in prompt
    )


def inputs_of(config: SFTConfig, source: Path) -> list[Path]:
    """The rows and the model folder to start from; for a tiny reflector also the policy's rows next to its own, if any.

    With their words in its tokenizer, a tiny policy can start from its weights (`--model REFLECTOR`).
    """
    policy_rows = source.with_name(FILE_OF_ROLE["policy"])
    if config.model in TINY:
        return [source, policy_rows] if config.role == "reflection" and policy_rows.is_file() else [source]
    return [source, Path(config.model)] if Path(config.model).is_dir() else [source]


def starting_model(config: SFTConfig, source: Path, rows: Sequence[Row]) -> LoadedModel:
    """The model to train: a tiny one, or a pretrained one, perhaps with a new adapter. Raises CheckpointError."""
    from reflectkit.models.hub import silence_libraries
    from reflectkit.models.load import LoadedModel, load_player, pick_device, with_adapter
    from reflectkit.train.optimizers import set_dropout

    silence_libraries()
    if config.model in TINY:
        tokenizer = tiny_tokenizer(config, source, rows)
        held_out = [] if config.held_out_file is None else read_rows(config.held_out_file)
        texts = dict.fromkeys([*_texts(config, source, rows), *(text for row in held_out for text in row.texts)])
        scores = any(row.options for row in rows)
        longest = max(map(len, tokenizer(list(texts))["input_ids"]))
        model = _tiny_model(config, tokenizer, longest, scores)
        loaded = LoadedModel(model.to(pick_device(config.device)), tokenizer, config.role)
    else:
        loaded = load_player(config.model, device=config.device, dtype=config.dtype, quantize=config.quantize)
    if config.lora.r:
        loaded = with_adapter(
            loaded, config.lora.r, config.lora.alpha, config.run.seed, config.lora_dropout, config.lora.targets
        )
    if config.dropout is not None:
        set_dropout(loaded.model, config.dropout)
    return replace(loaded, role=config.role)


def _tiny_model(config: SFTConfig, tokenizer: Any, longest: int, scores: bool) -> Any:
    """A model with random weights. longest: tokens of the longest row. scores: whether it reads each option alone, for
    which `tiny` has attention only.
    """
    from reflectkit.models.tiny import (
        CONVOLUTION_FIRST,
        PAIRS,
        SCORING_LAYERS,
        build_model,
        build_relative,
        context_for,
        relative_context,
    )

    learned = config.model == LEARNED_POSITIONS
    context = config.max_length or (context_for(longest) if learned else relative_context(longest))
    if scores and config.model == "tiny":
        return build_relative(tokenizer, context, config.run.seed, SCORING_LAYERS)
    layers = {"tiny": CONVOLUTION_FIRST, "tiny-hybrid": PAIRS, LEARNED_POSITIONS: ()}[config.model]
    init_range = config.tiny.init_range or (0.06 if config.model == "tiny" else 0.04)
    return build_model(tokenizer, context, config.run.seed, init_range, layers)


def tiny_tokenizer(config: SFTConfig, source: Path, rows: Sequence[Row]) -> Any:
    """The tokenizer of a tiny model, trained on the rows. The labels that they list or answer with become single
    tokens; if rows list different numbers of actions, other states may list more, so twice as many labels do.
    """
    from reflectkit.models.tiny import build_tokenizer

    texts = _texts(config, source, rows)
    used = {completion for row in rows for _, completion in row.parts}
    listed = "\n".join(set(texts))
    labels = [f" {label}" for label in LABELS if f" {label}" in used or f"\n {label} " in listed]
    counts = {text.rpartition("\nActions:\n")[2].count("\n") for text in texts if "\nActions:\n" in text}
    if len(counts) > 1:
        labels = [f" {label}" for label in LABELS[: 2 * len(labels)]]
    return build_tokenizer(texts, labels, config.tiny.vocabulary, config.tiny.token_pattern)


def _texts(config: SFTConfig, source: Path, rows: Sequence[Row]) -> list[str]:
    """The rows that the tokenizer and the context of a tiny model are made for."""
    others = [row for other in inputs_of(config, source)[1:] for row in read_rows(other)]
    texts = [text for row in (*rows, *others) for text in row.texts]
    return list(dict.fromkeys(texts)) if any(row.options for row in rows) else texts


def encoded_rows(
    config: SFTConfig, source: Path, rows: Sequence[Row], player: LoadedModel, progress: Progress
) -> list[dict[str, Any]]:
    """What to train on: the rows, or with --share-prefixes packs of them.

    Raises DataError, CheckpointError, and ConfigError if the model cannot read packs.
    """
    encoded = _encoded(config, source, rows, player, prompt_loss=config.prompt_loss)
    if not config.share_prefixes:
        return encoded
    from reflectkit.train.sft_trainers import can_pack, pack

    if not can_pack(player.model):
        how = " with --gradient-checkpointing" if config.gradient_checkpointing else ""
        raise ConfigError(f"--share-prefixes: {config.model} cannot read several rows at once{how}; leave it out")
    limit = min(config.max_length or max(len(row["input_ids"]) for row in encoded), player.context)
    packs = pack(encoded, limit, player.model.config.get_text_config().hidden_size)
    before, now = (sum(len(row["input_ids"]) for row in rows) for rows in (encoded, packs))
    read = f"{pluralize(before, 'token')} in {pluralize(len(encoded), 'row')}"
    progress.news(f"--share-prefixes: {read}, {now:,} in {pluralize(len(packs), 'group')}")
    return packs


def held_out_rows(
    config: SFTConfig, source: Path, held_out: Sequence[Row], player: LoadedModel
) -> list[dict[str, Any]]:
    """What to measure on: rows of `source` that are `held_out`, or those of a file; only the completions count.

    Raises DataError, CheckpointError.
    """
    if config.held_out_file is not None:
        source, held_out = config.held_out_file, read_rows(config.held_out_file)
    return _encoded(config, source, held_out, player, prompt_loss=False)


def _encoded(
    config: SFTConfig, source: Path, rows: Sequence[Row], player: LoadedModel, *, prompt_loss: bool
) -> list[dict[str, Any]]:
    """The tokens of `rows`, all of which the model knows. Raises DataError, CheckpointError."""
    from reflectkit.models.labels import check_embedded

    if rows and rows[0].options:  # each of which is given a score
        groups = encode_options(source, rows, player.tokenizer, max_length=config.max_length, context=player.context)
        for group in groups:
            check_embedded(player.tokenizer, [*group["input_ids"], *chain(*group["options"])], player.vocabulary)
        return groups
    if any(row.probabilities for row in rows):
        for name, given in (("prompt_loss", prompt_loss), ("share_prefixes", config.share_prefixes)):
            refuse(given, f"{flag(name)} is for rows with one answer, and {source} has probabilities; leave it out")
        several = config.processes > 1 or "RANK" in os.environ
        refuse(several, f"{source} has rows with probabilities, which are trained in one process")
        limits: Any = {"max_length": config.max_length, "context": player.context}
        decisions = encode_decisions(source, rows, player.tokenizer, **limits)
        for decision in decisions:
            check_embedded(player.tokenizer, decision["input_ids"], player.vocabulary)
        return decisions
    encoded = encode(
        source,
        rows,
        player.tokenizer,
        role=config.role,
        prompt_loss=prompt_loss,
        max_length=config.max_length,
        context=player.context,
    )
    for row in encoded:
        check_embedded(player.tokenizer, row["input_ids"], player.vocabulary)
    return encoded


def last_checkpoint(folder: Path, progress: Progress) -> Path | None:
    """The latest undamaged trainer checkpoint; damaged ones after it are removed."""
    for checkpoint in reversed(checkpoints(folder)):
        try:
            verify(checkpoint)
            return checkpoint
        except CheckpointError as error:
            if (checkpoint / CHECKSUMS).exists():
                earlier = checkpoint != checkpoints(folder)[0]
                progress.news(f"{error}; {'resuming from an earlier state' if earlier else 'training starts anew'}")
            shutil.rmtree(checkpoint)
    return None


def train(
    config: SFTConfig,
    folder: Path,
    resume: Path | None,
    player: LoadedModel,
    encoded: list[dict[str, Any]],
    progress: Progress,
    processes: Processes,
    validation: Validation | None = None,
) -> tuple[int, list[dict[str, Any]]]:
    """Train `player.model` in place, resuming from trainer checkpoint `resume` if any. Returns how many steps were made
    in all, and the log: a record every 20 steps, and where held-out rows were read. All processes must call this.

    folder: for trainer checkpoints. Raises DivergedError, and CheckpointError for a checkpoint with code in it;
    incomplete checkpoints are removed.
    """
    done = int(resume.name.rpartition("-")[2]) if resume else 0
    trackers = config.checkpoints.report_to if processes.first else ()
    with (
        progress.bar(f"SFT {config.role}", config.max_steps, done) as bar,
        tracking(trackers, folder.parent, identifying(config)) as log,
    ):
        try:
            with stopped_between("step", progress, wanted=True) as stop:
                trainer = build_trainer(config, folder, player, encoded, bar, log, stop, resume, processes, validation)
                trainer.train(resume_from_checkpoint=str(resume) if resume else None)
                if trainer.stopped:  # perhaps another process was told to
                    raise KeyboardInterrupt
        except BaseException as error:
            full = shutil.disk_usage(folder).free < FULL_DISK_BYTES
            for unfinished in [path for path in checkpoints(folder) if not (path / CHECKSUMS).is_file()]:
                if processes.first:
                    shutil.rmtree(unfinished, ignore_errors=True)  # or a full disk would stay full
            if isinstance(error, DivergedError) and (good := checkpoints(folder)):
                raise DivergedError(f"{error}; its last checkpoint is {good[-1]}") from None
            if isinstance(error, pickle.UnpicklingError):  # the trainer reads tensors and plain values only
                raise CheckpointError(f"{resume} holds more than tensors, and is not read; delete it") from None
            if full and isinstance(error, RuntimeError):  # torch does not say why it failed to write
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
            raise
    log_rows: dict[int, dict[str, Any]] = {}
    for record in trainer.state.log_history:
        if "loss" in record or "validation_loss" in record:
            # A norm in 16 bits may be infinite
            finite = {name: value if math.isfinite(value) else None for name, value in record.items()}
            log_rows[record["step"]] = log_rows.get(record["step"], {}) | finite
    return trainer.state.global_step, [dict(sorted(row.items())) for row in log_rows.values()]


def build_trainer(
    config: SFTConfig,
    folder: Path,
    player: LoadedModel,
    encoded: list[dict[str, Any]],
    bar: Bar,
    log: Log = lambda figures, step: None,
    stop: Sequence[int] = (),
    resume: Path | None = None,
    processes: Processes | None = None,
    validation: Validation | None = None,
) -> Any:
    """TRL's trainer of `player.model`. folder: for its checkpoints. log: for the figures. stop: see `RunCallback`.
    resume: a checkpoint. processes: that train together, if there are several. validation: held-out rows, if any.
    """
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import SFTConfig

    from reflectkit.train.optimizers import CopyingAdamW, is_rounded
    from reflectkit.train.sft_trainers import (
        CompletionTrainer,
        DecisionTrainer,
        PackTrainer,
        RunCallback,
        collate,
        collate_decisions,
        keeping_activations,
    )

    on_cpu = next(player.model.parameters()).device.type == "cpu"
    if player.tokenizer.pad_token_id is None:
        player.tokenizer.pad_token = player.tokenizer.eos_token
    decides = "options" in encoded[0]
    prepared = config.share_prefixes or decides
    optim, experts = config.optim, "expert" in str(player.model.config.to_dict().keys())
    arguments = SFTConfig(
        output_dir=str(folder),
        max_steps=config.max_steps,
        per_device_train_batch_size=config.batch_size // config.gradient_accumulation,
        gradient_accumulation_steps=config.gradient_accumulation,
        learning_rate=optim.rate,
        lr_scheduler_type="constant_with_warmup" if optim.schedule == "constant" else optim.schedule,
        warmup_steps=max(1, config.max_steps // 20) if optim.warmup_steps is None else optim.warmup_steps,
        weight_decay=optim.weight_decay,
        max_grad_norm=optim.max_grad_norm,
        logging_steps=min(20, config.max_steps),
        logging_nan_inf_filter=False,
        save_steps=config.checkpoints.save_steps,
        seed=config.run.seed % 2**32,
        use_cpu=on_cpu,
        bf16=not on_cpu and config.dtype == "bfloat16",
        fp16=not on_cpu and config.dtype == "float16",
        max_length=None,
        train_sampling_strategy="group_by_length" if config.group_by_length else "random",
        **keeping_activations(),
        router_aux_loss_coef=0.0,  # the balance of experts, which depends on the other rows of a batch
        ddp_find_unused_parameters=experts,  # those that no row of a share is sent to
        report_to="none",
        disable_tqdm=True,
        dataset_num_proc=None,
        remove_unused_columns=not prepared,
        dataset_kwargs={"skip_prepare_dataset": True} if prepared else None,
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # or the trainer would split each batch over all GPUs that this process sees
    kind, collator = CompletionTrainer, None
    if config.share_prefixes:
        kind, collator = PackTrainer, partial(collate, pad_id=player.tokenizer.pad_token_id)
    if decides:
        kind, collator = DecisionTrainer, partial(collate_decisions, pad_id=player.tokenizer.pad_token_id)
    in_16_bits = any(weight.requires_grad and is_rounded(weight) for weight in player.model.parameters())
    trainer = kind(
        model=player.model,
        args=arguments,
        optimizer_cls_and_kwargs=(CopyingAdamW, {"lr": optim.rate}) if in_16_bits else None,
        train_dataset=Dataset.from_list(encoded),
        data_collator=collator,
        processing_class=player.tokenizer,
    )
    processes = processes or Processes()
    if processes.count > 1:
        trainer.share(processes)
    trainer.pop_callback(PrinterCallback)
    keep, guessing = config.checkpoints.keep_checkpoints, math.log(len(player.tokenizer))
    trainer.add_callback(RunCallback(trainer, bar, log, keep, guessing, stop, resume, processes, validation))
    return trainer
