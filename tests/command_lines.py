"""Commands as tests give them: the data stages in a folder, and the one line of a refused command."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.commands import gen_sft, gen_trajectory, split
from reflectkit.console import Quiet

DATA_FILES = ("data_reflection_negative.json", "train.json", "validate.json", "test.json", "sft.jsonl",
    "sft_reflection.jsonl", "sft_policy.jsonl", "sft_reflection_positive.jsonl",
    "sft_policy_positive.jsonl", "sft_think.jsonl")  # fmt: skip


def prepare(folder: Path, env: str = "taxi", seed: int = 0, **settings: object) -> Path:
    """The data stages run in `folder`; returns the env's data folder."""
    shared = {"env": env, "data_dir": folder / "data", "results_dir": folder / "results", "seed": seed}
    gen_trajectory.run(gen_trajectory.GenTrajectoryConfig.from_flat(**shared, **settings), Quiet())
    split.run(split.SplitConfig.from_flat(**shared), Quiet())
    gen_sft.run(gen_sft.GenSFTConfig.from_flat(**shared), Quiet())
    return folder / "data" / env


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """The one line that `arguments` print to standard error."""
    assert main(arguments) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]
