"""Command lines of the original toolkit's README, as they are written there."""

from __future__ import annotations

import pytest

from reflectkit.cli.arguments import with_our_flags
from reflectkit.commands import config_class
from reflectkit.envs import env_class
from reflectkit.errors import ConfigError
from reflectkit.train.rl_config import RLConfig
from reflectkit.train.sft.config import SFTConfig

RLFT = (
    "--env=auto_explore --task_file=data/train.json --load_dir=results/123_supervised_pretrain/checkpoint-2000/"
    " --reflectload_dir=results/124_supervised_pretrain/checkpoint-2000/ --save_steps=100 --shuffle_action=True"
    " --shrink_head --depth_curriculum --merge_first_two"
)


def ours(command: str, line: str) -> list[str]:
    return with_our_flags(config_class(command), line.split())


def values(arguments: list[str]) -> dict[str, object]:
    """What these flags set, as a program would."""
    result: dict[str, object] = {}
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if name == "curriculum":
            result[name] = (*result.get(name, ()), value)  # type: ignore[misc]
        else:
            result[name] = (int(value) if value.isdecimal() else value) if equals else True
    return result


def test_its_rl_is_ours() -> None:
    settings = values(ours("rlft", RLFT))
    levels = env_class("auto_explore").levels
    assert settings == {
        "env": "auto_explore",
        "task_file": "data/train.json",
        "policy": "results/123_supervised_pretrain/checkpoint-2000/",
        "reflector": "results/124_supervised_pretrain/checkpoint-2000/",
        "save_steps": 100,
        "shuffle_action": True,
        "curriculum": levels,
        "merge_first_two": True,
    }
    config = RLConfig.from_flat(**settings)
    assert config.curriculum.stages("all")[0] == levels[:2]


def test_its_evaluation_is_ours() -> None:
    line = "--env=auto_explore --task_file=data/test.json --per_device_eval_batch_size=10 --eval_reps=100 --shrink_head"
    wanted = "--env=auto_explore --task-file=data/test.json --max-concurrency=10 --eval-reps=100"
    assert ours("evaluate", line) == wanted.split()


@pytest.mark.parametrize(
    ("file", "role", "env"),
    [
        ("data/auto_explore/tasks_filtered/sft_reflection.jsonl", "reflection", "auto_explore"),
        ("data/taxi/sft_policy_positive.jsonl", "policy", "taxi"),
        ("data/taxi/sft.jsonl", "plain", "taxi"),
    ],
)
def test_the_file_of_the_rows_says_role_and_env(file: str, role: str, env: str) -> None:
    config = SFTConfig.from_flat(task_file=file, max_steps=2000)
    assert (config.role, config.env) == (role, env)
    assert SFTConfig.from_flat(task_file=file, role="think", env="corridor").role == "think"


def test_another_file_needs_both() -> None:
    with pytest.raises(ConfigError, match="needs --env"):
        SFTConfig.from_flat(task_file="rows.jsonl")
