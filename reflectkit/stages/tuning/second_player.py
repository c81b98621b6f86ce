"""The settings of rlft for a reflector that learns too, and what they cannot be combined with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from reflectkit.core.config import flag, one_of, option, within
from reflectkit.core.errors import ConfigError
from reflectkit.rl.reflector import JUDGEMENT, RETURN, REWARDS
from reflectkit.stages.shared.sampling import LOCAL
from reflectkit.stages.tuning.asynchronous import AsynchronousConfig

REFLECTOR_LIMITS = {
    "train_reflector": (0, 10**9),
    "reflector_states": (1, 2**20),
    "reflector_comments": (2, 1024),
    "reflector_temperature": (0.001, 1000),
    "reflector_rate": (0, 1000),
    "reflector_kl": (0, 10**6),
    "reflector_length_cost": (0, 10**6),
}
"""The range of each of these settings."""


@dataclass(frozen=True)
class SecondPlayerConfig(AsynchronousConfig):
    """Settings of the reflector's turns."""

    PANEL: ClassVar = "Training the reflector"
    train_reflector: int = option(
        0, help="Updates of the policy to one of the reflector, which learns what its comments did; 0: it is frozen."
    )
    reflector_reward: str = option(
        RETURN,
        help="What a comment is rewarded with: return (of the episode from its state on), or judgement (whether the"
        " policy then prefers the oracle's action to one of its own).",
    )
    reflector_states: int = option(32, help="States of the latest episodes that it comments on in a turn.")
    reflector_comments: int = option(4, help="Comments on each of these states, which are compared with each other.")
    reflector_temperature: float = option(1.0, help="Sampling temperature of these comments.")
    reflector_rate: float = option(1e-4, help="Peak learning rate of the reflector; 0 measures its comments only.")
    reflector_kl: float = option(
        0.05, help="Weight of the KL divergence from the reflector that training started from."
    )
    reflector_length_cost: float = option(0.0, help="What each token of a comment takes off its reward.")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("reflector_reward", self.reflector_reward, REWARDS)
        for name, (low, high) in REFLECTOR_LIMITS.items():
            within(name, getattr(self, name), low, high)
        if self.train_reflector:
            self._refuse_combinations()
        elif given := self.departed(name for name in REFLECTOR_LIMITS | {"reflector_reward": ()}):
            raise ConfigError(f"{flag(given[0])} is a setting of the reflector's turns; add --train-reflector 1")

    def _refuse_combinations(self) -> None:
        """Raises ConfigError for settings under which the reflector cannot learn."""
        stage: Any = self  # of rlft, which has the rest of the settings
        why = {
            "needs a reflector: give --reflect-load-dir": stage.reflect_load_dir is None,
            f"trains it in this process; leave out --reflector-sampler {self.reflector_sampler}": (
                self.reflector_sampler != LOCAL
            ),
            "takes turns with the policy, but --max-staleness lets the policy play while it learns; leave that out": (
                bool(self.max_staleness)
            ),
            f"it would learn nothing in --max-steps {stage.max_steps}; give at most that": (
                self.train_reflector > stage.max_steps
            ),
            "learns from comments that the policy reads; leave out --reflect-prob 0": stage.reflect_prob == 0,
            "runs in one process; leave out --processes": stage.processes > 1,
            "cannot tell what comments on other states are worth; leave out --swap-comments": bool(self.swap_comments),
            f"--reflector-reward judgement needs an oracle, which {stage.env_name} lacks; use return": (
                self.reflector_reward == JUDGEMENT and not stage.kind.has("oracle")
            ),
            "--plan does not know the reflector's turns; leave out one of the two": stage.plan,
        }
        for reason, applies in why.items():
            if applies:
                raise ConfigError(f"--train-reflector {self.train_reflector}: {reason}")
