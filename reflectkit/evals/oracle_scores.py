"""How far a player's choices are the oracle's: figures of an episode beside its success."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from reflectkit.env import Env, StepResult, Wrapper
from reflectkit.errors import ConfigError
from reflectkit.eventloop import followed
from reflectkit.types import Observation, Task, ToolUse, Trajectory

KEY = "oracle"
"""Of the oracle's choice in a step's info."""


class Advised(Wrapper):
    """Records the oracle's choice in each state as `oracle` in the step's info."""

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`. Raises ConfigError if there are no enumerated choices."""
        return followed(self.env.reset(task, seed), self._checked)

    def step(self, action: int | str | ToolUse) -> StepResult | Awaitable[StepResult]:
        """One step, with the oracle's choice in the state before it."""
        best = self.env.teacher().action()
        return followed(
            self.env.step(action), lambda result: dataclasses.replace(result, info=result.info | {KEY: best})
        )

    def _checked(self, observation: Observation) -> Observation:
        if not observation.choices:
            raise ConfigError(
                f"--score-oracle compares enumerated choices, which env '{self.name}' does not have; leave it out"
            )
        return observation


def advised(make: Callable[[], Env]) -> Callable[[], Env]:
    """Makes the envs of `make`, each `Advised`."""
    return lambda: Advised(make())


def oracle_scores(trajectory: Trajectory) -> dict[str, float]:
    """Figures of an episode played in an `Advised` env, means over its turns.

    agreement: share of turns with the oracle's choice. choice_nll: negative log-probability of the oracle's choice, in
    nats, if the player's probabilities are known. An episode that ended before its first turn, since the prompt was too
    long, has those of an even guess that was wrong; see `known_scores`.
    """
    turns = [turn for turn in trajectory.turns if KEY in turn.info]
    if not turns:
        choices = trajectory.final.choices if trajectory.final else ()
        return {"agreement": 0.0, "choice_nll": math.log(len(choices))} if choices else {}
    scores = {"agreement": fmean(turn.decision.action == turn.info[KEY] for turn in turns)}
    if all(turn.decision.probabilities for turn in turns):
        shares = [turn.decision.probabilities[turn.info[KEY]] for turn in turns]
        scores["choice_nll"] = -fmean(math.log(max(share, sys.float_info.min)) for share in shares)
    return scores


def known_scores(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A player's `lean` lines of episodes.jsonl, without any choice_nll if no turn tells the player's probabilities:
    then only those of episodes without a turn have one.
    """
    if any(line["turns"].probabilities for line in lines):
        return list(lines)
    return [line | {"figures": _without_nll(line.get("figures", {}))} for line in lines]


def _without_nll(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if name != "choice_nll"}
