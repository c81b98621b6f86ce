"""evaluate --score-oracle: agreement with the oracle, and its choice's negative log-probability."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from reflectkit.agents.scripted import Oracle
from reflectkit.cli.main import main
from reflectkit.data.trajectories import Record, record_to_json
from reflectkit.envs.corridor import Corridor
from reflectkit.envs.taxi import Taxi
from reflectkit.envs.wrappers import Horizon, Shuffled
from reflectkit.evals.oracle_scores import Advised, oracle_scores
from reflectkit.jsonl import read_json, read_jsonl, write_json
from reflectkit.rollout.episode import Episode, rollout
from reflectkit.types import Decision, Observation, Status, Trajectory, Turn
from tests.server import serve

TASK = Corridor.taskset.tasks("short")[0]


def episode(*turns: tuple[int, int, tuple[float, ...]]) -> Trajectory:
    """An episode of (action, the oracle's choice, probabilities)."""
    seen = Observation((), ("left", "right"))
    made = [Turn(seen, Decision(action, probabilities=shares), 0.0, {"oracle": best}) for action, best, shares in turns]
    return Trajectory(TASK, 0, tuple(made), Status.COMPLETED, True, final=seen)


def test_scores_are_means_over_turns() -> None:
    """Agreement 1/2; -(ln 0.5 + ln 0.25) / 2 = 1.5 ln 2."""
    scores = oracle_scores(episode((0, 0, (0.5, 0.5)), (0, 1, (0.75, 0.25))))
    assert scores == pytest.approx({"agreement": 0.5, "choice_nll": 1.5 * math.log(2)})


def test_a_player_without_probabilities_has_an_agreement_alone() -> None:
    assert oracle_scores(episode((1, 1, ()), (1, 1, ()), (0, 1, ()))) == pytest.approx({"agreement": 2 / 3})


def test_a_choice_that_was_thought_impossible_has_a_finite_score() -> None:
    assert 700 < oracle_scores(episode((0, 1, (1.0, 0.0))))["choice_nll"] < 750


def test_an_episode_without_a_turn_counts_as_a_wrong_guess() -> None:
    assert oracle_scores(episode()) == pytest.approx({"agreement": 0.0, "choice_nll": math.log(2)})


@pytest.mark.parametrize("shuffled", [False, True])
def test_the_oracle_is_asked_before_the_step_and_in_the_order_shown(shuffled: bool) -> None:
    episodes = [Episode(task, seed) for seed, task in enumerate(Taxi.taskset.tasks("full")[:6])]
    played = rollout(episodes, lambda: Horizon(Advised(Shuffled(Taxi()) if shuffled else Taxi()), 40), Oracle())
    assert [oracle_scores(one) for one in played] == [{"agreement": 1.0}] * 6
    assert any(len({turn.info["oracle"] for turn in one.turns}) > 1 for one in played)


def test_evaluate_reports_them(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What eval.json says is the mean over the episodes of what their turns say."""
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / "some.json", [record_to_json(Record(task, ())) for task in Taxi.taskset.tasks("pickup")[:4]])
    command = ["evaluate", "--env", "taxi", "--level", "pickup", "--task-file", "some.json", "--horizon", "3"]
    players = ["--policy", "oracle", "--policy", f"SFT={checkpoints['plain']}"]
    assert main([*command, *players, "--score-oracle"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "agreement" in shown
    assert "choice nll" in shown
    oracle, sft = (row["figures"] for row in read_json(Path("results/1_evaluate/eval.json"))["rows"])
    assert oracle["agreement"]["mean"] == 1
    assert "choice_nll" not in oracle
    expected = []
    for _, line in read_jsonl(Path("results/1_evaluate/episodes.jsonl")):
        if line["name"] == "SFT":
            shares = [turn["probabilities"][turn["info"]["oracle"]] for turn in line["turns"]]
            expected.append(-sum(map(math.log, shares)) / len(shares))
    assert len(expected) == 4
    assert sft["choice_nll"]["mean"] == pytest.approx(sum(expected) / 4, abs=1e-3)


def test_a_chat_model_has_no_likelihood_even_if_its_first_answer_was_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its probabilities are unknown, so that ln 2 of one episode would be a mean over all of them."""
    monkeypatch.chdir(tmp_path)
    tasks = Corridor.taskset.tasks("long")
    write_json(tmp_path / "some.json", [record_to_json(Record(task, ())) for task in tasks])
    first = Corridor().reset(tasks[0], 0).text
    with serve(lambda body: "?" if first in body["messages"][-1]["content"] else "Analysis: on.\nChoice: 1") as server:
        command = ["evaluate", "--env", "corridor", "--task-file", "some.json", "--score-oracle"]
        assert main([*command, "--policy", "local:walker", "--base-url", server.url]) == 0
    lines = [line for _, line in read_jsonl(Path("results/1_evaluate/episodes.jsonl"))]
    assert [] in [line["turns"] for line in lines]
    (row,) = read_json(Path("results/1_evaluate/eval.json"))["rows"]
    assert list(row["figures"]) == ["agreement"]
    assert 0 < row["figures"]["agreement"]["mean"] < 1
    assert all(set(line.get("figures", {})) == {"agreement"} for line in lines)


def test_it_needs_an_oracle_and_enumerated_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "--env", "tests.commands.test_play:Rude", "--policy", "random", "--score-oracle"]) == 2
    assert "has no oracle teacher" in capsys.readouterr().err
    assert main(["gen-task", "--env", "support", "--instances", "2", "--customers", "30"]) == 0
    tasks = ["--task-file", "data/support/data.json"]
    assert main(["evaluate", "--env", "support", "--policy", "oracle", "--score-oracle", *tasks]) == 2
    assert "--score-oracle compares enumerated choices" in capsys.readouterr().err
    assert main(["evaluate", "--env", "corridor", "--from", "results/x", "--score-oracle"]) == 2
    assert "--from plays nothing" in capsys.readouterr().err
