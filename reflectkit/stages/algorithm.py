"""The settings of rlft's algorithms, and which of them contradict each other: refused before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from reflectkit.core.config import above, flag, fraction, one_of, option, within
from reflectkit.core.errors import ConfigError
from reflectkit.stages.common import PlayConfig

ALGORITHMS = ("reinforce", "ppo", "grpo")
BASELINES = ("none", "batch", "leave-one-out")
CRITICS = ("auto", "none", "linear", "mlp")
TRUNKS = ("detached", "shared", "separate")
OWN = {
    "reinforce": ("baseline",),
    "ppo": ("gae_lambda", "critic", "critic_trunk", "critic_rate", "value_clip", "target_kl"),
    "grpo": ("advantages", "step_groups"),
}
"""Settings that one algorithm alone looks at."""
ALGORITHM_LIMITS = {
    "value_clip": (0, 10**6),
    "target_kl": (0, 10**6),
    "step_groups": (0, 10**6),
    "entropy": (0, 10**6),
    "kl": (0, 10**6),
    "clip": (0, 10**6),
    "critic_rate": (0, 1000),
    "group_size": (0, 2**20),
    "replay_size": (0, 2**20),
    "epochs": (1, 10**4),
    "minibatch": (1, 2**30),
}
"""The least and the most that these settings may be."""
GROUP_SIZE = 8  # grpo's, where none is given


@dataclass(frozen=True)
class AlgorithmConfig(PlayConfig):
    """How rlft learns."""

    PANEL: ClassVar = "Algorithm"

    algo: str = option(
        "reinforce", help="reinforce, ppo (a clipped ratio and a critic) or grpo (groups of episodes of one problem)."
    )
    gamma: float = option(1.0, help="Discount of the return-to-go; the paper has 1.")
    normalize: bool = option(True, help="Advantages in standard deviations, of the batch, or for grpo of the group.")
    baseline: str = option("batch", help="reinforce: what a return is compared with: none, batch (mean), leave-one-out.")
    gae_lambda: float = option(1.0, help="ppo: 1 compares whole returns with the critic, 0 looks one step ahead.")
    critic: str = option("auto", help="ppo: the critic's head, linear or mlp.")
    critic_trunk: str = option("detached", help="ppo: what it reads: the policy's (detached or shared) or a separate trunk.")
    critic_rate: float = option(5e-3, help="ppo: Adam's rate for the critic.")
    value_clip: float = option(0.0, help="ppo: how far a value may move from what it was at sampling; 0: any way.")
    target_kl: float = option(0.0, help="ppo: no further epoch past this divergence from the sampling policy; 0: never stop.")
    group_size: int = option(0, help=f"Episodes of each drawn problem; 0: {GROUP_SIZE} for grpo, else 1.")
    advantages: str = option("episode", help="grpo: one a whole episode; one a step, by its return; or own, by its reward.")
    step_groups: float = option(
        0.0, help="grpo: weight of further groups, of steps that stand in the same state (GiGPO); 0: none."
    )
    clip: float = option(0.2, help="How far the ratio to the sampling policy may count; reinforce's weights: at most 1 + this.")
    epochs: int = option(1, help="Passes over each batch.")
    minibatch: int = option(512, help="Rows a gradient step, over all processes.")
    loss_mean: str = option("token", help="Average over all trained tokens (token), or over each row's and then rows (row).")
    entropy: float = option(0.02, help="Weight of the entropy bonus, over the legal actions.")
    kl: float = option(0.0, help="Weight of the divergence from the starting policy.")
    replay_size: int = option(0, help="Successful episodes to learn from again, weighted for their age; the paper has 50.")
    curriculum: tuple[str, ...] = option((), help="Levels in order (repeat the flag); default: the last.")
    merge_first_two: bool = option(False, help="The first two levels of the curriculum are one, and share its steps.")
    advance_at: float = option(0.0, help="Adaptive curriculum: go on at this success rate (last 3 updates); 0: equal steps.")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("algo", self.algo, ALGORITHMS)
        one_of("baseline", self.baseline, BASELINES)
        one_of("critic", self.critic, CRITICS)
        one_of("critic_trunk", self.critic_trunk, TRUNKS)
        one_of("advantages", self.advantages, ("episode", "step", "own"))
        one_of("loss_mean", self.loss_mean, ("token", "row"))
        for name in ("gamma", "gae_lambda", "advance_at"):
            fraction(name, getattr(self, name))
        for name, (low, high) in ALGORITHM_LIMITS.items():
            within(name, getattr(self, name), low, high)
        for name in ("clip", "critic_rate"):
            above(name, getattr(self, name), 0)
        self._refuse_contradictions()

    @property
    def repeats(self) -> int:
        """Episodes of each drawn problem."""
        return self.group_size or (GROUP_SIZE if self.algo == "grpo" else 1)

    @property
    def critic_head(self) -> str | None:
        """linear or mlp; None without a critic."""
        return None if self.algo != "ppo" else "linear" if self.critic == "auto" else self.critic

    def _refuse_contradictions(self) -> None:
        for algorithm, names in OWN.items():
            for name in self.departed(names) if algorithm != self.algo else ():
                if getattr(self, name) != "none":
                    raise ConfigError(
                        f"{flag(name)} is {algorithm}'s, and --algo is {self.algo}; leave it out, or --algo {algorithm}"
                    )
        if self.algo == "ppo" and self.critic == "none":
            raise ConfigError("--algo ppo needs a critic: --critic linear or mlp; without one it is --algo reinforce")
        if self.repeats < 2 and (self.algo == "grpo" or self.baseline == "leave-one-out"):
            who = "--algo grpo" if self.algo == "grpo" else "--baseline leave-one-out"
            raise ConfigError(f"{who} compares episodes of one problem: --group-size must be at least 2, got {self.repeats}")
        if self.replay_size and (self.algo == "grpo" or self.baseline == "leave-one-out"):
            raise ConfigError(
                "--replay-size: a replayed episode has no group of today's to be compared with; leave it out, or take"
                " --algo ppo, or reinforce with --baseline batch"
            )
        if self.merge_first_two and len(self.curriculum) < 2:
            raise ConfigError("--merge-first-two needs a --curriculum of at least two levels")
        if self.advance_at and len(self.curriculum) - self.merge_first_two < 2:
            raise ConfigError("--advance-at needs a --curriculum of at least two levels to go through")
