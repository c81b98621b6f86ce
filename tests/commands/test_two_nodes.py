"""sft and rlft on two nodes, which torchrun joins over the loopback: as on one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.rlft_runs import command, weights
from tests.sft_runs import write_rows

RLFT = ["--algo", "ppo", "--max-steps", "2", "--episodes", "8", "--learning-rate", "1e-3", "--target-kl", "0"]
"""Steps of up to 1e-3, of all rows of an update."""


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def run_on_nodes(count: int, arguments: list[str], folder: Path) -> None:
    """`reflectkit` with these arguments, one process on each node."""
    port = free_port()
    nodes = []
    for node in range(count):
        launcher = [
            *("torch.distributed.run", "--nnodes", str(count), "--node-rank", str(node), "--nproc-per-node", "1"),
            *("--master-addr", "127.0.0.1", "--master-port", str(port), "-m", "reflectkit"),
        ]
        nodes.append(
            subprocess.Popen(
                [sys.executable, "-m", *launcher, *arguments],
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        texts = [node.communicate(timeout=600)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0] * count, "\n".join(texts)


def assert_alike(one: Path, two: Path) -> None:
    """Both checkpoints have the same weights, up to rounding. Adam turns a gradient that is nearly 0 into a step of the
    full size, so that single weights may differ by one.
    """
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    distances = torch.cat([(first[name] - second[name]).abs().flatten() for name in first])
    assert float(distances.mean()) < 1e-6
    assert float((distances > 1e-5).float().mean()) < 1e-3


@pytest.mark.slow
def test_rlft_with_a_reflector_on_two_nodes(corridor_folder: Path, tmp_path: Path) -> None:
    arguments = command(corridor_folder, *RLFT)
    for count, name in ((1, "one"), (2, "two")):
        run_on_nodes(count, [*arguments, "--results-dir", str(tmp_path / name)], tmp_path)
    one, two = (next((tmp_path / name).glob("*_rlft")) / "checkpoint-2" for name in ("one", "two"))
    assert_alike(one, two)


@pytest.mark.slow
def test_sft_on_two_nodes(tmp_path: Path) -> None:
    rows = write_rows(tmp_path)
    arguments = [
        *("sft", "--env", "corridor", "--role", "plain", "--task-file", str(rows), "--max-steps", "7"),
        *("--batch-size", "4", "--max-length", "32", "--vocabulary", "300", "--device", "cpu"),
    ]
    for count, name in ((1, "one"), (2, "two")):
        run_on_nodes(count, [*arguments, "--results-dir", str(tmp_path / name)], tmp_path)
    one, two = (next((tmp_path / name).glob("*_sft")) / "checkpoint-7" for name in ("one", "two"))
    assert_alike(one, two)
