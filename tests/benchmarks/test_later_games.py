"""The games that were written after the defaults were fixed."""

from __future__ import annotations

import random
from statistics import fmean, stdev
from typing import Any, NamedTuple

import pytest

from benchmarks.learning.later_games import OPTIMUM, Greenhouse
from tests.benchmarks.later_optima import OPTIMA

MOST_STEPS = 128
every_game = pytest.mark.parametrize("kind", list(OPTIMUM), ids=lambda kind: kind.__name__)


class Step(NamedTuple):
    """The choices at a step, the one that was made, and what it returned."""

    choices: list[str]
    choice: str
    text: str
    reward: float
    is_over: bool


def play_at_random(kind: Any, seed: int) -> tuple[str, list[Step]]:
    """The first text and the steps of an episode. The player's chances do not depend on the game's."""
    game, player = kind(), random.Random(f"player {seed}")
    first_text = game.reset(seed)
    steps = []
    for _ in range(getattr(kind, "horizon", MOST_STEPS)):
        choices = list(game.choices)
        choice = player.choice(choices)
        text, reward, is_over = game.step(choice)
        steps.append(Step(choices, choice, text, reward, is_over))
        if is_over:
            break
    return first_text, steps


@every_game
def test_the_optimum_is_what_its_computation_finds(kind: type) -> None:
    digits = 7 if kind is Greenhouse else 4
    assert round(OPTIMA[kind](), digits) == OPTIMUM[kind]


@every_game
def test_an_episode_repeats_with_its_seed_and_choices(kind: type) -> None:
    episodes = [play_at_random(kind, seed) for seed in range(20)]
    assert [play_at_random(kind, seed) for seed in range(20)] == episodes


@every_game
def test_there_are_distinct_choices_until_the_end(kind: type) -> None:
    for seed in range(50):
        _, steps = play_at_random(kind, seed)
        for step in steps:
            assert step.choices
            assert len(set(step.choices)) == len(step.choices)


@every_game
def test_a_random_player_stays_below_the_optimum(kind: type) -> None:
    returns = []
    for seed in range(300):
        _, steps = play_at_random(kind, seed)
        returns.append(sum(step.reward for step in steps))
    standard_error = stdev(returns) / len(returns) ** 0.5
    assert fmean(returns) + 5 * standard_error < OPTIMUM[kind]
