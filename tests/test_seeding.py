"""Seeds, and the number of CPU threads, which is part of what a run is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from reflectkit import seeding
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


def test_seeds_depend_on_the_whole_path_and_nothing_else() -> None:
    seeds = {
        seeding.derive(seed, *path) for seed in (0, 1) for path in [(), ("a",), ("a", 1), ("a", 2), ("a1",), ("b", 1)]
    }
    assert len(seeds) == 12
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeding.derive(0, "a", 1) == 5640247956467711177  # fixed: old runs must be repeatable


def test_uniform_is_uniform() -> None:
    draws = [seeding.uniform(seed, "x") for seed in range(10_000)]
    counts = [sum(low / 10 <= draw < (low + 1) / 10 for draw in draws) for low in range(10)]
    assert (
        sum((count - 1000) ** 2 / 1000 for count in counts) < 27.9
    )  # chi-square, 9 degrees of freedom, p = 0.001; seeded
    assert 0 <= min(draws) <= max(draws) < 1
