"""The settings of rlft for play that goes on while the policy learns, and for episodes that take too long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from reflectkit.core.config import option, within
from reflectkit.core.errors import ConfigError
from reflectkit.stages.shared.sampling import SamplerConfig


@dataclass(frozen=True)
class AsynchronousConfig(SamplerConfig):
    """Settings of asynchronous play."""

    PANEL: ClassVar = "Asynchronous play"
    max_staleness: int = option(
        0,
        help="Play with a server while the policy learns: most updates between the weights that play and those that"
        " learn; 0: in turns.",
    )
    is_cap: float = option(
        2.0,
        help="Most that an importance weight (policy / sampler) may be in the loss and in --kl, with --max-staleness.",
    )
    oversample: float = option(
        1.0,
        help="With --max-staleness, an update learns from the first complete groups among so many times as many; the"
        " others come next.",
    )
    episode_timeout_s: float = option(0.0, help="Seconds after which an episode is truncated; 0: no limit.")

    def __post_init__(self) -> None:
        super().__post_init__()
        within("max_staleness", self.max_staleness, 0, 64)
        within("is_cap", self.is_cap, 1, 10**6)
        within("oversample", self.oversample, 1, 65)
        within("episode_timeout_s", self.episode_timeout_s, 0, 10**7)
        if self.max_staleness and not self.remote:
            raise ConfigError(
                f"--max-staleness {self.max_staleness} plays with other weights than those that learn, which takes a"
                " server: --sampler vllm:URL; or leave it out"
            )
        if not self.max_staleness and self.departed(("is_cap",)):
            raise ConfigError("--is-cap is a setting of play that is ahead of learning; add --max-staleness")
        if self.oversample > 1 + self.max_staleness:
            raise ConfigError(
                f"--oversample {self.oversample:g} keeps groups for later updates, which --max-staleness"
                f" {self.max_staleness} does not allow; raise that to {math.ceil(self.oversample) - 1}"
                " or more, or lower --oversample"
            )
