"""reflectkit: train small language models to act and to decide, by reward, with or without a
reflector that comments first.

The names that programs need are here (docs/python.md); each is imported on first use, so that
`import reflectkit` loads nothing but the version. Each env is registered with gymnasium where that
is imported before this package, and else by importing `reflectkit.integrations.gym`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from reflectkit.version import VERSION

if TYPE_CHECKING:
    from reflectkit.config import Config, option
    from reflectkit.env import ChoiceEnv, Env, StepResult, Taskset, Teacher
    from reflectkit.envs import env_class, make
    from reflectkit.errors import ReflectkitError
    from reflectkit.integrations.agent import Act, LoadedAgent, load_agent
    from reflectkit.integrations.call import Result
    from reflectkit.integrations.functions import (
        evaluate,
        gen_sft,
        gen_trajectory,
        rlft,
        sft,
        split,
    )
    from reflectkit.rollouts.episode import Episode, rollout
    from reflectkit.types import (
        Decision,
        Message,
        Observation,
        StateQuestion,
        Task,
        Trajectory,
        Turn,
    )

__version__ = VERSION
__all__ = [
    "Act",
    "ChoiceEnv",
    "Config",
    "Decision",
    "Env",
    "Episode",
    "LoadedAgent",
    "Message",
    "Observation",
    "ReflectkitError",
    "Result",
    "StateQuestion",
    "StepResult",
    "Task",
    "Taskset",
    "Teacher",
    "Trajectory",
    "Turn",
    "__version__",
    "env_class",
    "evaluate",
    "gen_sft",
    "gen_trajectory",
    "load_agent",
    "make",
    "option",
    "rlft",
    "rollout",
    "sft",
    "split",
]

_PLACES = {
    **dict.fromkeys(("Config", "option"), "reflectkit.config"),
    **dict.fromkeys(("ChoiceEnv", "Env", "StepResult", "Taskset", "Teacher"), "reflectkit.env"),
    **dict.fromkeys(("ReflectkitError",), "reflectkit.errors"),
    **dict.fromkeys(
        ("Decision", "Message", "Observation", "StateQuestion", "Task"), "reflectkit.types"
    ),
    **dict.fromkeys(("Trajectory", "Turn"), "reflectkit.types"),
    **dict.fromkeys(("env_class", "make"), "reflectkit.envs"),
    **dict.fromkeys(("Episode", "rollout"), "reflectkit.rollouts.episode"),
    **dict.fromkeys(("Act", "LoadedAgent", "load_agent"), "reflectkit.integrations.agent"),
    "Result": "reflectkit.integrations.call",
    **dict.fromkeys(
        ("evaluate", "gen_sft", "gen_trajectory", "rlft", "sft", "split"),
        "reflectkit.integrations.functions",
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'reflectkit' has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "gymnasium" in sys.modules:
    import reflectkit.integrations.gym  # noqa: F401  `import gymnasium, reflectkit` is enough
