"""evaluate keeps its episodes as they end; what a kill or the disk damaged of them is played again."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.commands import evaluate
from reflectkit.console import Quiet
from reflectkit.data.trajectories import Record, record_to_json
from reflectkit.envs.corridor import Corridor
from reflectkit.jsonl import read_json, write_json

FLIPPED = (
    b'{"task": "corridor-long-1", "seed": "1", "status": "completed", "success": true, "return": 1.0, "turns": []}\n'
)


class Interrupting(Quiet):
    """Presses Ctrl-C once three episodes have ended."""

    episodes = 0

    def advance(self, amount: int = 1, **figures: float) -> None:
        self.episodes += amount
        if self.episodes == 3:
            raise KeyboardInterrupt


@pytest.mark.parametrize("damage", [b'{"task": "corr', b"\xff\xff\n", b"[]\n", FLIPPED, b'{"task": NaN}'])
def test_damaged_lines_are_dropped_and_their_episodes_played_again(
    tmp_path: Path, damage: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / "test.json", [record_to_json(Record(task, ())) for task in Corridor.taskset.tasks("long")])
    settings = {"env": "corridor", "policy": ("oracle",), "task_file": Path("test.json"), "max_concurrency": 1}
    whole = evaluate.run(evaluate.EvaluateConfig.from_flat(**settings, results_dir=tmp_path / "whole"), Quiet())
    with pytest.raises(KeyboardInterrupt):
        evaluate.run(evaluate.EvaluateConfig.from_flat(**settings), Interrupting())
    (kept,) = (tmp_path / "results").glob("*_evaluate/episodes/*.jsonl")
    lines = kept.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    kept.write_bytes(lines[0] + damage)
    arguments = [
        "evaluate",
        "--env",
        "corridor",
        "--policy",
        "oracle",
        "--task-file",
        "test.json",
        "--max-concurrency",
        "1",
    ]
    assert main(arguments) == 0
    assert "damaged lines dropped: 1;" in " ".join(capsys.readouterr().out.split())
    (made,) = (tmp_path / "results").glob("*_evaluate/eval.json")
    assert read_json(made) == read_json(whole.folder / "eval.json")
