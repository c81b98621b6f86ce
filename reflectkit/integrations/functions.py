"""The commands as functions: `reflectkit.rlft(env=Maze, model="tiny", max_steps=60)`.

Settings have the names of the flags. An environment is a name or a class, also one of a notebook's
cell; a model may be the result of an earlier call. Each returns a `Result`. Mistakes raise
`ReflectkitError`, and Ctrl-C leaves a run that the same call resumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import Unpack

from reflectkit.integrations.call import Result, call
from reflectkit.integrations.keywords import (
    EvaluateSettings,
    GenSftSettings,
    GenTrajectorySettings,
    RlftSettings,
    SftSettings,
    SplitSettings,
)

EnvLike = str | type
"""An environment: what `--env` takes, or its class."""


def rlft(
    env: EnvLike, *, env_settings: Mapping[str, Any] | None = None, **settings: Unpack[RlftSettings]
) -> Result:
    """Train a policy by online RL, as `reflectkit rlft` does. env_settings: those of the
    environment, or of an algorithm or sampler of your own.
    """
    return call("rlft", {"env": env, **settings}, env_settings)


def sft(
    env: EnvLike, *, env_settings: Mapping[str, Any] | None = None, **settings: Unpack[SftSettings]
) -> Result:
    """Fine-tune one player on demonstrations, as `reflectkit sft` does."""
    return call("sft", {"env": env, **settings}, env_settings)


def evaluate(
    env: EnvLike,
    *,
    env_settings: Mapping[str, Any] | None = None,
    **settings: Unpack[EvaluateSettings],
) -> Result:
    """Compare players on the same held-out problems, as `reflectkit evaluate` does. policy: one
    player or several; a mapping names them.
    """
    return call("evaluate", {"env": env, **settings}, env_settings)


def gen_trajectory(
    env: EnvLike,
    *,
    env_settings: Mapping[str, Any] | None = None,
    **settings: Unpack[GenTrajectorySettings],
) -> Result:
    """Generate demonstrations, as `reflectkit gen-trajectory` does."""
    return call("gen-trajectory", {"env": env, **settings}, env_settings)


def split(
    env: EnvLike,
    *,
    env_settings: Mapping[str, Any] | None = None,
    **settings: Unpack[SplitSettings],
) -> Result:
    """Divide the problems into train, validate and test, as `reflectkit split` does."""
    return call("split", {"env": env, **settings}, env_settings)


def gen_sft(
    env: EnvLike,
    *,
    env_settings: Mapping[str, Any] | None = None,
    **settings: Unpack[GenSftSettings],
) -> Result:
    """Write the rows for `sft` from the training split, as `reflectkit gen-sft` does."""
    return call("gen-sft", {"env": env, **settings}, env_settings)
