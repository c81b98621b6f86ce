"""play --as user: a person talks with an agent, reads its words and not its calls, and learns the verdict."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from reflectkit.agents.human import PersonUser
from reflectkit.cli.main import main
from reflectkit.console import Quiet
from reflectkit.env import Context
from reflectkit.envs.support.env import Support
from reflectkit.envs.wrappers import Horizon
from reflectkit.evals.narrator import verdict_text
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.types import Decision, Observation, Status, ToolCall, ToolUse, Trajectory
from tests.commands.test_play import Keys

LOOK = ToolUse("list_products {}", (ToolCall("list_products", {}),))
Play = Callable[..., tuple[int, str, str]]


class Typed(Quiet):
    """Answers with the given lines, and keeps what was shown and asked."""

    def __init__(self, *lines: str) -> None:
        self.lines, self.shown = list(lines), list[str]()

    def show(self, text: str) -> None:
        self.shown.append(text)

    def ask(self, question: str) -> str | None:
        return self.lines.pop(0) if self.lines else None


class Acting:
    """Does the given things in order, the last again and again."""

    def __init__(self, actions: Sequence[str | ToolUse]) -> None:
        self.actions = actions

    async def decide(self, observation: Observation, context: Context) -> Decision:
        return Decision(self.actions[min(len(context.turns), len(self.actions) - 1)])


def talked(keyboard: Typed, *actions: str | ToolUse) -> tuple[Trajectory, PersonUser]:
    user = PersonUser(keyboard)
    task = Support.taskset.example("refuse", 4)
    (trajectory,) = rollout([Episode(task, 0)], lambda: Horizon(Support(user, horizon=9), 9), Acting(actions), width=1)
    return trajectory, user


def test_the_person_reads_words_and_no_calls() -> None:
    keyboard = Typed("Hello?", "", "i", "It is late.", "e")
    trajectory, user = talked(
        keyboard, "<think>A secret.</think>Who are you?", LOOK, "A lamp<|im_end|>,\nor <tool_call>?", "Bye."
    )
    assert keyboard.shown[0].startswith("You are ")
    assert "q: leave" in keyboard.shown[0]
    assert keyboard.shown[1] == "Agent: Who are you?"
    assert keyboard.shown[2].startswith("Nothing was said. ")
    assert keyboard.shown[3].startswith("You are ")
    assert keyboard.shown[4] == "Agent: A lamp,\nor ?"
    assert len(keyboard.shown) == 5
    assert trajectory.status is Status.COMPLETED
    assert trajectory.final is not None
    said = [message.content for message in trajectory.final.messages if message.role == "user"]
    assert said == ["Hello?", "It is late.", "Goodbye."]
    assert (user.answered, user.left) == (True, False)


@pytest.mark.parametrize("lines", [["Hello.", "q"], []])
def test_leaving_ends_the_episode_without_a_verdict(lines: list[str]) -> None:
    trajectory, user = talked(Typed(*lines), "Yes?")
    assert (trajectory.status, trajectory.reason) == (Status.ABORTED, "the person left")
    assert user.left
    assert verdict_text(trajectory) == ""


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Play:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, typed: str | None = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO() if typed is None else Keys(typed))
        code = main(["play", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


AS_USER = ("--env", "support", "--as", "user", "--policy", "random")


def test_command(play: Play) -> None:
    code, shown, _ = play(*AS_USER, typed="Hello.\n" * 30)
    assert code == 0
    assert "You are " in shown
    assert "Reward" not in shown
    assert "Tool " not in shown
    assert ": return +0 in " in shown
    assert "Why: " in shown
    (line,) = Path("results/1_play/episodes.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["turns"][0]["messages"][-1] == {"role": "user", "content": "Hello."}


def test_a_person_who_leaves_begins_no_other_conversation(play: Play) -> None:
    code, shown, _ = play(*AS_USER, "--count", "3", typed="q\n")
    assert code == 0
    assert shown.count("You are ") == 1
    assert "Aborted: the person left" in shown
