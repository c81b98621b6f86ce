"""Environments of other libraries, named by a scheme, `--env SCHEME:REST`, and classes that are no `Env`."""

from __future__ import annotations

import sys

from reflectkit.env import Env


def adapted(kind: type) -> type[Env]:
    """The env of a class that is none: of Gymnasium, with choices, or with tools. Raises ConfigError for another."""
    if "gymnasium" in sys.modules and issubclass(kind, sys.modules["gymnasium"].Env):
        from reflectkit.envs.adapters import gymnasium

        return gymnasium.env_of_class(kind)
    from reflectkit.envs.adapters import plain

    return plain.env_of_class(kind)
