"""serve answers decisions: by OpenAI's client, in System One's form, exactly as the policy acts in its environment."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from reflectkit.agents.deciding import Decider
from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.commands.serve import PolicyServer, ServeConfig
from reflectkit.decisions.openai_form import DecisionsRequest
from reflectkit.decisions.questions import Question
from reflectkit.env import Context
from reflectkit.envs import make
from reflectkit.envs.taxi import Taxi
from reflectkit.eventloop import run_sync
from reflectkit.models.load import LoadedModel
from reflectkit.models.refs import ModelRef
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.prompts import label
from reflectkit.sampling.hf import LocalSampler
from reflectkit.types import Observation
from tests.asgi import served
from tests.commands.test_serve import post
from tests.train.training import agent_of, decide_all

TICKET = "I was charged twice. Please help."
REFUND = {"type": "noul", "instructions": "Is this about money?"}
TEAM = {"type": "choice", "instructions": "Which team?", "criteria": {"Billing": "Payments", "Sales": None, "Bugs": ""}}
ANGER = {"type": "score", "instructions": {"scale": "anger"}, "criteria": ["Calm", ["annoyed", "rude"], "Angry"]}


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """An untrained policy whose answers depend on what it reads; its labels from 10 on have several tokens."""
    tokenizer = build_tokenizer([TICKET], [label(index) for index in range(10)], 400)
    return LoadedModel(build_model(tokenizer, 1024, 0, init_range=0.3), tokenizer, "plain")


@contextmanager
def serving(agent: TwoPlayerAgent, **settings: Any) -> Iterator[str]:
    """The address of a server of `agent`."""
    server = PolicyServer(agent, ServeConfig(policy=ModelRef("results/x/rl"), **settings))
    try:
        with served(server.application()) as url:
            yield url
    finally:
        server.thread.close()


@pytest.fixture(scope="module")
def address(model: LoadedModel) -> Iterator[str]:
    with serving(agent_of(model)) as url:
        yield url


def ask(address: str, questions: Any, state: Any = TICKET, **fields: Any) -> dict[str, Any]:
    """The answers in System One's form."""
    body = json.dumps({"model": "jev-latest", "state": state, "questions": questions, **fields}).encode()
    status, text = post(f"{address}/v1/systemone", body)
    assert status == 200, text
    return json.loads(text)["answers"]


def test_openai_s_client_gets_all_three_kinds_of_answers(address: str) -> None:
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="any")
    questions: Any = [
        {"type": "predicate", "instructions": "Is this about money?", "name": "refund"},
        {
            "type": "choice",
            "instructions": "True?",
            "choices": [{"value": "true"}, {"value": True, "description": "!"}],
        },
        {"type": "score", "instructions": "Anger?", "levels": [{"label": "calm"}, {"label": "mad"}], "name": "anger"},
    ]
    decision = client.decisions.create(model="any", input=TICKET, questions=questions)
    refund, choice, anger = decision.answers
    assert refund.type == "predicate"
    assert (refund.name, choice.name, anger.name) == ("refund", None, "anger")
    assert refund.probability == pytest.approx(ask(address, {"q": REFUND})["q"]["noul"], abs=1e-6)
    assert choice.type == "choice"
    assert [entry.value for entry in choice.probabilities] == ["true", True]
    assert sum(entry.probability for entry in choice.probabilities) == pytest.approx(1)
    assert anger.type == "score"
    assert anger.score == pytest.approx(anger.probabilities[1].probability)
    assert [(entry.label, entry.value) for entry in anger.probabilities] == [("calm", 0), ("mad", 1)]
    assert decision.usage.total_tokens == decision.usage.input_tokens > 0


def test_a_conversation_with_calls_is_read_with_its_speakers(model: LoadedModel, tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "1", "name": "refund", "arguments": '{"order": 4471}'}
    said: Any = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": TICKET}, {"type": "input_json", "data": {"a": 1}}]},
        call,
        {"type": "function_call_output", "call_id": "1", "output": "done"},
        {"type": "custom_tool_call", "call_id": "2", "name": "note", "input": "refunded"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "It is refunded."}]},
    ]
    question: Any = [{"type": "predicate", "instructions": "Is it solved?"}]
    with serving(agent_of(model), record=tmp_path / "r.jsonl") as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
        client.decisions.create(model="m", input=said, questions=question)
        client.decisions.create(model="m", input=said[:2], questions=question)
        with pytest.raises(openai.UnprocessableEntityError, match="no call before it has the call_id '1'"):
            client.decisions.create(model="m", input=[*said[:2], *said[3:]], questions=question)
    whole, words = (json.loads(line)["observation"]["messages"][0]["content"] for line in (tmp_path / "r.jsonl").open())
    assert words == f'Be kind.\n{TICKET}\n{{"a": 1}}\nIs it solved?'
    assert whole.splitlines() == [
        "Be kind.",
        "User:",
        f" {TICKET}",
        ' {"a": 1}',
        'Agent: refund {"order": 4471}',
        "Tool refund: done",
        'Agent: note {"input": "refunded"}',
        "Agent: It is refunded.",
        "Is it solved?",
    ]


def test_a_policy_answers_over_http_as_it_acts_in_its_environment(
    policy: LoadedModel, reflector_player: LoadedModel, observations: list[Observation], tmp_path: Path
) -> None:
    env = make("taxi")
    for reflector in (None, reflector_player):
        agent = agent_of(policy, reflector, show=True)
        played = decide_all(agent, observations, [Context(seed, env) for seed in range(len(observations))])
        path = tmp_path / f"{reflector is None}.jsonl"
        with serving(agent_of(policy, reflector), record=path) as url:
            for seen, decision in zip(observations, played, strict=True):
                question = {"type": "choice", "criteria": dict.fromkeys(Taxi.choices)}
                answer = ask(url, {"action": question}, seen.text)["action"]
                assert list(answer["probabilities"]) == list(Taxi.choices)
                assert list(answer["probabilities"].values()) == pytest.approx(decision.probabilities, abs=1e-6)
        for line, decision in zip(map(json.loads, path.open()), played, strict=True):
            kept = line["decision"]
            assert (tuple(kept["prompt_ids"]), kept["reflection"]) == (decision.prompt_ids, decision.reflection)
            assert (kept["version"], sum(kept["probabilities"])) == (0, pytest.approx(1))


def test_a_policy_that_learned_to_choose_refuses_to_write(policy: LoadedModel) -> None:
    """It answered noise."""
    config = ServeConfig(policy=ModelRef("results/x/rl"))
    server = PolicyServer(agent_of(policy), config, chooses=True)
    body = json.dumps({"model": "x", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    try:
        with served(server.application()) as url:
            status, text = post(f"{url}/v1/chat/completions", body)
            assert "probabilities" in ask(url, {"team": TEAM})["team"]
    finally:
        server.thread.close()
    assert status == 400
    assert "results/x/rl learned to choose, and not to write: ask /v1/decisions" in text


def test_an_answer_depends_on_nothing_but_its_state_and_question(address: str) -> None:
    alone = {name: ask(address, {name: each})[name] for name, each in (("a", REFUND), ("b", TEAM), ("c", ANGER))}
    wide = {"type": "choice", "criteria": {f"{number}": None for number in range(30)}}
    together = ask(address, {"wide": wide, "y": ANGER, "b": TEAM, "Ω": REFUND}, trace="x")
    assert together["Ω"]["noul"] == pytest.approx(alone["a"]["noul"], abs=1e-6)
    for one, other in ((together["b"], alone["b"]), (together["y"], alone["c"])):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-6)
    assert together["y"]["legend"] == {"0": "Calm", "1": ["annoyed", "rude"], "2": "Angry"}
    assert together["wide"]["probabilities"] == pytest.approx(ask(address, {"w": wide})["w"]["probabilities"], abs=1e-6)


def test_more_orders_of_the_options_make_their_order_matter_less(model: LoadedModel) -> None:
    names = [f"team {letter}" for letter in "ABCDEFGH"]
    moved = {}
    for count in (1, 2, 16):
        with serving(agent_of(model), option_orders=count) as url:

            def shares(order: list[str], url: str = url) -> dict[str, float]:
                question = {"type": "choice", "instructions": "Which team?", "criteria": dict.fromkeys(order)}
                return ask(url, {"q": question})["q"]["probabilities"]

            given = shares(names)
            reverse, shuffled = shares(names[::-1]), shares(random.Random(1).sample(names, 8))
        assert sum(given.values()) == pytest.approx(1)
        moved[count] = [max(abs(other[name] - given[name]) for name in names) for other in (reverse, shuffled)]
    assert moved[1][0] > 0.05
    assert moved[2][0] < 1e-6  # both ways are read
    assert moved[16][0] < 1e-6
    assert moved[16][1] < moved[1][1] / 2


def test_what_questions_share_is_read_once_whoever_asks_at_the_same_time(model: LoadedModel) -> None:
    read: list[int] = []
    embedding = model.model.get_input_embeddings()
    hook = embedding.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].numel()))
    questions = [Question("predicate", f"Is it {number}?", ("yes", "no")) for number in range(8)]
    context = Context(0, make("taxi"))

    async def answered(*asked: tuple[str, list[Question]]) -> None:
        decider = Decider(agent_of(model))
        await asyncio.gather(*(decider.answer(state, some, context) for state, some in asked))

    states = [" ".join([f"{number} {TICKET}"] * 30) for number in range(3)]
    run_sync(answered((states[0], questions[:1])))
    one = sum(read)
    run_sync(answered(*((state, questions) for state in states)))
    hook.remove()
    assert one > 300
    assert sum(read) - one < 3 * 2 * one


def test_text_answers_that_begin_each_other_are_told_apart(model: LoadedModel) -> None:
    agent = TwoPlayerAgent(LocalSampler(model), answer="text")
    with serving(agent) as url:
        question = {"type": "choice", "criteria": {"go": None, "go on": None, "go on and on": None, "no": None}}
        answer = ask(url, {"q": question})["q"]
        assert sum(answer["probabilities"].values()) == pytest.approx(1)
        assert min(answer["probabilities"].values()) > 0
        alike = {"type": "choice", "criteria": {"go": None, " go": None}}
        probabilities = ask(url, {"q": alike})["q"]["probabilities"]
        assert sum(probabilities.values()) == pytest.approx(1)
        assert min(probabilities.values()) > 0


def of(questions: Any = None, state: Any = "x", **fields: Any) -> bytes:
    body = {"model": "jev-latest", "state": state, "questions": {"q": REFUND} if questions is None else questions}
    return json.dumps(body | fields).encode()


def options(count: int) -> dict[str, Any]:
    return {"q": {"type": "choice", "criteria": {f"option {number}": None for number in range(count)}}}


def conversation(content: Any) -> bytes:
    questions = [{"type": "predicate", "instructions": "?"}]
    body = {"model": "m", "input": [{"role": "user", "content": content}], "questions": questions}
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("body", "status", "place", "reason"),
    [
        (of(options(1)), 422, ["questions", "q", "choice", "criteria"], "at least 2"),
        (of(options(256)), 422, ["questions", "q", "choice", "criteria"], "at most 255"),
        (of({"q": {"type": "choice", "criteria": {"": None, "b": None}}}), 422, None, "at least 1"),
        (of({"q": ANGER | {"criteria": ["only"]}}), 422, ["questions", "q", "score", "criteria"], "at least 2"),
        (of({"q": ANGER | {"criteria": [str(n) for n in range(11)]}}), 422, None, "at most 10"),
        (of({"q": REFUND | {"criteria": {"maybe": "x"}}}), 422, None, "Extra inputs"),
        (of({"q": {"type": "box"}}), 422, ["questions", "q"], "tag"),
        (of({}), 422, ["questions"], "at least 1"),
        (of({str(number): REFUND for number in range(401)}), 422, ["questions"], "at most 400"),
        (of({"": REFUND}), 422, None, "at least 1"),
        (of({"q": {"type": "choice", "criteria": {"a": 1, "b": None}}}), 422, None, "'a' is described by 1, no text"),
        (of({"q": REFUND | {"criteria": dict.fromkeys("abc")}}), 422, None, "at most 2 entries, found 3"),
        (of(state=None), 422, None, "valid string"),
        (of(assets={"a": {"type": "image"}}), 422, ["assets"], "only text"),
        (of(model="other"), 404, None, "ask for results/x/rl or jev-latest"),
        (of(state="ab " * 2000), 422, ["state"], "but the model reads 1,024"),
        (of(state="x" * 4_000_000), 422, ["state"], "but the model reads 1,024 tokens"),
        (of({"q": REFUND | {"instructions": "ab " * 2000}}), 422, ["questions"], "the model reads 1,024"),
        (of({"q": REFUND | {"instructions": "x" * 4_000_000}}), 422, ["questions"], "characters, but the model reads"),
        (of(state="x" * (5 << 20)), 413, None, "at most"),
        (of()[:-1] + b', "x": NaN}', 422, [], "expected value"),
        (of()[:-1] + b', "x": 1e999}', 422, [], "too large"),
        (of()[:-1] + b', "x": "\\ud800"}', 422, [], "hex escape"),
        (of()[:-1] + b', "x": ' + b"[" * 100_000 + b"}", 422, [], "recursion"),
        (of().replace(b'"instructions"', b'"type": "noul", "instructions"'), 422, [], "the key 'type' twice"),
        (b"\xff", 422, [], ""),
        (b"", 422, [], ""),
    ],
)
def test_what_cannot_be_answered_is_refused_with_its_place(
    address: str, body: bytes, status: int, place: list[str] | None, reason: str
) -> None:
    code, text = post(f"{address}/v1/systemone", body)
    answer = json.loads(text)
    assert (code, reason in answer["error"]["message"]) == (status, True), text[:500]
    if status == 422:
        assert {*answer["detail"][0]} == {"loc", "msg", "type"}
        assert place is None or answer["detail"][0]["loc"] == ["body", *place]
    else:
        assert {*answer["detail"]} == {"error_type", "message"}


def test_a_chat_that_cannot_fit_is_refused_before_it_is_encoded(address: str) -> None:
    messages = [{"role": "user", "content": "x" * 4_000_000}]
    code, text = post(f"{address}/v1/chat/completions", json.dumps({"model": "m", "messages": messages}).encode())
    error = json.loads(text)["error"]
    assert (code, error["code"]) == (400, "context_length_exceeded")
    assert "4,000,000 characters, but the model reads 1,024 tokens" in error["message"]


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ({"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": "a"}]}, "'a' is there twice"),
        ({"type": "choice", "instructions": "?", "choices": [{"value": True}, {"value": True}]}, "True is there twice"),
        ({"type": "choice", "instructions": "?", "choices": [{"value": 1}, {"value": 2}]}, "valid string"),
        ({"type": "predicate", "instructions": [{"type": "input_image", "image_url": "x"}]}, "input_text"),
        ({"type": "predicate"}, "Field required"),
    ],
)
def test_openai_s_form_is_checked_too(address: str, question: Any, reason: str) -> None:
    body = json.dumps({"model": "m", "input": "x", "questions": [question]}).encode()
    code, text = post(f"{address}/v1/decisions", body)
    assert (code, reason in text) == (422, True), text[:500]


@pytest.mark.parametrize(
    ("item", "place"),
    [
        ({"role": "tool", "content": "x"}, "input.0.role: "),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "input.0.content.0.type: "),
        ({"type": "function_call", "call_id": "a", "name": "look"}, "input.0.arguments: Field required"),
    ],
)
def test_the_message_names_the_item_that_is_wrong(address: str, item: Any, place: str) -> None:
    body = json.dumps({"model": "m", "input": [item], "questions": [{"type": "predicate", "instructions": "?"}]})
    code, text = post(f"{address}/v1/decisions", body.encode())
    assert code == 422
    assert json.loads(text)["error"]["message"].startswith(place)


def test_a_body_full_of_errors_is_read_to_the_first_of_a_list(address: str) -> None:
    body = b'{"model": "m", "questions": [], "input": [' + b"0, " * 9999 + b"0]}"
    code, text = post(f"{address}/v1/decisions", body)
    detail = json.loads(text)["detail"]
    assert (code, [fault["loc"] for fault in detail if 1 in fault["loc"]]) == (422, [])


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("systemone", of({"q": {"type": "choice", "criteria": {str(number): 1 for number in range(300)}}})),
        ("systemone", of({"q": {"type": "choice", "criteria": {str(number): 1 for number in range(200)}}})),
        ("systemone", of({str(number): 1 for number in range(500)})),
        ("systemone", of({"q": REFUND | {"criteria": {str(number): 1 for number in range(300)}}})),
        ("decisions", conversation([{"type": "input_json", "data": [1] * 300}])),
    ],
)
def test_a_body_full_of_wrong_values_is_refused_with_one_reason(address: str, route: str, body: bytes) -> None:
    code, text = post(f"{address}/v1/{route}", body)
    places = [place for entry in json.loads(text)["detail"] for place in entry["loc"]]
    assert (code, {3, "3"} & {*places}) == (422, set()), text[:500]


def test_a_refusal_quotes_little_of_what_was_sent(address: str) -> None:
    code, text = post(f"{address}/v1/systemone", of({"q": {"type": "x" * 100_000}}))
    assert (code, len(text) < 5000) == (422, True)


def named_questions(*names: str | None) -> bytes:
    questions = [{"type": "predicate", "instructions": "?", "name": name} for name in names]
    return json.dumps({"model": "m", "input": "x", "questions": questions}).encode()


def test_questions_of_one_name_are_refused_as_outcomes_could_not_tell_them_apart(address: str) -> None:
    code, text = post(f"{address}/v1/decisions", named_questions("team", "team"))
    assert (code, "two are named 'team'" in text) == (422, True), text[:500]


def test_a_question_without_a_name_has_one_that_no_other_has(address: str) -> None:
    assert post(f"{address}/v1/decisions", named_questions("1", None, "1_", None))[0] == 200
    request = DecisionsRequest.model_validate_json(named_questions("1", None, "1_", None))
    assert [name for name, _ in request.named_questions] == ["1", "1__", "1_", "3"]


@pytest.mark.parametrize(
    ("path", "question"),
    [
        ("systemone", {"type": "choice", "criteria": {"a": "b", "a: b": None}}),
        ("systemone", {"type": "score", "criteria": ["bad", "good", "bad"]}),
        ("decisions", {"type": "choice", "choices": [{"value": True}, {"value": "true"}]}),
        ("decisions", {"type": "score", "levels": [{"label": "bad"}, {"label": "bad"}]}),
    ],
)
def test_options_that_read_the_same_are_refused(address: str, path: str, question: dict[str, Any]) -> None:
    if path == "systemone":
        body = of({"q": question})
    else:
        body = json.dumps({"model": "m", "input": "x", "questions": [question | {"instructions": "?"}]}).encode()
    code, text = post(f"{address}/v1/{path}", body)
    assert (code, "two options read" in text) == (422, True), text[:500]


def test_a_body_of_many_keys_is_refused_at_once(address: str) -> None:
    """Comparing each key with all others would take the server hours."""
    state = ", ".join(f'"{number}": 0' for number in [*range(300_000), 299_999])
    body = f'{{"model": "jev-latest", "state": {{{state}}}, "questions": {{"q": {{"type": "noul"}}}}}}'
    code, text = post(f"{address}/v1/systemone", body.encode())
    assert (code, "has the key '299999' twice" in text) == (422, True), text[:500]


@pytest.mark.parametrize("state", ["", {}, [], {"a": [1, None, "é"]}])
def test_any_state_is_read_also_an_empty_one(address: str, state: Any) -> None:
    assert 0 < ask(address, {"q": REFUND}, state)["q"]["noul"] < 1


def test_255_options_with_labels_of_several_tokens(address: str) -> None:
    criteria = {f"{number}": None for number in range(100)}
    shares = ask(address, {"q": {"type": "choice", "criteria": criteria}})["q"]["probabilities"]
    assert list(shares) == list(criteria)
    assert sum(shares.values()) == pytest.approx(1)


def test_a_long_state_keeps_no_memory(address: str) -> None:
    def refuse(number: int) -> None:
        assert post(f"{address}/v1/systemone", of(state=f"{number}" + "ab " * 1_000_000))[0] == 422

    refuse(0)
    tracemalloc.start()
    try:
        for number in range(1, 5):
            refuse(number)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 6_000_000  # two of the states
    finally:
        tracemalloc.stop()


def test_compressed_bodies_and_other_sites_are_refused(address: str) -> None:
    url = f"{address}/v1/systemone"
    assert post(url, of(), **{"Content-Encoding": "zstd"})[0] == 415
    assert post(url, of(), Origin="https://evil.example")[0] == 403
    assert post(url, of(), Host="evil.example")[0] == 400
    assert post(f"{address}/v1/system1", of())[0] == 404


def test_a_reflector_is_asked_once_about_the_state(model: LoadedModel, reflector_player: LoadedModel) -> None:
    asked: list[str] = []

    class Listening(Reflector):
        async def remark(self, observation: Observation, context: Context) -> str:
            asked.append(observation.text)
            return "It is about money."

    agent = TwoPlayerAgent(LocalSampler(model), Listening(LocalSampler(reflector_player)))
    with serving(agent) as url:
        answers = ask(url, {"a": REFUND, "b": TEAM})
    with serving(agent_of(model)) as url:
        commented = f"{TICKET}\nReflection: It is about money."
        assert answers["a"]["noul"] == pytest.approx(ask(url, {"a": REFUND}, commented)["a"]["noul"], abs=1e-6)
    assert asked == [TICKET]
