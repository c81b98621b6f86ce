"""sft on two processes: the same rows in each step as on one, also in the last of an epoch, and the same figures."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import trl

from reflectkit.jsonl import read_jsonl
from tests.kill import hashes
from tests.processes import forked_ranks, shard_on_cpu
from tests.rlft_runs import weights
from tests.sft_runs import Interrupting, open_trainer, train, write_rows


def apart(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """The largest difference of a weight."""
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def figures(checkpoint: Path) -> list[dict[str, Any]]:
    return [dict(row) for _, row in read_jsonl(checkpoint.parent / "metrics.jsonl")]


def in_rank(rows: Path, results: Path, settings: dict[str, Any], *, sharded: bool = False, stops_at: int = 0) -> None:
    """A run in one of two processes. stops_at: the step in which Ctrl-C comes, to the first process alone."""
    if sharded:
        shard_on_cpu()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt) if stops_at else nullcontext():
        train(rows, results, Interrupting(stops_at, signals=True), **settings)


@pytest.mark.parametrize(
    "settings",
    [{}, {"gradient_accumulation": 2}, {"share_prefixes": True, "max_length": 200}, {"group_by_length": True}],
    ids=lambda settings: next(iter(settings), "plain"),
)
def test_two_processes_learn_what_one_does(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Nine rows in batches of four: the last batch of each epoch is one row, and a process gets none of it."""
    rows = write_rows(tmp_path)
    settings = settings | {"validate_file": rows}
    one = train(rows, tmp_path / "one", **settings)
    forked_ranks(in_rank, rows, tmp_path / "two", settings)
    (two,) = (tmp_path / "two").glob("1_sft/checkpoint-*")
    assert apart(weights(one), weights(two)) < 1e-4  # in steps of up to 2e-3
    for here, there in zip(figures(one), figures(two), strict=True):
        assert here == pytest.approx(there, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_two_processes_stop_and_go_on(tmp_path: Path, sharded: bool) -> None:
    rows = write_rows(tmp_path)
    one = train(rows, tmp_path / "one")
    rank = partial(in_rank, sharded=sharded)
    forked_ranks(rank, rows, tmp_path / "straight", {})
    forked_ranks(partial(rank, stops_at=3), rows, tmp_path / "stopped", {})
    assert [path.name for path in tmp_path.glob("stopped/1_sft/trainer/checkpoint-3")] == ["checkpoint-3"]
    forked_ranks(rank, rows, tmp_path / "stopped", {})
    straight, stopped = (next(tmp_path.glob(f"{name}/1_sft/checkpoint-7")) for name in ("straight", "stopped"))
    assert hashes(straight) == hashes(stopped)
    assert figures(straight) == figures(stopped)
    assert apart(weights(one), weights(straight)) < 1e-4


def test_one_process_trains_on_one_of_several_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would split each batch over those that the process sees, and count more rows in it."""

    class SeveralGpus(trl.SFTConfig):
        def __post_init__(self) -> None:
            super().__post_init__()
            self._n_gpu = 4

    monkeypatch.setattr(trl, "SFTConfig", SeveralGpus)
    trainer = open_trainer(tmp_path, "tiny")
    assert trainer.args.train_batch_size == 4
    assert trainer.args.n_gpu == 1
