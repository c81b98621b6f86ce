"""rlft refuses settings that contradict, absurd numbers, and policies that cannot read or answer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.commands import rlft
from reflectkit.envs.corridor import Corridor
from reflectkit.errors import ConfigError, ReflectkitError
from reflectkit.jsonl import read_json, write_json
from reflectkit.models.tiny import build_tokenizer
from tests import sft_runs as sft
from tests.rlft_runs import arguments, train

JUDGED = "--reflector r --train-reflector 1"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--algo grpo --group-size 4 --replay-size 5", "in no current group"),
        ("--algo grpo --group-size 5", "--episodes 8 is not a multiple of the group size 5; use 10"),
        ("--gae-lambda 0.9", "--gae-lambda is a setting of algo 'ppo'; leave it out"),
        (f"{JUDGED} --processes 2", "runs in one process; leave out --processes"),
        ("--reflector nothing", "'nothing' is no model"),
    ],
)
def test_contradictions_are_refused_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, message: str
) -> None:
    env = [] if "--env" in more else ["--env", "corridor"]
    assert main(["rlft", *env, "--policy", "nowhere", "--episodes", "8", *more.split()]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_cannot_read_or_answer_is_refused_before_its_weights(
    corridor_folder: Path, tmp_path: Path
) -> None:
    for name, change in (("short", {"n_positions": 20}), ("whole", {})):
        shutil.copytree(corridor_folder / "policy", tmp_path / name)
        write_json(tmp_path / name / "config.json", read_json(tmp_path / name / "config.json") | change)
        (tmp_path / name / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"is \d+ tokens, and .*short reads 20"):
        train(corridor_folder, tmp_path / "results", policy=tmp_path / "short")
    tokenizer = build_tokenizer(["Actions"], [], vocabulary=260)  # bytes alone: " 0" is two tokens, and "0" one
    tokenizer.add_tokens(["unused"])
    tokenizer.save_pretrained(tmp_path / "whole")
    with pytest.raises(ReflectkitError):  # its labels do; its weights are what is missing
        train(corridor_folder, tmp_path / "results", policy=tmp_path / "whole")


@pytest.mark.parametrize(
    ("settings", "stages"),
    [
        ({}, [("pickup",), ("dropoff",), ("full",)]),
        ({"merge_first_two": True}, [("pickup", "dropoff"), ("full",)]),
        ({"merge_after": 1}, [("pickup",), ("dropoff", "full")]),
    ],
)
def test_levels_of_the_curriculum_are_merged(settings: dict[str, Any], stages: list[tuple[str, ...]]) -> None:
    config = rlft.RLConfig.from_flat(env="taxi", policy=Path("x"), curriculum=("pickup", "dropoff", "full"), **settings)
    assert config.curriculum.stages("full") == stages


def test_a_policy_or_an_env_other_than_in_training_is_warned_of_before_anything_runs(
    corridor_folder: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(corridor_folder / "policy", tmp_path / "model")

    def warnings(**settings: Any) -> list[str]:
        progress = sft.Interrupting()
        config = rlft.RLConfig.from_flat(
            **arguments(corridor_folder, policy=model, plan=True, results_dir=tmp_path, **settings)
        )
        rlft.run(config, progress)
        return [line for line in progress.lines if line.startswith("warning: ")]

    (said,) = warnings()
    assert "was trained with comments but plays without; add --reflector" in said
    assert not warnings(reflector=corridor_folder / "reflection")
    facts = {"role": "policy", "env": "corridor"}
    write_json(model / "reflectkit.json", facts)
    (older,) = warnings(reflector=corridor_folder / "reflection")
    assert "version 0 of the prompts" in older
    write_json(model / "reflectkit.json", facts | {"prompts": Corridor.prompt_version})
    assert not warnings(reflector=corridor_folder / "reflection")
