"""A run stands for its last checkpoint; who comments for it, and comments of other states."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.jsonl import read_json, read_jsonl
from reflectkit.models.load import load_player
from tests.command_lines import error_of


def test_the_teacher_comments_in_a_reflectors_place(
    checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("checkpoint-9", "checkpoint-10"):
        shutil.copytree(checkpoints["policy"], f"results/ours/{place}")
    Path("results/ours/config.json").write_text('{"stage": "rlft", "settings": {}}')
    arguments = ["--env", "corridor", "--policy", "ours=results/ours+oracle"]
    assert main(["evaluate", *arguments]) == 0
    folder = next(Path("results").glob("*_evaluate"))
    assert set(read_json(folder / "config.json")["inputs"]) == {"results/ours/checkpoint-10"}
    assert main(["evaluate", "--env", "corridor", "--policy", "ours=results/ours+nothing", "--name", "empty"]) == 0
    assert read_json(Path("results/empty/eval.json"))["rows"][0]["figures"]["comment_tokens"]["mean"] == 0
    tokenizer = load_player(Path("results/ours/checkpoint-10"), device="cpu").tokenizer
    for _, line in read_jsonl(folder / "episodes.jsonl"):
        lengths = [len(tokenizer(" " + turn["reflection"])["input_ids"]) for turn in line["turns"]]
        assert line["figures"]["comment_tokens"] == pytest.approx(sum(lengths) / len(lengths))
    swapped = ["--swap-comments", "0.5", "--name", "swapped"]
    assert "data/corridor/sft_reflection.jsonl" in error_of(["evaluate", *arguments, *swapped], capsys)
    Path("data/corridor").mkdir(parents=True)
    Path("data/corridor/sft_reflection.jsonl").write_text('{"prompt": "Where?", "completion": " Elsewhere."}\n')
    assert main(["evaluate", *arguments, *swapped]) == 0
    lines = Path("results/swapped/episodes.jsonl").read_text()
    assert "Elsewhere." in lines
    assert " to the right." in lines
    assert "data/corridor/sft_reflection.jsonl" in read_json(Path("results/swapped/config.json"))["inputs"]
    Path("own.jsonl").write_text('{"prompt": "Where?", "completion": " In my words."}\n')
    assert main(["evaluate", *arguments, "--swap-comments", "1", "--swap-from", "own.jsonl", "--name", "own"]) == 0
    lines = Path("results/own/episodes.jsonl").read_text()
    assert "In my words." in lines
    assert "Elsewhere." not in lines
    assert "own.jsonl" in read_json(Path("results/own/config.json"))["inputs"]
