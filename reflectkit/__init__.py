"""reflectkit: train small language models to act, with a reflection model that comments and a policy that acts on it.

Importing it registers each env with gymnasium: `gymnasium.make("reflectkit/Taxi-v0")`.
"""

from __future__ import annotations

import gymnasium

from reflectkit.envs import ENVS
from reflectkit.version import VERSION

__version__ = VERSION
__all__ = ["__version__"]


def _register() -> None:
    for name, target in ENVS.items():
        title = target.rpartition(":")[2]
        gymnasium.register(
            id=f"reflectkit/{title}-v0",
            entry_point="reflectkit.integrations.gym:TextEnv",
            kwargs={"env": name},
            order_enforce=True,
        )


_register()
