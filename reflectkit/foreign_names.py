"""What settings of other toolkits are called here, for the errors that name them: those of the original of reflectkit,
of TRL, and of others. `cli.original` knows the flags of the original that work as they are written.
"""

from __future__ import annotations

from collections.abc import Collection

ORIGINAL = {
    "load_dir": ("policy", "model"), "reflect_load_dir": ("reflector",),
    "per_device_train_batch_size": ("batch_size", "minibatch"), "per_device_eval_batch_size": ("max_concurrency",),
    "gradient_accumulation_steps": ("gradient_accumulation", "max_tokens_per_batch"), "max_seq_length": ("max_length",),
    "model_name": ("model",), "use_8bit": ("quantize",), "use_4bit": ("quantize",), "fp16": ("dtype",),
    "bf16": ("dtype",), "bnb_4bit_compute_dtype": ("dtype",), "disable_dropout": ("dropout",),
    "lr_scheduler_type": ("schedule",), "warmup_ratio": ("warmup_steps",), "num_train_epochs": ("epochs",),
    "save_total_limit": ("keep_checkpoints",), "ckpt_path": ("name",), "trainer": ("algo",), "use_critic": ("algo",),
    "ppo_clip_coef": ("clip",), "ppo_update_iter": ("epochs",), "critic_update_iter": ("epochs",),
    "replay_buffer_size": ("replay_size",), "repo_dir": ("repos_dir",), "reflect": ("reflector",),
    "curriculum_index": ("curriculum",), "depth_curriculum": ("curriculum",), "taxi_curriculum": ("curriculum",),
    "merge_after_first_k": ("merge_after",),
}  # fmt: skip
"""Settings of the original toolkit, each with ours in the commands."""
TRL = {
    "num_train_epochs": "max_steps", "num_iterations": "epochs", "num_generations": "group_size", "beta": "kl_coef",
    "epsilon": "clip", "epsilon_high": "clip_high", "loss_type": "loss_mean", "scale_rewards": "normalize",
    "max_completion_length": "max_new_tokens", "model_name_or_path": "model", "use_peft": "lora_r",
    "reward_funcs": "reward", "dataset_name": "dataset", "warmup_ratio": "warmup_steps",
}  # fmt: skip
"""TRL's names of settings of RL, with ours, some of which have another unit."""
COMMON = {
    "lr": ("learning_rate",), "bs": ("batch_size", "episodes"), "steps": ("max_steps",), "num_steps": ("max_steps",),
    "rank": ("lora_r",), "lora_rank": ("lora_r",), "alpha": ("lora_alpha",), "temp": ("temperature",),
    "wd": ("weight_decay",), "max_tokens": ("max_new_tokens",), "output_dir": ("out_dir", "name"),
    "run_name": ("name",), "gpu": ("device",), "environment": ("env",),
}  # fmt: skip
"""Names that settings have elsewhere, each with ours in the commands."""
VALUES = {"use_8bit": "8bit", "use_4bit": "4bit", "fp16": "float16", "bf16": "bfloat16"}
"""What to give where a setting of the original has no value."""
NOT_NEEDED = (
    "shrink_head", "discretize_actions", "sandbox_dir", "disable_alfworld", "mode", "use_nested_quant", "logging_steps",
    "bnb_4bit_quant_type", "optim", "optimizer", "critic_update_freq", "reflect_model_name", "cache_dir",
)  # fmt: skip
"""Settings of the original toolkit without a counterpart."""


def meaning(name: str, known: Collection[str]) -> str:
    """What setting `name` of another toolkit is here; "" if none has it. known: the settings that there are."""
    flag = _flag(name)
    if "group_size" in known and name in TRL:
        return f"{flag} is TRL's; see {_flag(TRL[name])} in --help-all"
    if ours := [setting for setting in ORIGINAL.get(name, ()) if setting in known]:
        return f"{flag} is now {_flag(ours[0])} {VALUES.get(name, '')}".rstrip()
    if ours := [setting for setting in COMMON.get(name, ()) if setting in known]:
        return f"no such setting as {flag}; it is {_flag(ours[0])} here"
    if name in NOT_NEEDED:
        return f"{flag} is not needed here; leave it out"
    return ""


def _flag(name: str) -> str:
    return "--" + name.rstrip("_").replace("_", "-")
