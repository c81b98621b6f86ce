"""The client against a real server that fails in every way; the journal; the budget; and that no key gets out."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reflectkit.chat.client import Budget, ChatClient, Request, open_client
from reflectkit.chat.config import ApiError, Endpoint, NoAccessError, Prices, parse_endpoint
from reflectkit.chat.journal import ChatAnswer, open_journal
from reflectkit.errors import ConfigError, ReflectkitError
from reflectkit.eventloop import run_sync
from reflectkit.keys import masked
from reflectkit.types import Message
from tests.server import Server, completion, serve

KEY = "sk-very-secret-key-0123456789"
PRICES = Prices(1.0, 2.0)  # a call of the fake server: (100 * 1 + 20 * 2) / 1e6 dollars
CALL_USD = 140e-6


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(lambda body: f"echo {body['messages'][-1]['content']}") as running:
        yield running


def requests(count: int = 1, prefix: str = "item") -> list[Request]:
    return [Request(f"{prefix}{i}", (Message("user", f"{prefix}{i}"),), 50) for i in range(count)]


def together(*coroutines: Any, return_exceptions: bool = False) -> list[Any]:
    """What the coroutines return side by side."""

    async def gathered() -> list[Any]:
        return await asyncio.gather(*coroutines, return_exceptions=return_exceptions)

    return run_sync(gathered())


def ask(
    server: Server, folder: Path, wanted: list[Request], parse: Any = lambda _, text: text, **settings: Any
) -> tuple[list[Any], ChatClient]:
    with open_client(Endpoint("local", "m", server.url), folder / "journal.jsonl", PRICES, **settings) as client:
        return run_sync(client.ask_all(wanted, parse)), client


QUICK = {"retry-after-ms": "1"}
BOMB = gzip.compress(gzip.compress(bytes(2**20)))


@pytest.mark.parametrize(
    "fault",
    [
        ("status", 429, QUICK, {"message": "slow down"}),
        ("status", 500, QUICK | {"Content-Type": "application/json; charset=rot13"}, {"message": "oops"}),
        ("drip",),
        ("sent", 503, QUICK | {"Content-Encoding": "gzip, gzip"}, BOMB),
        ("endless", 500, QUICK),
    ],
    ids=lambda fault: f"{fault[0]} {fault[1]}"[:20] if len(fault) > 1 else fault[0],
)
def test_passing_faults_are_retried(server: Server, tmp_path: Path, fault: Any) -> None:
    server.faults = [fault]
    outcomes, client = ask(server, tmp_path, requests(), timeout_s=2)
    assert outcomes[0].value == "echo item0"
    assert len(server.requests) == 2
    assert client.calls == 1
    assert server.sent_mib < 100


def test_a_server_that_never_finishes_an_answer_does_not_hold_the_run(server: Server, tmp_path: Path) -> None:
    server.faults = [("drip",)] * 9
    with pytest.raises(ApiError, match=r"local:m does not answer within 0\.2 s; raise --timeout-s"):
        ask(server, tmp_path, requests(), timeout_s=0.2)
    assert len(server.requests) == 3


DOWN = [("status", 500, QUICK, {"message": "oops"})] * 7


@pytest.mark.parametrize(
    "fault",
    [
        ("json", completion(None)),
        ("json", completion("half an ans", "length")),
        ("json", completion("not a number")),
    ],
    ids=["null", "length", "unparsed"],
)
def test_useless_answers_are_asked_for_twice_more_and_then_set_aside(
    server: Server, tmp_path: Path, fault: Any
) -> None:
    def parse(_: int, text: str) -> str:
        if text == "not a number":
            raise ValueError(text)
        return text

    server.faults = [fault] * 2
    outcomes, _ = ask(server, tmp_path, requests(), parse)
    assert outcomes[0].value == "echo item0", "the third answer is good"
    server.faults = [fault] * 3
    outcomes, _ = ask(server, tmp_path, [*requests(1, "other"), *requests(1, "fine")], parse, concurrency=1)
    assert outcomes[0].value is None
    assert outcomes[0].rejected.name == "other0"
    assert outcomes[0].rejected.reason
    assert outcomes[1].value == "echo fine0", "the run goes on"


BILL = {"prompt_tokens": 100, "completion_tokens": 20}
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "fine"}}


def with_bill(**fields: Any) -> bytes:
    return json.dumps({"usage": BILL, **fields}).encode()


@pytest.mark.parametrize(
    "body",
    [
        with_bill(choices={"a": 1}),
        with_bill(choices=[{"message": ["x"]}]),
        with_bill(choices=[{"message": {"content": "x" * 60_000}}]),
        with_bill(choices=[CHOICE]).replace(b"fine", b"\xff\xfe"),
    ],
)
def test_a_malformed_answer_costs_one_try_and_is_paid_once(server: Server, tmp_path: Path, body: bytes) -> None:
    server.faults = [("raw", body)] * 3
    wanted = [*requests(), *requests(1, "fine")]
    outcomes, client = ask(server, tmp_path, wanted, concurrency=1, max_answer_tokens=50)
    assert outcomes[0].rejected.reason.startswith("the ")
    assert outcomes[1].value == "echo fine0"
    assert client.cost_usd == client.budget.paid == pytest.approx(4 * CALL_USD)
    again, client = ask(server, tmp_path, wanted, max_answer_tokens=50)
    assert again == outcomes
    assert (len(server.requests), client.replayed) == (4, 4)
    assert client.budget.paid == pytest.approx(4 * CALL_USD)


@pytest.mark.parametrize(
    "fault",
    [*[("raw", body) for body in (b"<html>busy</html>", b"[" * 100_000, b"\xff\xfe")], ("endless", 200, {})],
    ids=["html", "nested", "not text", "endless"],
)
def test_a_body_that_is_no_answer_costs_one_try_and_what_it_may_have_cost(
    server: Server, tmp_path: Path, fault: Any
) -> None:
    server.faults = [fault] * 2
    outcomes, client = ask(server, tmp_path, requests(), max_answer_tokens=50)
    assert outcomes[0].value == "echo item0"
    assert client.calls == 3
    assert server.sent_mib < 200
    read = 2 * requests()[0].prompt_tokens + 100
    assert client.prompt_tokens == read
    assert client.completion_tokens <= 2 * 50 + 20
    assert client.budget.paid == pytest.approx(PRICES.cost(read, client.completion_tokens))


def test_a_killed_journal_keeps_its_whole_lines(server: Server, tmp_path: Path) -> None:
    ask(server, tmp_path, requests(3))
    path = tmp_path / "journal.jsonl"
    whole = path.read_bytes()
    for cut in (1, 20, len(whole.splitlines(keepends=True)[-1]) - 1):
        path.write_bytes(whole[:-cut])
        before = len(server.requests)
        outcomes, client = ask(server, tmp_path, requests(3))
        assert [outcome.value for outcome in outcomes] == ["echo item0", "echo item1", "echo item2"]
        assert len(server.requests) == before + 1
        assert client.journal.damaged == 0
        assert all(json.loads(line) for line in path.read_text().splitlines())


def test_half_a_surrogate_pair_is_sent_as_a_question_mark(server: Server, tmp_path: Path) -> None:
    answers, _ = ask(server, tmp_path, requests(prefix="\ud800"))
    assert [answer.value for answer in answers] == ["echo ?0"]


def test_two_processes_do_not_write_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with open_journal(path), pytest.raises(ConfigError, match="another process"), open_journal(path):
        pass


def test_the_budget_is_never_passed_and_the_rest_is_left(server: Server, tmp_path: Path) -> None:
    """Each call may cost up to 50 written tokens at 2 dollars a million and its prompt: about 108e-6 dollars reserved,
    140e-6 billed.
    """
    limits: dict[str, Any] = {"budget": Budget(10 * CALL_USD), "concurrency": 4, "max_answer_tokens": 50}
    outcomes, client = ask(server, tmp_path, requests(40), **limits)
    assert client.stopped
    answered = sum(outcome.value is not None for outcome in outcomes)
    assert 6 <= answered <= 10
    assert client.cost_usd <= 10 * CALL_USD
    assert all(outcome.rejected is None for outcome in outcomes)
    made = len(server.requests)
    outcomes, client = ask(server, tmp_path, requests(40), **limits | {"budget": Budget(10 * CALL_USD)})
    assert len(server.requests) == made, "what the journal paid for counts"
    outcomes, client = ask(server, tmp_path, requests(40), budget=Budget(1.0), max_answer_tokens=50)
    assert len(server.requests) == 40
    assert all(outcome.value for outcome in outcomes)
    with open_journal(tmp_path / "journal.jsonl") as journal:
        other = ChatClient(Endpoint("local", "other", server.url), journal, Prices(500.0, 500.0), budget=Budget(0.01))
    assert other.budget.paid == 0, "other models have prices of their own"


def test_thinking_models_get_room_and_no_temperature(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert all(Endpoint("openai", model).thinks for model in ("o3", "o4-mini-2025-04-16", "gpt-5.1"))
    endpoint = Endpoint("openai", "gpt-5-mini", server.url)
    body = completion("fine")
    del body["usage"]
    server.faults = [("json", body)]
    with open_client(endpoint, tmp_path / "journal.jsonl", PRICES, temperature=0.0) as client:
        run_sync(client.ask_all(requests(), lambda _, text: text))
        (sent,) = server.requests
        assert "temperature" not in sent
        assert sent["max_completion_tokens"] == 50 + 4000
        assert client.completion_tokens == 50 + 4000, "without a bill, all that it may have thought counts"
        assert client.key(requests()[0], 0) != client.key(replace(requests()[0], draw=1), 0), (
            "its answers are drawn all the same"
        )


def test_others_get_the_temperature_until_they_refuse_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.refused = "temperature"
    server.delay_s = 0.02  # so that several are in flight before the first is refused
    endpoint = Endpoint("openai", "gpt-5-chat-latest", server.url)
    with open_client(endpoint, tmp_path / "journal.jsonl", PRICES, temperature=0.5, concurrency=4) as client:
        outcomes = run_sync(client.ask_all(requests(9), lambda _, text: text))
    assert [outcome.value for outcome in outcomes] == [f"echo item{i}" for i in range(9)]
    with_it = [body for body in server.requests if "temperature" in body]
    assert 1 <= len(with_it) <= 4
    assert len(server.requests) == 9 + len(with_it)
    assert {(body["temperature"], body["max_completion_tokens"]) for body in with_it} == {(0.5, 50)}


RULES = (Message("system", "Rules."), Message("user", "Hi"), Message("assistant", "Yes?"), Message("user", "Go"))


def roles(body: dict[str, Any]) -> list[str]:
    return [message["role"] for message in body["messages"]]


@pytest.mark.parametrize(
    "error",
    [
        (400, {"message": "System role not supported"}),
        (422, {"message": "Conversation roles must alternate user/assistant/user/assistant/..."}),
        (400, {"message": "Only user and assistant roles are supported!"}),
    ],
)
def test_a_server_without_a_system_role_reads_the_rules_first(server: Server, tmp_path: Path, error: Any) -> None:
    """It is asked once; later requests are merged at once."""
    server.faults = [("status", error[0], {}, error[1])]
    outcomes, client = ask(server, tmp_path, [Request(name, RULES, 50, draw=draw) for draw, name in enumerate("ab")],
                           concurrency=1)  # fmt: skip
    assert [outcome.value for outcome in outcomes] == ["echo Go"] * 2
    assert [roles(body)[0] for body in server.requests] == ["system", "user", "user"]
    assert server.requests[2]["messages"][0]["content"] == "Rules.\n\nHi"
    assert roles(server.requests[2]) == ["user", "assistant", "user"]
    assert [note.partition(" takes")[0] for note in client.notes] == ["local:m"]


def test_a_limit_goes_by_the_name_that_the_server_knows(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.refused = "max_tokens"
    outcomes, _ = ask(server, tmp_path, requests(2), concurrency=1)
    assert all(outcome.value for outcome in outcomes)
    assert ["max_tokens" in body for body in server.requests] == [True, False, False]
    assert server.requests[2]["max_completion_tokens"] == 50 + 4000

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.refused = "max_completion_tokens"
    with open_client(Endpoint("openai", "m", server.url), tmp_path / "other.jsonl", PRICES) as client:
        assert run_sync(client.ask(requests()[0], str)).value == "echo item0"
    assert server.requests[-1]["max_tokens"] == 50


def test_a_server_that_refuses_all_forms_is_asked_a_few_times(server: Server, tmp_path: Path) -> None:
    names = "temperature, max_tokens, max_completion_tokens and the system role are not supported"
    server.faults = [("status", 400, {}, {"message": names})] * 99
    with pytest.raises(ApiError, match="refuses every request"):
        ask(server, tmp_path, [Request("a", RULES, 50)])
    assert len(server.requests) <= 6


def test_local_models_have_room_to_think_where_their_context_has_it(server: Server, tmp_path: Path) -> None:
    too_large = "'max_tokens' is too large: 4050. This model's maximum context length is 4096 tokens"
    server.faults = [("status", 400, {}, {"message": too_large})]
    wanted = [Request(name, (Message("user", name),), 50, cuts=name == "cut") for name in ("a", "b", "cut")]
    outcomes, client = ask(server, tmp_path, wanted, concurrency=1)
    assert all(outcome.value for outcome in outcomes)
    assert [body["max_tokens"] for body in server.requests] == [4050, 50, 50, 50]
    assert len(client.notes) == 1
    server.requests.clear()
    ask(server, tmp_path, wanted, concurrency=1, max_answer_tokens=9000)
    assert [body["max_tokens"] for body in server.requests] == [9000] * 3


def test_the_text_of_an_answer_in_parts_is_read(server: Server, tmp_path: Path) -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    parts: Any = [thinking, {"type": "text", "text": "to the "}, {"type": "text", "text": "left"}]
    server.faults = [("json", completion(parts)), ("json", completion([{"type": "text"}]))]
    outcomes, _ = ask(server, tmp_path, requests(2), concurrency=1)
    assert [outcome.value for outcome in outcomes] == ["to the left", "echo item1"]


def test_coroutines_ask_side_by_side_and_equal_requests_share_a_call(server: Server, tmp_path: Path) -> None:
    server.delay_s = 0.02
    with open_client(Endpoint("local", "m", server.url), tmp_path / "journal.jsonl", PRICES, concurrency=4) as client:
        wanted = [*requests(20), *requests(10)]
        outcomes = together(*(client.ask(request, str.upper) for request in wanted))
    assert [outcome.value for outcome in outcomes] == [f"ECHO {request.name.upper()}" for request in wanted]
    assert (client.calls, client.replayed, len(server.requests)) == (20, 10, 20)
    assert client.usage["usd"] == pytest.approx(20 * CALL_USD)
    assert 2 <= server.most_at_once <= 4


def test_a_server_that_went_down_ends_all_that_are_under_way(server: Server, tmp_path: Path) -> None:
    """The calls in flight are journalled first, and nothing else is asked; after it the client can be used again."""
    path = tmp_path / "journal.jsonl"
    server.faults = [("json", completion("first")), *DOWN * 3]
    with open_client(Endpoint("local", "m", server.url), path, PRICES, concurrency=1) as client:
        ends = together(*(client.ask(request, str) for request in requests(30)), return_exceptions=True)
        assert ends[0].value == "first"
        assert {str(end) for end in ends[4:]} == {str(ends[3])}
        assert [outcome.rejected.reason[:40] for outcome in ends[1:3]] == [
            "no answer: local:m keeps answering 500: "
        ] * 2
        assert len(server.requests) == 1 + 3 * 7
        (again,) = together(client.ask(requests(1, "again")[0], str))
        assert again.value == "echo again0"
    server.faults = [("status", 403, {}, {"message": "not you"})]
    server.delay_s = 0.1
    with open_client(Endpoint("local", "m", server.url), path, PRICES, concurrency=8) as client:
        ends = together(*(client.ask(request, str) for request in requests(30, "more")), return_exceptions=True)
    assert 7 <= client.calls == sum(not isinstance(end, ApiError) for end in ends) < 16
    with open_journal(path, write=False) as journal:
        assert len(journal.answers) == server.answered, "what was paid for is kept"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_ctrl_c_ends_the_asking_at_once_and_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    async def left_behind() -> int:
        return len(asyncio.all_tasks()) - 1

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with open_client(Endpoint("local", "m", server.url), tmp_path / "journal.jsonl", PRICES) as client:
            run_sync(client.ask_all(requests(2, "early"), lambda _, text: text))
            server.delay_s = 5
            started = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                together(*(client.ask(request, str) for request in requests(20)))
            assert time.monotonic() - started < 2
            assert run_sync(left_behind()) == 0
            server.delay_s = 0
            (outcome,) = together(client.ask(requests(1, "late")[0], str))
            assert outcome.value == "echo late0"
            assert client.calls == 3
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (("status", 401, {}, {"message": f"Incorrect API key provided: {KEY}"}), "OPENAI_API_KEY"),
        (("json", {"error": {"message": f"no credits for {KEY}", "code": 402}}), "asks for payment"),
        (("status", 301, {"Location": "https://x"}, {}), "redirects to another address; give that as --base-url"),
    ],
)
def test_hopeless_servers_end_the_run_without_the_key(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Any, text: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.faults = [fault] * 9
    with (
        open_client(Endpoint("openai", "m", server.url), tmp_path / "journal.jsonl", PRICES) as client,
        pytest.raises(ApiError, match=text) as caught,
    ):
        run_sync(client.ask_all(requests(9), lambda _, text: text))
    assert KEY not in str(caught.value) + (tmp_path / "journal.jsonl").read_text()
    assert set(server.authorization) == {f"Bearer {KEY}"}


@pytest.mark.parametrize("filler", ["x" * 292, f"key{' ' * 1400}"])
def test_a_key_across_a_cut_leaves_no_part_of_it(
    filler: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error and an answer that is none, each cut within the key, and an answer that ends there."""
    monkeypatch.setenv("LOCAL_API_KEY", KEY)
    page = f"{filler}{KEY} and more"
    server.faults = [("status", 400, {}, page), ("raw", page.encode()), ("json", completion(filler + KEY[:20]))]
    with pytest.raises(ApiError) as refused:
        ask(server, tmp_path, requests())
    (outcome,), client = ask(server, tmp_path, requests())
    for text in (str(refused.value), outcome.value, (tmp_path / "journal.jsonl").read_text()):
        assert KEY[:8] not in text
    assert client.calls == 2


@pytest.mark.parametrize("part", [KEY, KEY[:8], KEY[-8:], KEY[:-3], KEY[3:], KEY[3:-3], KEY[5:21]])
def test_parts_of_a_key_are_removed(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_API_KEY", KEY)
    assert masked(f"with {part}, not {part}") == "with [key], not [key]"
    assert masked(part) == "[key]"
    assert masked(f"so {KEY[:7]} stays") == f"so {KEY[:7]} stays"


def test_a_short_key_is_removed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_API_KEY", "abcd1234")
    assert masked("abcd1234abcd123") == "[key]abcd123"


def test_a_compressed_answer_is_not_read(server: Server, tmp_path: Path) -> None:
    server.faults = [("sent", 200, {"Content-Encoding": "gzip, gzip"}, BOMB)]
    with pytest.raises(NoAccessError, match=r"encoded \(gzip, gzip\)"):
        ask(server, tmp_path, requests())
    assert {headers["Accept-Encoding"] for headers in server.headers} == {"identity"}


@pytest.mark.parametrize(
    ("kind", "key", "account"),
    [("openai", f"Bearer {KEY}", ["org-1", "proj-1"]), ("azure", "azure-key", []), ("local", "Bearer none", [])],
)
def test_keys_and_account_go_to_their_own_service_alone(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, key: str, account: list[str]
) -> None:
    for name, value in {
        "OPENAI_API_KEY": KEY,
        "AZURE_OPENAI_API_KEY": "azure-key",
        "AZURE_OPENAI_ENDPOINT": server.url.removesuffix("/v1"),
        "OPENAI_ORG_ID": "org-1",
        "OPENAI_PROJECT_ID": "proj-1",
    }.items():
        monkeypatch.setenv(name, value)
    endpoint = Endpoint(kind, "m", None if kind == "azure" else server.url)
    with open_client(endpoint, tmp_path / "journal.jsonl", PRICES) as client:
        run_sync(client.ask_all(requests(), lambda _, text: text))
    assert server.authorization == [key]
    (headers,) = server.headers
    assert [headers[name] for name in ("OpenAI-Organization", "OpenAI-Project") if name in headers] == account


LOCAL = Endpoint("local", "m", "http://127.0.0.1:9/v1")
OPENAI, AZURE = Endpoint("openai", "m"), Endpoint("azure", "m")
KEYS = {"OPENAI_API_KEY": KEY, "AZURE_OPENAI_API_KEY": KEY}


@pytest.mark.parametrize(
    ("endpoint", "environment", "said"),
    [
        (OPENAI, {}, "OPENAI_API_KEY"),
        (OPENAI, KEYS | {"HTTP_PROXY": f"http://user:{KEY}@[::1"}, "HTTP_PROXY"),
        (AZURE, KEYS | {"AZURE_OPENAI_ENDPOINT": f"https://u:{KEY}@x.openai.azure.com"}, "AZURE_OPENAI_ENDPOINT"),
        (LOCAL, {}, r"nothing listens at http://127.0.0.1:9/v1 .*start the server"),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_said_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint, environment: dict[str, str], said: str
) -> None:
    for name in (*KEYS, "AZURE_OPENAI_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with (
        open_client(endpoint, tmp_path / "journal.jsonl", PRICES) as client,
        pytest.raises(ReflectkitError, match=said) as caught,
    ):
        run_sync(client.ask_all(requests(), lambda _, text: text))
    assert KEY not in str(caught.value)


def test_an_address_in_the_environment_is_where_openai_models_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://gateway.example/v1")
    assert parse_endpoint("openai:m", None).base_url == "https://gateway.example/v1"
    assert parse_endpoint("openai:m", "https://other.example/v1").base_url == "https://other.example/v1"
    assert parse_endpoint("local:m", None).base_url == "http://localhost:1234/v1"
    assert parse_endpoint("azure:m", None).base_url is None
    monkeypatch.setenv("OPENAI_BASE_URL", "https://api.openai.com/v1/")
    assert parse_endpoint("openai:m", None).base_url is None
    monkeypatch.setenv("OPENAI_BASE_URL", f"https://u:{KEY}@x.example/v1")
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL must not hold a user, key or query") as caught:
        parse_endpoint("openai:m", None)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("gpt-4o", None),
        ("local:m", f"http://u:{KEY}@x/v1"),
        ("local:m", f"http://x/v1?key={KEY}"),
        ("local:m", f"http://x/{KEY}/v1"),
        ("local:m", "http://x/0a1b2c3d4e5f60718293/v1"),
        ("local:m", "http://x/v1\r\nX-Key: 1"),
    ],
)
def test_unknown_teachers_and_bad_addresses_are_refused_without_a_key(
    text: str, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_API_KEY", "0a1b2c3d4e5f60718293")
    with pytest.raises(ConfigError, match="--base-url" if url else "--teacher") as caught:
        parse_endpoint(text, url)
    assert KEY not in str(caught.value)


ANSWER = ChatAnswer("Zwei Euro, “sagt sie”.", "stop", "", 100, 20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of three answers, by keys 0 to 2."""
    with open_journal(tmp_path / "journal.jsonl") as journal:
        for key in "012":
            journal.add(key, "m", ANSWER)
    return tmp_path / "journal.jsonl"


def test_a_changed_line_is_never_used(path: Path) -> None:
    """Every byte of the second line is changed in turn; where it becomes a line end, two halves are damaged."""
    first, second, third = path.read_bytes().splitlines(keepends=True)
    for place in range(0, len(second) - 1, 5):
        changed = bytes([second[place] ^ (1, 16, 32)[place % 3]])
        path.write_bytes(first + second[:place] + changed + second[place + 1 :] + third)
        with open_journal(path, write=False) as journal:
            assert journal.answers == dict.fromkeys("02", ANSWER)
            assert journal.damaged == 1 + (changed == b"\n")


def test_a_journal_of_the_first_version_answers_without_a_call(tmp_path: Path) -> None:
    """No server listens; the key of a request, the fields of a line and its checksum are as they were."""
    key = "a815dbafe80e45512583302dfb5733b415d7079aa479dc3299d46221697b7213"
    checksum = "62e7503cf1f1c120b980f4bb4178cf3ce40764cc1e2ff55401af128a4a57eecf"
    row = {"key": key, "model": "m", "text": "Zwei €.", "finish_reason": "stop", "refusal": "", "prompt_tokens": 100}
    row |= {"completion_tokens": 20, "sha256": checksum}
    (tmp_path / "journal.jsonl").write_text(json.dumps(row) + "\n")
    endpoint = Endpoint("local", "m", "http://127.0.0.1:9/v1")
    with open_client(endpoint, tmp_path / "journal.jsonl", Prices(1.0, 2.0)) as client:
        outcome = run_sync(client.ask(Request("item", (Message("user", "item"),), 50, draw=3), str))
    assert (outcome.value, client.calls, client.budget.paid) == ("Zwei €.", 0, 140e-6)
