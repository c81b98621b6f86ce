"""Every number that can be set has bounds; absurd ones are one line that names the flag, before anything is done."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, get_args, get_type_hints

import pytest

from reflectkit.cli.main import main
from reflectkit.core.config import flag, from_mapping
from reflectkit.core.errors import ConfigError
from reflectkit.stages import STAGES

REQUIRED: dict[str, dict[str, Any]] = {
    "play": {"env": "corridor"},
    "gen-trajectory": {"env": "corridor"},
    "split": {"env": "corridor"},
    "gen-sft": {"env": "corridor"},
    "sft": {"env": "corridor", "role": "plain"},
    "rlft": {"env": "corridor"},
    "evaluate": {"env": "corridor", "policy": ["random"]},
    "run": {"recipe": "taxi-tiny"},
    "export": {"load_dir": "x", "out_dir": "y"},
}
OTHERS = {
    "instances": {"env": "memory"}, "long_instances": {"env": "memory"}, "recent": {"env": "memory"},
    "related": {"env": "memory"}, "compression_weight": {"env": "memory"}, "content_weight": {"env": "memory"},
    "leaveout_prob": {"env": "auto_explore"}, "result_tokens": {"env": "alfworld"},
    "prompt_tokens": {"env": "alfworld"},
}  # fmt: skip
"""What else has to be given for a setting to be allowed."""


def numbers() -> list[tuple[str, str]]:
    """(stage, setting) of every number."""
    found = []
    for stage, path in STAGES.items():
        config = importlib.import_module(path).Config
        hints = get_type_hints(config)
        found += [
            (stage, item.name)
            for item in dataclasses.fields(config)
            if {int, float} & ({hints[item.name]} | set(get_args(hints[item.name])))
        ]
    return found


@pytest.mark.parametrize(("stage", "name"), numbers())
def test_no_number_may_be_absurd(stage: str, name: str) -> None:
    config = importlib.import_module(STAGES[stage]).Config
    given = REQUIRED.get(stage, {}) | OTHERS.get(name, {})
    whole = int in {get_type_hints(config)[name], *get_args(get_type_hints(config)[name])}
    for value in (-(2**63), 2**63) if whole else (-1e308, 1e308):
        with pytest.raises(ConfigError, match=f"{flag(name)} must"):
            from_mapping(config, given | {name: value}, stage)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gen-task", "--max-level", "2000000000"], "--max-level must lie between 0 and 64, got 2000000000"),
        (["filter-repo", "--max-file-mb", "1e308"], "--max-file-mb must lie between 0 and 1,024, got 1e+308"),
        (["play", "--env", "corridor", "--horizon", "-1"], "--horizon must lie between 0 and 100,000, got -1"),
        (["play", "--env", "corridor", "--horizon", "1e308"], "Invalid value for '--horizon'"),
    ],
)
def test_it_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)
