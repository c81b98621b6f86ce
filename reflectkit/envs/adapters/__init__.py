"""Environments of other libraries, named by a scheme, `--env SCHEME:REST`, and classes that are no
`Env`.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from reflectkit.env import Env


def adapt(kind: type) -> type[Env]:
    """The env of a class that is none: of Gymnasium, with choices, or with tools. Raises
    ConfigError for another.
    """
    if "gymnasium" in sys.modules and issubclass(kind, sys.modules["gymnasium"].Env):
        from reflectkit.envs.adapters import gymnasium

        return gymnasium.env_of_class(kind)
    from reflectkit.envs.adapters import plain

    return plain.env_of_class(kind)


def env_type(base: type[Env], title: str, **attributes: Any) -> type[Env]:
    """A class like `base` with these attributes. title: its name, made fit for that of a data
    folder.
    """
    name = re.sub(r"[^\w.]+", "-", title).strip("-")
    return type(
        name,
        (base,),
        attributes | {"__doc__": base.__doc__, "__module__": base.__module__},
    )
