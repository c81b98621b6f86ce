"""Models with random weights for rlft, with a tokenizer made of what an env shows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from reflectkit.agents.scripted import AnyAction
from reflectkit.console import Progress
from reflectkit.errors import ConfigError
from reflectkit.jsonl import locked
from reflectkit.models.labels import prompt_ids
from reflectkit.models.load import LoadedModel, save_player
from reflectkit.models.tiny import PAIRS, VOCABULARY, build_model, build_relative, build_tokenizer, relative_context
from reflectkit.prompts import LABELS, policy_prompt
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.seeding import derive
from reflectkit.train.rl_config import RLConfig, words_needed
from reflectkit.train.trainer import Level
from reflectkit.types import ANSWERS, Observation

EXPLORED = 64
"""Problems of each level in which a random player collects texts."""


def tiny_model(config: RLConfig, levels: Sequence[Level], progress: Progress) -> Path:
    """The folder of a model for the env of `levels`, in the env's data folder; the same settings give the same model.

    Its tokenizer is made of the prompts that a random player sees. Raises ConfigError for an env without choices.
    """
    form = config.sampler.answer or ANSWERS[0]
    played = [_explored(level, config.run.seed) for level in levels]
    seen = [observation for episodes in played for episode in episodes for observation in episode]
    if not all(observation.choices for observation in seen):
        raise ConfigError(words_needed(config.policy.model, config.env.name))
    prompts = sorted({policy_prompt(observation, None, form) for observation in seen})
    most = max(len(observation.choices) for observation in seen)
    fixed = len({len(observation.choices) for observation in seen}) == 1
    tokenizer = build_tokenizer(prompts, [f" {label}" for label in LABELS[: most if fixed else 2 * most]], VOCABULARY)
    context = relative_context(max(len(prompt_ids(tokenizer, prompt)) for prompt in prompts))
    seed = config.run.seed
    if config.policy.model == "tiny-hybrid":
        model = build_model(tokenizer, context, seed, layers=PAIRS)
    else:
        model = build_relative(tokenizer, context, seed)
    digest = hashlib.sha256(
        "\0".join([form, str(seed), str(context), *prompts]).encode("utf-8", "replace")
    ).hexdigest()[:8]
    folder = config.setup.env_folder / "models" / f"{config.policy.model}-{digest}"
    if not (folder / "config.json").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        role = "policy" if config.reflector.load_dir else "plain"
        with locked(folder.parent):  # two runs may begin at once
            if not (folder / "config.json").is_file():
                save_player(folder, LoadedModel(model, tokenizer, role, answer=form))
    weights = sum(weight.numel() for weight in model.parameters())
    progress.news(
        f"--model {config.policy.model}: {weights / 1e6:.1f} M random weights in {folder}, a context of"
        f" {context} tokens, --algo {config.algo.name}, --learning-rate {config.optim.rate:g}"
    )
    return folder


def _explored(level: Level, seed: int) -> list[list[Observation]]:
    """What a random player sees in problems of `level`, by episode. Raises ConfigError if no episode began."""
    episodes = [Episode(task, derive(seed, "explore", task.id)) for task in level.tasks[:EXPLORED]]
    played = rollout(episodes, level.make, AnyAction(), width=min(EXPLORED, level.max_concurrency))
    shown = [[turn.observation for turn in trajectory.turns] for trajectory in played]
    for seen, trajectory in zip(shown, played, strict=True):
        if trajectory.final and trajectory.unexecuted_decision:
            seen.append(trajectory.final)
    if not any(shown):
        raise ConfigError(f"no episode of a random player began: {played[0].reason}")
    return list(filter(None, shown))
