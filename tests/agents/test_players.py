"""What a --policy says: folders with any name, chat models with and without one, and scripted players."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.agents.player_refs import Player, parse_policy
from reflectkit.errors import ConfigError
from reflectkit.models.refs import ModelRef

FOLDERS = ("runs/lr=1e-4", "runs/a+b", "runs/a", "runs/c")


@pytest.mark.parametrize(
    ("text", "name", "models", "method"),
    [
        ("runs/lr=1e-4", "lr=1e-4", ["runs/lr=1e-4"], ""),
        ("runs/a+b", "a+b", ["runs/a+b"], ""),
        ("runs/a+runs/c", "a", ["runs/a", "runs/c"], ""),
        ("runs/a+b+runs/lr=1e-4", "a+b", ["runs/a+b", "runs/lr=1e-4"], ""),
        ("runs/a+runs/a+b", "a", ["runs/a", "runs/a+b"], ""),
        ("runs/lr=1e-4+openai:x", "lr=1e-4", ["runs/lr=1e-4", "openai:x"], ""),
        ("A=runs/lr=1e-4", "A", ["runs/lr=1e-4"], ""),
        ("A=runs/a+b+nothing", "A", ["runs/a+b", "nothing"], ""),
        ("A=hub/one+hub/two", "A", ["hub/one", "hub/two"], ""),
        ("openai=hub/one", "openai", ["hub/one"], ""),
        ("openai:x+local:y", "openai:x+local:y", ["openai:x", "local:y"], ""),
        ("A=openai:x+local:y", "A", ["openai:x", "local:y"], ""),
        ("local:tuned=2", "local:tuned=2", ["local:tuned=2"], ""),
        ("A=mem1:local:y", "A", ["local:y"], "mem1"),
        ("A=mem1:hub/one", "A", ["hub/one"], "mem1"),
        ("random", "random", [], ""),
    ],
)
def test_a_policy_is_read(
    text: str, name: str, models: list[str], method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in FOLDERS:
        Path(folder).mkdir(parents=True)
    assert parse_policy(text, methods=("mem1",)) == Player(name, *map(ModelRef.parse, models), method=method)


@pytest.mark.parametrize(
    "text",
    ["=hub/one", "=d", "=openai:x", "A=", "A=hub/one+", "hub/one", "A=openai:x+hub/one", "mem1:", "A=mem1:"],
)
def test_what_names_no_player_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d").mkdir()
    with pytest.raises(ConfigError, match=f"--policy '{text}'".replace("+", r"\+")):
        parse_policy(text, methods=("mem1",))
