"""What settings of other toolkits are called here: those of the original of reflectkit, of TRL and
of others. Command lines of the original work as they are written; errors explain the other names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ours:
    """What a setting of another toolkit is here."""

    names: tuple[str, ...]
    """Our settings; a command has the first of those that it knows."""
    value: str = ""
    """What to set it to, where the other setting has no value."""
    is_same: bool = False
    """Whether it has the same values, so that the other name works on the command line."""


def _same(*names: str) -> Ours:
    return Ours(names, is_same=True)


def _like(*names: str, value: str = "") -> Ours:
    return Ours(names, value)


ORIGINAL, TRL, OTHERS = "the original", "TRL", "others"
"""Where names are from."""
SETTINGS: dict[str, dict[str, Ours]] = {
    ORIGINAL: {
        # 1. The same under another name
        "load_dir": _same("policy", "model"),
        "reflect_load_dir": _same("reflector"),
        "reflectload_dir": _same("reflector"),  # a misprint in its README
        "model_name": _same("model"),
        "per_device_train_batch_size": _same("batch_size", "minibatch"),
        "per_device_eval_batch_size": _same("episodes", "max_concurrency"),
        # 2. The like, in another unit or with other values
        "gradient_accumulation_steps": _like("gradient_accumulation", "max_tokens_per_batch"),
        "max_seq_length": _like("max_length"),
        "use_8bit": _like("quantize", value="8bit"),
        "use_4bit": _like("quantize", value="4bit"),
        "fp16": _like("dtype", value="float16"),
        "bf16": _like("dtype", value="bfloat16"),
        "bnb_4bit_compute_dtype": _like("dtype"),
        "disable_dropout": _like("dropout"),
        "lr_scheduler_type": _like("schedule"),
        "warmup_ratio": _like("warmup_steps"),
        "num_train_epochs": _like("epochs"),
        "save_total_limit": _like("keep_checkpoints"),
        "ckpt_path": _like("name"),
        "trainer": _like("algo"),
        "use_critic": _like("algo"),
        "ppo_clip_coef": _like("clip"),
        "ppo_update_iter": _like("epochs"),
        "critic_update_iter": _like("epochs"),
        "replay_buffer_size": _like("replay_size"),
        "repo_dir": _like("repos_dir"),
        "reflect": _like("reflector"),
        "curriculum_index": _like("curriculum"),
        "depth_curriculum": _like("curriculum"),
        "taxi_curriculum": _like("curriculum"),
        "merge_after_first_k": _like("merge_after"),
    },
    TRL: {
        "num_train_epochs": _like("max_steps"),
        "num_iterations": _like("epochs"),
        "num_generations": _like("group_size"),
        "beta": _like("kl_coef"),
        "epsilon": _like("clip"),
        "epsilon_high": _like("clip_high"),
        "loss_type": _like("loss_mean"),
        "scale_rewards": _like("normalize"),
        "max_completion_length": _like("max_new_tokens"),
        "model_name_or_path": _like("model"),
        "use_peft": _like("lora_r"),
        "reward_funcs": _like("reward"),
        "dataset_name": _like("dataset"),
        "warmup_ratio": _like("warmup_steps"),
    },
    OTHERS: {
        "lr": _like("learning_rate"),
        "bs": _like("batch_size", "episodes"),
        "steps": _like("max_steps"),
        "num_steps": _like("max_steps"),
        "rank": _like("lora_r"),
        "lora_rank": _like("lora_r"),
        "alpha": _like("lora_alpha"),
        "temp": _like("temperature"),
        "wd": _like("weight_decay"),
        "max_tokens": _like("max_new_tokens"),
        "output_dir": _like("out_dir", "name"),
        "run_name": _like("name"),
        "gpu": _like("device"),
        "environment": _like("env"),
    },
}
"""Settings of other toolkits by name, and what they are here; TRL's are those of its RL."""
NOT_NEEDED = (
    "shrink_head",
    "discretize_actions",
    "sandbox_dir",
    "disable_alfworld",
    "mode",
    "use_nested_quant",
    "logging_steps",
    "bnb_4bit_quant_type",
    "optim",
    "optimizer",
    "critic_update_freq",
    "reflect_model_name",
    "cache_dir",
)
"""Settings of the original without a counterpart."""
NOTHING_TO_DO = "--shrink_head"
"""The original's switch for what is always done here."""
DEPTH_CURRICULUM = "--depth_curriculum"
"""The original's switch for all levels of the environment, the easiest first."""
OF_TRL = "group_size"
"""A setting that only commands have in which TRL's names may be expected."""


def translated(
    arguments: Sequence[str], settings: Collection[str], levels: Callable[[str], Sequence[str]]
) -> list[str]:
    """The command line `arguments` with our flags in place of the original's, which are written
    with underscores: `--load_dir=DIR`.

    settings: those of the command. levels: of an environment by its name.

    >>> line = ["--load_dir=results/1_sft", "--shuffle_action=True", "--shrink_head"]
    >>> translated(line, {"policy", "model"}, lambda env: ())
    ['--policy=results/1_sft', '--shuffle-action']
    """
    result: list[str] = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if not flag.startswith("--") or "_" not in flag:
            result.append(argument)
        elif flag == DEPTH_CURRICULUM:
            env = _env_in(arguments)
            # Without an environment, the error is about that
            result += [f"--curriculum={level}" for level in (levels(env) if env else ())]
        elif flag != NOTHING_TO_DO and value != "False":
            name = _our_flag(flag, settings)
            result.append(name if value == "True" else f"{name}{equals}{value}")
    return result


def _our_flag(flag: str, settings: Collection[str]) -> str:
    """The flag of a command with these `settings` for the original's `flag`."""
    setting = SETTINGS[ORIGINAL].get(flag.removeprefix("--"))
    if setting is not None and setting.is_same:
        for name in setting.names:
            if name in settings:
                return _flag(name)
    return flag.replace("_", "-")


def _env_in(arguments: Sequence[str]) -> str:
    """The environment that `arguments` name; empty if none."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    return words[words.index("--env") + 1] if "--env" in words[:-1] else ""


def meaning(name: str, settings: Collection[str]) -> str:
    """What setting `name` of another toolkit is here, for an error; empty if none has it.

    settings: those that there are.
    """
    flag = _flag(name)
    if OF_TRL in settings and name in SETTINGS[TRL]:
        return f"{flag} is TRL's; see {_flag(SETTINGS[TRL][name].names[0])} in --help-all"
    for source in (ORIGINAL, OTHERS):
        setting = SETTINGS[source].get(name)
        names = [each for each in setting.names if each in settings] if setting else []
        if setting and names and source == ORIGINAL:
            return f"{flag} is now {_flag(names[0])} {setting.value}".rstrip()
        if names:
            return f"no such setting as {flag}; it is {_flag(names[0])} here"
    if name in NOT_NEEDED:
        return f"{flag} is not needed here; leave it out"
    return ""


def _flag(name: str) -> str:
    return "--" + name.rstrip("_").replace("_", "-")
