"""The sampler of the policy's actions and its own settings: `--sampler`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from typing_extensions import override

from reflectkit.core.config import (
    THINKING,
    StageConfig,
    check_own_settings,
    one_of,
    option,
    with_own_settings,
    within,
)
from reflectkit.models.sampler import BACKENDS, Opening, Sampler, backend

LOCAL = "local"


@dataclass(frozen=True)
class SamplerConfig(StageConfig):
    """Settings of a stage in which a trained policy acts."""

    PANEL: ClassVar = "Sampler"
    CHOOSERS: ClassVar[tuple[str, ...]] = ("sampler",)
    SAMPLER: ClassVar[str] = ""
    """The sampler whose own settings the class has, after `chosen`."""
    sampler: str = option(
        LOCAL, help=f"Who samples the policy's actions: {', '.join(BACKENDS)}, or your own as package.module:NAME."
    )
    thinking: str = option(
        THINKING[0],
        help="Reasoning of a model with a chat template: on (as its template does), off, or hidden (not shown to it"
        " later).",
    )
    episode_tokens: int = option(
        0, help="Most tokens that the policy may write in an episode, without enumerated actions; 0: no limit."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("thinking", self.thinking, THINKING)
        within("episode_tokens", self.episode_tokens, 0, 10**9)
        self.part(backend(self.sampler).settings)  # which checks them

    @classmethod
    @override
    def chosen(cls, values: Mapping[str, Any]) -> type[Self]:
        """The class with the sampler's own settings. Raises UnknownNameError, and ConfigError if a name is taken."""
        kind, name = super().chosen(values), values.get("sampler", LOCAL)
        if kind.SAMPLER or not isinstance(name, str):
            return kind
        own, whose = backend(name).settings, f"--sampler {name}"
        check_own_settings(own, whose)
        return with_own_settings(kind, own, whose, whose, SAMPLER=name) if dataclasses.fields(own) else kind

    def open_sampler(self, opening: Opening) -> Sampler:
        """The sampler. Raises CheckpointError."""
        row = backend(self.sampler)
        return row.open(opening, self.part(row.settings))
