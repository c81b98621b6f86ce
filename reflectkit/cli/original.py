"""Flags of the original toolkit (Reflect-RL's code), as they are written there: `--load_dir=DIR`.

`foreign_names` has the names that an error explains.
"""

from __future__ import annotations

from collections.abc import Sequence

COMMANDS = {
    "sft": {"--load_dir": "--model", "--per_device_train_batch_size": "--batch-size"},
    "rlft": {
        "--load_dir": "--policy",
        "--reflect_load_dir": "--reflector",
        "--reflectload_dir": "--reflector",  # a misprint in its README
        "--per_device_eval_batch_size": "--episodes",
        "--per_device_train_batch_size": "--minibatch",
        "--model_name": "--model",
    },
    "evaluate": {"--per_device_eval_batch_size": "--max-concurrency"},
}
"""Flags of each command that have another name here. The others have the same, with dashes."""
NOTHING_TO_DO = ("--shrink_head",)
"""Switches for what is always done here."""
DEPTH_CURRICULUM = "--depth_curriculum"
"""All levels of the env, the easiest first."""


def ours(command: str, arguments: Sequence[str]) -> list[str]:
    """`arguments` of `command`, in which flags of the original toolkit are ours.

    >>> ours("rlft", ["--load_dir=results/1_sft", "--shuffle_action=True", "--shrink_head"])
    ['--policy=results/1_sft', '--shuffle-action']
    """
    result: list[str] = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if not flag.startswith("--") or "_" not in flag:
            result.append(argument)
        elif flag in NOTHING_TO_DO or value == "False":
            continue
        elif flag == DEPTH_CURRICULUM:
            result += _levels(arguments)
        else:
            name = COMMANDS.get(command, {}).get(flag, flag.replace("_", "-"))
            result.append(name if value == "True" else f"{name}{equals}{value}")
    return result


def _levels(arguments: Sequence[str]) -> list[str]:
    """--curriculum for each level of the env that `arguments` name; nothing if they name none,
    which is told later.
    """
    from reflectkit.envs import env_class

    words = [word for argument in arguments for word in argument.split("=", 1)]
    if "--env" not in words[:-1]:
        return []
    levels = env_class(words[words.index("--env") + 1]).levels
    return [f"--curriculum={level}" for level in levels]
