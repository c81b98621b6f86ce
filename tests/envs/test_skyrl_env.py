"""Environments of skyrl-gym in our loop: `--env skyrl:ID`. Skipped without the package (`pip install skyrl-gym`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.app import run
from reflectkit.envs import env_class
from reflectkit.envs.adapters.skyrl import env_of, maker
from reflectkit.envs.setup import EnvSetup
from reflectkit.jsonl import write_jsonl
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.types import Status, Task, Trajectory
from tests.command_lines import error_of
from tests.fakes.players import Plays

skyrl_gym = pytest.importorskip("skyrl_gym", reason="needs skyrl-gym: pip install skyrl-gym")

ROW = {
    "prompt": [{"role": "user", "content": "What is 6 × 7? End with #### and the number."}],
    "env_class": "gsm8k",
    "reward_spec": {"method": "rule", "ground_truth": "42"},
}


def play(env: str, row: dict[str, Any], *texts: str, **settings: Any) -> Trajectory:
    kind: Any = env_class(env)
    episode = Episode(Task("0", "skyrl", "all", "0", row), 0)
    return rollout([episode], lambda: kind(**settings), Plays(*texts))[0]


def test_the_reward_is_skyrls() -> None:
    right, wrong = (play("skyrl:gsm8k", ROW, f"It is so.\n#### {answer}") for answer in (42, 41))
    assert (right.status, right.total_return, right.success) == (Status.COMPLETED, 1.0, True)
    assert (wrong.status, wrong.total_return, wrong.success) == (Status.COMPLETED, 0.0, False)
    assert [message.content for message in right.turns[0].observation.messages] == [ROW["prompt"][0]["content"]]


def test_several_turns_are_one_conversation() -> None:
    played = play("skyrl:gsm8k_multi_turn", ROW | {"max_turns": 3}, "I think.", "#### 41", "#### 42")
    assert played.status is Status.COMPLETED
    assert len(played.turns) > 1
    second = played.turns[1].observation.messages
    assert [message.role for message in second] == ["user", "assistant", "user"]
    inner = maker("gsm8k_multi_turn")({}, {**ROW, "max_turns": 3})
    inner.init(ROW["prompt"])
    rewards = []
    for text in ("I think.", "#### 41", "#### 42")[: len(played.turns)]:
        rewards.append(inner.step(text)["reward"])
    assert [turn.reward for turn in played.turns] == rewards


def test_what_it_raises_aborts_the_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_broken.py").write_text(
        "from skyrl_gym.envs.base_text_env import BaseTextEnv\n"
        "from skyrl_gym.envs.registration import register\n"
        "class Broken(BaseTextEnv):\n"
        "    def __init__(self, env_config=None, extras=None): super().__init__()\n"
        "    def step(self, action): raise OSError('no search engine')\n"
        "register(id='broken', entry_point='my_broken:Broken')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    played = play("skyrl:my_broken:broken", ROW, "x")
    assert played.status is Status.ABORTED
    assert "no search engine" in played.reason
    code = EnvSetup("skyrl:my_broken:broken", tmp_path).code_files
    assert [path.name for path in code] == ["my_broken.py"]


def test_the_rows_of_a_data_set_are_the_problems(capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(Path("rows.jsonl"), [ROW | {"n": n} for n in range(3)])
    kind: Any = env_of("gsm8k")
    tasks = kind.taskset.with_settings(kind.Settings(dataset="rows.jsonl")).tasks("all")
    assert [task.data["n"] for task in tasks] == [0, 1, 2]
    assert "no such file" in error_of(["play", "--env", "skyrl:gsm8k", "--dataset", "none.jsonl"], capsys)
    assert run(["evaluate", "--env", "skyrl:gsm8k", "--dataset", "rows.jsonl", "--policy", "random"]) == 0
