"""Decision models as players: what they are asked, what is read from their replies, and what a bad reply costs."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import reflectkit
from reflectkit.agents.decision_players import DecisionModel, DecisionPolicy, DecisionReflector, options_of
from reflectkit.agents.player_refs import parse_policy
from reflectkit.agents.two_player import ShuffledComments, TwoPlayerAgent
from reflectkit.chat.client import client_at
from reflectkit.chat.config import ChatConfig, Endpoint
from reflectkit.cli.main import main
from reflectkit.data.episodes import read_episodes
from reflectkit.decisions import systemone
from reflectkit.env import Context
from reflectkit.envs import make
from reflectkit.envs.taxi import Taxi
from reflectkit.errors import ConfigError, ReflectkitError
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import read_json
from reflectkit.models.load import LoadedModel
from reflectkit.sampling.hf import LocalSampler
from reflectkit.types import Message, Observation, StateQuestion
from tests.commands.test_serve import post
from tests.commands.test_serve_decisions import REFUND, TEAM, ask, serving
from tests.server import Server, serve
from tests.train.training import agent_of, decide_all

FORMS = ("decisions", "systemone")
Reply = Callable[[list[str]], dict[str, float]]


def options_in(body: dict[str, Any]) -> list[str]:
    """The options of the one question of a request in either form."""
    if "state" in body:
        (question,) = body["questions"].values()
        return list(question["criteria"])
    return [choice["value"] for choice in body["questions"][0]["choices"]]


def reply(body: dict[str, Any], shares: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A reply with these probabilities, in the form of the request."""
    usage = {"input_tokens": 100, "output_tokens": 0}
    if "state" in body:
        (name,) = body["questions"]
        answer = {"type": "choice", "choice": max(shares, key=str), "probabilities": shares, "confidence": 0.5}
        return {"model": body["model"], "answers": {name: answer | fields}, "usage": usage}
    entries = [{"value": value, "probability": share} for value, share in shares.items()]
    answer = {"type": "choice", "name": None, "choice": "x", "probabilities": entries, "confidence": 0.5}
    return {"model": body["model"], "answers": [answer | fields], "usage": usage}


def favours(options: list[str], favourite: str = "right") -> dict[str, float]:
    """0.7 for the favourite, and the rest for the others."""
    return {option: 0.7 if option == favourite else 0.3 / (len(options) - 1) for option in options}


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(lambda body: "") as opened:
        opened.respond = lambda body: reply(body, favours(options_in(body)))
        yield opened


def evaluate(server: Server, form: str, *more: str, code: int = 0) -> Path:
    """Play the short corridor, whose oracle always goes right: → the run's folder."""
    command = ["evaluate", "--env", "corridor", "--level", "short", "--policy", f"M={form}:m", "--name", "run"]
    assert main([*command, "--base-url", server.url, *more]) == code
    return Path("results/run")


@pytest.mark.parametrize("form", FORMS)
def test_it_plays_with_its_probabilities_and_is_paid_once(
    form: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY" if form == "decisions" else "TYPESAFE_API_KEY", "s3cret-key")
    more = ["--price-in", "10", "--price-out", "0", "--score-oracle"]
    folder = evaluate(server, form, *more)
    first = server.requests[0]
    assert {*server.authorization} == {"Bearer s3cret-key"}
    assert first["model"] == "m"
    assert "Choose the next action." in json.dumps(first["questions"])
    row = read_json(folder / "eval.json")["rows"][0]
    assert row["success"] == 1.0
    assert row["figures"]["agreement"]["mean"] == 1.0
    assert row["figures"]["choice_nll"]["mean"] == pytest.approx(-math.log(0.7))
    assert row["figures"]["choice_brier"]["mean"] == pytest.approx(2 * 0.3**2)
    (asked,) = read_json(folder / "eval.json")["asked"].values()
    assert asked["calls"] == len(server.requests)
    assert asked["usd"] == pytest.approx(len(server.requests) * 100 * 10 / 1e6)
    sent = len(server.requests)
    evaluate(server, form, *more, "--force")
    assert len(server.requests) == sent  # the journal answers


@pytest.mark.parametrize("form", FORMS)
def test_plain_questions_have_no_instructions(form: str, server: Server) -> None:
    evaluate(server, form, "--plain-questions")
    assert not any("Choose" in json.dumps(body) for body in server.requests)


def refused(body: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "answers": [{"type": "refusal", "name": None}], "usage": {"input_tokens": 5}}


def test_a_refusal_is_asked_once_more_in_another_order(server: Server) -> None:
    def respond(body: dict[str, Any]) -> dict[str, Any]:
        options = options_in(body)
        return refused(body) if options[0] == "left" else reply(body, favours(options))

    server.respond = respond
    folder = evaluate(server, "decisions")
    assert read_json(folder / "eval.json")["rows"][0]["success"] == 1.0
    assert sorted({tuple(options_in(body)) for body in server.requests}) == [("left", "right"), ("right", "left")]


BAD: list[Callable[[dict[str, Any]], Any]] = [
    lambda body: reply(body, dict.fromkeys(options_in(body), math.nan)),
    lambda body: reply(body, dict.fromkeys(options_in(body), 0.9)),
    lambda body: reply(body, dict.fromkeys(options_in(body), True)),
    lambda body: reply(body, dict.fromkeys(options_in(body), "0.5")),
    lambda body: reply(body, {"left": 1.5, "right": -0.5}),
    lambda body: reply(body, {"left": 10**400, "right": 0}),
    lambda body: reply(body, {"left": 1.0}),
    lambda body: reply(body, {"left": 0.4, "right": 0.4, "up": 0.2}),
    lambda body: reply(body, favours(options_in(body)), type="score"),
    lambda body: reply(body, favours(options_in(body)), probabilities=None),
    lambda body: {"answers": {}} if "state" in body else {"answers": []},
    lambda body: {"answers": {"other": {}}} if "state" in body else {"answers": [{}, {}]},
    lambda body: {"answers": 3},
    lambda body: {"hello": 1},
    lambda body: [],
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_reply_is_a_counted_failure(
    form: str, bad: Any, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.respond = bad
    evaluate(server, form, "--problems", "1", code=2)
    assert len(server.requests) == 2
    assert "every episode of M was aborted (1)" in capsys.readouterr().err


def test_a_reply_with_one_option_twice_is_a_counted_failure(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    answer = b'{"type": "choice", "probabilities": {"left": 0.9, "left": 0.5, "right": 0.5}}'
    server.faults = [("raw", b'{"answers": {"action": ' + answer + b"}}")] * 2
    evaluate(server, "systemone", "--problems", "1", code=2)
    assert "the key 'left' twice" in capsys.readouterr().err


@pytest.mark.parametrize("form", FORMS)
def test_what_an_error_costs_is_paid(form: str, server: Server) -> None:
    bill = {"error": {"message": "busy"}, "usage": {"input_tokens": 70, "output_tokens": 0}}
    server.faults = [("sent", 503, {"Retry-After": "0"}, json.dumps(bill).encode())]
    folder = evaluate(server, form, "--problems", "1", "--price-in", "1000", "--price-out", "0")
    (asked,) = read_json(folder / "eval.json")["asked"].values()
    assert asked["usd"] == pytest.approx((len(server.requests) - 1) * 0.1 + 0.07)


def test_refusals_in_every_order_abort_the_episode(server: Server) -> None:
    states = []

    def respond(body: dict[str, Any]) -> dict[str, Any]:
        states.append(body["input"])
        return refused(body) if states[0] == body["input"] else reply(body, favours(options_in(body)))

    server.respond = respond
    folder = evaluate(server, "decisions", "--max-concurrency", "1")
    row = read_json(folder / "eval.json")["rows"][0]
    assert row["aborted"] >= 1
    episodes = read_episodes(folder / "episodes.jsonl")
    assert any("the model refused" in str(episode.reason) for episode in episodes if episode.status == "aborted")


def test_a_server_is_retried_and_a_key_is_not_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TYPESAFE_API_KEY", "s3cret-key-of-nine")
    server.faults = [("status", 401, {}, {"message": "bad key s3cret-key-of-nine"})]
    evaluate(server, "systemone", "--problems", "1", code=2)
    shown = capsys.readouterr()
    server.faults = [("status", 503, {"Retry-After": "0"}, {"message": "busy"})]
    evaluate(server, "systemone", "--problems", "1")
    assert "does not accept the key in TYPESAFE_API_KEY" in shown.err
    assert "s3cret-key-of-nine" not in shown.err + shown.out


def test_a_dry_run_asks_nothing_and_needs_no_key(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TYPESAFE_API_KEY", raising=False)
    command = ["--env", "corridor", "--level", "short", "--price-in", "1", "--price-out", "0"]
    assert main(["evaluate", *command, "--policy", "systemone:jev-latest", "--dry-run"]) == 0
    assert main(["gen-trajectory", *command, "--actor", "systemone:jev-latest", "--dry-run"]) == 0
    assert main(["play", *command, "--policy", "systemone:jev-latest", "--dry-run", "--auto"]) == 0
    assert capsys.readouterr().out.count("likely below") == 3
    assert main(["evaluate", *command, "--policy", "systemone:jev-latest"]) == 2
    assert "export TYPESAFE_API_KEY" in capsys.readouterr().err


def test_a_budget_stops_it(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--price-in", "1000", "--price-out", "0", "--max-cost-usd", "0.3", "--concurrency", "1"]
    evaluate(server, "systemone", *more, code=2)
    assert "stopped at the budget" in capsys.readouterr().err
    assert len(server.requests) <= 4


def test_it_acts_for_demonstrations_which_keep_its_probabilities(server: Server) -> None:
    command = ["gen-trajectory", "--env", "corridor", "--level", "short", "--actor", "systemone:m"]
    assert main([*command, "--base-url", server.url, "--data-dir", "d"]) == 0
    records = read_json(Path("d/corridor/data_reflection_negative.json"))
    steps = [step for record in records for item in record["trajectories"] for step in item["trajectory"]]
    assert {step["cmd"] for step in steps} == {"right"}
    assert all(step["probabilities"] == pytest.approx([0.3, 0.7]) for step in steps)
    assert all(step["reflection"] for step in steps)
    assert {item["model_name"] for record in records for item in record["trajectories"]} == {"m"}


def test_it_comments_for_a_policy(server: Server, corridor_folder: Path) -> None:
    command = ["evaluate", "--env", "corridor", "--level", "short", "--base-url", server.url, "--name", "c"]
    assert main([*command, "--policy", f"A={corridor_folder / 'policy'}+systemone:m", "--results-dir", "r"]) == 0
    episodes = read_episodes(Path("r/c/episodes.jsonl"))
    comments = {turn.reflection for episode in episodes for turn in episode.turns}
    assert comments == {"likely: right 0.70, left 0.30"}


def test_a_policy_that_it_comments_for_predicts_success(server: Server, corridor_folder: Path) -> None:
    """The question about success has options of its own, which the reflector reads."""
    server.respond = lambda body: reply(body, favours(options_in(body), options_in(body)[-1]))
    command = ["evaluate", "--env", "corridor", "--level", "short", "--base-url", server.url, "--results-dir", "r"]
    policy = f"A={corridor_folder / 'policy'}+systemone:m"
    assert main([*command, "--policy", policy, "--name", "c", "--predict-success"]) == 0
    assert {"yes", "no"} in [set(options_in(body)) for body in server.requests]


def test_it_chooses_among_255_actions_at_most_and_acts_alone() -> None:
    endpoint, seen = Endpoint("systemone", "m"), (Message("user", "x"),)
    most = tuple(f"go {number}" for number in range(255))
    assert options_of(Observation(seen, most), endpoint) == most
    assert options_of(Observation(seen, ("go", "go", "")), endpoint) == ("0 go", "1 go", "2 ")
    with pytest.raises(ConfigError, match="at most 255 actions, and a state has 256"):
        options_of(Observation(seen, (*most, "stay")), endpoint)
    with pytest.raises(ConfigError, match="chooses from a list of actions and writes nothing"):
        options_of(Observation(seen), endpoint)
    for text in ("decisions:x+openai:y", "A=decisions:x+systemone:y", "A=openai:x+decisions:y"):
        with pytest.raises(ConfigError):
            parse_policy(text)
    assert parse_policy("A=decisions:x").decides
    assert not parse_policy("A=openai:x").decides


@pytest.fixture
def asked(server: Server, tmp_path: Path) -> Iterator[Callable[..., DecisionModel]]:
    """Opens a decision model at an address, by default the server's."""
    with contextlib.ExitStack() as stack:

        def opened(form: str, url: str = server.url) -> DecisionModel:
            chat = ChatConfig(base_url=url)
            client = client_at(chat, Endpoint(form, "jev-latest", url), tmp_path / f"{form}.jsonl", temperature=0.0)
            return DecisionModel(stack.enter_context(client), rules=False)

        yield opened


@pytest.mark.parametrize("form", FORMS)
def test_a_policy_that_is_served_answers_as_it_does_here(
    form: str, asked: Any, policy: LoadedModel, observations: list[Observation]
) -> None:
    env = make("taxi")
    here = decide_all(agent_of(policy, show=True), observations, [Context(0, env)] * len(observations))
    with serving(agent_of(policy)) as url:
        player = DecisionPolicy(asked(form, f"{url}/v1"))
        there = decide_all(player, observations, [Context(0, env)] * len(observations))
    for one, other in zip(here, there, strict=True):
        assert other.probabilities == pytest.approx(one.probabilities, abs=1e-6)
        assert other.entropy == pytest.approx(one.entropy, abs=1e-5)
        assert other.probabilities[other.action] == max(other.probabilities)  # type: ignore[index]


def test_actions_are_drawn_at_the_temperature(asked: Any) -> None:
    seen, env = Observation((Message("user", "x"),), ("left", "right")), make("corridor")
    model = asked("systemone")
    for temperature, expected in ((0.0, 1.0), (1.0, 0.7), (0.5, 0.49 / 0.58)):
        contexts = [Context(seed, env) for seed in range(400)]
        drawn = decide_all(DecisionPolicy(model, temperature), [seen] * 400, contexts)
        assert sum(decision.action == 1 for decision in drawn) / 400 == pytest.approx(expected, abs=0.08)


def test_where_there_is_one_action_nothing_is_asked(server: Server, asked: Any) -> None:
    seen, context = Observation((Message("user", "x"),), ("wait",)), Context(0, make("corridor"))
    model = asked("systemone")
    assert run_sync(DecisionReflector(model).remark(seen, context)) == "likely: wait 1.00"
    assert run_sync(DecisionPolicy(model).decide(seen, context)).probabilities == (1.0,)
    assert not server.requests


@pytest.mark.parametrize("form", FORMS)
def test_a_reflector_answers_what_the_env_declares_in_one_request(form: str, server: Server, asked: Any) -> None:
    env = make("taxi")
    seen: Any = env.reset(Taxi.taskset.tasks("dropoff")[0], 0)

    def respond(body: dict[str, Any]) -> dict[str, Any]:
        likely = reply({**body, "questions": one_of(body, 0)}, favours(list(seen.choices), "north"))
        success = reply({**body, "questions": one_of(body, 1)}, {"yes": 0.75, "no": 0.25})
        steps = reply({**body, "questions": one_of(body, 2)}, favours(list(env.questions()[2].options), "4 to 7"))
        parts = [part["answers"] for part in (likely, success, steps)]
        answers = parts[0] | parts[1] | parts[2] if "state" in body else [*parts[0], *parts[1], *parts[2]]
        return likely | {"answers": answers}

    server.respond = respond
    comment = run_sync(DecisionReflector(asked(form)).remark(seen, Context(0, env)))
    assert comment.startswith("likely: north 0.70, ")
    assert "; success: 0.75; steps left: 4 to 7 0.70, " in comment
    assert list(comment.answers) == ["likely", "success", "steps left"]
    assert comment.answers["success"] == (0.75, 0.25)
    assert len(server.requests) == 1


def one_of(body: dict[str, Any], number: int) -> Any:
    """The one question of a request that has this number."""
    questions = body["questions"]
    return [questions[number]] if isinstance(questions, list) else dict([list(questions.items())[number]])


@pytest.mark.parametrize("form", FORMS)
def test_halves_of_surrogate_pairs_are_sent_as_question_marks(form: str, server: Server, asked: Any) -> None:
    seen = Observation((Message("user", "x \udc00"),), ("\ud800", "\ud801", "right"))
    server.respond = lambda body: reply(body, favours(options_in(body), "2 right"))
    decision = run_sync(DecisionPolicy(asked(form)).decide(seen, Context(0, make("corridor"))))
    (body,) = server.requests
    assert (decision.action, options_in(body)) == (2, ["0 ?", "1 ?", "2 right"])
    assert "x ?" in body.values()


def test_a_question_of_the_env_may_have_any_name() -> None:
    more = [StateQuestion("action", "Which door?", ("a", "b", "c")), StateQuestion("action_", "Near?", ("yes", "no"))]
    questions = systemone.request_body("x", "", ["left", "right"], more)["questions"]
    answers = {}
    for name, question in questions.items():
        shares = dict.fromkeys(question["criteria"], 1 / len(question["criteria"]))
        answers[name] = {"type": "choice", "probabilities": shares}
    rows = systemone.read_probabilities(answers, ["left", "right"], more)
    assert [len(row) for row in rows] == [2, 3, 2]


def test_serve_passes_questions_on(server: Server, asked: Any) -> None:
    with serving(DecisionPolicy(asked("decisions"))) as url:  # type: ignore[arg-type]
        server.respond = lambda body: reply(body, favours(options_in(body), options_in(body)[0]))
        assert ask(url, {"a": REFUND, "b": TEAM}, "A state.")["a"]["noul"] == pytest.approx(0.7)
        inputs = sorted(body["input"] for body in server.requests)
        assert inputs == ["A state.\nIs this about money?", "A state.\nWhich team?"]
        chat = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).encode()
        status, text = post(f"{url}/v1/chat/completions", chat)
        assert (status, "chooses from a list of actions" in text) == (400, True)
        server.respond = lambda body: reply(body, dict.fromkeys(options_in(body), 0.9))
        body = json.dumps({"model": "jev-latest", "state": "Another.", "questions": {"a": REFUND}}).encode()
        status, text = post(f"{url}/v1/systemone", body)
        assert (status, "add up to 1.8" in text) == (503, True)


@pytest.mark.parametrize("swapped", [False, True])
def test_it_comments_on_the_questions_of_a_server(
    swapped: bool, server: Server, asked: Any, policy: LoadedModel
) -> None:
    server.respond = lambda body: reply(body, favours(options_in(body), options_in(body)[0]))
    reflector: Any = DecisionReflector(asked("systemone"))
    if swapped:  # in no turn here
        reflector = ShuffledComments(reflector, [("Elsewhere", "Stay.")], 0.0)
    agent = TwoPlayerAgent(LocalSampler(policy), reflector)
    with serving(agent) as url:
        answers = ask(url, {"a": REFUND, "b": TEAM}, "A state.")
    with serving(agent_of(policy)) as url:
        commented = "A state.\nReflection: likely: 0.70"
        assert answers["a"]["noul"] == pytest.approx(ask(url, {"a": REFUND}, commented)["a"]["noul"], abs=1e-6)
    assert sorted(map(options_in, server.requests)) == [["Billing: Payments", "Sales", "Bugs"], ["yes", "no"]]


def test_a_server_asks_again_what_got_no_usable_answer(server: Server, asked: Any) -> None:
    model = asked("systemone")
    model.client.forgets_unusable = True
    body = json.dumps({"model": "jev-latest", "state": "A state.", "questions": {"a": REFUND}}).encode()
    with serving(DecisionPolicy(model)) as url:  # type: ignore[arg-type]
        server.respond = lambda body: reply(body, dict.fromkeys(options_in(body), 0.9))
        for _ in range(2):
            status, text = post(f"{url}/v1/systemone", body)
            assert (status, "add up to 1.8" in text, ".jsonl" in text) == (503, True, False)
        server.respond = lambda body: reply(body, favours(options_in(body), options_in(body)[0]))
        assert ask(url, {"a": REFUND}, "A state.")["a"]["noul"] == pytest.approx(0.7)
    # Two bad answers in two orders each, and a good one
    assert model.client.prompt_tokens == 100 * len(server.requests) == 500


def test_an_agent_in_a_program_and_play_use_it_too(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with reflectkit.load_agent("systemone:m", base_url=server.url) as agent:
        act = agent.act("Where?", ["left", "right"])
        assert (act.action, act.probabilities) == ("right", pytest.approx((0.3, 0.7)))
        server.respond = lambda body: reply(body, dict.fromkeys(options_in(body), 0.9))
        with pytest.raises(ReflectkitError, match="add up to"):
            agent.act("And here?", ["left", "right"])
        server.respond = lambda body: reply(body, favours(options_in(body)))
        assert agent.act("And here?", ["left", "right"]).action == "right"
    command = ["play", "--env", "corridor", "--level", "short", "--policy", "systemone:m", "--auto"]
    assert main([*command, "--base-url", server.url]) == 0
    assert "Policy: 70 % right, 30 % left" in capsys.readouterr().out
