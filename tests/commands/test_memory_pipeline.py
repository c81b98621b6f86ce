"""Env memory through the stages, from generated conversations to GRPO and evaluation, with a model that knows
nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from reflectkit.cli.main import main
from reflectkit.jsonl import read_json, read_jsonl
from reflectkit.models.load import LoadedModel, save_player
from reflectkit.models.tiny import build_model, build_tokenizer


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of all stages, and a policy and a reflector of random weights."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("memory")
    common = ["--env", "memory", "--data-dir", str(folder / "data"), "--results-dir", str(folder / "results")]
    for stage in (["gen-task", "--instances", "14", "--long-instances", "4"], ["gen-trajectory", "--level", "short"],
                  ["split"], ["gen-sft"]):  # fmt: skip
        assert main([stage[0], *common, *stage[1:]]) == 0
    texts = [row["prompt"] + row["completion"] for _, row in read_jsonl(folder / "data" / "memory" / "sft.jsonl")]
    tokenizer = build_tokenizer(texts, [], 700)
    for name, seed in (("policy", 1), ("reflection", 2)):
        model = build_model(tokenizer, 640, seed, init_range=0.15)
        save_player(folder / name, LoadedModel(model, tokenizer, name if name == "reflection" else "plain"))
    return folder


def rlft(ground: Path, results: Path, *more: str) -> Path:
    code = main(["rlft", "--env", "memory", "--data-dir", str(ground / "data"), "--results-dir", str(results),
                 "--policy", str(ground / "policy"), "--algo", "grpo", "--advantages", "own", "--group-size", "4",
                 "--episodes", "8", "--curriculum", "short", "--max-new-tokens", "6", "--save-steps", "1",
                 *more])  # fmt: skip
    assert code == 0
    return sorted(results.glob("*_rlft"))[-1]


def test_sft_rows_are_calls_after_the_policys_own_prompt(ground: Path) -> None:
    names = ("train", "validate", "test")
    records = [record for name in names for record in read_json(ground / "data" / "memory" / f"{name}.json")]
    assert sorted(record["level"] for record in records) == ["long"] * 4 + ["short"] * 14
    assert all(bool(record["trajectories"]) == (record["level"] == "short") for record in records)
    for name in ("sft", "sft_policy"):
        for _, row in read_jsonl(ground / "data" / "memory" / f"{name}.jsonl"):
            assert row["prompt"].endswith("\nCalls:")
            assert row["prompt"].startswith("new_memory_insert(")
            assert ("\nReflection: " in row["prompt"]) == (name == "sft_policy")
            assert row["completion"].startswith(
                (" none", " new_memory_insert {", " memory_update {", " memory_delete {")
            )


@pytest.mark.slow
def test_grpo_reports_components_and_goes_on_exactly(ground: Path, tmp_path: Path) -> None:
    settings = ("--max-steps", "3", "--validate-steps", "2", "--keep-episodes", "2", "--reflector",
                str(ground / "reflection"))  # fmt: skip
    whole = rlft(ground, tmp_path / "whole", *settings)
    rows = [row for _, row in read_jsonl(whole / "metrics.jsonl")]
    for name in ("accuracy", "tool_success", "content", "compression", "memory_tokens", "groups_without_spread"):
        assert all(isinstance(row[name], float) for row in rows), name
    assert ["validation_accuracy" in row for row in rows] == [False, True, True]
    kept = [row for _, row in read_jsonl(whole / "episodes.jsonl")]
    assert [row["name"] for row in kept] == ["update 1"] * 2 + ["update 2"] * 2 + ["update 3"] * 2
    assert all(isinstance(turn["advantage"], float) for row in kept for turn in row["turns"])
    assert main(["view", str(whole), "--out", str(tmp_path / "view.html")]) == 0
    run = tmp_path / "half" / whole.name
    shutil.copytree(whole, run)
    (run / "report.json").unlink()
    shutil.rmtree(run / "checkpoint-3")
    assert rlft(ground, tmp_path / "half", *settings) == run
    weights = [(folder / "checkpoint-3" / "model.safetensors").read_bytes() for folder in (whole, run)]
    assert weights[0] == weights[1]
