"""A typed reflector: its rows, training, comments and calibration, wherever a reflector may stand."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit import load_agent
from reflectkit.agents.deciding import Decider
from reflectkit.agents.player_refs import Player
from reflectkit.agents.players import Players, PlayersSetup
from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.agents.typed import TypedReflector
from reflectkit.cli.main import main
from reflectkit.commands.serve import Programs, ServeConfig
from reflectkit.decisions.questions import Question
from reflectkit.env import LIKELY, SUCCEEDS, Context
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import read_json, read_jsonl, write_jsonl
from reflectkit.models.load import LoadedModel, load_player
from reflectkit.models.refs import ModelRef
from reflectkit.prompts import one_line
from reflectkit.sampling.hf import LocalSampler
from reflectkit.types import ANSWERS, Message, Observation, StateQuestion
from tests.command_lines import error_of
from tests.conftest import built_once
from tests.rlft_runs import weights

NEAR = StateQuestion("near", "Is it near?", ("yes", "no"))


@pytest.mark.parametrize("form", ANSWERS)
def test_a_comment_is_made_of_the_probabilities_that_a_decision_model_gives(
    reflector_player: LoadedModel, observations: list[Observation], form: str
) -> None:
    sampler = LocalSampler(reflector_player)
    typed = TypedReflector(sampler, [LIKELY, NEAR], form)
    seen, context = observations[0], Context(0, make("taxi"))
    comment = run_sync(typed.remark(seen, context))
    questions = [Question("choice", LIKELY.text, seen.choices), Question("predicate", NEAR.text, NEAR.options)]
    decided, _ = run_sync(Decider(TwoPlayerAgent(sampler, answer=form)).answer(seen.text, questions, context))
    expected = [made.answer.probabilities for made in decided]
    assert list(comment.answers) == ["likely", "near"]
    assert comment.answers["likely"] == pytest.approx(expected[0], abs=1e-6)
    best = max(range(6), key=expected[0].__getitem__)
    assert comment.startswith(f"likely: {seen.choices[best]} {expected[0][best]:.2f}, ")
    assert comment.endswith(f"; near: {expected[1][0]:.2f}")
    assert one_line(comment) == comment

    without_choices = Observation((Message("user", "Hello."),))
    assert list(run_sync(typed.remark(without_choices, context)).answers) == ["near"]
    endless = Observation((Message("user", "far " * 4000),), seen.choices)
    assert run_sync(typed.remark(endless, context)) == ""  # it does not fit


@pytest.fixture(scope="module", params=["label", "text"])
def form(request: pytest.FixtureRequest) -> str:
    """The form of all answers in `folder`."""
    return str(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, form: str) -> Path:
    """The corridor's demonstrations, a typed reflector and a policy that reads its comments."""

    def build(place: Path) -> None:
        place.mkdir()
        with contextlib.chdir(place):
            data = ["--task-file", "data/corridor/data_reflection_negative.json"]
            sft = ["sft", "--env", "corridor", "--device", "cpu", "--max-steps", "12", "--hold-out", "0"]
            assert main(["gen-trajectory", "--env", "corridor", "--level", "short"]) == 0
            data += ["--answer", form]
            assert main(["gen-sft", "--env", "corridor", *data, "--questions"]) == 0
            assert main([*sft, "--role", "reflection", "--typed", "--name", "typed"]) == 0
            comments = ["--comments", "reflector", "--reflector", "results/typed", "--out-dir", "data/commented"]
            assert main(["gen-sft", "--env", "corridor", *data, *comments]) == 0
            rows = ["--task-file", "data/commented/sft_policy.jsonl", "--name", "policy"]
            assert main([*sft, "--role", "policy", *rows]) == 0

    return built_once(tmp_path_factory, f"typed-{form}", build)


def test_rows_have_the_teacher_s_answers(folder: Path, form: str) -> None:
    rows = [line for _, line in read_jsonl(folder / "data/corridor/sft_typed.jsonl")]
    assert all(LIKELY.text in row["prompt"] for row in rows)  # of success, a teacher knows nothing
    assert {tuple(row["probabilities"]) for row in rows} == {(0.0, 1.0)}  # right
    assert {row["completion"] for row in rows} == {" 1" if form == "label" else " right"}
    facts = read_json(next((folder / "results/typed").glob("checkpoint-*")) / "reflectkit.json")
    assert [asked["name"] for asked in facts["questions"]] == ["likely"]
    assert facts.get("answer", "label") == form
    assert main(["export", "--policy", str(folder / "results/typed"), "--out-dir", str(folder / "exported")]) == 0
    exported = read_json(folder / "exported/reflectkit.json")
    assert (exported["questions"], exported.get("answer", "label")) == (facts["questions"], form)
    policy = [line for _, line in read_jsonl(folder / "data/commented/sft_policy.jsonl")]
    assert all("Reflection: likely: right " in row["prompt"] for row in policy)


def test_it_plays_trains_and_is_scored(folder: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    typed = next(Path("results/typed").glob("checkpoint-*"))
    before = weights(typed)
    rlft = ["rlft", "--env", "corridor", "--curriculum", "short", "--policy", "results/policy", "--device", "cpu"]
    assert main([*rlft, "--reflector", "results/typed", "--max-steps", "1", "--episodes", "8", "--name", "rl"]) == 0
    after = weights(typed)
    assert all(torch.equal(before[name], after[name]) for name in before)
    evaluate = ["evaluate", "--env", "corridor", "--level", "short", "--policy", "ours=results/rl+results/typed"]
    assert main([*evaluate, "--score-oracle", "--device", "cpu", "--name", "scored"]) == 0
    (row,) = read_json(Path("results/scored/eval.json"))["rows"]
    likely = row["calibration"]["reflector: likely"]
    turns = [turn for _, line in read_jsonl(Path("results/scored/episodes.jsonl")) for turn in line["turns"]]
    shares = [turn["answers"]["reflector: likely"] for turn in turns]
    assert likely["forecasts"] == len(turns)
    decider = Decider(TwoPlayerAgent(LocalSampler(load_player(typed, device="cpu")), answer=form))
    question, context = Question("choice", LIKELY.text, tuple(turns[0]["choices"])), Context(0, Programs())
    ((decided,), _) = run_sync(decider.answer(turns[0]["seen"], [question], context))
    assert shares[0] == pytest.approx(decided.answer.probabilities, abs=1e-5)  # as it is rounded
    assert likely["brier"] == pytest.approx(sum(2 * left**2 for left, _ in shares) / len(shares), abs=1e-4)
    assert (
        turns[0]["reflection"]
        == f"likely: right {shares[0][1]:.2f}, left {shares[0][0]:.2f}"[: len(turns[0]["reflection"])]
    )


def test_serve_and_load_agent_read_the_comment_of_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    seen = make("corridor").reset(Corridor.taskset.tasks("short")[0], 0)
    with load_agent("results/policy", "results/typed") as agent:
        act = agent.act(seen)
    assert act.comment is not None
    assert act.comment.startswith("likely: right ")
    config = ServeConfig(policy=ModelRef("results/policy"))
    player = Player("policy", ModelRef("results/policy"), ModelRef("results/typed")).resolved(Path("data"), _quiet())
    with contextlib.closing(Players(PlayersSetup(config, (player,), Programs, Path()))) as players:
        question = Question("choice", "", seen.choices)
        context = Context(0, Programs())
        ((decided,), _) = run_sync(Decider(players.agent(player)).answer(seen.text, [question], context))
    assert decided.decision.reflection == act.comment
    assert decided.answer.probabilities == pytest.approx(act.probabilities, abs=1e-6)


def _quiet() -> Any:
    from reflectkit.console import Quiet

    return Quiet()


OWN = """
class Own:
    choices = ("a", "b")
    questions = ["near"]

    def reset(self, seed):
        return "x"

    def step(self, action):
        return "y", 1.0, True
"""


def played(success: bool) -> dict[str, Any]:
    turn = {"seen": "Where?", "choices": ["left", "right"], "action": 1, "said": "right"}
    line = {"name": "it", "env": "corridor", "level": "short", "task": "1", "seed": 0, "status": "completed"}
    return line | {"success": success, "return": 1.0, "turns": [turn]}


def test_outcomes_answer_in_hindsight() -> None:
    aborted = played(True) | {"status": "aborted"}
    write_jsonl(Path("episodes.jsonl"), [played(True), played(False), aborted])
    arguments = ["gen-sft", "--env", "corridor", "--questions", "--played", "episodes.jsonl", "--out-dir", "rows"]
    assert main(arguments) == 0
    rows = [line for _, line in read_jsonl(Path("rows/sft_typed.jsonl"))]
    asked = [(row["prompt"].split("\n")[1], row["probabilities"]) for row in rows]
    assert asked == [(LIKELY.text, [0.0, 1.0]), (SUCCEEDS.text, [1.0, 0.0]), (SUCCEEDS.text, [0.0, 1.0])]


def test_what_cannot_be_typed_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    sft = ["sft", "--env", "corridor", "--max-steps", "1", "--role"]
    assert "--typed is for --role reflection" in error_of([*sft, "plain", "--typed"], capsys)
    other = ["reflection", "--typed", "--task-file", "data/corridor/sft_reflection.jsonl", "--name", "x"]
    assert "is no row of gen-sft --questions" in error_of([*sft, *other], capsys)
    rlft = ["rlft", "--env", "corridor", "--policy", "results/policy", "--reflector", "results/typed", "--name", "x"]
    assert "asks a typed reflector" in error_of([*rlft, "--train-reflector", "1"], capsys)
    assert "asks a typed reflector" in error_of([*rlft, "--reflect-temperature", "1"], capsys)
    assert "is for --questions" in error_of(["gen-sft", "--env", "corridor", "--played", "results/x"], capsys)
    Path("own.py").write_text(OWN)
    write_jsonl(Path("episodes.jsonl"), [played(True)])
    hindsight = ["gen-sft", "--env", "own.py:Own", "--questions", "--played", "episodes.jsonl", "--name", "x"]
    assert "give a list of reflectkit.StateQuestion" in error_of(hindsight, capsys)
