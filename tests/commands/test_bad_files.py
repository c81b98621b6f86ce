"""Bad records, rows and models are one line that names the file, and nothing is overwritten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from reflectkit.runs.run import CHECKSUMS, seal
from tests.command_lines import error_of


def shown(data: dict[str, int], command: str) -> bytes:
    """A file of one record with a demonstration of one step."""
    steps = [{"reflection": "r", "cmd": command}]
    demonstration = {"model_name": "m", "info": "positive0", "seed": 0, "trajectory": steps}
    record = {"id": "a", "env": "taxi", "level": "full", "group": "g", "data": data, "trajectories": [demonstration]}
    return json.dumps([record]).encode()


TASK = b'{"id": "a", "env": "taxi", "level": "full", "group": "g", "data": {"state": 1}}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "empty"),
        (b"[" + TASK.replace(b', "data": {"state": 1}', b"") + b"]", "record 0: field 'data'"),
        (shown({"state": 1}, "fly"), "does not offer 'fly'"),
        (shown({"state": 900}, "north"), "data.state"),
    ],
)
def test_bad_records_are_one_line_and_nothing_is_overwritten(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data" / "taxi").mkdir(parents=True)
    (tmp_path / "data" / "taxi" / "sft.jsonl").write_text("mine")
    (tmp_path / "bad.json").write_bytes(content)
    assert message in error_of(["gen-sft", "--env", "taxi", "--task-file", "bad.json"], capsys)
    assert (tmp_path / "data" / "taxi" / "sft.jsonl").read_text() == "mine"


def test_unusable_models_are_one_line(
    checkpoints: dict[str, Path], taxi_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task_file = str(taxi_data / "test.json")

    def evaluate(policy: str) -> str:
        return error_of(["evaluate", "--env", "taxi", "--task-file", task_file, "--policy", f"x={policy}"], capsys)

    assert "is a reflector, not a policy" in evaluate(str(checkpoints["reflection"]))
    assert "is a policy model, not a reflector" in evaluate(f"{checkpoints['policy']}+{checkpoints['policy']}")
    broken = tmp_path / "broken"
    shutil.copytree(checkpoints["policy"], broken)
    whole = (broken / "model.safetensors").read_bytes()
    seal(broken)
    (broken / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "model.safetensors is damaged: its checksum differs" in evaluate(str(broken))
    (broken / CHECKSUMS).unlink()
    (broken / "model.safetensors").write_bytes(whole[:1000])
    assert "cannot load the model" in evaluate(str(broken))
    (broken / "model.safetensors").unlink()
    assert "cannot load the model" in evaluate(str(broken))
    (broken / "tokenizer.json").unlink()
    assert "has no tokenizer" in evaluate(str(broken))
    (broken / "config.json").unlink()
    assert "is not a model folder" in evaluate(str(broken))
    assert "no such" in evaluate("nowhere/at/all")
