"""The base of wrappers around an env: each changes one thing and forwards the rest."""

from __future__ import annotations

from typing import Any

from reflectkit.core.protocols import Env, rules_of


class Wrapper:
    """Forwards everything to `env`, including the oracle."""

    def __init__(self, env: Env) -> None:
        self.env = env

    @property
    def name(self) -> str:
        """The wrapped env's."""
        return self.env.name

    @property
    def levels(self) -> tuple[str, ...]:
        """The wrapped env's."""
        return self.env.levels

    @property
    def rules(self) -> str:
        """The wrapped env's, and what the wrapper adds."""
        return rules_of(self.env)

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):  # looked up before __init__, during copying or unpickling
            raise AttributeError(name)
        return getattr(self.env, name)
