"""serve: OpenAI's own client talks to it; comments stay inside; what is not understood is refused with a reason."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from reflectkit.cli.main import main
from reflectkit.envs.adapters.endpoint import ChatRequest, Conversations, EndpointAnswer, application, serving
from reflectkit.eventloop import LoopThread
from reflectkit.models.load import LoadedModel, save_player
from reflectkit.models.tiny import build_model
from reflectkit.tools import use_of
from reflectkit.types import ToolCall, ToolUse
from tests.kill import started
from tests.models.test_chat import make_tokenizer

LOOK = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {"box": {}}}}
TOOLS: Any = [{"type": "function", "function": LOOK}]
HELLO: Any = [{"role": "user", "content": "Hello"}]


class Scripted:
    """A session that answers with one action after the other, the last again and again, and keeps what it was asked."""

    def __init__(self, *actions: ToolUse) -> None:
        self.conversations, self.actions, self.asked = Conversations(), actions, list[ChatRequest]()
        self.rewards: list[float] = []

    async def answer(self, request: ChatRequest) -> EndpointAnswer:
        self.asked.append(request)
        return EndpointAnswer(self.actions[min(len(self.asked), len(self.actions)) - 1], tokens=(7, 3), cut=True)

    def reward(self, value: float) -> None:
        self.rewards.append(value)


@pytest.fixture
def served() -> Iterator[Any]:
    """Starts a session's server: → its address."""
    threads = []

    def start(session: Scripted, token: str = "") -> str:
        thread, port = LoopThread("test"), asyncio.Queue[int]()

        async def run() -> None:
            app = application({"": session}.get, "m", hosts=("127.0.0.1",), token=token)
            async with serving(app, "127.0.0.1", 0) as number:
                port.put_nowait(number)
                await asyncio.Event().wait()

        threads.append((thread, thread.submit(run())))
        return f"http://127.0.0.1:{thread.result(port.get())}"

    yield start
    for thread, running in threads:
        running.cancel()
        thread.close()


def test_calls_are_the_same_streamed_or_not_and_get_their_text_back(served: Any) -> None:
    session = Scripted(use_of([ToolCall("look", {"box": "é"})]))
    client = openai.OpenAI(base_url=f"{served(session)}/v1", api_key="any")
    answer = client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS, temperature=0.5, max_tokens=9)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 3)
    assert message.tool_calls is not None
    assert json.loads(message.tool_calls[0].function.arguments) == {"box": "é"}  # type: ignore[union-attr]
    assert (session.asked[0].temperature, session.asked[0].max_tokens) == (0.5, 9)
    stream = client.chat.completions.create(
        model="m", messages=HELLO, tools=TOOLS, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    (delta,) = [chunk.choices[0].delta for chunk in chunks if chunk.choices and chunk.choices[0].delta.tool_calls]
    assert delta.tool_calls is not None
    assert delta.tool_calls[0].function is not None
    assert delta.tool_calls[0].function.arguments == message.tool_calls[0].function.arguments  # type: ignore[union-attr]
    assert chunks[-1].usage is not None
    said = message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "red"}
    client.chat.completions.create(model="m", messages=[*HELLO, said, result], tools=TOOLS)
    asked = session.asked[-1]
    assert asked.unmatched == 0
    assert [part.content for part in asked.observation.messages] == ["Hello", session.actions[0].text, "red"]
    assert asked.observation.messages[2].name == "look"
    said["content"] = "Something else."
    client.chat.completions.create(model="m", messages=[*HELLO, said, result], tools=TOOLS)
    assert session.asked[-1].unmatched == 1


def test_the_answer_ends_before_a_stop_and_thoughts_are_not_shown(served: Any) -> None:
    session = Scripted(ToolUse("<think>Hm.</think>Box 2. Observation: red"))
    client = openai.OpenAI(base_url=f"{served(session)}/v1", api_key="any")
    answer = client.chat.completions.create(model="m", messages=HELLO, stop=["Observation:"])
    assert answer.choices[0].message.content == "Box 2. "
    assert answer.choices[0].finish_reason == "stop"
    assert client.chat.completions.create(model="m", messages=HELLO).choices[0].finish_reason == "length"
    repeated: Any = [*HELLO, answer.choices[0].message.model_dump(exclude_none=True), *HELLO]
    client.chat.completions.create(model="m", messages=repeated)
    assert session.asked[-1].observation.messages[1].content == session.actions[0].text


def post(url: str, body: bytes, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def asking(**more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": HELLO, **more}).encode()


def called(arguments: str) -> bytes:
    """A request after a call with these `arguments`."""
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return asking(messages=[*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}])


WIDE = {"type": "object", "properties": {f"box {number}": {"type": "string"} for number in range(10_000)}}


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"[]", 400, "object"),
        (asking(messages=[]), 400, "messages: List should have at least 1 item"),
        (asking(n=3), 400, "n: a request has one answer"),
        (asking(response_format={"type": "json_object"}), 400, "response_format"),
        (asking(tools=TOOLS, tool_choice={"function": 3}), 400, "tool_choice"),
        (asking(tools=TOOLS * 2), 400, "two have the same name"),
        (asking(tools=TOOLS * 2000), 400, "at most 1024 items"),
        (asking(tools=[{"function": LOOK | {"parameters": WIDE}}]), 400, "at most 262,144 are read"),
        (asking(messages=HELLO * 5000), 400, "at most 4096 items"),
        (asking(tools=[{"type": "function", "function": LOOK | {"parameters": {"type": math.nan}}}]), 400, "tools: "),
        (asking(temperature=math.inf), 400, "temperature"),
        (asking(temperature=True), 400, "temperature: Input should be a valid number"),
        (asking(max_tokens="4"), 400, "max_tokens: Input should be a valid integer"),
        (asking(stop=3), 400, "stop: Input should be a valid string"),
        (asking()[:-1] + b', "model": "n"}', 400, "the key 'model' twice"),
        (called("{" * 100_000), 400, "no JSON object"),
        (called('{"a":' * 400 + "1" + "}" * 400), 400, "no JSON object"),
        (called('{"box": "\\ud800"}'), 400, "no JSON object"),
        (called('{"box": 1e999}'), 400, "no JSON object"),
        (asking(junk="x" * (17 << 20)), 413, "at most"),
    ],
)
def test_what_is_not_understood_is_refused(served: Any, body: bytes, status: int, reason: str) -> None:
    session = Scripted(ToolUse("Hi."))
    code, text = post(f"{served(session)}/v1/chat/completions", body)
    assert (code, session.asked) == (status, [])
    assert reason in json.loads(text)["error"]["message"]


def test_only_its_own_host_and_token(served: Any) -> None:
    session = Scripted(ToolUse("Hi."))
    url = served(session, "s3cret") + "/v1/chat/completions"
    assert post(url, asking())[0] == 401
    assert post(url, asking(), Authorization="Bearer wrong")[0] == 401
    assert post(url, asking(), Authorization="Bearer s3cret", Host="evil.example")[0] == 400
    assert post(url, asking(), Authorization="Bearer s3cret")[0] == 200
    assert post(url.replace("/v1/chat/completions", "/s/other/v1/chat/completions"), asking())[0] in (401, 404)


def test_only_a_number_is_a_reward(served: Any) -> None:
    session = Scripted(ToolUse("Hi."))
    url = served(session) + "/reward"
    for value in ("true", "NaN", "1e999", f"1{'0' * 400}", "[" * 100_000, '"1"', '1, "reward": 2'):
        code, text = post(url, b'{"reward": ' + value.encode() + b"}")
        assert (code, session.rewards) == (400, [])
        assert "NUMBER" in text
    assert post(url, b'{"reward": 2}')[0] == 200
    assert session.rewards == [2.0]


def test_a_web_page_gets_no_answer_and_rewards_nothing(served: Any) -> None:
    """A browser sends what a page posts as text without asking the server first, and names the page's origin."""
    session = Scripted(ToolUse("Hi."))
    page = {"Origin": "https://evil.example", "Content-Type": "text/plain"}
    url = served(session)
    assert post(f"{url}/v1/chat/completions", asking(), **page)[0] == 403
    assert post(f"{url}/reward", b'{"reward": 1}', **page | {"Origin": "null"})[0] == 403
    assert (session.asked, session.rewards) == ([], [])
    assert (
        post(f"{served(session, 's3cret')}/reward", b'{"reward": 1}', **page, Authorization="Bearer s3cret")[0] == 200
    )


def test_a_pair_is_served_and_recorded(tmp_path: Path) -> None:
    for name, role, seed in (("policy", None, 0), ("reflector", "reflection", 1)):
        tokenizer = make_tokenizer("qwen" if role is None else None)
        save_player(tmp_path / name, LoadedModel(build_model(tokenizer, 2048, seed), tokenizer, role))
    command = ["serve", "--policy", "policy", "--reflector", "reflector"]
    command += ["--port", "0", "--record", "record.jsonl", "--max-new-tokens", "8"]
    server, output = started(command, tmp_path), tmp_path / "output.txt"
    try:
        while not (found := output.exists() and re.search(r"serving .* at (\S+)/v1", output.read_text())):
            assert os.waitpid(server, os.WNOHANG) == (0, 0), output.read_text()
            time.sleep(0.05)
        url = found[1]
        client = openai.OpenAI(base_url=f"{url}/s/mine/v1", api_key="any")
        with pytest.raises(openai.BadRequestError, match="its model reads 2048"):  # also where it has read nothing yet
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi " * 9000}])
        answer = client.chat.completions.create(model="m", messages=HELLO, max_tokens=4)
        again: Any = [*HELLO, answer.choices[0].message.model_dump(exclude_none=True), *HELLO]
        client.chat.completions.create(model="m", messages=again, max_tokens=4)
        assert post(f"{url}/s/mine/reward", b'{"reward": 0.5}')[0] == 200
        for temperature in (0.0, 1e-320):
            client.chat.completions.create(model="m", messages=HELLO, max_tokens=4, temperature=temperature)
        os.kill(server, signal.SIGINT)
        assert os.waitpid(server, 0)[1] == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
    first, second, reward, greedy, cold = map(json.loads, (tmp_path / "record.jsonl").read_text().splitlines())
    assert cold["decision"] == greedy["decision"]
    assert reward == {"session": "mine", "reward": 0.5}
    decision = first["decision"]
    assert first["session"] == "mine"
    assert 0 < len(decision["token_ids"]) == len(decision["logprobs"]) <= 4
    assert decision["reflection"] not in (answer.choices[0].message.content or "-")
    held = [*decision["prompt_ids"], *decision["token_ids"]]
    assert second["decision"]["prompt_ids"][: len(held)] == held


def test_an_open_address_needs_a_token(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFLECTKIT_TOKEN", raising=False)
    assert main(["serve", "--policy", "x", "--host", "0.0.0.0"]) == 2
    assert "set REFLECTKIT_TOKEN" in capsys.readouterr().err
