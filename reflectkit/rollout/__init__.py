"""Playing: the interaction loop, batching, and rollouts alongside training."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """The package, which is called like its function: importing it hides `reflectkit.rollout`, the function."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        from reflectkit.rollout.episode import rollout

        return rollout(*arguments, **settings)


sys.modules[__name__].__class__ = _Package
