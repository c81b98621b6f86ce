"""The problems that rlft trains and validates on, by level, and whether the policy can read them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from reflectkit.core.checked import checked
from reflectkit.core.errors import ConfigError, EnvironmentFailure
from reflectkit.core.eventloop import result_of
from reflectkit.core.prompts import policy_prompt
from reflectkit.core.types import Task
from reflectkit.data.trajectories import read_records
from reflectkit.rl.reflector import JUDGEMENT
from reflectkit.stages.shared.environments import at_level, not_repeatable

if TYPE_CHECKING:
    from reflectkit.rl.loop import Level
    from reflectkit.stages.tuning.rl_config import RLConfig

CHECKED = 8  # problems of each level whose prompts are checked before any weights are loaded


def levels_of(config: RLConfig, tasks: list[Task], source: Path) -> list[Level]:
    """The curriculum's stages with their problems."""
    from reflectkit.rl.loop import Level

    levels = []
    for names in config.curriculum.stages(config.env.kind.levels[-1]):
        problems = {task.id: task for name in names for task in at_level(config.env.name, tasks, name, source)}
        chosen = list(problems.values())[: config.curriculum.few_data or None]
        levels.append(Level("+".join(names), chosen, config.setup.maker(names[-1]), config.env.kind.widest))
    return levels


def validation_of(config: RLConfig, source: Path) -> Level | None:
    """The validation problems at the curriculum's last level; None without validation."""
    from reflectkit.rl.loop import Level

    if not config.validate_steps:
        return None
    path = source.with_name("validate.json")
    tasks = [record.task for record in read_records(path, config.setup.env_name)]
    name = config.curriculum.stages(config.env.kind.levels[-1])[-1][-1]
    return Level(name, at_level(config.env.name, tasks, name, path), config.setup.maker(name), config.env.kind.widest)


def check_prompts(config: RLConfig, levels: list[Level]) -> None:
    """Raises ConfigError or CheckpointError if the policy's tokenizer or context, or the reflector's reward, does not
    fit these problems, or they begin otherwise each time.

    Only its tokenizer and config are loaded, not its weights. Problems whose env fails are left out: their episodes
    will be ABORTED.
    """
    from reflectkit.models.facts import context_of, load_tokenizer
    from reflectkit.models.labels import trie
    from reflectkit.models.tokens import choice_ids, prompt_ids

    answer = config.sampler.answer_of(config.policy.start)
    tokenizer, context = load_tokenizer(config.policy.start), context_of(config.policy.start)
    for level in levels:
        for task in level.tasks[:CHECKED]:
            with closing(checked(level.make())) as env:
                try:
                    observation, again = (result_of(env.reset(task, config.run.seed)) for _ in range(2))
                except EnvironmentFailure:
                    continue
            if again != observation:
                raise not_repeatable(config.setup.env_name, task.id, 0)
            if (
                config.reflector_training.every
                and config.reflector_training.reward == JUDGEMENT
                and not observation.choices
            ):
                raise ConfigError(
                    "--reflector-reward judgement compares enumerated actions, and task"
                    f" '{task.id}' begins without; use --reflector-reward return"
                )
            tokens = len(prompt_ids(tokenizer, policy_prompt(observation, None, answer)))
            if observation.choices:
                tokens += trie(choice_ids(tokenizer, observation.choices, answer)).depth
            if context is not None and tokens > context:
                raise ConfigError(
                    f"the first prompt of task '{task.id}' is {tokens} tokens, and {config.policy.start} reads"
                    f" {context}; use a model with a longer context, or train one with a larger --max-length"
                )
