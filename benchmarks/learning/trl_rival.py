"""TRL's GRPOTrainer in games of one step, from the same random weights and with the same prompts as ours.

Its settings are its defaults (8 completions of a prompt make an update), except the learning rate: 1e-6 moves no random
weights. A `rollout_func` draws legal choices only; the loss is over the whole vocabulary.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.learning.learners import Budget, Learner, Training, read_choices, read_prompt, rlft_config
from benchmarks.learning.values import FIRST_SEED, Values
from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.commands import rlft
from reflectkit.console import Quiet
from reflectkit.models.load import LoadedModel, load_player
from reflectkit.models.scoring import choice_logprobs
from reflectkit.sampling.hf import LocalSampler
from reflectkit.seeding import generator
from reflectkit.train.settings import RATE_FROM_SCRATCH
from reflectkit.train.sft.trainers import keeping_activations

GROUP = 8
"""`num_generations` and the batch size of GRPOTrainer by default."""
NO_RATE = 1e-30
"""A learning rate that changes no weight."""


class Rollouts:
    """Plays games of one step for GRPOTrainer. A prompt of its data set is the seed of an episode's start."""

    def __init__(self, player: LoadedModel, values: Values, chance: random.Random) -> None:
        self.player, self.game, self.chance = player, values.game, chance
        self.agent = TwoPlayerAgent(LocalSampler(player))

    @torch.no_grad()
    def roll(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """TRL's `rollout_func`: tokens, their log-probabilities and the rewards, an episode for each prompt."""
        states = [self.game.start(random.Random(int(prompt))) for prompt in prompts]
        options = [tuple(self.game.options(state)) for state in states]
        prompt_ids = [
            read_prompt(self.player, self.game.text(state), choices)
            for state, choices in zip(states, options, strict=True)
        ]
        labels = [self.agent.labels(choices) for choices in options]
        model = trainer.accelerator.unwrap_model(trainer.model)
        logprobs_BK, _ = choice_logprobs(model, prompt_ids, labels, pad_id=self.player.pad_id)

        completions, logprobs, rewards = [], [], []
        for state, choices, paths, row in zip(states, options, labels, logprobs_BK, strict=True):
            (index,) = self.chance.choices(range(len(choices)), row.exp().tolist()[: len(choices)])
            possible = self.game.outcomes(state, choices[index])
            (outcome,) = self.chance.choices(possible, [each.probability for each in possible])
            completions.append(list(paths[index]))
            logprobs.append([float(row[index])] * len(paths[index]))
            rewards.append(outcome.reward)
        return {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": logprobs, "rewards": rewards}


def train_grpo(values: Values, budget: Budget, seed: int, steps: int) -> Training:
    """GRPOTrainer with one environment step for each completion."""
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # that `rollout_func` may change
    chance = generator(seed, "trl")
    updates = max(1, steps // GROUP)
    with tempfile.TemporaryDirectory() as folder:
        # 1. The weights that our learners start from.
        config = rlft_config(
            values, Budget(1, GROUP), seed, {"learning_rate": NO_RATE, "answer": "label"}, Path(folder)
        )
        player = load_player(rlft.run(config, Quiet()).folder / "checkpoint-1", device="cpu")

        # 2. Train.
        started = time.process_time()
        trainer = GRPOTrainer(
            model=player.model,
            reward_funcs=lambda rewards, **_: rewards,
            args=GRPOConfig(
                output_dir=folder,
                max_steps=updates,
                learning_rate=RATE_FROM_SCRATCH,
                seed=seed,
                use_cpu=True,
                bf16=False,
                **keeping_activations(),
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=Dataset.from_list([{"prompt": str(chance.randrange(FIRST_SEED))} for _ in range(updates)]),
            processing_class=player.tokenizer,
            rollout_func=Rollouts(player, values, chance).roll,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        cpu_seconds = time.process_time() - started
    probabilities = read_choices(player, values)
    return Training(values.sampled(probabilities), values.greedy(probabilities), updates * GROUP, cpu_seconds)


TRL = {"trl-grpo": Learner(train_grpo, rival=True, games=("machines", "shelves", "umbrella"))}
"""The learner by name."""
