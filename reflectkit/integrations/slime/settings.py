"""What slime's arguments and a prompt's metadata say about an episode, checked.

The file of `--custom-config-path` has a mapping `reflectkit:` with the settings below and those of the environment. A
prompt's own `metadata["reflectkit"]` overrides it, e.g. by `metadata_overrides` of an evaluation set. The reflector is
the model named "reflector" in the file of `--sglang-config`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from reflectkit.config import Config, build, option, parse_yaml
from reflectkit.envs.setup import EnvConfig, EnvSetup, RolloutConfig
from reflectkit.errors import ConfigError, DataError
from reflectkit.jsonl import file_text
from reflectkit.runs.folders import RunConfig
from reflectkit.types import Task, Thinking, from_json

KEY = "reflectkit"
"""The settings in the file of --custom-config-path, and in a prompt's metadata."""
REFLECTOR = "reflector"
"""Name of the frozen second model in the file of --sglang-config."""
WHERE = f"{KEY} in --custom-config-path"
NOT_HERE = ("results_dir", "name", "seed", "threads", "force", "keep", "max_concurrency")
"""Settings of commands; slime has its own."""


class SlimeConfig(Config):
    """The settings of our part; slime's own arguments set the sampling, the lengths and the seed."""

    env: EnvConfig
    thinking: Thinking = option("on", help="Reasoning: on, off, or hidden (not shown to the model later).")
    episode_tokens: int = option(0, help="Most tokens that the policy may write in an episode; 0: no limit.", ge=0)
    reflect_prob: float = option(
        1.0, help="Probability that the policy sees the reflector's comment at a step.", ge=0, le=1
    )
    reflect_temperature: float = option(0.0, help="Temperature of the comments; greedy ones are cached.", ge=0)
    one_row: bool = option(
        False, help="Return each episode as one Sample instead of a list; an error if an episode has several rows."
    )
    rollout: RolloutConfig = RolloutConfig()
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup.of(self.env, self.run, self.rollout.horizon)


@dataclass(frozen=True)
class Prompt:
    """A row of the prompt data, as `prompts.py` writes it. split: the file of problems that it was made of."""

    task: Task
    split: str
    config: SlimeConfig


def read_prompt(args: Any, metadata: Any) -> Prompt:
    """The prompt with the settings for its episode.

    Raises
    ------
    DataError: the metadata was not written by `python -m reflectkit.integrations.slime`. ConfigError: wrong settings.
    """
    metadata = metadata if isinstance(metadata, Mapping) else {}
    if "task" not in metadata or "env" not in metadata:
        raise DataError(
            "prompt data", "has no task; write it with `python -m reflectkit.integrations.slime`, and use"
            " --metadata-key metadata"
        )  # fmt: skip
    task = from_json(Task, metadata["task"], path="prompt data")
    general, own = getattr(args, KEY, None) or {}, metadata.get(KEY) or {}
    for values, where in ((general, WHERE), (own, f"metadata.{KEY}")):
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where} must be a mapping of settings, got {values!r:.80}")
    config = _config(json.dumps({"env": metadata["env"], **general, **own}, default=str))
    if task.env != config.setup.env_name:
        raise ConfigError(
            f"task {task.id!r} is of env '{task.env}', but {WHERE} has env: {config.env.name}; leave env out"
        )
    return Prompt(task, str(metadata.get("split", "")), config)


@cache
def _config(text: str) -> SlimeConfig:
    values = json.loads(text)
    if foreign := sorted(set(values) & set(NOT_HERE)):
        raise ConfigError(f"{WHERE}: '{foreign[0]}' is not a setting here; slime has its own arguments")
    return build(SlimeConfig, values, WHERE)


def check_arguments(args: Any, evaluation: bool) -> None:
    """Raises ConfigError for an argument of slime that does not go together with whole episodes of several rows."""
    wrong = {
        "partial_rollout": "an episode cannot be continued half-way",
        "group_rm": "the environment gives the rewards",
        "use_rollout_routing_replay": "the experts of a row of several turns are not kept",
        "log_passrate": "it counts rows; log_evaluation logs pass@k and pass^k of episodes",
    }
    for name, reason in wrong.items():
        if getattr(args, name, False):
            raise ConfigError(f"--{name.replace('_', '-')}: {reason}; leave it out")
    top_p = getattr(args, "rollout_top_p", 1.0)
    if not evaluation and top_p != 1:
        raise ConfigError(f"--rollout-top-p {top_p}: the kept tokens of a row of several turns are not kept; use 1")


def reflector_of(args: Any) -> str | None:
    """The checkpoint of the reflector that --sglang-config serves, or None without one.

    Raises
    ------
    ConfigError: it is not frozen, or comes before the policy. DataError: the file cannot be read.
    """
    path = getattr(args, "sglang_config", None)
    return None if path is None else _served(str(path), str(args.hf_checkpoint))


@cache
def _served(path: str, policy: str) -> str | None:
    try:
        content = parse_yaml(file_text(Path(path)), path)
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}") from None
    models = content.get("sglang") if isinstance(content, Mapping) else None
    models = models if isinstance(models, list) else []
    names = [model.get("name") if isinstance(model, Mapping) else None for model in models]
    if REFLECTOR not in names:
        return None
    if names[0] == REFLECTOR:
        raise ConfigError(f"{path}: the policy must come first, before '{REFLECTOR}': slime's own router is the first")
    model = models[names.index(REFLECTOR)]
    if model.get("update_weights") is not False:
        raise ConfigError(f"{path}: '{REFLECTOR}' must be frozen; give it update_weights: false")
    return str(model.get("model_path") or policy)
