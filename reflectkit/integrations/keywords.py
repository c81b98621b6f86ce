"""The settings of `reflectkit.rlft` and its like, for editors; from docs/python_keywords.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

if TYPE_CHECKING:
    from reflectkit.integrations.call import Result

Player: TypeAlias = "str | Path | Result"


class RlftSettings(TypedDict, total=False):
    """Of `rlft`."""

    shuffle_action: bool
    policy: Player
    model: Player
    dtype: Literal["", "float32", "bfloat16", "float16"]
    quantize: Literal["", "none", "8bit", "4bit"]
    temperature: float
    max_new_tokens: int
    device: str
    reflector: Player
    share_base: bool
    reflect_prob: float
    reflect_temperature: float
    resume_from: str | Path | None
    task_file: str | Path | None
    recorded: str | Path | None
    outcomes: str | Path | None
    max_steps: int
    episodes: int
    validate_steps: int
    patience: int
    validate_problems: int
    calibrate: bool
    keep_episodes: int
    max_tokens_per_batch: int
    gradient_checkpointing: bool
    processes: int
    algo: str
    advantages: Literal["episode", "step", "own"] | None
    step_groups: float
    gamma: float
    normalize: bool
    group_size: int
    clip: float
    clip_high: float
    off_policy_mask: Literal["none", "token", "sequence", "geometric"]
    mask_ratio: float
    epochs: int
    target_kl: float
    max_kl: float
    minibatch: int
    loss_mean: Literal["token", "row"]
    entropy_coef: float
    entropy_schedule: Literal["constant", "linear"]
    novelty: float
    table_coef: float
    kl_coef: float
    replay_size: int
    distill_comments: float
    distill_divergence: Literal["forward", "reverse", "js"]
    distill_ema: float
    comments_on: Literal["all", "failed"]
    distill_joint: float
    curriculum: Sequence[str]
    merge_first_two: bool
    merge_after: int
    few_data: int
    advance_at: float
    learning_rate: float | None
    warmup_steps: int | None
    schedule: Literal["linear", "cosine", "constant"]
    weight_decay: float
    max_grad_norm: float
    lora_r: int
    lora_alpha: int
    lora_targets: str
    horizon: int
    max_concurrency: int
    sampler: str
    reflector_sampler: str
    thinking: Literal["on", "off", "hidden"]
    answer: Literal["", "label", "text", "score"]
    episode_tokens: int
    swap_comments: float
    swap_from: str | Path | None
    engine: str
    max_staleness: int
    importance_weight_max: float
    episode_timeout_s: float
    train_reflector: int
    reflector_states: int
    reflector_comments: int
    reflector_temperature: float
    reflector_rate: float
    reflector_kl: float
    reflector_length_cost: float
    save_steps: int
    keep_checkpoints: int
    report_to: Sequence[Literal["tensorboard", "wandb", "trackio"]]
    plan: bool
    base_url: str | None
    concurrency: int
    max_answer_tokens: int | None
    timeout_s: float
    max_cost_usd: float | None
    price_in: float | None
    price_out: float | None
    dry_run: bool
    data_dir: str | Path
    results_dir: str | Path
    name: str
    seed: int
    threads: int
    force: bool
    keep: bool
    baseline: Literal["none", "batch", "leave-one-out"]
    critic: Literal["auto", "linear", "mlp"]
    critic_trunk: Literal["detached", "shared", "separate"]
    critic_rate: float
    value_clip: float
    gae_lambda: float
    shrink_values: bool
    served_model: str
    reflector_served_model: str
    adapter_dir: str | Path | None
    server_adapter_dir: str
    server_timeout_s: float
    server_patience_s: float
    server_connections: int
    service_model: str
    service_timeout_s: float
    service_rows: int
    price_read: float
    price_sampled: float
    price_trained: float


class SftSettings(TypedDict, total=False):
    """Of `sft`."""

    role: Literal["reflection", "policy", "plain", "think"]
    typed: bool
    task_file: str | Path | None
    model: Player
    max_steps: int
    epochs: int
    validate_file: str | Path | None
    hold_out: float | None
    validate_steps: int
    patience: int | None
    batch_size: int
    gradient_accumulation: int
    dropout: float | None
    max_length: int
    prompt_loss: bool
    group_by_length: bool
    share_prefixes: bool
    gradient_checkpointing: bool
    processes: int
    device: str
    dtype: Literal["float32", "bfloat16", "float16"]
    quantize: Literal["none", "8bit", "4bit"]
    lora_dropout: float
    max_cost_usd: float | None
    vocabulary: int
    token_pattern: str
    copy_steps: int
    init_range: float | None
    engine: str
    learning_rate: float | None
    warmup_steps: int | None
    schedule: Literal["linear", "cosine", "constant"]
    weight_decay: float
    max_grad_norm: float
    lora_r: int
    lora_alpha: int
    lora_targets: str
    save_steps: int
    keep_checkpoints: int
    report_to: Sequence[Literal["tensorboard", "wandb", "trackio"]]
    plan: bool
    data_dir: str | Path
    results_dir: str | Path
    name: str
    seed: int
    threads: int
    force: bool
    keep: bool
    service_model: str
    service_timeout_s: float
    service_rows: int
    price_read: float
    price_sampled: float
    price_trained: float


class EvaluateSettings(TypedDict, total=False):
    """Of `evaluate`."""

    shuffle_action: bool
    policy: Player | Sequence[Player] | Mapping[str, Player]
    task_file: str | Path | None
    level: Sequence[str]
    problems: int
    eval_reps: int
    from_: Sequence[str | Path]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    max_new_tokens: int
    score_oracle: bool
    predict_success: bool
    device: str
    history_tokens: int
    horizon: int
    max_concurrency: int
    sampler: str
    reflector_sampler: str
    thinking: Literal["on", "off", "hidden"]
    answer: Literal["", "label", "text", "score"]
    episode_tokens: int
    swap_comments: float
    swap_from: str | Path | None
    engine: str
    base_url: str | None
    concurrency: int
    max_answer_tokens: int | None
    timeout_s: float
    max_cost_usd: float | None
    price_in: float | None
    price_out: float | None
    dry_run: bool
    plain_questions: bool
    data_dir: str | Path
    results_dir: str | Path
    name: str
    seed: int
    threads: int
    force: bool
    keep: bool
    served_model: str
    reflector_served_model: str
    adapter_dir: str | Path | None
    server_adapter_dir: str
    server_timeout_s: float
    server_patience_s: float
    server_connections: int
    service_model: str
    service_timeout_s: float
    service_rows: int


class GenTrajectorySettings(TypedDict, total=False):
    """Of `gen-trajectory`."""

    shuffle_action: bool
    task_file: str | Path | None
    level: str
    demonstrations: int | None
    actor: str
    noise: float | None
    negatives: int | None
    min_reward: float | None
    history_tokens: int
    teacher: str
    base_url: str | None
    concurrency: int
    max_answer_tokens: int | None
    timeout_s: float
    max_cost_usd: float | None
    price_in: float | None
    price_out: float | None
    dry_run: bool
    plain_questions: bool
    horizon: int
    max_concurrency: int
    data_dir: str | Path
    results_dir: str | Path
    name: str
    seed: int
    threads: int
    force: bool
    keep: bool


class SplitSettings(TypedDict, total=False):
    """Of `split`."""

    task_file: str | Path | None
    by: Literal["", "group", "repo", "question"]
    ratio: str
    unseen_rooms: float
    data_dir: str | Path
    results_dir: str | Path
    name: str
    seed: int
    threads: int
    force: bool
    keep: bool


class GenSftSettings(TypedDict, total=False):
    """Of `gen-sft`."""

    shuffle_action: bool
    task_file: str | Path | None
    out_dir: str | Path | None
    log: str | Path | None
    decisions: str | Path | None
    demonstrations: int
    comments: Literal["teacher", "reflector", "both", "nothing"]
    reflector: Player
    questions: bool
    played: str | Path | None
    answer: Literal["", "label", "text", "score"]
    repeats: int
    mismatch: float
    data_dir: str | Path
    results_dir: str | Path
    name: str
    seed: int
    threads: int
    force: bool
    keep: bool
