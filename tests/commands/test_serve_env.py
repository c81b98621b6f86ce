"""`serve-env`: our environments as OpenEnv servers, for our own client and for TRL's trainer.

Skipped without the package and its server (`pip install openenv`).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from reflectkit.agents.scripted import RandomAgent
from reflectkit.cli.app import run
from reflectkit.config import build
from reflectkit.envs import env_class, listed, make
from reflectkit.envs.adapters.openenv import KEY, env_of
from reflectkit.errors import ConfigError
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.seeding import derive, generator
from reflectkit.tools import use_of
from reflectkit.types import Status, Task, ToolCall
from tests.asgi import served

pytest.importorskip("openenv", reason="needs openenv: pip install openenv")
pytest.importorskip("uvicorn", reason="needs uvicorn")
pytest.importorskip("websockets", reason="needs websockets")

from openenv.core import GenericEnvClient, MCPToolClient

from reflectkit.commands.serve_env import ServeEnvConfig, tasks_of
from reflectkit.envs.adapters.openenv_server import app_of


def app(env: str, token: str = "", sessions: int = 8, **settings: Any) -> Any:
    config = build(ServeEnvConfig, {"env": env, **settings}, "serve-env")
    return app_of(config.setup, tasks_of(config), sessions, token)


def test_an_episode_through_the_server_is_the_same_as_without_it() -> None:
    tasks = listed("taxi", "full")
    with served(app("taxi")) as url:
        kind = env_of(url)
        episodes = [Episode(Task(f"seed-{n}", "openenv", "all", "", {"seed": n}), n) for n in range(4)]
        played = rollout(episodes, lambda: kind(), RandomAgent())
    assert len({one.turns[0].observation.text for one in played}) > 1
    for number, through in enumerate(played):
        env = make("taxi", env_class("taxi").horizons["full"])
        seen: Any = env.reset(generator(number, "problem").choice(tasks), derive(number, "env"))
        for turn in through.turns:
            assert turn.observation == seen
            result: Any = env.step(turn.decision.action)
            assert turn.reward == result.reward
            seen = result.observation
        assert (through.status, result.terminated or result.truncated) == (Status.COMPLETED, True)
        assert through.success == result.info["success"]


def test_a_reset_picks_level_and_problem() -> None:
    tasks = listed("taxi", "pickup")
    with served(app("taxi")) as url, GenericEnvClient(base_url=url).sync() as client:
        first = client.reset(seed=1, level="pickup", task=tasks[5].id).observation["text"]
        assert client.state()["task"] == tasks[5].id
        assert client.reset(seed=1, split="pickup", index=5).observation["text"] == first
        again = [client.reset(seed=3).observation["text"] for _ in range(2)]
        assert again[0] == again[1]
        assert client.state()["level"] == "full"
        for wrong in ({"level": "nowhere"}, {"task": "nothing"}):
            with pytest.raises(RuntimeError, match=r"no (level|task) named"):
                client.reset(**wrong)
        for wrong, why in (
            ({"index": -1}, "index -1 must be 0 to"),
            ({"index": 10**6}, "must be 0 to"),
            ({"index": "0"}, "must be 0 to"),
            ({"task": 5}, "no task named"),
            ({"task": tasks[5].id, "index": 5}, "not both"),
        ):
            with pytest.raises(RuntimeError, match=why):
                client.reset(level="pickup", **wrong)
        import httpx2

        assert [split["name"] for split in httpx2.get(f"{url}/taxi/splits").json()] == ["pickup", "dropoff", "full"]
        body = {"split": "pickup", "index": 5}
        assert httpx2.post(f"{url}/taxi/task", json=body).json()["task"]["id"] == tasks[5].id


def test_tools_and_words_to_the_user() -> None:
    assert run(["gen-task", "--env", "support"]) == 0
    with served(app("support", task_file=Path("data/support/data.json"))) as url:
        env = env_of(url)(horizon=9)
        first: Any = env.reset(Task("t", "openenv", "all", "", {"seed": 4}), 0)
        names = [tool.name for tool in first.tools]
        assert {"reply", "get_order", "escalate"} <= set(names)
        wrong: Any = env.step(use_of([ToolCall("get_order", {"order": "none"})]))
        assert "Error" in wrong.observation.messages[-1].content
        said: Any = env.step(use_of([ToolCall("reply", {"text": "What is your order's number?"})]))
        assert said.observation.messages[-1].content.strip()
        ended: Any = env.step(use_of([ToolCall("escalate", {"reason": "why"})]))
        assert ended.terminated
        env.close()
        with MCPToolClient(base_url=url).sync() as client:  # the package's own
            client.reset(seed=4)
            assert [tool.name for tool in client.list_tools()] == names
            assert "no order none" in str(client.call_tool("get_order", order="none"))


def test_a_token_keeps_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx2

    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(ConfigError, match=KEY):
        build(ServeEnvConfig, {"env": "taxi", "host": "0.0.0.0"}, "serve-env")
    task = Task("t", "openenv", "all", "", {})
    with served(app("taxi", token="open sesame")) as url:
        with pytest.raises(ConfigError, match=KEY):
            env_of(url)().reset(task, 0)
        with pytest.raises(ConnectionError):
            GenericEnvClient(base_url=url).sync().connect()
        monkeypatch.setenv(KEY, "open sesame")
        assert build(ServeEnvConfig, {"env": "taxi", "host": "0.0.0.0"}, "serve-env").host == "0.0.0.0"
        env = env_of(url)()
        env.reset(task, 0)
        env.close()
    with served(app("taxi")) as url:  # without a token a web page may not ask
        assert httpx2.get(f"{url}/health").status_code == 200
        assert httpx2.get(f"{url}/health", headers={"Origin": "https://elsewhere"}).status_code == 403


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_the_command_serves_until_it_is_stopped(tmp_path: Path, number: int, code: int) -> None:
    command = [sys.executable, "-u", "-m", "reflectkit", "serve-env", "--env", "corridor", "--port", "0"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        url = next(word for line in process.stdout for word in line.split() if word.startswith("http")).rstrip(";")
        with GenericEnvClient(base_url=url).sync() as client:
            assert client.reset(seed=0).observation["text"]
        process.send_signal(number)
        assert "Traceback" not in process.stdout.read()
        assert process.wait(20) == code
    finally:
        process.kill()


def test_a_clients_mistake_is_told_over_http() -> None:
    """It was an internal error of the server, with a traceback."""
    with served(app("taxi")) as url:
        for path, body, reason in (
            ("/reset", {"level": "nowhere"}, "no level named 'nowhere'"),
            ("/reset", {"task": "nothing"}, "no task named 'nothing'"),
            ("/reset", {"index": -1}, "index -1 must be 0 to"),
            ("/step", {"action": {"choice": "north"}}, "step before reset"),
        ):
            response = httpx2.post(f"{url}{path}", json=body)
            assert response.status_code == 400
            assert reason in response.json()["detail"]


def test_a_seed_is_a_whole_number_from_0() -> None:
    with served(app("taxi")) as url, GenericEnvClient(base_url=url).sync() as client:
        for seed in ("a", True, 1.5, -1):
            with pytest.raises(RuntimeError, match="must be a whole number from 0"):
                client.reset(seed=seed)


def test_another_name_of_the_server_is_refused() -> None:
    """A web page whose name was pointed at this machine would have one."""
    config = build(ServeEnvConfig, {"env": "taxi"}, "serve-env")
    with served(app_of(config.setup, tasks_of(config), 8, hosts=("127.0.0.1", "localhost"))) as url:
        assert httpx2.post(f"{url}/reset", json={}).status_code == 200
        assert httpx2.post(f"{url}/reset", json={}, headers={"Host": "evil.com"}).status_code == 400
