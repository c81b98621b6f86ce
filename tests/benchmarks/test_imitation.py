"""The yardstick of SFT: who demonstrates, what a pair's policy reads, and what is measured again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import imitation
from benchmarks.learning.games import GAMES
from benchmarks.learning.imitation import Commented, Demonstrator
from benchmarks.learning.values import Values
from reflectkit.prompts import policy_prompt
from reflectkit.types import Message, Observation


def test_the_demonstrator_walks_to_the_lamp_and_takes_it() -> None:
    game = GAMES["search"]()
    for seed in range(5):
        game.reset(seed)
        lamp = game.state[1]
        steps = list(Demonstrator(game, [seed]).steps([seed]))
        assert [step.options[step.best] for step in steps] == ["go deeper"] * lamp + ["take the lamp"]


def test_the_demonstrator_is_optimal_and_takes_the_first_of_equal_choices() -> None:
    values = Values(GAMES["taxi"](), starts=20)
    seeds = range(10**6, 10**6 + 20)
    best = Demonstrator(GAMES["taxi"](), seeds).best
    played = {state: [float(number == best[state]) for number in range(6)] for state in values.states}
    assert values.sampled(played) == pytest.approx(values.optimum)
    assert best[4, 0, 2, 0, False] == 4  # only picking up is right there
    assert best[2, 1, 4, 0, True] == 1  # north and west are as good, and north comes first


def test_a_comment_is_read_where_the_policy_of_a_pair_reads_it() -> None:
    game = GAMES["search"]()
    game.reset(0)
    state = game.state
    comment = Demonstrator(game, [0]).comments([state], "test")[state]
    assert "go deeper" in comment
    text, options = game.text(state), tuple(game.options(state))
    read = Observation((Message("user", Commented(game, {state: comment}).text(state)),), options)
    assert policy_prompt(read) == policy_prompt(Observation((Message("user", text),), options), comment)


def test_sft_is_measured_on_the_demonstrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reflectkit.train.sft.build.SCRATCH_STEPS", (1, 2, 2))
    figures = imitation.imitate("lock", 10, 0, tmp_path)
    assert (figures["rows"], figures["steps"]) == (3 * 10, 2)
    assert figures["sampled"] <= 1
    assert 0 <= figures["accuracy"] <= 1


def test_the_same_command_measures_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[tuple[str, int, int]] = []

    def stub(game: str, demonstrations: int, seed: int, folder: Path) -> dict[str, Any]:
        measured.append((game, demonstrations, seed))
        figures = dict.fromkeys(("sampled", "greedy", "accuracy", "held_out", "cpu_seconds"), 0.5 + seed / 4)
        return {"rows": 9, "steps": 8, **figures}

    monkeypatch.setitem(imitation.MEASURED, "imitation", (stub, ()))
    arguments = ["--games", "lock", "door", "--kinds", "imitation", "--demonstrations", "5", "--folder", str(tmp_path)]
    assert imitation.main([*arguments, "--seeds", "0"]) == 0
    assert imitation.main([*arguments, "--seeds", "0", "1"]) == 0
    assert measured == [("lock", 5, 0), ("door", 5, 0), ("lock", 5, 1), ("door", 5, 1)]
    assert imitation.main([*arguments, "--table", "--seeds", "0", "1"]) == 0
    assert "| lock | 5 | 0.62 (0.50) | 0.62 (0.50) |" in capsys.readouterr().out
