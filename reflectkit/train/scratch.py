"""Models with random weights for rlft, with a tokenizer made of what an env shows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from reflectkit.console import Progress
from reflectkit.data.problems import AnyAction
from reflectkit.errors import ConfigError
from reflectkit.models.load import LoadedModel, save_player
from reflectkit.models.tiny import VOCABULARY, build_model, build_tokenizer, context_for
from reflectkit.models.tokens import prompt_ids
from reflectkit.prompts import LABELS, policy_prompt
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.seeding import derive
from reflectkit.train.rl_config import RLConfig
from reflectkit.train.trainer import Level
from reflectkit.types import ANSWERS, Observation

EXPLORED = 64
"""Problems of each level in which a random player collects texts."""


def tiny_model(config: RLConfig, levels: Sequence[Level], progress: Progress) -> Path:
    """The folder of a model for the env of `levels`, in the env's data folder; the same settings give the same model.

    Its tokenizer is made of the prompts that a random player sees, and its context is a quarter longer than the longest
    of them. Raises ConfigError for an env without choices.
    """
    form = config.sampler.answer or ANSWERS[0]
    writes = config.env.kind.action_kind(config.env.settings) == "text"
    seen = [] if writes else [observation for level in levels for observation in _explored(level, config.run.seed)]
    if writes or not all(observation.choices for observation in seen):
        raise ConfigError(
            f"--model {config.policy.model} starts from random weights, which learn to choose but not to write, and env"
            f" '{config.env.name}' has states without choices; give --model FOLDER_OR_ID"
        )
    prompts = sorted({policy_prompt(observation, None, form) for observation in seen})
    most = max(len(observation.choices) for observation in seen)
    fixed = len({len(observation.choices) for observation in seen}) == 1
    tokenizer = build_tokenizer(prompts, [f" {label}" for label in LABELS[: most if fixed else 2 * most]], VOCABULARY)
    longest = max(len(prompt_ids(tokenizer, prompt)) for prompt in prompts)
    context = context_for(longest)
    seed, hybrid = config.run.seed, config.policy.model == "tiny-hybrid"
    digest = hashlib.sha256("\0".join([form, str(seed), str(context), *prompts]).encode()).hexdigest()[:8]
    folder = config.setup.env_folder / "models" / f"{config.policy.model}-{digest}"
    model = build_model(tokenizer, context, seed, hybrid=hybrid)
    if not (folder / "config.json").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        role = "policy" if config.reflector.load_dir else "plain"
        facts = {"env": config.env.name, "prompts": config.env.kind.prompt_version}
        save_player(folder, LoadedModel(model, tokenizer, role, answer=form), facts)
    weights = sum(weight.numel() for weight in model.parameters())
    progress.news(
        f"--model {config.policy.model}: {weights / 1e6:.1f} M random weights in {folder}, a context of"
        f" {context} tokens, --learning-rate {config.optim.rate:g}"
    )
    return folder


def _explored(level: Level, seed: int) -> list[Observation]:
    """What a random player sees in problems of `level`."""
    episodes = [Episode(task, derive(seed, "explore", task.id)) for task in level.tasks[:EXPLORED]]
    played = rollout(episodes, level.make, AnyAction(), width=min(EXPLORED, level.max_concurrency))
    seen = [turn.observation for trajectory in played for turn in trajectory.turns]
    return seen + [trajectory.final for trajectory in played if trajectory.final and trajectory.unexecuted_decision]
