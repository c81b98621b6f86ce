"""Servers of OpenEnv, played through `--env openenv:URL`: real ones of the package, and ones that misbehave.

Skipped without the package and its server (`pip install openenv`).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import gzip
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectkit.envs import env_class
from reflectkit.envs.adapters.openenv import env_of
from reflectkit.errors import ConfigError, IllegalActionError
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.rollouts.wrappers import Checked
from reflectkit.tools import use_of
from reflectkit.types import Decision, Status, Task, ToolCall, Trajectory
from tests.asgi import served
from tests.fakes.players import Plays

pytest.importorskip("openenv", reason="needs openenv: pip install openenv")
pytest.importorskip("uvicorn", reason="needs uvicorn")
pytest.importorskip("websockets", reason="needs websockets")

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
)
from openenv.core.env_server.types import Action, Observation, State


def task(seed: int, **data: Any) -> Task:
    return Task(f"seed-{seed}", "openenv", "all", f"seed-{seed}", {"seed": seed, **data})


def play(url: str, agent: Any, count: int = 1, steps: int = 4, **settings: Any) -> list[Trajectory]:
    kind = env_of(url)
    episodes = [Episode(task(seed), seed) for seed in range(count)]
    return rollout(episodes, lambda: Checked(kind(**settings), steps), agent, width=count)


def texts(trajectory: Trajectory) -> list[str]:
    assert trajectory.final is not None
    return [message.content for message in trajectory.final.messages if message.role != "assistant"]


@contextlib.contextmanager
def template(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The server of what `openenv init` writes, in a process."""
    subprocess.run(
        [sys.executable, "-m", "openenv.cli", "init", "my_echo"], cwd=folder, check=True, capture_output=True
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "server.app:app", "--port", str(port), "--log-level", "critical"]
    process = subprocess.Popen(command, cwd=folder / "my_echo")
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


def test_the_template_of_openenv_init(tmp_path: Path) -> None:
    """Its server allows one session, so four episodes take turns; then it dies in the middle of one."""
    with template(tmp_path) as (url, process):
        assert env_class(f"openenv:{url}").action_kind(env_of(url).Settings()) == "text"
        played = play(url, Plays("abc", "x" * 20), 4, 2)
        assert [one.status for one in played] == [Status.TRUNCATED] * 4
        assert [one.total_return for one in played] == [pytest.approx(0.3 + 1.0)] * 4
        assert texts(played[0])[1:] == ["echoed_message: abc\nmessage_length: 3", texts(played[0])[2]]

        class Kills(Plays):
            async def decide(self, observation: Any, context: Any) -> Decision:
                if context.turns:
                    process.kill()
                    process.wait()
                return await super().decide(observation, context)

        (lost,) = play(url, Kills("abc"))
        assert (lost.status, len(lost.turns), lost.success) == (Status.ABORTED, 1, False)
        assert "lost the session" in lost.reason
        (unreached,) = play(url, Plays("abc"))
        assert unreached.status is Status.ABORTED
    env_of.cache_clear()
    with pytest.raises(ConfigError, match="no server answers"):
        play(url, Plays("abc"))


class Move(enum.StrEnum):
    LEFT = "left"
    RIGHT = "right"


class MoveAction(Action):
    move: Move


class Seen(Observation):
    place: int = 0
    drawn: int = 0


class Line(Environment):
    """Walk from 0 to 2; the place, and what the seed drew, are seen."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    most_at_once = at_once = 0

    def __init__(self) -> None:
        super().__init__()
        Line.at_once += 1
        Line.most_at_once = max(Line.at_once, Line.most_at_once)

    def reset(self, seed: int | None = None, start: int = 0, **_: Any) -> Any:
        self.place, self.seed = start, seed or 0
        return Seen(place=self.place, drawn=self.seed * 7, reward=0.5)

    def step(self, action: Any, **_: Any) -> Any:
        self.place += 1 if action.move == Move.RIGHT else -1
        if self.place < -1:
            raise ValueError("fell off")
        done = self.place == 2
        return Seen(place=self.place, drawn=self.seed, reward=None if not done else 2, done=done)

    @property
    def state(self) -> State:
        return State()

    def close(self) -> None:
        Line.at_once -= 1


def test_an_enumeration_is_choices_and_seeds_and_rewards_are_kept() -> None:
    with served(create_fastapi_app(Line, MoveAction, Seen, 8)) as url:
        Line.most_at_once = 0
        played = play(url, Plays(1, wait_s=0.1), 4)
        assert [one.status for one in played] == [Status.COMPLETED] * 4
        assert all(one.total_return == 2.5 for one in played)  # what reset rewarded counts, too
        first = [one.turns[0].observation for one in played]
        assert [seen.choices for seen in first] == [("left", "right")] * 4
        assert [seen.text for seen in first] == [f"place: 0\ndrawn: {7 * seed}" for seed in range(4)]
        assert Line.most_at_once == 4  # side by side
        (failed,) = play(url, Plays(0))
        assert failed.status is Status.ABORTED
        assert "fell off" in failed.reason
        env = env_of(url)()
        env.reset(task(0, start=1), 0)
        with pytest.raises(IllegalActionError):
            env.step(2)
        assert env.step(1).terminated
        env.close()


def test_a_server_that_is_full() -> None:
    """Our own sessions take turns; one that somebody else keeps fails the episode after the timeout."""
    from websockets.sync.client import connect

    with served(create_fastapi_app(Line, MoveAction, Seen, 2)) as url:
        Line.most_at_once = 0
        assert [one.status for one in play(url, Plays(1, wait_s=0.05), 6)] == [Status.COMPLETED] * 6
        assert Line.most_at_once == 2
        with connect(f"ws{url[4:]}/ws"), connect(f"ws{url[4:]}/ws"):
            (waited,) = play(url, Plays(1), server_timeout_s=0.5)
        assert waited.status is Status.ABORTED
        assert "no session left" in waited.reason


def test_mcp_tools_are_typed_tools() -> None:
    pytest.importorskip("fastmcp", reason="needs fastmcp")
    from fastmcp import FastMCP
    from openenv.core.env_server.mcp_environment import MCPEnvironment

    class Tools(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            mcp = FastMCP("tools")

            @mcp.tool()
            def add(a: int, b: int) -> int:
                """Add."""
                return a + b

            @mcp.tool()
            def blob() -> str:
                """A megabyte."""
                return "x" * 2**20

            @mcp.tool()
            def fail() -> str:
                """Fail."""
                raise ValueError("it broke")

            super().__init__(mcp)

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
            return Observation(metadata={"goal": "add"})

        def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            return Observation()

        @property
        def state(self) -> State:
            return State()

    calls = [ToolCall("add", {"a": 2, "b": 3}), ToolCall("blob", {}), ToolCall("fail", {})]
    with served(create_fastapi_app(Tools, CallToolAction, CallToolObservation, 4)) as url:
        (played,) = play(url, Plays(use_of(calls[:2]), 'add {"a": "two"}', "hello", use_of(calls[2:])))
    assert played.status is Status.TRUNCATED
    goal, five, blob, wrong, none, failed = texts(played)
    assert (goal, five) == ("add", "5")
    assert len(blob) < 17_000
    assert blob.endswith("of 1,048,576 characters]")
    assert "expected integer" in wrong
    assert none.startswith("no call")
    assert "it broke" in failed
    assert [turn.info.get("refused", 0) for turn in played.turns] == [0, 1, 1, 1]
    add = next(tool for tool in played.turns[0].observation.tools if tool.name == "add")
    assert (add.description, add.parameters["required"]) == ("Add.", ["a", "b"])


async def answer_http(send: Any, body: bytes, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


def other_server(*answers: Any, schema: Any = None, status: int = 200) -> Any:
    """An app that answers requests with `schema`, and the messages of a session with `answers`, then hangs up."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await answer_http(send, b"<html>" if schema is None else json.dumps(schema).encode(), status)
        elif scope["type"] == "websocket" and not answers:
            await send({"type": "websocket.close"})
        elif scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            await receive()
            for answer in answers:
                await receive()
                await send(
                    {"type": "websocket.send", "text": answer if isinstance(answer, str) else json.dumps(answer)}
                )
            await send({"type": "websocket.close", "code": 1000})

    return app


ACTION = {"action": {"properties": {"message": {"type": "string"}}}}
BEGUN = {"type": "observation", "data": {"observation": {"text": "hi"}, "reward": 0.0, "done": False}}


@pytest.mark.parametrize(
    "answers",
    [
        ["no JSON"],
        [{"type": "observation", "data": {"observation": {}, "reward": "much", "done": False}}],
        [{"type": "error", "data": {"message": "broken", "code": "EXECUTION_ERROR"}}],
        [{"type": "observation", "data": {"observation": {}, "reward": 0, "done": True}}],
        [BEGUN],
    ],
)
def test_answers_of_another_version_abort_the_episode(answers: list[Any]) -> None:
    with served(other_server(*answers, schema=ACTION)) as url:
        (played,) = play(url, Plays("x"))
    assert (played.status, played.turns) == (Status.ABORTED, ())
    assert url in played.reason


UNKNOWN = {"type": "error", "data": {"message": "Unknown message type", "code": "UNKNOWN_TYPE"}}


def chatty_server(extra: str) -> Any:
    """An app whose sessions count their steps up to 3; the answer to the second request is sent twice: "at once", or
    "late", after what was asked next. extra: "old" for a server that knows no mcp and answers once.
    """

    def seen(step: int) -> dict[str, Any]:
        return {"type": "observation", "data": {"observation": {"at": str(step)}, "reward": 1.0, "done": step == 3}}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await answer_http(send, json.dumps(ACTION).encode())
        elif scope["type"] == "websocket":
            assert not dict(scope["headers"]).get(b"sec-websocket-extensions")  # nothing compressed
            await send({"type": "websocket.accept"})
            await receive()
            step = -1
            while (event := await receive())["type"] == "websocket.receive":
                asked = json.loads(event["text"])
                if asked["type"] != "mcp":
                    step += 1
                    answers = [seen(step)] * (2 if extra == "at once" and step == 1 else 1)
                elif extra == "old":
                    answers = [UNKNOWN]
                else:
                    answers = [{"type": "mcp", "data": {"jsonrpc": "2.0", "error": {}, "id": asked["data"]["id"]}}]
                    answers += [seen(step)] * (extra == "late" and step == 1)
                for answer in answers:
                    await send({"type": "websocket.send", "text": json.dumps(answer)})

    return app


def test_an_answer_that_comes_twice_aborts_the_episode() -> None:
    """No turn gets the answer to another: the late one is noticed in the step that it would have answered."""
    for extra, status, read in (
        ("", Status.COMPLETED, ["0", "1", "2", "3"]),
        ("old", Status.COMPLETED, ["0", "1", "2", "3"]),
        ("at once", Status.ABORTED, []),
        ("late", Status.ABORTED, ["0"]),
    ):
        with served(chatty_server(extra)) as url:
            (played,) = play(url, Plays("x"))
        assert played.status is status
        if status is Status.COMPLETED:
            assert texts(played) == read
        else:
            assert "more than once" in played.reason
            assert [turn.observation.messages[-1].content for turn in played.turns] == read


def test_a_token_that_the_server_repeats_is_kept_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_API_KEY", "open-sesame-0123456789")
    told = {"observation": {"text": "you sent open-sesame-0123456789!"}, "reward": 0.0, "done": False}
    with served(other_server({"type": "observation", "data": told}, UNKNOWN, schema=ACTION)) as url:
        (played,) = play(url, Plays("x"))
    assert texts(played) == ["you sent [key]!"]


GIGABYTES = gzip.compress(gzip.compress(bytes(2**22)))


@pytest.mark.parametrize("fault", ["compressed", "long", "slow"])
def test_a_schema_is_read_in_limits_of_size_and_time(fault: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        encoding = [(b"content-encoding", b"gzip, gzip")] if fault == "compressed" else []
        await send({"type": "http.response.start", "status": 200, "headers": encoding})
        pieces = {"compressed": [GIGABYTES], "long": [b" " * 2**20] * 40, "slow": [b" "] * 100}[fault]
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0.05 if fault == "slow" else 0)
        await send({"type": "http.response.body", "body": json.dumps(ACTION).encode()})

    reason = {"compressed": "encoded", "long": "longer than 16,777,216 bytes", "slow": "not read in 0.5 s"}[fault]
    with served(app) as url, pytest.raises(ConfigError, match=reason):
        play(url, Plays("x"), server_timeout_s=0.5)


def test_code_from_a_hub_needs_consent() -> None:
    with pytest.raises(ConfigError, match="--run-hub-code") as caught:
        play("openenv/echo_env", Plays("x"))
    assert "https://openenv-echo-env.hf.space" in str(caught.value)
    with pytest.raises(ConfigError, match="write openenv:http"):
        env_class("openenv:localhost:8000")
