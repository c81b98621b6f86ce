"""What a --policy says: folders with any name, chat models with and without one, and scripted players."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.agents.players import Player, parse_policy
from reflectkit.errors import ConfigError

FOLDERS = ("runs/lr=1e-4", "runs/a+b", "runs/a", "runs/c")


@pytest.mark.parametrize(
    ("text", "player"),
    [
        ("runs/lr=1e-4", Player("lr=1e-4", Path("runs/lr=1e-4"))),
        ("runs/a+b", Player("a+b", Path("runs/a+b"))),
        ("runs/a+runs/c", Player("a", Path("runs/a"), Path("runs/c"))),
        ("runs/a+b+runs/lr=1e-4", Player("a+b", Path("runs/a+b"), Path("runs/lr=1e-4"))),
        ("runs/a+runs/a+b", Player("a", Path("runs/a"), Path("runs/a+b"))),
        ("runs/lr=1e-4+openai:x", Player("lr=1e-4", Path("runs/lr=1e-4"), Path("openai:x"))),
        ("A=runs/lr=1e-4", Player("A", Path("runs/lr=1e-4"))),
        ("A=runs/a+b+nothing", Player("A", Path("runs/a+b"), Path("nothing"))),
        ("A=hub/one+hub/two", Player("A", Path("hub/one"), Path("hub/two"))),
        ("openai:x+local:y", Player("openai:x+local:y", chat=("openai:x", "local:y"))),
        ("A=openai:x+local:y", Player("A", chat=("openai:x", "local:y"))),
        ("local:tuned=2", Player("local:tuned=2", chat=("local:tuned=2",))),
        ("A=mem1:local:y", Player("A", chat=("local:y",), method="mem1")),
        ("A=mem1:hub/one", Player("A", Path("hub/one"), method="mem1")),
        ("random", Player("random")),
    ],
)
def test_a_policy_is_read(text: str, player: Player, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in FOLDERS:
        Path(folder).mkdir(parents=True)
    assert parse_policy(text, methods=("mem1",)) == player


@pytest.mark.parametrize(
    "text",
    ["=hub/one", "=d", "=openai:x", "A=", "A=hub/one+", "hub/one", "A=openai:x+hub/one", "mem1:", "A=mem1:"],
)
def test_what_names_no_player_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d").mkdir()
    with pytest.raises(ConfigError, match=f"--policy '{text}'".replace("+", r"\+")):
        parse_policy(text, methods=("mem1",))
