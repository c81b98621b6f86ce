"""Models with random weights for rlft, with a tokenizer made of what an env shows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from reflectkit.agents.scripted import AnyAction
from reflectkit.console import Progress
from reflectkit.errors import ConfigError
from reflectkit.jsonl import locked
from reflectkit.models.copying import build_copying
from reflectkit.models.labels import prompt_ids
from reflectkit.models.load import LoadedModel, save_player
from reflectkit.models.tiny import (
    PAIRS,
    SPREAD_STEPS,
    VOCABULARY,
    build_model,
    build_tokenizer,
    relative_context,
    spread_apart,
)
from reflectkit.prompts import LABELS, policy_prompt
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.seeding import derive
from reflectkit.train.curriculum import Level
from reflectkit.train.rl_config import words_needed
from reflectkit.types import SCORE, TEXT, Observation

MAKING = 3
"""How the weights are made; higher whenever the same settings come to give other weights, so that
older folders are not taken for these.
"""
EXPLORED = 64
"""Problems of each level in which a random player collects texts."""


def tiny_model(
    name: str,
    env: str,
    levels: Sequence[Level],
    folder: Path,
    *,
    form: str,
    seed: int,
    reads_comments: bool,
    learns_by: str,
    progress: Progress,
) -> Path:
    """The folder of model `name` ("tiny" or "tiny-hybrid") for the env of `levels`, in `folder`;
    the same settings give the same model.

    Its tokenizer is made of the prompts that a random player sees. form: what it answers where it
    chooses, see `types.Answer`; "": the choice's own words, as the number of a choice means little
    where the choices change. learns_by: how it will be trained, to be told. Raises
    ConfigError for an env without choices.
    """
    # 1. What a random player sees
    form = form or TEXT
    episodes = [episode for level in levels for episode in _explored(level, seed)]
    observations = [observation for episode in episodes for observation in episode]
    if not all(observation.choices for observation in observations):
        raise ConfigError(words_needed(name, env))
    prompts = sorted({policy_prompt(observation, None, form) for observation in observations})
    texts = list(prompts)
    if form == SCORE:  # which prompts do not list
        texts += sorted(
            {f" {choice}" for observation in observations for choice in observation.choices}
        )
    counts = {len(observation.choices) for observation in observations}
    most = max(counts) if len(counts) == 1 else 2 * max(counts)

    # 2. A tokenizer of these prompts, and random weights
    tokenizer = build_tokenizer(texts, [f" {label}" for label in LABELS[:most]], VOCABULARY)
    rows = [prompt_ids(tokenizer, prompt) for prompt in prompts]
    context = relative_context(max(map(len, rows)))
    if name == "tiny-hybrid":
        model = build_model(tokenizer, context, seed, layers=PAIRS)
        restore = None
    else:
        model, heads = build_copying(tokenizer, context, seed)
        restore = heads.restore

    # 3. Its folder, whose name follows from all that it depends on
    text = "\0".join([str(MAKING), form, str(seed), str(context), *texts])
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
    target = folder / f"{name}-{digest}"
    if not (target / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        role = "policy" if reads_comments else "plain"
        with locked(folder):  # two runs may begin at once
            if not (target / "config.json").is_file():
                if form != SCORE:  # which reads on, from the prompt to each choice
                    with progress.bar("Telling states apart", SPREAD_STEPS) as bar:
                        spread_apart(
                            model,
                            rows,
                            seed,
                            advance=lambda square: bar.advance(1, cosine=square),
                            restore=restore,
                        )
                save_player(target, LoadedModel(model, tokenizer, role, answer=form))
    weights = sum(weight.numel() for weight in model.parameters())
    progress.news(
        f"--model {name}: {weights / 1e6:.1f} M random weights in {target}, a context of"
        f" {context} tokens, {learns_by}"
    )
    return target


def _explored(level: Level, seed: int) -> list[list[Observation]]:
    """What a random player sees in problems of `level`, by episode. Raises ConfigError if no
    episode began.
    """
    episodes = [Episode(task, derive(seed, "explore", task.id)) for task in level.tasks[:EXPLORED]]
    trajectories = rollout(
        episodes, level.make, AnyAction(), width=min(EXPLORED, level.max_concurrency)
    )
    observations = [[turn.observation for turn in trajectory.turns] for trajectory in trajectories]
    for row, trajectory in zip(observations, trajectories, strict=True):
        if trajectory.final and trajectory.unexecuted_decision:
            row.append(trajectory.final)
    if not any(observations):
        raise ConfigError(f"no episode of a random player began: {trajectories[0].reason}")
    return list(filter(None, observations))
