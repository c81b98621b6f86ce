"""A policy whose tokenizer has a token for each digit, as Qwen's has, plays and learns where there are more than ten
choices.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectkit.agents.scripted import RandomAgent
from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.envs import make
from reflectkit.models.load import LoadedModel
from reflectkit.models.tiny import build_model
from reflectkit.prompts import policy_prompt
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from reflectkit.train import batch
from reflectkit.train.algorithms import objective
from reflectkit.train.learner import Learner, Settings
from reflectkit.types import Task
from tests.explore import explore_task, write_repository
from tests.families import qwen


def explore(folder: Path) -> tuple[list[Task], Callable[[], Any]]:
    repos = write_repository(folder / "repos")
    for number in range(9):
        (repos / "library" / f"chapter {number}.md").write_text(f"# Chapter {number}\n", encoding="utf-8")
    tasks = [explore_task(name) for name in ("app/rules/fees.py", "chapter 3.md")]
    return tasks, lambda: make("auto_explore", 6, repos_dir=repos)


@pytest.mark.parametrize("form", ["label", "text"])
def test_a_tokenizer_of_single_digits_plays_and_learns(tmp_path: Path, form: str) -> None:
    tasks, maker = explore(tmp_path)
    random_play = rollout([Episode(task, 0) for task in tasks], maker, RandomAgent())
    shown = [turn.observation for trajectory in random_play for turn in trajectory.turns]
    assert max(len(one.choices) for one in shown) >= 24
    tokenizer = qwen([policy_prompt(one, None, form) for one in shown] * 5)
    player = LoadedModel(build_model(tokenizer, 2048, 0), tokenizer, None)
    agent = TwoPlayerAgent(LocalSampler(player), answer=form, show=True)
    played = rollout([Episode(task, seed) for task in tasks for seed in range(4)], maker, agent)
    decisions = [turn.decision for trajectory in played for turn in trajectory.turns]
    assert max(len(decision.token_ids) for decision in decisions) > 1
    for decision in decisions:
        assert sum(decision.probabilities) == pytest.approx(1, abs=1e-5)
        assert tokenizer.eos_token_id not in decision.token_ids[:-1]
    found = objective("reinforce").estimate(played)
    labels_of = {
        seen: agent.labels(seen) for seen in {turn.observation.choices for one in played for turn in one.turns}
    }
    samples = batch.rows(played, found.advantages, found.returns, labels_of)
    assert len(samples) == len(decisions)
    learner = Learner(player, Settings(learning_rate=1e-3))
    figures = learner.update(samples, random.Random(0))
    assert figures["ratio_deviation"] < 1e-4  # the update begins from the probabilities that were sampled with
    assert figures["gradient_norm"] > 0
    assert learner.update(samples, random.Random(0))["ratio_deviation"] > 1e-3
