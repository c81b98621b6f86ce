"""Every algorithm learns: choices in the corridor, and words of several tokens."""

from __future__ import annotations

from typing import Any

import pytest

from reflectkit.models.load import LoadedModel
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.train.algorithms import Objective, objective
from reflectkit.train.critic import Critic
from reflectkit.train.rl import Level
from reflectkit.types import Task
from tests.train.training import Spelling, build_trainer, corridor_player, favour

LEARNERS: dict[str, tuple[Objective[Any], dict[str, Any]]] = {
    "reinforce": (objective("reinforce", baseline="none"), {}),
    "reinforce batch": (objective("reinforce", baseline="batch"), {}),
    "reinforce leave-one-out": (objective("reinforce", baseline="leave-one-out"), {}),
    "reinforce replay": (objective("reinforce", baseline="batch"), {"replay": 12}),
    "ppo": (objective("ppo", gae_lambda=0.9), {"epochs": 2, "minibatch": 64, "critic": ("linear", "detached")}),
    "ppo mlp shared": (
        objective("ppo"),
        {"critic": ("mlp", "shared"), "value_clip": 0.5, "target_kl": 0.05, "epochs": 2},
    ),
    "ppo separate": (objective("ppo"), {"critic": ("linear", "separate"), "critic_rate": 1e-3}),
    "ppo replay": (objective("ppo"), {"critic": ("linear", "detached"), "replay": 12}),
    "grpo": (objective("grpo"), {}),
    "grpo step": (objective("grpo", advantages="step"), {}),
    "grpo states": (objective("grpo", step_groups=1.0), {}),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_learns_corridor_from_scratch(name: str) -> None:
    algorithm, settings = LEARNERS[name]
    player = corridor_player(seed=0)
    critic = Critic(player, *settings["critic"]) if "critic" in settings else None
    trainer = build_trainer(player, algorithm, steps=30, **{**settings, "critic": critic})
    first = trainer.train_step()
    for _ in range(29):
        last = trainer.train_step()
    # the optimum over the six starts: 1 - 0.1 * mean(6 … 1) + 0 = 0.65; four repeats draw three starts, of 0.45 or more
    assert last["return"] > max(0.55 if trainer.config.repeats == 1 else 0.4, float(str(first["return"])) + 0.2)
    assert last["success_rate"] == 1
    assert last["aborted"] == 0


@pytest.mark.parametrize("algorithm", ["reinforce", "ppo", "grpo"])
@pytest.mark.slow
def test_learns_to_write_decisions_of_several_tokens(algorithm: str) -> None:
    tasks = [Task(word, "spelling", "all", word, {"word": word}) for word in ("abb",)]
    tokenizer = build_tokenizer(["Say", "Action", "a b\n"], [], vocabulary=262)
    player = LoadedModel(build_model(tokenizer, 64, seed=1), tokenizer, "plain")
    favour(player, ["a", "b", "\n"], 4.0)  # an untrained model says all of 262 tokens; SFT would give such a bias
    critic = Critic(player) if algorithm == "ppo" else None
    options = {"episodes": 64, "entropy": 0.01, "learning_rate": 5e-4}
    trainer = build_trainer(player, objective(algorithm), 40, [Level("all", tasks, Spelling)], critic, **options)
    trainer.agent.max_new_tokens = 6
    rates = [trainer.train_step()["success_rate"] for _ in range(40)]
    assert sum(rates[:3]) / 3 < 0.3
    assert sum(rates[-3:]) / 3 > 0.5
    decisions = [turn.decision for episode, _ in trainer.latest for turn in episode.turns]
    assert all(len(decision.token_ids) == len(decision.logprobs) for decision in decisions)
