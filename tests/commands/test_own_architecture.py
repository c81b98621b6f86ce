"""A model that brings Python code along: never run; used where a module that is named registers the architecture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from reflectkit.jsonl import read_json, write_json
from reflectkit.models.tiny import build_tokenizer
from tests.command_lines import error_of
from tests.kill import forked
from tests.sft_runs import LABELS, write_rows

ROOT = Path(__file__).parents[2]
TYPE = "named-llama"  # not the page's, whose examples other tests run in this process


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder whose code leaves a file behind when it runs."""
    folder = tmp_path / "my-model"
    tokenizer = build_tokenizer(["cell 1 of 9"], list(LABELS), 300)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)  # type: ignore[arg-type]
    tokenizer.save_pretrained(folder)
    code = {"auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}}
    write_json(folder / "config.json", read_json(folder / "config.json") | code | {"model_type": TYPE})
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    return folder


def command(model: Path, env: str) -> list[str]:
    rows = write_rows(model.parent)
    line = f"sft --env {env} --role plain --max-steps 2 --max-length 32 --lora-r 2 --device cpu --name run"
    return [*line.split(), "--task-file", str(rows), "--model", str(model)]


def test_the_code_of_a_model_is_not_run(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "brings Python code along" in error_of(command(model, "corridor"), capsys)
    assert not (tmp_path / "ran").exists()


def test_a_named_module_registers_the_architecture(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is the one on the page, with another environment and type."""
    page = (ROOT / "docs/your-own-model.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(from transformers import AutoConfig.*?)```", page, re.DOTALL)
    assert "from reflectkit.envs.taxi import Taxi" in code
    code = code.replace("taxi", "corridor").replace("Taxi", "Corridor").replace("own-llama", TYPE)
    (tmp_path / "named_architecture.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    train = command(model, "named_architecture:Corridor")
    for _ in range(2):  # the second time, it is finished
        assert forked(train, tmp_path) == 0, (tmp_path / "output.txt").read_text()
    evaluate = ["evaluate", "--env", "named_architecture:Corridor", "--policy", "own=results/run", "--device", "cpu"]
    assert forked(evaluate, tmp_path) == 0, (tmp_path / "output.txt").read_text()
    assert not (tmp_path / "ran").exists()
