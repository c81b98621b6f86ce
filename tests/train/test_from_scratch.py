"""Learning from random weights: its defaults, its model, and a critic that counts in deviations of the returns."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from reflectkit import rlft
from reflectkit.errors import ConfigError
from reflectkit.jsonl import read_json
from reflectkit.models.load import LoadedModel
from reflectkit.models.tiny import (
    ORTHOGONAL,
    SPREAD_STEPS,
    build_relative,
    build_tokenizer,
    relative_context,
    spread_apart,
)
from reflectkit.train.critic import Critic
from reflectkit.train.report import advice, has_risen
from reflectkit.train.rl_config import RLConfig


@pytest.mark.parametrize(
    ("given", "algo", "epochs", "novelty"),
    [
        ({"model": "tiny"}, "ppo", 4, 3.0),
        ({"model": "tiny-hybrid"}, "ppo", 4, 3.0),
        ({"model": "tiny", "algo": "ppo", "epochs": 2, "novelty": 0.0}, "ppo", 2, 0.0),
        ({"model": "tiny", "algo": "reinforce"}, "reinforce", 1, 0.0),
        ({"model": "tiny", "advantages": "step"}, "grpo", 1, 0.0),
        ({"model": "somewhere"}, "ppo", 4, 0.0),
        ({"model": "somewhere", "algo": "grpo"}, "grpo", 1, 0.0),
        ({"model": "somewhere", "env": "memory"}, "grpo", 1, 0.0),
        ({"model": "somewhere", "answer": "text"}, "grpo", 1, 0.0),
        ({"policy": "somewhere"}, "grpo", 1, 0.0),
    ],
)
def test_choices_are_learnt_without_sft_by_ppo_unless_told_otherwise(
    given: dict[str, Any], algo: str, epochs: int, novelty: float
) -> None:
    config = RLConfig.from_flat(**{"env": "taxi"} | given)
    assert (config.algo.name, config.algo.epochs, config.algo.novelty) == (algo, epochs, novelty)
    assert config.algo.table_coef == (algo == "ppo" and given["model"] != "somewhere")
    if algo == "ppo":
        assert (config.algo.minibatch, config.algo.settings.gae_lambda) == (128, 0.95)


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        ({"model": "tiny"}, 5e-4),
        ({"model": "somewhere"}, 2.5e-4),
        ({"model": "somewhere", "lora_r": 16}, 5e-4),
        ({"model": "somewhere", "lora_r": 16, "learning_rate": 1e-4}, 1e-4),
        ({"model": "somewhere", "lora_r": 16, "algo": "grpo"}, 2.5e-4),
        ({"policy": "somewhere", "lora_r": 16}, 2.5e-4),
    ],
)
def test_random_weights_and_new_adapters_learn_choices_at_a_higher_rate(given: dict[str, Any], rate: float) -> None:
    assert RLConfig.from_flat(env="taxi", **given).optim.rate == rate


def test_whether_an_env_has_choices_depends_on_its_settings(tmp_path: Path) -> None:
    program = tmp_path / "router.py"
    program.write_text("print(1)\n")
    asks = {"env": f"program:python {program}", "model": "somewhere"}
    assert RLConfig.from_flat(**asks).algo.name == "grpo"
    assert RLConfig.from_flat(**asks, only_decisions=True).algo.name == "ppo"
    assert RLConfig.from_flat(env="alfworld", model="somewhere").algo.name == "ppo"
    assert RLConfig.from_flat(env="alfworld", model="somewhere", typed=True).algo.name == "grpo"
    with pytest.raises(ConfigError, match="--only-decisions"):
        RLConfig.from_flat(**asks | {"model": "tiny"})


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_the_critic_counts_in_deviations_of_the_returns(head: str) -> None:
    tokenizer = build_tokenizer(["a b"], [], 300)
    critic = Critic(LoadedModel(build_relative(tokenizer, 4, 0), tokenizer, None), head)
    hidden_ND = torch.randn(3, 128, generator=torch.Generator().manual_seed(0))

    # 1. Those of the first update that differ
    critic.follow([2.0, 2.0])
    assert critic(hidden_ND, [[1]] * 3).tolist() == [0.0] * 3
    critic.follow([100.0, 300.0])
    assert critic(hidden_ND, [[1]] * 3).tolist() == [200.0] * 3
    with torch.no_grad():
        critic.last.bias.fill_(-0.5)
    assert critic(hidden_ND, [[1]] * 3).tolist() == [150.0] * 3

    # 2. A fifth of the way to those of a later one. The values stay as they are
    with torch.no_grad():
        critic.last.weight.normal_(generator=torch.Generator().manual_seed(1))
    before_N = critic(hidden_ND, [[1]] * 3)
    critic.follow([300.0, 500.0])
    assert float(critic.mean) == pytest.approx(240.0)
    # The square of a mixture's deviation: 0.8 (100² + 40²) + 0.2 (100² + 160²)
    assert float(critic.deviation) == pytest.approx(math.sqrt(16400.0))
    torch.testing.assert_close(critic(hidden_ND, [[1]] * 3), before_N)

    # 3. A checkpoint has them
    again = Critic(LoadedModel(build_relative(tokenizer, 4, 0), tokenizer, None), head)
    again.load_state_dict(critic.state_dict())
    torch.testing.assert_close(again(hidden_ND, [[1]] * 3), before_N)


@pytest.mark.parametrize(("width", "size"), [(64, 1.0), (128, 1.0), (1024, 1.0), (1024, 30.0)])
def test_a_step_of_the_critic_is_as_long_for_any_model(width: int, size: float) -> None:
    """Adam's first step is the rate for each weight, whatever the gradient."""
    config = LlamaConfig(
        vocab_size=300, hidden_size=width, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    tokenizer = build_tokenizer(["a b"], [], 300)
    critic = Critic(LoadedModel(LlamaForCausalLM(config), tokenizer, None))
    critic.follow([0.0, 2.0])
    optimizer = torch.optim.Adam(critic.head.parameters(), lr=5e-3)
    hidden_ND = size * torch.ones(1, width)
    (critic(hidden_ND, [[1]]) - 5.0).pow(2).mean().backward()
    optimizer.step()
    with torch.no_grad():
        value_N = critic(hidden_ND, [[1]])
    moved = float(value_N - critic.mean) / float(critic.deviation)
    assert moved == pytest.approx(5e-3 * (min(width, 128) + 1), rel=1e-3)  # 1: the bias


def test_a_relative_model_reads_longer_states_and_prefers_no_token() -> None:
    tokenizer = build_tokenizer(["a b"], [], 300)
    model = build_relative(tokenizer, relative_context(20), seed=3)
    assert model.config.max_position_embeddings >= 4 * 20
    rows_BT = torch.randint(len(tokenizer), (2, 500), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(rows_BT).logits[:, -1]
    assert torch.log_softmax(logits, -1).exp().max() < 3 / len(tokenizer)
    again = build_relative(tokenizer, relative_context(20), seed=3)
    assert all(map(torch.equal, model.parameters(), again.parameters()))


@torch.no_grad()
def last_hidden_states(model: Any, rows: list[list[int]]) -> torch.Tensor:
    """Of each row (N, D)."""
    return torch.stack([model.model(torch.tensor([row])).last_hidden_state[0, -1] for row in rows])


def squared_cosines(hidden_ND: torch.Tensor) -> list[float]:
    """Of all pairs of different rows."""
    unit_ND = torch.nn.functional.normalize(hidden_ND, dim=-1)
    count = len(unit_ND)
    return [float(unit_ND[i] @ unit_ND[j]) ** 2 for i in range(count) for j in range(i)]


def test_states_that_read_alike_begin_with_different_hidden_states() -> None:
    """The sixteen places on a grid; only one character of the text differs."""
    grids = ["".join("X" if place == cell else "." for cell in range(16)) for place in range(16)]
    tokenizer = build_tokenizer([" ".join(grid) for grid in grids], [], 300)
    rows = [tokenizer(" ".join(grid))["input_ids"] for grid in grids]
    model = build_relative(tokenizer, relative_context(40), seed=0)
    head = model.lm_head.weight.clone()
    assert fmean(squared_cosines(last_hidden_states(model, rows))) > 0.5
    steps: list[float] = []
    spread_apart(model, rows, seed=0, advance=steps.append)
    assert fmean(squared_cosines(last_hidden_states(model, rows))) < ORTHOGONAL
    assert 0 < len(steps) < SPREAD_STEPS
    assert torch.equal(model.lm_head.weight, head)
    assert all(weight.grad is None for weight in model.parameters())

    again = build_relative(tokenizer, relative_context(40), seed=0)
    spread_apart(again, rows, seed=0)
    assert all(map(torch.equal, model.parameters(), again.parameters()))


def test_a_single_prompt_is_not_spread() -> None:
    tokenizer = build_tokenizer(["a b"], [], 300)
    model = build_relative(tokenizer, relative_context(20), seed=3)
    spread_apart(model, [[1, 2, 3]], seed=0, advance=lambda square: pytest.fail("a step was made"))
    spread_apart(model, [], seed=0, advance=lambda square: pytest.fail("a step was made"))


def test_advice_names_more_updates_only_where_the_return_rises() -> None:
    config = RLConfig.from_flat(env="taxi", model="tiny", algo="grpo", max_steps=9)
    rising = [0.0, 0.1, 0.0, 0.4, 0.5, 0.6, 0.9, 1.0, 0.9]
    assert has_risen(rising)
    assert "--max-steps 27" in advice(config, rising)
    assert "--max-steps" not in advice(config, [0.1, 0.0, 0.1] * 3)
    assert advice(config, rising).startswith("--algo ppo instead of grpo")
    assert "--algo" not in advice(RLConfig.from_flat(env="memory", model="somewhere"), rising)
    assert "--algo" not in advice(RLConfig.from_flat(env="taxi", model="tiny"), rising)


@pytest.mark.parametrize(
    ("given", "how", "reason"),
    [
        ({"sampler": "vllm:http://localhost:1", "lora_r": 8}, {"several": True}, "runs in one process"),
        ({"reflector": "elsewhere", "train_reflector": 2}, {"several": True}, "runs in one process"),
        ({"reflector": "oracle", "distill_comments": 1.0}, {"sharded": True}, "FSDP2 spreads"),
        ({"reflector": "oracle", "distill_comments": 1.0}, {"several": True}, None),
        ({"algo": "ppo"}, {"several": True, "sharded": True}, None),
    ],
)
def test_what_processes_cannot_do_depends_on_how_they_were_started(
    given: dict[str, Any], how: dict[str, bool], reason: str | None
) -> None:
    config = RLConfig.from_flat(env="taxi", policy="somewhere", **given)
    rules = config.contradictions_of_processes(**{"several": False, "sharded": False} | how)
    mistakes = [mistake for applies, mistake in rules if applies]
    assert len(mistakes) == (reason is not None)
    assert reason is None or reason in mistakes[0]


FETCH = """
import random

class Fetch:
    horizon = 1
    things = ("apple", "bread", "candle", "drum")
    choices = list(things)

    def reset(self, seed):
        chance = random.Random(seed)
        self.choices = chance.sample(self.things, 3)
        self.wanted = chance.choice(self.choices)
        return f"Somebody asks for the {self.wanted}."

    def step(self, choice):
        return "", float(choice == self.wanted), True
"""


def test_random_weights_learn_choices_that_stand_in_another_order_each_time(tmp_path: Path) -> None:
    """By their numbers, they stay at chance."""
    (tmp_path / "fetch.py").write_text(FETCH)
    result = rlft(
        env=f"{tmp_path}/fetch.py:Fetch",
        model="tiny",
        max_steps=10,
        episodes=32,
        validate_problems=30,
        results_dir=tmp_path / "results",
        data_dir=tmp_path / "data",
    )
    trained = read_json(result.folder / "held_out.json")
    assert fmean(episode["success"] for episode in trained["after"]) > 0.8
