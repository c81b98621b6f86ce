"""Exact values of the games: the optimum by backward induction, and the return of a player from its probabilities."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.learning.games import Game, Outcome, State

STARTS = 500
"""Held-out first states; games with fewer have all that occur among so many seeds."""
FIRST_SEED = 10**6
"""Seeds of held-out starts begin here."""
Probabilities = Mapping[State, Sequence[float]]
"""Of the legal choices in each state, in their order."""


@dataclass(frozen=True)
class Step:
    """A state and what can follow each of its choices."""

    options: tuple[str, ...]
    outcomes: tuple[tuple[Outcome, ...], ...]


class Values:
    """The states that can be reached from the held-out starts of a game, and the returns that players have there."""

    def __init__(self, game: Game, starts: int = STARTS) -> None:
        self.game = game
        self.starts = [game.start(random.Random(FIRST_SEED + number)) for number in range(starts)]

    @cached_property
    def layers(self) -> list[dict[State, Step]]:
        """The states that can be met at each step of an episode."""
        steps: dict[State, Step] = {}
        layers: list[dict[State, Step]] = []
        states = set(self.starts)
        while states and len(layers) < self.game.horizon:
            layer = {state: steps.setdefault(state, self._step(state)) for state in states}
            layers.append(layer)
            states = {
                outcome.state
                for step in layer.values()
                for possible in step.outcomes
                for outcome in possible
                if not outcome.done and outcome.probability
            }
        return layers

    def _step(self, state: State) -> Step:
        options = tuple(self.game.options(state))
        return Step(options, tuple(tuple(self.game.outcomes(state, option)) for option in options))

    @cached_property
    def states(self) -> dict[State, Step]:
        """All of them."""
        return {state: step for layer in self.layers for state, step in layer.items()}

    def expected(self, choose: Callable[[State, Sequence[float]], float]) -> float:
        """The mean return from the starts. choose: the value of a state, given its options' values."""
        after: dict[State, float] = {}
        for layer in reversed(self.layers):
            values: dict[State, float] = {}
            for state, step in layer.items():
                options = []
                for possible in step.outcomes:
                    value = 0.0
                    for outcome in possible:
                        rest = 0.0 if outcome.done else after.get(outcome.state, 0.0)
                        value += outcome.probability * (outcome.reward + rest)
                    options.append(value)
                values[state] = choose(state, options)
            after = values
        return sum(after[start] for start in self.starts) / len(self.starts)

    @cached_property
    def optimum(self) -> float:
        """The best mean return."""
        return self.expected(lambda state, options: max(options))

    @cached_property
    def random(self) -> float:
        """The mean return of a player that chooses uniformly."""
        return self.expected(lambda state, options: sum(options) / len(options))

    def sampled(self, probabilities: Probabilities) -> float:
        """The mean return of a player that draws its choices."""

        def mean(state: State, options: Sequence[float]) -> float:
            return sum(share * value for share, value in zip(probabilities[state], options, strict=True))

        return self.expected(mean)

    def greedy(self, probabilities: Probabilities) -> float:
        """The mean return of a player that takes its most likely choice."""

        def best(state: State, options: Sequence[float]) -> float:
            row = probabilities[state]
            return options[max(range(len(row)), key=row.__getitem__)]

        return self.expected(best)

    def score(self, value: float) -> float:
        """0 for the random player, 1 for the optimum."""
        return (value - self.random) / (self.optimum - self.random)
