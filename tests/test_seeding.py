"""The number of CPU threads is a setting, and part of what a run is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from reflectkit.cli.main import main
from reflectkit.jsonl import read_json
from reflectkit.seeding import VARIABLES
from tests.command_lines import prepare
from tests.kill import hashes

SFT = ["sft", "--env", "corridor", "--role", "plain", "--max-length", "64"]


@pytest.fixture(autouse=True)
def _one_thread_afterwards():
    before = {name: os.environ.get(name) for name in VARIABLES}
    yield
    torch.set_num_threads(1)
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("threads"), env="corridor", demonstrations=6) / "sft.jsonl"


def trained(rows: Path, results: Path, *flags: str) -> Path:
    assert main([*SFT, "--task-file", str(rows), "--results-dir", str(results), *flags]) == 0
    return results / "1_sft"


@pytest.mark.slow
def test_weights_do_not_depend_on_the_threads_that_were_there(rows: Path, tmp_path: Path) -> None:
    """Forty steps are enough for the order of a sum on two threads to show in the weights."""
    weights = []
    for there in (1, 2):
        torch.set_num_threads(there)
        run = trained(rows, tmp_path / str(there), "--max-steps", "40")
        assert torch.get_num_threads() == 1
        assert read_json(run / "config.json")["settings"]["threads"] == 1
        weights.append(hashes(run / "checkpoint-40")["model.safetensors"])
    assert weights[0] == weights[1]


def test_a_command_computes_on_its_own_number_of_threads(tmp_path: Path) -> None:
    play = ["play", "--env", "corridor", "--policy", "oracle", "--auto", "--results-dir", str(tmp_path)]
    for flags, threads in (([], 1), (["--threads", "2"], 2)):
        torch.set_num_threads(3 - threads)
        assert main([*play, *flags]) == 0
        assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]) == (threads, str(threads))
    assert [read_json(path)["settings"]["threads"] for path in sorted(tmp_path.glob("*/config.json"))] == [1, 2]
