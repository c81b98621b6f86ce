"""The yardstick for learners: values derived by hand, what is measured again and what is not, and the tables."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
import torch
from gymnasium.utils.env_checker import check_env

from benchmarks.learning import __main__ as command
from benchmarks.learning.games import GAMES
from benchmarks.learning.learners import Budget, Learner, Training, read_choices, rlft_config
from benchmarks.learning.measure import LEARNERS, Run
from benchmarks.learning.results import code_digest, file_digest
from benchmarks.learning.rivals import GameEnv, train_table
from benchmarks.learning.values import Values
from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.commands import rlft
from reflectkit.console import Quiet
from reflectkit.jsonl import read_jsonl
from reflectkit.models.load import load_player
from reflectkit.models.scoring import choice_logprobs
from reflectkit.sampling.hf import LocalSampler
from reflectkit.types import Message, Observation


def values_of(name: str) -> Values:
    return Values(GAMES[name]())


def test_machines_pay_their_mean_at_random_and_the_best_at_most() -> None:
    values = values_of("machines")
    assert values.random == pytest.approx((0.3 + 0.7 + 0.5 + 0.1) / 4)
    assert values.optimum == pytest.approx(0.7)
    mixed = {(): [0.0, 0.5, 0.5, 0.0]}
    assert values.score(values.sampled(mixed)) == pytest.approx((0.6 - 0.4) / (0.7 - 0.4))
    assert values.greedy({(): [0.2, 0.1, 0.6, 0.1]}) == pytest.approx(0.5)


def test_a_signal_is_followed_three_times_and_met_once_by_chance() -> None:
    values = values_of("signal")
    assert values.random == pytest.approx(3 * 1 / 3)
    assert values.optimum == pytest.approx(3)


def test_a_search_costs_the_way_to_the_lamp() -> None:
    values = values_of("search")
    assert values.optimum == pytest.approx(fmean(1 - 0.01 * lamp for _, lamp in values.starts))
    walker = {state: [1.0, 0.0, 0.0] for state in values.states}
    assert values.sampled(walker) == pytest.approx(-0.01 * 10)  # until the horizon
    grasper = {state: [0.1, 0.1, 0.8] for state in values.states}
    assert values.greedy(grasper) == pytest.approx(-0.01)  # no lamp is in the first room


@pytest.mark.filterwarnings("ignore:.*Box observation space")  # that it has no bounds
@pytest.mark.parametrize("game", GAMES)
def test_a_game_is_an_environment_of_gymnasium(game: str) -> None:
    env = GameEnv(values_of(game))
    env.reset(seed=0)
    assert env.action_masks().sum() == len(env.game.options(env.game.state))
    if env.action_masks().all():
        check_env(env, skip_render_check=True)


def test_an_episode_ends_at_the_horizon() -> None:
    env = GameEnv(values_of("diary"))
    env.reset(seed=0)
    ends = [env.step(env.choices.index("wait"))[2:4] for _ in range(env.game.horizon)]
    assert ends == [(False, False)] * (env.game.horizon - 1) + [(False, True)]


@pytest.mark.parametrize("answer", ["label", "text"])
def test_a_policy_is_read_by_the_answers_that_it_learned(answer: str, tmp_path: Path) -> None:
    values = values_of("signal")
    rlft.run(rlft_config(values, Budget(1, 8), 0, {"answer": answer}, tmp_path), Quiet())
    player = load_player(tmp_path / "results" / "run" / "checkpoint-1", device="cpu")
    agent = TwoPlayerAgent(LocalSampler(player), answer=answer)
    for state, read in read_choices(player, values).items():
        options = values.states[state].options
        seen = Observation((Message("user", values.game.text(state)),), options)
        with torch.no_grad():
            prompts, labels = [agent.prompt(seen, None)], [agent.labels(options)]
            logprobs_BK, _ = choice_logprobs(player.model, prompts, labels, pad_id=player.pad_id)
        assert read == pytest.approx(logprobs_BK[0].exp().tolist(), abs=1e-5)


def test_a_table_of_values_learns_the_signal_in_the_steps_that_it_has() -> None:
    values = values_of("signal")
    training = train_table(values, Budget(1, 1), 0, 1500)
    assert training.steps == 1500
    assert values.score(training.greedy) == pytest.approx(1)


def test_our_learner_is_measured_in_a_game_that_it_reads(tmp_path: Path) -> None:
    arguments = ["--games", "machines", "--learners", "default", "--budgets", "2x8", "--seeds", "3"]
    assert command.main([*arguments, "--folder", str(tmp_path)]) == 0
    ((_, row),) = read_jsonl(tmp_path / "results.jsonl")
    assert (row["game"], row["learner"], row["budget"], row["seed"]) == ("machines", "default", "2x8", 3)
    assert row["steps"] == 2 * 8
    assert row["tokens"] > 0
    assert 0 <= row["idle_updates"] <= 2


class Stubs:
    """Learners of given returns, which note what they are asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.monkeypatch, self.folder = monkeypatch, folder
        self.trained: list[tuple[str, int]] = []
        self.steps_of_default = 100
        self.steps_of_rival = 0
        self.put("default")
        self.put("rival", rival=True)

    def put(self, name: str, rate: float = 0.1, rival: bool = False, package: str = "") -> None:
        def train(values: Values, budget: Budget, seed: int, steps: int) -> Training:
            self.trained.append((name, seed))
            if rival:
                self.steps_of_rival = steps
            return Training(values.random, values.optimum, steps if rival else self.steps_of_default, cpu_seconds=1.0)

        self.monkeypatch.setitem(LEARNERS, name, Learner(train, {"rate": rate}, rival, package))

    def run(self, *arguments: str) -> list[tuple[str, int]]:
        """Who was trained by the command, and with which seed."""
        self.trained.clear()
        options = ["--games", "machines", "--budgets", "2x8", "--folder", str(self.folder)]
        assert command.main([*options, "--learners", "default", "rival", *arguments]) == 0
        return list(self.trained)


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stubs:
    return Stubs(monkeypatch, tmp_path)


def test_the_same_command_measures_only_what_a_kill_has_left(stubs: Stubs) -> None:
    both = [("default", 0), ("default", 1), ("rival", 0), ("rival", 1)]
    assert stubs.run("--seeds", "0", "1") == both
    assert stubs.run("--seeds", "0", "1") == []
    file = stubs.folder / "results.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert stubs.run("--seeds", "0", "1") == both[-1:]
    assert stubs.run("--seeds", "0", "1", "2") == [("default", 2), ("rival", 2)]


def test_other_settings_are_measured_and_former_ones_are_still_there(stubs: Stubs) -> None:
    stubs.run("--seeds", "0")
    stubs.put("default", rate=0.2)
    assert stubs.run("--seeds", "0") == [("default", 0)]
    stubs.put("default", rate=0.1)
    assert stubs.run("--seeds", "0") == []


def test_a_rival_takes_the_steps_of_our_default_and_is_measured_again_when_they_change(stubs: Stubs) -> None:
    assert stubs.run("--seeds", "0", "--learners", "rival") == [("default", 0), ("rival", 0)]
    assert stubs.steps_of_rival == 100
    stubs.steps_of_default = 105
    stubs.put("default", rate=0.2)
    assert stubs.run("--seeds", "0") == [("default", 0)]
    stubs.steps_of_default = 150
    stubs.put("default", rate=0.3)
    assert stubs.run("--seeds", "0") == [("default", 0), ("rival", 0)]
    assert stubs.steps_of_rival == 150


def test_no_run_begins_after_the_minutes(stubs: Stubs) -> None:
    assert stubs.run("--seeds", "0", "--minutes", "-1") == []


def test_a_rival_without_its_package_is_left_out_with_a_reason(
    stubs: Stubs, capsys: pytest.CaptureFixture[str]
) -> None:
    stubs.put("rival", rival=True, package="no-such-package")
    assert stubs.run("--seeds", "0") == [("default", 0)]
    assert "no-such-package" in capsys.readouterr().err


def test_the_tables_have_a_row_for_each_game_and_say_what_is_missing(
    stubs: Stubs, capsys: pytest.CaptureFixture[str]
) -> None:
    stubs.run("--seeds", "0")
    capsys.readouterr()
    assert stubs.run("--seeds", "0", "--games", *GAMES, "--table") == []
    lines = capsys.readouterr().out.splitlines()
    for game in GAMES:
        assert len([line for line in lines if line.startswith(f"| {game} | ")]) == 2 + 2  # scores, and two learners
    assert lines[4 + list(GAMES).index("machines")] == "| machines | 0.00 (0.00) | 0.00 (0.00) |"
    assert lines[4 + list(GAMES).index("search")] == "| search | – | – |"
    left = 2 * (len(GAMES) - 1)
    assert any(line.startswith(f"{left} of {2 * len(GAMES)} runs are not measured") for line in lines)


def test_the_tables_mark_the_results_of_earlier_code(stubs: Stubs, capsys: pytest.CaptureFixture[str]) -> None:
    stubs.run("--seeds", "0")
    stubs.put("default", rate=0.2)
    capsys.readouterr()
    assert stubs.run("--seeds", "0", "--games", "machines", "--table") == []
    lines = capsys.readouterr().out.splitlines()
    assert lines[4] == "| machines | 0.00 (0.00) * | 0.00 (0.00) |"
    assert "1 of 2 runs are of earlier code; a star marks their cells." in lines

    # What today's code gave is shown, also where other code ran later
    stubs.steps_of_default = 105
    stubs.run("--seeds", "0")
    stubs.put("default", rate=0.1)
    capsys.readouterr()
    stubs.run("--seeds", "0", "--games", "machines", "--table")
    lines = capsys.readouterr().out.splitlines()
    (cost,) = [line for line in lines if line.startswith("| machines | default |")]
    assert cost.endswith("| 100 |")


def test_comments_and_other_games_decide_nothing(tmp_path: Path) -> None:
    def digest_of(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return file_digest(tmp_path / name, ("Other",))

    first = digest_of("first.py", "class Game:\n    x = 1\n\nclass Other:\n    x = 1\n")
    told = 'class Game:\n    """A game."""\n\n    x = 1  # why\n\nclass Other:\n    x = 2\n'
    assert digest_of("told.py", told) == first
    assert digest_of("changed.py", told.replace("x = 1", "x = 3")) != first


def test_each_game_has_a_digest_of_its_own() -> None:
    digests = {code_digest(Run("2x8", 0, "q-table", game)) for game in GAMES}
    assert len(digests) == len(GAMES)
