"""--plan on a training service: the tokens that a run would have read, sampled and trained, and
what they would cost.

Nothing is asked. A random player, and the env's teacher if it has one, play problems of each level.
What they see stands for what the policy will see, and the longer of their episodes for its own.
Every state is counted as read, even where equal ones are read once.
"""

from __future__ import annotations

import contextlib
from statistics import fmean

from reflectkit.agents.scripted import AnyAction, Oracle
from reflectkit.agents.two_player import COMMENT_TOKENS
from reflectkit.console import Progress, Report
from reflectkit.env import Agent
from reflectkit.errors import ConfigError
from reflectkit.models.checkpoint_metadata import load_tokenizer
from reflectkit.models.labels import choice_ids, prompt_ids
from reflectkit.prompts import policy_prompt, reflection_prompt
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.service import label_rows
from reflectkit.seeding import derive
from reflectkit.train.meter import READ, SAMPLED, TRAINED, token_plan
from reflectkit.train.resolve import RLRun

SAMPLED_PROBLEMS = 16
"""Problems of each level that are played."""


def service_plan(run: RLRun, progress: Progress) -> Report:
    """The tokens by kind, and dollars where prices are given. Raises ConfigError if no episode
    could be played.
    """
    config = run.config
    tokenizer, answer = load_tokenizer(run.policy.text), config.sampler.answer_of(run.policy)
    on_service = run.reflector is not None and run.reflector.has_weights

    # 1. What players see, and for how long they play
    players: list[Agent] = [AnyAction()]
    with contextlib.suppress(ConfigError):
        config.env.require_teacher("action")
        players.append(Oracle())
    steps: list[list[int]] = [[] for _ in players]
    read: list[int] = []
    commented: list[int] = []
    texts = 0
    for level in run.problems.levels:
        episodes = [
            Episode(task, derive(config.run.seed, "plan", task.id))
            for task in level.tasks[:SAMPLED_PROBLEMS]
        ]
        width = min(SAMPLED_PROBLEMS, level.max_concurrency)
        trajectories = [
            (number, trajectory)
            for number, player in enumerate(players)
            for trajectory in rollout(episodes, level.make, player, width=width)
        ]
        for number, trajectory in trajectories:
            observations = [turn.observation for turn in trajectory.turns]
            if not observations and trajectory.final is not None:
                observations = [trajectory.final]
            steps[number].append(len(observations))
            for observation in observations:
                prompt = prompt_ids(tokenizer, policy_prompt(observation, None, answer))
                allowance = COMMENT_TOKENS if run.reflector is not None else 0
                if observation.choices:
                    labels = choice_ids(tokenizer, observation.choices, answer)
                    rows = label_rows(prompt, labels)
                    read.append(sum(map(len, rows)) + allowance * len(rows))
                else:
                    texts += 1
                    read.append(len(prompt) + allowance)
                commented.append(len(prompt_ids(tokenizer, reflection_prompt(observation))))
    if not read:
        raise ConfigError(
            "--plan: no episode began, so there is nothing to count; see `reflectkit play`"
        )

    # 2. Tokens of all updates
    decisions = config.max_steps * config.episodes * max(1.0, *map(fmean, steps))
    tokens_a_text = config.policy.max_new_tokens * texts / len(read)
    passes = float(config.algo.epochs * (2 if config.algo.kl else 1))
    if not texts:  # the choices of the first minibatch were read to play
        an_update = decisions / config.max_steps
        passes -= min(1.0, config.algo.minibatch / an_update)
    row = fmean(read) + tokens_a_text
    tokens = {
        READ: fmean(read) + passes * row,
        SAMPLED: tokens_a_text,
        TRAINED: config.algo.epochs * row,
    }
    if on_service:
        tokens[READ] += fmean(commented)
        tokens[SAMPLED] += COMMENT_TOKENS
    counts = {kind: round(decisions * each) for kind, each in tokens.items()}
    results = config.run.results_dir
    return token_plan("rlft", config.engine, results, "decisions", decisions, counts)
