"""The client against a real server that fails in every way; the journal; the budget; and that no key gets out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectkit.agents.client import Budget, ChatClient, Request, open_client
from reflectkit.agents.endpoints import ApiError, Endpoint, parse_endpoint
from reflectkit.agents.journal import open_journal
from reflectkit.agents.prices import Prices, prices_of
from reflectkit.core.errors import ConfigError
from reflectkit.core.types import Message
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


def ask(
    server: Server, folder: Path, wanted: list[Request], parse: Any = lambda _, text: text, **settings: Any
) -> tuple[list[Any], ChatClient]:
    with open_client(Endpoint("local", "m", server.url), folder / "journal.jsonl", PRICES, **settings) as client:
        return client.ask(wanted, parse), client


def test_answers_come_back_in_order_and_concurrently(server: Server, tmp_path: Path) -> None:
    server.delay_s = 0.05
    outcomes, client = ask(server, tmp_path, requests(20), concurrency=4)
    assert [outcome.value for outcome in outcomes] == [f"echo item{i}" for i in range(20)]
    assert 2 <= server.most_at_once <= 4
    assert (client.calls, client.replayed) == (20, 0)
    assert client.cost_usd == pytest.approx(20 * CALL_USD)


@pytest.mark.parametrize(
    "fault",
    [
        ("status", 429, {"Retry-After": "0.1"}, {"message": "slow down"}),
        ("status", 500, {"retry-after-ms": "50"}, {"message": "oops"}),
        ("status", 503, {"retry-after-ms": "50"}, {"message": "overloaded"}),
        ("status", 408, {"retry-after-ms": "50"}, {"message": "timeout"}),
        ("cut", b'{"choices": ['),
        ("sleep", 6.0),
    ],
    ids=["429", "500", "503", "408", "cut", "timeout"],
)
def test_passing_faults_are_retried(server: Server, tmp_path: Path, fault: Any) -> None:
    server.faults = [fault, fault]
    outcomes, client = ask(server, tmp_path, requests(), timeout_s=2 if fault[0] == "sleep" else 60)
    assert outcomes[0].value == "echo item0"
    assert len(server.requests) == 3
    assert client.calls == 1


def test_retry_after_is_respected(server: Server, tmp_path: Path) -> None:
    """Without the header the package would wait about half a second; the header says two."""
    import time

    server.faults = [("status", 429, {"Retry-After": "2"}, {"message": "slow down"})]
    started = time.monotonic()
    ask(server, tmp_path, requests())
    assert time.monotonic() - started >= 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (completion(""), "empty"),
        (completion("  \n"), "empty"),
        (completion(None), "empty"),
        (completion("half an ans", "length"), "cut off"),
        (completion("", "content_filter"), "content filter"),
        (completion(None, refusal="I cannot help with that"), "refused: I cannot"),
        ({"id": "x", "object": "chat.completion", "choices": []}, "no choice"),
        ({"unexpected": True}, "no choice"),
        ([1, 2, 3], "no choice"),
    ],
    ids=["empty", "blank", "null", "length", "filter", "refusal", "no choices", "other json", "a list"],
)
def test_useless_answers_are_asked_for_twice_more_and_then_set_aside(
    server: Server, tmp_path: Path, body: Any, reason: str
) -> None:
    server.faults = [("json", body), ("json", body)]
    outcomes, _ = ask(server, tmp_path, requests())
    assert outcomes[0].value == "echo item0", "the third answer is good"
    server.faults = [("json", body)] * 3
    outcomes, _ = ask(server, tmp_path, [*requests(1, "other"), *requests(1, "fine")], concurrency=1)
    assert outcomes[0].value is None
    assert reason in outcomes[0].rejected.reason
    assert outcomes[0].rejected.name == "other0"
    assert outcomes[1].value == "echo fine0", "the run goes on"


def test_answers_that_are_no_json_are_asked_for_again(server: Server, tmp_path: Path) -> None:
    server.faults = [("raw", b"<html>busy</html>")] * 2
    outcomes, _ = ask(server, tmp_path, requests())
    assert outcomes[0].value == "echo item0"


def test_a_filtered_prompt_is_set_aside(server: Server, tmp_path: Path) -> None:
    server.faults = [("status", 400, {}, {"message": "filtered", "code": "content_filter"})] * 3
    outcomes, _ = ask(server, tmp_path, [*requests(), *requests(1, "fine")], concurrency=1)
    assert "content filter" in outcomes[0].rejected.reason
    assert outcomes[1].value == "echo fine0"


def test_what_does_not_parse_is_asked_for_again_with_the_reason(server: Server, tmp_path: Path) -> None:
    def parse(number: int, text: str) -> str:
        raise ValueError("not a number")

    outcomes, client = ask(server, tmp_path, requests(), parse)
    assert outcomes[0].rejected.reason == "not a number"
    assert client.calls == 3


def test_a_rerun_costs_nothing_rejections_included(server: Server, tmp_path: Path) -> None:
    server.faults = [("json", completion(""))] * 3
    first, _ = ask(server, tmp_path, requests(5), concurrency=1)
    made = len(server.requests)
    second, client = ask(server, tmp_path, requests(5))
    assert second == first
    assert len(server.requests) == made
    assert (client.calls, client.replayed) == (0, made)


def test_a_killed_journal_keeps_its_whole_lines(server: Server, tmp_path: Path) -> None:
    ask(server, tmp_path, requests(3))
    path = tmp_path / "journal.jsonl"
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines(keepends=True)[-1]), 7):
        path.write_bytes(whole[:-cut])
        before = len(server.requests)
        outcomes, client = ask(server, tmp_path, requests(3))
        assert [outcome.value for outcome in outcomes] == ["echo item0", "echo item1", "echo item2"]
        assert len(server.requests) == before + 1
        assert client.journal.damaged == 0
        assert all(json.loads(line) for line in path.read_text().splitlines())


def test_damaged_lines_are_passed_over_and_counted(server: Server, tmp_path: Path) -> None:
    ask(server, tmp_path, requests(2))
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'nonsense\n{"key": 3}\n\xff\xfe\n' + path.read_bytes())
    _, client = ask(server, tmp_path, requests(2))
    assert (client.calls, client.replayed, client.journal.damaged) == (0, 2, 3)


def test_two_processes_do_not_write_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with open_journal(path), pytest.raises(ConfigError, match="another process"), open_journal(path):
        pass


def test_another_model_temperature_or_question_is_asked_anew(server: Server, tmp_path: Path) -> None:
    ask(server, tmp_path, requests())
    ask(server, tmp_path, requests(), temperature=0.5)
    with open_client(Endpoint("local", "n", server.url), tmp_path / "journal.jsonl", PRICES) as client:
        client.ask(requests(), lambda _, text: text)
    assert len(server.requests) == 3


def test_the_budget_is_never_passed_and_the_rest_is_left(server: Server, tmp_path: Path) -> None:
    """Each call may cost up to 50 written tokens at 2 dollars a million and its prompt: about 108e-6 dollars reserved,
    140e-6 billed.
    """
    outcomes, client = ask(server, tmp_path, requests(40), budget=Budget(10 * CALL_USD), concurrency=4)
    assert client.stopped
    answered = sum(outcome.value is not None for outcome in outcomes)
    assert 6 <= answered <= 10
    assert client.cost_usd <= 10 * CALL_USD
    assert all(outcome.rejected is None for outcome in outcomes)
    made = len(server.requests)
    outcomes, client = ask(server, tmp_path, requests(40), budget=Budget(10 * CALL_USD), concurrency=4)
    assert len(server.requests) == made, "what the journal paid for counts"
    outcomes, client = ask(server, tmp_path, requests(40), budget=Budget(1.0))
    assert len(server.requests) == 40
    assert all(outcome.value for outcome in outcomes)


def test_wrong_key_is_one_line_without_the_key(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.faults = [("status", 401, {}, {"message": f"Incorrect API key provided: {KEY}"})]
    endpoint = Endpoint("openai", "m", server.url)
    with open_client(endpoint, tmp_path / "journal.jsonl", PRICES) as client, pytest.raises(ApiError) as caught:
        client.ask(requests(), lambda _, text: text)
    assert "OPENAI_API_KEY" in str(caught.value)
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert server.authorization == [f"Bearer {KEY}"]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (("status", 404, {}, {"message": f"no model for {KEY}"}), "no such model"),
        (("status", 403, {}, {"message": f"not with {KEY}"}), "not allowed"),
        (("status", 400, {}, {"message": f"bad parameter, {KEY}"}), "refuses every request: bad parameter"),
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
        client.ask(requests(9), lambda _, text: text)
    assert KEY not in str(caught.value)
    assert KEY not in (tmp_path / "journal.jsonl").read_text()


def test_a_server_that_echoes_the_key_does_not_get_it_into_a_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_API_KEY", KEY)
    server.answer = lambda body: f"your key is {KEY}"

    def parse(number: int, text: str) -> str:
        raise ValueError("useless")

    outcomes, _ = ask(server, tmp_path, requests(), parse)
    assert KEY not in outcomes[0].rejected.text
    assert KEY not in (tmp_path / "journal.jsonl").read_text()


def test_an_openai_key_is_not_sent_to_a_local_server(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    ask(server, tmp_path, requests())
    assert server.authorization == ["Bearer none"]


def test_azure_is_asked_at_its_own_address(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.url.removesuffix("/v1"))
    with open_client(Endpoint("azure", "my-gpt", None), tmp_path / "journal.jsonl", PRICES) as client:
        (outcome,) = client.ask(requests(), lambda _, text: text)
    assert outcome.value == "echo item0"
    assert server.authorization == [KEY]


@pytest.mark.parametrize(("kind", "name"), [("openai", "OPENAI_API_KEY"), ("azure", "AZURE_OPENAI_API_KEY")])
def test_a_missing_key_is_said_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    monkeypatch.delenv(name, raising=False)
    with (
        open_client(Endpoint(kind, "m", None), tmp_path / "journal.jsonl", PRICES) as client,
        pytest.raises(ConfigError, match=name),
    ):
        client.ask(requests(), lambda _, text: text)


def test_nobody_listening_is_said_at_once(tmp_path: Path) -> None:
    with (
        open_client(Endpoint("local", "m", "http://127.0.0.1:9/v1"), tmp_path / "journal.jsonl", PRICES) as client,
        pytest.raises(ApiError, match=r"nothing listens at http://127.0.0.1:9/v1 .*start the server"),
    ):
        client.ask(requests(), lambda _, text: text)


@pytest.mark.parametrize("text", ["gpt-4o", "openai:", "claude:x", "", "openai"])
def test_unknown_teachers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--teacher"):
        parse_endpoint(text, None)


@pytest.mark.parametrize(
    "url", ["localhost:1234", "ftp://x/v1", "http://", "http://x:99999/v1", f"http://u:{KEY}@x/v1", f"http://x/v1?key={KEY}"]
)
def test_bad_addresses_are_refused_without_showing_a_key(url: str) -> None:
    with pytest.raises(ConfigError, match="--base-url") as caught:
        parse_endpoint("local:m", url)
    assert KEY not in str(caught.value)


def test_prices_go_by_model_and_date_suffixes() -> None:
    assert prices_of("openai", "gpt-4o-mini-2024-07-18", None, None) == Prices(0.15, 0.60)
    assert prices_of("openai", "gpt-4o", None, None) == Prices(2.50, 10.0)
    assert prices_of("openai", "gpt-4", None, None) == Prices(30.0, 60.0)
    assert not prices_of("openai", "brand-new", None, None).known
    assert prices_of("openai", "brand-new", 1.0, 2.0) == Prices(1.0, 2.0)
    assert prices_of("local", "anything", None, None) == Prices(0.0, 0.0)
    with pytest.raises(ConfigError, match="go together"):
        prices_of("openai", "x", 1.0, None)
