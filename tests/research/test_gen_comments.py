"""gen-comments: which comments are kept, the rows, resuming, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reflectkit.console import Quiet, Report
from reflectkit.jsonl import read_jsonl
from reflectkit.models.labels import choice_ids, prompt_ids
from reflectkit.models.load import load_player
from reflectkit.models.scoring import choice_logprobs
from research import gen_comments
from research.own_comments import judged_from_json
from tests.command_lines import prepare


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    prepare(folder, demonstrations=24)
    return folder / "data"


def commented(folder: Path, data: Path, checkpoints: dict[str, Path], **settings: Any) -> Report:
    defaults: dict[str, Any] = {
        "env": "taxi",
        "policy": checkpoints["policy"],
        "reflector": checkpoints["reflection"],
        "data_dir": data,
        "results_dir": folder / "results",
        "out_dir": folder / "own",
        "samples": 3,
        "max_new_tokens": 6,
        "states": 70,  # two groups
        "validate_states": 8,
        "margin": -1000.0,
    }
    return gen_comments.run(gen_comments.GenCommentsConfig.from_flat(**defaults | settings), Quiet())


def test_the_log_probabilities_are_the_policys(tmp_path: Path, data: Path, checkpoints: dict[str, Path]) -> None:
    """The first state's number is computed again from its row of gen-sft."""
    report = commented(tmp_path, data, checkpoints, states=0, samples=1, validate_states=0)
    (first, *_) = (judged_from_json(row) for _, row in read_jsonl(report.folder / "judged.jsonl"))
    assert first is not None
    plain = next(row for _, row in read_jsonl(data / "taxi" / "sft.jsonl"))
    player = load_player(checkpoints["policy"], "policy")
    choices = tuple(map(str, range(6)))  # answered by their labels
    labels = choice_ids(player.tokenizer, choices, "label")
    prompt = prompt_ids(player.tokenizer, plain["prompt"])
    (row_K,), _ = choice_logprobs(player.model, [prompt], [labels], pad_id=player.pad_id)
    assert first.without == pytest.approx(row_K.tolist()[int(plain["completion"])], abs=1e-5)


def test_the_same_bytes_after_a_kill(
    tmp_path: Path, data: Path, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validation states are training states, so that some prompts are judged twice; a resumed run passes the same
    batches through the model, since others would be rounded otherwise.
    """
    batches: list[Any] = []

    def scored(model: Any, prompts: Any, *rest: Any, **options: Any) -> Any:
        batches.append(list(prompts))
        return choice_logprobs(model, prompts, *rest, **options)

    monkeypatch.setattr("reflectkit.sampling.hf.choice_logprobs", scored)
    settings: dict[str, Any] = {"states": 140, "validate_states": 70, "validate_file": data / "taxi" / "train.json"}
    whole = commented(tmp_path, data, checkpoints, **settings)
    path = whole.folder / "judged.jsonl"
    lines, passed = path.read_bytes().splitlines(keepends=True), batches.copy()
    assert len(lines) == 140
    (whole.folder / "report.json").unlink()
    path.write_bytes(b"".join(lines[:67])[:-9])  # a kill in the middle of a line of the second group
    batches.clear()
    resumed = commented(tmp_path, data, checkpoints, **settings)
    assert path.read_bytes().splitlines(keepends=True) == lines
    assert resumed.figures == whole.figures
    assert 0 < len(batches) < len(passed)
    assert batches == passed[-len(batches) :]
