"""The sampler of the policy's actions and its own settings: `--sampler`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from typing_extensions import override

from reflectkit.core.config import (
    ANSWERS,
    THINKING,
    StageConfig,
    check_own_settings,
    one_of,
    option,
    with_own_settings,
    within,
)
from reflectkit.core.errors import ConfigError
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
    answer: str = option(
        "",
        help="What a policy without SFT answers where it chooses: label (the choice's number) or text (its own words);"
        " others answer as they were trained. Default: label.",
    )
    episode_tokens: int = option(
        0, help="Most tokens that the policy may write in an episode, without enumerated actions; 0: no limit."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("thinking", self.thinking, THINKING)
        one_of("answer", self.answer or ANSWERS[0], ANSWERS)
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

    def answer_of(self, policy: Path | str) -> str:
        """What `policy` answers where it chooses: what it was trained with, else --answer. Raises ConfigError if these
        differ.
        """
        from reflectkit.models.export import model_facts

        facts = model_facts(Path(policy))
        trained = facts.get("answer") or (ANSWERS[0] if facts.get("role") in ("policy", "plain") else None)
        if trained is None or self.answer in ("", trained):
            return str(trained or self.answer or ANSWERS[0])
        raise ConfigError(
            f"--answer {self.answer}: {policy} was trained to answer with the choice's {trained}; leave it out, or"
            f" train on rows of `gen-sft --answer {self.answer}`"
        )

    def open_sampler(self, opening: Opening) -> Sampler:
        """The sampler. Raises CheckpointError."""
        row = backend(self.sampler)
        return row.open(opening, self.part(row.settings))
