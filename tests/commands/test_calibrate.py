"""A temperature that rlft fits and stores: applied wherever the policy plays, and nowhere where it learns."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectkit import load_agent
from reflectkit.agents.player_refs import Player
from reflectkit.agents.players import Players, PlayersSetup
from reflectkit.cli.main import main
from reflectkit.commands.serve import PolicyServer, Programs, ServeConfig
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.jsonl import read_json, read_jsonl, write_json
from reflectkit.models.checkpoint_metadata import CALIBRATION, ROLE_FILE
from reflectkit.models.refs import ModelRef
from reflectkit.runs.run import seal, verify
from tests.asgi import served
from tests.command_lines import error_of
from tests.commands.test_serve import post
from tests.rlft_runs import same, train

TASK = Corridor.taskset.tasks("short")[0]
TEMPERATURE = 2.5


@pytest.fixture(scope="module")
def trained(corridor_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of the same training: "plain", one "fitted" after it, and one with a "set" temperature."""
    folder = tmp_path_factory.mktemp("calibrated")
    settings: dict[str, Any] = {"algo": "ppo", "curriculum": ("short",), "task_file": None}
    places = {
        name: train(corridor_folder, folder / name, calibrate=name == "fitted", **settings)
        for name in ("plain", "fitted")
    }
    places["set"] = with_temperature(places["plain"], folder / "set", TEMPERATURE)
    return places


def with_temperature(source: Path, target: Path, temperature: float) -> Path:
    shutil.copytree(source, target)
    write_json(target / ROLE_FILE, read_json(target / ROLE_FILE) | {CALIBRATION: temperature})
    seal(target)
    return target


def test_the_fit_is_stored_in_an_intact_checkpoint_and_changes_no_weight(trained: dict[str, Path]) -> None:
    verify(trained["fitted"])
    assert same(trained["plain"], trained["fitted"])
    figures = read_json(trained["fitted"].parent / "report.json")["figures"]
    assert read_json(trained["fitted"] / ROLE_FILE)[CALIBRATION] == figures[CALIBRATION] != 1
    assert figures["log_score_after"] < figures["log_score_before"]
    assert CALIBRATION not in read_json(trained["plain"] / ROLE_FILE)


def by_load_agent(place: Path) -> tuple[float, ...]:
    seen = make("corridor").reset(TASK, 0)
    with load_agent(place) as agent:
        return agent.act(seen).probabilities


def by_episodes(command: str, *more: str) -> Callable[[Path], tuple[float, ...]]:
    """The probabilities in the first turn of an episode that a command plays."""

    def probabilities(place: Path) -> tuple[float, ...]:
        arguments = [command, "--env", "corridor", "--level", "short", "--policy", f"it={place}", *more]
        assert main([*arguments, "--device", "cpu", "--name", "played", "--force"]) == 0
        lines = [line for _, line in read_jsonl(Path("results/played/episodes.jsonl"))]
        return tuple(next(line for line in lines if line["task"] == TASK.id)["turns"][0]["probabilities"])

    return probabilities


def by_serve(place: Path) -> tuple[float, ...]:
    seen = make("corridor").reset(TASK, 0)
    model = ModelRef(str(place))
    config, player = ServeConfig(policy=model), Player("policy", model)
    with contextlib.closing(Players(PlayersSetup(config, (player,), Programs, Path()))) as players:
        server = PolicyServer(players.agent(player), config)
        question = {"type": "choice", "criteria": dict.fromkeys(seen.choices)}
        body = json.dumps({"model": "jev-latest", "state": seen.text, "questions": {"action": question}}).encode()
        try:
            with served(server.application()) as url:
                status, text = post(f"{url}/v1/systemone", body)
        finally:
            server.thread.close()
    assert status == 200, text
    return tuple(json.loads(text)["answers"]["action"]["probabilities"].values())


PLACES = {
    "load_agent": by_load_agent,
    "evaluate": by_episodes("evaluate", "--problems", "0"),
    "play": by_episodes("play", "--auto", "--task", TASK.id),
    "serve": by_serve,
}


@pytest.mark.parametrize("place", PLACES)
def test_all_that_play_apply_it_alike(place: str, trained: dict[str, Path]) -> None:
    """Probabilities p at temperature T are p^(1/T), and add up to 1."""
    plain = by_load_agent(trained["plain"])
    powers = [share ** (1 / TEMPERATURE) for share in plain]
    expected = [power / sum(powers) for power in powers]
    assert PLACES[place](trained["set"]) == pytest.approx(expected, abs=1e-5)
    assert abs(expected[0] - plain[0]) > 1e-3


@pytest.mark.parametrize("command", ["rlft", "sft"])
def test_training_ignores_it(command: str, trained: dict[str, Path], corridor_folder: Path, tmp_path: Path) -> None:
    places = {}
    for name in ("plain", "set"):
        if command == "rlft":
            places[name] = train(corridor_folder, tmp_path / name, policy=trained[name])
        else:
            rows = tmp_path / "rows.jsonl"
            seen = make("corridor").reset(TASK, 0)
            prompt = f"{seen.text}\nActions:\n 0 left\n 1 right\nAction:"
            rows.write_text(json.dumps({"prompt": prompt, "completion": " 1"}) + "\n")
            arguments = ["sft", "--env", "corridor", "--role", "plain", "--task-file", str(rows), "--max-steps", "2"]
            more = ["--model", str(trained[name]), "--device", "cpu", "--name", name]
            assert main([*arguments, *more]) == 0
            places[name] = Path(f"results/{name}/checkpoint-2")
        assert CALIBRATION not in read_json(places[name] / ROLE_FILE)
    assert same(places["plain"], places["set"])


def test_evaluate_reports_calibration_and_plot_draws_it(trained: dict[str, Path]) -> None:
    arguments = ["--env", "corridor", "--level", "short", "--device", "cpu", "--policy", f"it={trained['plain']}"]
    flags = ["--score-oracle", "--predict-success", "--policy", "random"]
    assert main(["evaluate", *arguments, *flags, "--name", "scored"]) == 0
    ours, random = read_json(Path("results/scored/eval.json"))["rows"]
    assert "calibration" not in random
    assert set(ours["calibration"]) == {"action", "success, asked"}  # the critic has none, as no episode fails
    lines = [line for _, line in read_jsonl(Path("results/scored/episodes.jsonl")) if line["name"] == "it"]
    assert all(isinstance(line["first_value"], float) for line in lines)
    turns = [turn for line in lines for turn in line["turns"]]
    action = ours["calibration"]["action"]
    assert action["forecasts"] == len(turns)
    log_score = sum(-math.log(turn["probabilities"][1]) for turn in turns) / len(turns)  # right is always best
    assert action["log_score"] == pytest.approx(log_score, abs=1e-3)
    asked = ours["calibration"]["success, asked"]
    assert asked["forecasts"] == len(lines)
    predicted = [line["turns"][0]["answers"]["success"][0] for line in lines]
    assert asked["brier"] == pytest.approx(
        sum((share - line["success"]) ** 2 for share, line in zip(predicted, lines, strict=True)) / len(lines), abs=1e-4
    )
    assert main(["evaluate", "--env", "corridor", "--from", "results/scored", "--name", "again"]) == 0
    again = read_json(Path("results/again/eval.json"))["rows"][0]["calibration"]
    assert again == ours["calibration"]
    assert main(["plot", "--evals", "results/scored", "--figure", "reliability", "--out", "reliability.svg"]) == 0
    assert "success, asked" in Path("reliability.svg").read_text()


def test_what_cannot_be_calibrated_is_one_line(
    trained: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rlft = ["rlft", "--policy", str(trained["plain"]), "--calibrate", "--max-steps", "1"]
    assert "--validate-problems 100" in error_of([*rlft, "--env", "corridor", "--validate-problems", "0"], capsys)
    own = tmp_path / "coin.py"
    own.write_text(
        "class Coin:\n    choices = ('heads', 'tails')\n    def reset(self, seed):\n        return 'Guess.'\n"
        "    def step(self, action):\n        return 'Done.', 1.0, True\n"
    )
    assert "no oracle teacher" in error_of([*rlft, "--env", f"{own}:Coin"], capsys)
    assert main(["evaluate", "--env", "corridor", "--policy", "random", "--name", "unscored"]) == 0
    told = error_of(["plot", "--evals", "results/unscored", "--figure", "reliability"], capsys)
    assert "--score-oracle or --predict-success" in told
    damaged = with_temperature(trained["plain"], tmp_path / "damaged", -1.0)
    assert "expected a number above 0" in error_of(
        ["evaluate", "--env", "corridor", "--policy", f"it={damaged}"], capsys
    )
