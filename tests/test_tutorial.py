"""docs/your-own-environment.md does what it says: its code is 40 lines, its commands run in their order, unchanged."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.cli.pages import page
from reflectkit.commands import STAGES

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "your-own-environment.md"
MOST_LINES = 40
COMMANDS = ["play", "play", "gen-trajectory", "split", "gen-sft", "sft", "sft", "rlft", "evaluate", "play", "run"]


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for named, text in found if named == language]


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A person's play is ended by the end of standard input; all else runs to its end."""
    (code,) = blocks("python")
    assert len(code.splitlines()) <= MOST_LINES
    assert [line for line in code.splitlines() if len(line) > 120] == []
    (tmp_path / "my_env.py").write_text(code, encoding="utf-8")
    (recipe,) = blocks("yaml")
    (tmp_path / "lift.yaml").write_text(recipe, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(".")  # the page's `export PYTHONPATH=.`
    monkeypatch.setattr(sys, "stdin", io.StringIO("up\nh\n"))
    lines = [line for block in blocks("") for line in block.splitlines()]
    assert lines.pop(0) == "export PYTHONPATH=."
    commands = [shlex.split(line) for line in lines]
    assert [command[:2] for command in commands] == [["reflectkit", name] for name in COMMANDS]
    for command in commands:
        assert main(command[1:]) == 0, (command, capsys.readouterr().err)
    monkeypatch.delitem(sys.modules, "my_env")

    from reflectkit.jsonl import read_json

    rows = {row["name"]: row for row in read_json(next(Path("results").glob("*_evaluate/eval.json")))["rows"]}
    assert rows["oracle"]["success"] == 1.0
    assert rows["random"]["success"] < 1.0
    kept = [json.loads(line) for line in max(Path("results").glob("*_play/episodes.jsonl")).read_text().splitlines()]
    assert kept[0]["turns"][0]["reflection"]


def test_the_oracle_reaches_every_goal_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a to b takes |a - b| moves at -0.1 and the opening at +1; the farthest of 6 floors is 5 moves away, return
    0.5.
    """
    from reflectkit.agents.scripted import Oracle
    from reflectkit.envs import env_class, make
    from reflectkit.rollout.episode import Episode, rollout

    (tmp_path / "my_env.py").write_text(blocks("python")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = env_class("my_env:Lift")
    monkeypatch.delitem(sys.modules, "my_env")
    for level in kind.levels:
        episodes = [Episode(task, 0) for task in kind.taskset.tasks(level)]
        played = rollout(episodes, lambda level=level: make("my_env:Lift", kind.horizons[level]), Oracle())  # type: ignore[misc]
        far = [abs(one.task.data["start"] - one.task.data["wanted"]) for one in played]
        assert all(one.success for one in played)
        assert [one.total_return for one in played] == pytest.approx([1 - 0.1 * moves for moves in far])
    monkeypatch.delitem(sys.modules, "my_env")


@pytest.mark.parametrize("path", [*sorted(DOCS.glob("*.md")), DOCS.parent / "README.md"], ids=lambda path: path.name)
def test_links_within_the_documents_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    assert [target for target in targets if "://" not in target and not (path.parent / target).exists()] == []


def test_the_commands_pages_are_what_help_says() -> None:
    for name in STAGES:
        assert (DOCS / "commands" / f"{name}.md").read_text("utf-8") == page(name), "run make docs"
