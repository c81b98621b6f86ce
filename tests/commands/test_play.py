"""play at a keyboard that is a string: as the agent, as the user, and what cannot steer the terminal."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.console import Quiet
from reflectkit.types import ToolCall, ToolUse


class Keys(io.StringIO):
    """Lines that a person at a terminal types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `reflectkit play` with what is typed; returns (exit code, what was shown, what was said of errors)."""
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it

    def run(*arguments: str, typed: str | None = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO() if typed is None else Keys(typed))
        code = main(["play", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def episodes(number: int = 1) -> list[dict[str, Any]]:
    lines = Path(f"results/{number}_play/episodes.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_a_person_plays_by_number_beginning_and_whole_text(play: Any) -> None:
    """Seed 0 draws a start two cells from the left end; right six times ends at G at the latest."""
    code, shown, _ = play("--env", "corridor", typed="1\nr\nright\n RIGHT \n1\n1\n")
    assert code == 0
    assert "   0  left\n   1  right" in shown
    assert "Success: return +" in shown
    (episode,) = episodes()
    assert episode["name"] == "person"
    assert episode["success"] is True
    assert [turn["said"] for turn in episode["turns"]] == ["right"] * len(episode["turns"])
    assert f"return so far {episode['return']:+.3g}." in shown
    assert "\n. . . . . . T" in shown  # the last view


def test_leaving_keeps_the_episode_as_far_as_it_went_and_begins_no_other(play: Any) -> None:
    for number, end in enumerate(("q\n", ""), start=1):  # an end of input is a way to leave
        code, shown, _ = play("--env", "corridor", "--count", "3", typed="left\n" + end)
        assert code == 0
        assert "The person left: return -1.6 in 1 step, -1.5 of it for the steps not taken." in shown
        (episode,) = episodes(number)
        assert [turn["said"] for turn in episode["turns"]] == ["left"]


def test_tools_are_called_line_by_line_and_mistakes_are_written_again(play: Any) -> None:
    good = 'memory_update {"memory_type": "core_memory", "new_content": "x"}'
    code, shown, _ = play("--env", "memory", typed=f"?\no\nmemory_updat {{}}\nnot json\n{good}\n\n")
    assert code == 0
    assert "memory_delete(memory_type: " in shown
    assert "did you mean memory_update" in shown
    assert shown.count("Write that call again") == 2
    assert "The oracle would: " in shown
    (episode,) = episodes()
    assert [turn["said"] for turn in episode["turns"]] == [good]


def test_a_checkpoint_shows_its_comment_and_probabilities(play: Any, checkpoints: dict[str, Path]) -> None:
    """An untrained policy is unsure: several choices have a share. The two episodes are of different problems."""
    policy = f"ours={checkpoints['policy']}+{checkpoints['reflection']}"
    code, shown, _ = play("--env", "taxi", "--policy", policy, "--auto", "--horizon", "2", "--count", "2", typed=None)
    assert code == 0
    assert shown.count("Policy: ") == shown.count("Action: ") == shown.count("Reflection: ") > 1
    assert "Episodes of ours" in shown
    first, second = episodes()
    assert first["task"] != second["task"]
    assert abs(sum(first["turns"][0]["probabilities"]) - 1) < 1e-3


LOOK = ToolUse("list_products {}", (ToolCall("list_products", {}),))


class Typed(Quiet):
    """Answers with the given lines, and keeps what was shown and asked."""

    def __init__(self, *lines: str) -> None:
        self.lines, self.shown = list(lines), list[str]()

    def news(self, text: str) -> None:
        self.shown.append(text)

    def ask(self, question: str) -> str | None:
        return self.lines.pop(0) if self.lines else None


def test_a_held_out_problem_can_be_played_by_its_name(play: Any, tmp_path: Path) -> None:
    (tmp_path / "coin.py").write_text(
        "class Coin:\n    choices = ['heads', 'tails']\n    def reset(self, seed): return f'coin {seed}'\n"
        "    def step(self, choice): return 'over', 1.0, True\n"
    )
    code, shown, _ = play("--env", f"{tmp_path / 'coin.py'}:Coin", "--task", "seed-2000007", typed="h\n0\n")
    assert code == 0
    assert "coin 2000007" in shown


def test_a_program_that_fails_is_told_and_ends_with_an_error(play: Any, tmp_path: Path) -> None:
    """It was called closed input where a person played, and a success where nobody did."""
    program = tmp_path / "dead.py"
    program.write_text("import sys; sys.exit('boom')", encoding="utf-8")
    env = ("--env", f"program:{sys.executable} {program} {{seed}}")
    for player in (("--policy", "random", "--auto"), ()):
        code, shown, error = play(*env, *player, typed=None)
        assert code == 2
        assert "boom" in shown
        assert "no episode was played to its end" in error
