"""The settings of rlft's algorithms. Contradictory settings raise errors before anything is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from typing_extensions import override

from reflectkit.core.config import above, flag, fraction, one_of, option, with_settings, within
from reflectkit.core.errors import ConfigError
from reflectkit.core.registry import code_files
from reflectkit.rl.algorithms import ALGORITHMS, Algorithm, CriticSettings, Objective, algorithm
from reflectkit.stages.shared.environments import PlayConfig

ALGORITHM_LIMITS = {
    "merge_after": (0, 1000),
    "few_data": (0, 10**9),
    "target_kl": (0, 10**6),
    "entropy": (0, 10**6),
    "kl": (0, 10**6),
    "clip": (0, 10**6),
    "group_size": (0, 2**20),
    "replay_size": (0, 2**20),
    "epochs": (1, 10**4),
    "minibatch": (1, 2**30),
}
"""Range of each of these settings."""
_SUMMARIES = ", ".join(f"{name} ({row.summary})" for name, row in ALGORITHMS.items())
_GROUP_SIZES = ", ".join(f"{row.group_size} for {name}" for name, row in ALGORITHMS.items() if row.group_size > 1)


def _with_every_algorithm(kind: type[PlayConfig]) -> type[PlayConfig]:
    """`kind` with the settings of all algorithms in the table."""
    for name, row in ALGORITHMS.items():
        kind = with_settings(kind, row.settings, f"--algo {name}")
    return kind


@_with_every_algorithm
@dataclass(frozen=True)
class AlgorithmConfig(PlayConfig):
    """Settings of the learning algorithm of rlft."""

    PANEL: ClassVar = "Algorithm"
    CHOOSERS: ClassVar[tuple[str, ...]] = ("algo",)
    ALGO: ClassVar[str] = ""
    """The algorithm whose own settings the class has, after `chosen`, besides those in the table."""

    algo: str = option("reinforce", help=f"{_SUMMARIES}; or your own as package.module:NAME.")
    gamma: float = option(1.0, help="Discount factor; the paper uses 1.")
    normalize: bool = option(True, help="Divide advantages by their standard deviation over the batch or the group.")
    group_size: int = option(0, help=f"Episodes of each drawn problem; 0: {_GROUP_SIZES}, otherwise 1.")
    clip: float = option(0.2, help="PPO clip range; reinforce caps its importance weights at 1 + this.")
    epochs: int = option(1, help="Passes over each batch.")
    target_kl: float = option(
        0.0, help="Stop an update early at this KL divergence from the sampling policy; 0: never."
    )
    minibatch: int = option(512, help="Rows per gradient step, over all processes.")
    loss_mean: str = option(
        "token", help="Average the loss over all tokens (token), or over each row and then over rows (row)."
    )
    entropy: float = option(0.02, help="Weight of the entropy bonus, over the legal actions.")
    kl: float = option(0.0, help="Weight of the KL divergence from the starting policy.")
    replay_size: int = option(0, help="Successful episodes kept for replay, importance-weighted; the paper uses 50.")
    curriculum: tuple[str, ...] = option((), help="Levels to train on, in order (repeat the flag); default: the last.")
    merge_first_two: bool = option(False, help="Merge the curriculum's first two levels into one.")
    merge_after: int = option(0, help="Merge the curriculum's levels after the first N into one; 0: none.")
    few_data: int = option(0, help="Train on the first N problems of each level only; 0: on all.")
    advance_at: float = option(
        0.0, help="Adaptive curriculum: success rate (mean of 3 updates) that ends a level; 0: equal steps per level."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        algorithm(self.algo)
        one_of("loss_mean", self.loss_mean, ("token", "row"))
        for name in ("gamma", "advance_at"):
            fraction(name, getattr(self, name))
        for name, (low, high) in ALGORITHM_LIMITS.items():
            within(name, getattr(self, name), low, high)
        above("clip", self.clip, 0)
        for row in (*ALGORITHMS.values(), algorithm(self.algo)):
            self._own(row)
        self._refuse_contradictions()

    @classmethod
    @override
    def chosen(cls, values: Mapping[str, Any]) -> type[Self]:
        """Also with the own settings of an algorithm that is not in the table. Raises ConfigError where a name is
        taken.
        """
        kind, name = super().chosen(values), values.get("algo")
        return kind if not isinstance(name, str) or name in (*ALGORITHMS, kind.ALGO) else _with_own(kind, name)

    @property
    @override
    def code_files(self) -> list[Path]:
        """Also that of an algorithm of the user's own."""
        own = [] if self.algo in ALGORITHMS else [self.algo.partition(":")[0]]
        return [*super().code_files, *code_files(own)]

    @property
    def objective(self) -> Objective[Any]:
        """The algorithm, with its settings."""
        row = algorithm(self.algo)
        return Objective(row, self._own(row), self.gamma, self.normalize)

    @property
    def critic_settings(self) -> CriticSettings | None:
        """The critic's settings; None without a critic."""
        own = self.objective.settings
        return own if isinstance(own, CriticSettings) else None

    @property
    def repeats(self) -> int:
        """Number of episodes of each drawn problem."""
        return self.group_size or algorithm(self.algo).group_size

    def _own(self, row: Algorithm[Any]) -> Any:
        """The settings of `row` with their values here. Raises ConfigError if one is out of range."""
        return self.part(row.settings)

    def _there(self, row: Algorithm[Any]) -> list[str]:
        """The names of the settings of `row`, without those that only `chosen` would add."""
        field_names = {item.name for item in dataclasses.fields(self)}
        return [name for name in _names(row) if name in field_names]

    def _refuse_contradictions(self) -> None:
        row = algorithm(self.algo)
        for other, another in ALGORITHMS.items():
            for name in self.departed(name for name in _names(another) if name not in _names(row)):
                if getattr(self, name) != "none":
                    raise ConfigError(
                        f"{flag(name)} is a setting of {other}, but --algo is {self.algo}; omit it, or use --algo"
                        f" {other}"
                    )
        without = " or ".join(name for name, one in ALGORITHMS.items() if not one.needs_critic)
        if self.critic_settings is not None and self.critic_settings.critic == "none":
            raise ConfigError(f"--algo {self.algo} needs a critic: use --critic linear or mlp, or --algo {without}")
        if self.objective.compares_groups:
            given = [f"{flag(name)} {getattr(self, name)}" for name in self.departed(self._there(row))]
            flags = " ".join([f"--algo {self.algo}", *given])
            if self.repeats < 2:
                raise ConfigError(
                    f"{flags} compares episodes of one problem: --group-size must be at least 2, got {self.repeats}"
                )
            if self.replay_size:
                raise ConfigError(
                    f"--replay-size: {flags} compares episodes within a group, and replayed episodes are in no current"
                    " group; omit it, or use an algorithm that does not compare groups"
                )
        if self.merge_first_two and len(self.curriculum) < 2:
            raise ConfigError("--merge-first-two needs a --curriculum of at least two levels")
        if self.merge_after and self.merge_after >= len(self.curriculum) - self.merge_first_two - 1:
            raise ConfigError("--merge-after leaves fewer than two levels of the --curriculum to merge; lower it")
        if self.advance_at and len(self.curriculum) - self.merge_first_two < 2:
            raise ConfigError("--advance-at needs a --curriculum of at least two levels to advance through")


def _names(row: Algorithm[Any]) -> list[str]:
    return [item.name for item in dataclasses.fields(row.settings)]


def _with_own(kind: type[Any], name: str) -> Any:
    """`kind` with the own settings of algorithm `name`. A setting that it shares with another algorithm is
    inherited.
    """
    row = algorithm(name)
    ours = {base for one in ALGORITHMS.values() for base in one.settings.__mro__ if dataclasses.is_dataclass(base)}
    inherited = {item.name for base in ours & set(row.settings.__mro__) for item in dataclasses.fields(base)}
    own_names = {item.name for item in dataclasses.fields(kind)}
    if duplicates := sorted(own_names & set(_names(row)) - inherited):
        raise ConfigError(f"--algo {name}: its setting '{duplicates[0]}' is already a setting of rlft; rename it")
    return with_settings(kind, row.settings, f"--algo {name}", ALGO=name)
