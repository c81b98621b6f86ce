"""What a model's name means, and the place that it stands for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reflectkit.console import Quiet
from reflectkit.errors import CheckpointError
from reflectkit.models.refs import ModelKind, ModelRef


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("results/taxi/policy", ModelKind.STORED),
        ("owner/name", ModelKind.STORED),
        ("./openai:x", ModelKind.STORED),
        ("smollm2-135m", ModelKind.PACKAGED),
        ("tiny-hybrid", ModelKind.TINY),
        ("local:a/b=2", ModelKind.CHAT),
        ("systemone:x", ModelKind.DECISION),
        ("oracle", ModelKind.ORACLE),
        ("nothing", ModelKind.NOTHING),
    ],
)
def test_a_name_says_what_it_stands_for(text: str, kind: ModelKind) -> None:
    model = ModelRef.parse(text)
    assert model.kind is kind
    assert ModelRef.parse(str(model)) == model


def checkpoint(folder: Path, **facts: float) -> ModelRef:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").touch()
    (folder / "reflectkit.json").write_text(json.dumps(facts))
    return ModelRef(str(folder))


def test_a_run_stands_for_its_best_checkpoint_and_without_validation_for_its_newest(tmp_path: Path) -> None:
    run = ModelRef(str(tmp_path / "run"))
    first = checkpoint(run.path / "checkpoint-1")
    second = checkpoint(run.path / "checkpoint-2")
    assert run.resolve(tmp_path, Quiet()) == second
    assert first.resolve(tmp_path, Quiet()) == first
    third = checkpoint(run.path / "checkpoint-3", validation_return=2.0)
    checkpoint(run.path / "checkpoint-4", validation_return=1.0)
    assert run.resolve(tmp_path, Quiet()) == third


def test_a_checkpoint_of_both_players_stands_for_its_reflector_where_it_comments(tmp_path: Path) -> None:
    both = checkpoint(tmp_path / "both")
    reflector = checkpoint(tmp_path / "both" / "reflector")
    assert both.resolve(tmp_path, Quiet(), reflects=True) == reflector
    assert both.resolve(tmp_path, Quiet()) == both


def test_what_has_no_weights_stands_for_itself_and_a_missing_folder_is_refused(tmp_path: Path) -> None:
    for text in ("oracle", "nothing", "openai:x", "decisions:x"):
        assert ModelRef.parse(text).resolve(tmp_path, Quiet()).text == text
        assert ModelRef.parse(text).folder is None
    with pytest.raises(CheckpointError, match="no such model folder"):
        ModelRef.parse(str(tmp_path / "missing")).resolve(tmp_path, Quiet())
    with pytest.raises(CheckpointError, match="is not a model folder"):
        ModelRef.parse(str(tmp_path)).resolve(tmp_path, Quiet())


def test_a_run_that_was_interrupted_before_its_first_checkpoint_is_to_be_resumed(tmp_path: Path) -> None:
    """It was said to need --force, which throws away what it has."""
    (tmp_path / "config.json").write_text('{"stage": "sft"}')
    run = ModelRef.parse(str(tmp_path))
    with pytest.raises(CheckpointError, match="run the same command again to resume it"):
        run.require()
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(CheckpointError, match="--force"):
        run.require()
