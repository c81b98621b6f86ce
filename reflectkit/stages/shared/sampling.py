"""The sampler of the policy's actions and its own settings: `--sampler`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from typing_extensions import override

from reflectkit.core.config import StageConfig, check_own_settings, option, with_own_settings
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

    def __post_init__(self) -> None:
        super().__post_init__()
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
