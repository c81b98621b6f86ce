"""The games that strangers could have written."""

from __future__ import annotations

import copy
import json
from functools import partial
from statistics import fmean
from typing import Any

import pytest

from benchmarks.learning import earlier_games, later_games, strangers
from benchmarks.learning.learners import Budget


def best_return(game: Any, steps: int, known: dict[tuple[str, int], float]) -> float:
    """The largest return of a game without chance, by search. known: what was found, by state and steps left."""
    if not steps:
        return 0.0
    state = (repr(sorted(vars(game).items())), steps)
    if state not in known:
        returns = []
        for choice in game.choices:
            after = copy.deepcopy(game)
            _, reward, done = after.step(choice)
            returns.append(reward + (0.0 if done else best_return(after, steps - 1, known)))
        known[state] = max(returns)
    return known[state]


SEARCHED = (
    earlier_games.Lights,
    earlier_games.Hanoi,
    earlier_games.Simon,
    earlier_games.Elevator,
    earlier_games.River,
    earlier_games.Sorting,
)


@pytest.mark.parametrize("kind", SEARCHED)
def test_the_optimum_is_what_a_search_finds(kind: Any) -> None:
    known: dict[tuple[str, int], float] = {}
    returns = []
    for seed in range(400):
        game = kind()
        game.reset(seed)
        returns.append(best_return(game, kind.horizon, known))
    assert fmean(returns) == pytest.approx(strangers.OPTIMUM[kind], abs=0.005)


def test_the_optimum_of_the_sack_is_that_of_dynamic_programming() -> None:
    values = [0.0] * 11  # by room, of no things
    for _ in range(5):
        things = [(weight, worth) for weight in range(1, 7) for worth in range(1, 10)]

        def best(room: int, after: list[float], thing: tuple[int, int]) -> float:
            weight, worth = thing
            return max(after[room], worth + after[room - weight] if weight <= room else 0.0)

        values = [fmean(map(partial(best, room, values), things)) for room in range(11)]
    assert values[10] == pytest.approx(strangers.OPTIMUM[earlier_games.Knapsack], abs=1e-3)


def test_a_run_is_measured_once(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--games",
        "Nim",
        "--learners",
        "default",
        "--budget",
        "1x4",
        "--seeds",
        "0",
        "--folder",
        str(tmp_path),
        "--results",
        str(tmp_path / "results.jsonl"),
    ]
    assert strangers.main(arguments) == 0
    [row] = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert (row["game"], row["learner"], row["budget"], row["seed"]) == ("Nim", "default", "1x4", 0)
    low = strangers.random_return(earlier_games.Nim)
    sampled, greedy = ((row[play] - low) / (0.9955 - low) for play in ("sampled", "greedy"))
    assert f"| Nim | {sampled:.2f} ({greedy:.2f}) |" in capsys.readouterr().out
    assert strangers.main(arguments) == 0
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 1

    # Nothing is shown of another budget or of other code
    nim = [earlier_games.Nim]
    assert "| Nim |  |" in strangers.table([row], nim, ["default"], Budget(9, 9))
    assert "| Nim |  |" in strangers.table([{**row, "code": "0"}], nim, ["default"], Budget(1, 4))


def test_a_random_player_has_chances_of_its_own() -> None:
    """With the game's generator it never met a refusal, and scored above the optimum."""
    assert strangers.random_return(later_games.SellPiano) == pytest.approx(1.7, abs=0.1)
