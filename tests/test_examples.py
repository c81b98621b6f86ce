"""The examples: each is short, and its two commands run as written, with few steps and a model from here."""

from __future__ import annotations

import ast
import re
import shutil
import sys
from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.jsonl import read_json
from tests.writing import writing_model

EXAMPLES = Path(__file__).parents[1] / "examples"
FEW = {
    "rlft": ["--max-steps", "1", "--episodes", "8", "--validate-problems", "0", "--max-new-tokens", "8"],
    "evaluate": ["--problems", "2", "--max-new-tokens", "8"],
}


def commands(path: Path) -> list[list[str]]:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return [
        line.split()[1:] for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip().startswith("reflectkit")
    ]


@pytest.mark.parametrize("name", ["maze", "calculator", "arithmetic", "lake", "wordle"])
def test_its_commands_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    shutil.copytree(EXAMPLES, "examples")
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60
    train, evaluate = commands(path)
    model = str(writing_model(Path("model")))
    for command in (train, evaluate):
        arguments = [re.sub(r"Qwen/\S+", model, argument) for argument in command]
        assert main([*arguments, *FEW[command[0]]]) == 0
    (evaluation,) = Path("results").glob("*_evaluate")
    rows = read_json(evaluation / "eval.json")["rows"]
    assert [row["episodes"] for row in rows] == [2, 2]
