"""`serve-env`: our environments as OpenEnv servers, for our own client and for TRL's trainer.

Skipped without the package and its server (`pip install openenv`).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

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

from reflectkit.commands.serve_env import ServeEnvConfig, app_of, tasks_of


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
        import httpx2

        assert [split["name"] for split in httpx2.get(f"{url}/taxi/splits").json()] == ["pickup", "dropoff", "full"]
        body = {"split": "pickup", "index": 5}
        assert httpx2.post(f"{url}/taxi/task", json=body).json()["task"]["id"] == tasks[5].id


def test_tools_and_words_to_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
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
        assert httpx2.get(f"{url}/health", headers={"Origin": "https://elsewhere"}).status_code == 401


def test_the_command_serves_until_it_is_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "reflectkit", "serve-env", "--env", "corridor", "--port", "0"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        url = next(word for line in process.stdout for word in line.split() if word.startswith("http")).rstrip(";")
        with GenericEnvClient(base_url=url).sync() as client:
            assert client.reset(seed=0).observation["text"]
        process.send_signal(signal.SIGINT)
        assert "Traceback" not in process.stdout.read()
        assert process.wait(20) == 0
    finally:
        process.kill()


CALL = '<tool_call>\n{{"name": "move", "arguments": {{"choice": "{}"}}}}\n</tool_call>'


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_trl_trains_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of GRPO with a model that can only write calls, so that it does call."""
    import torch
    import trl
    from datasets import Dataset
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tests.families import qwen

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setenv("WANDB_DISABLED", "true")
    tokenizer = qwen(["a taxi drives south and north"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]})
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    calls = [CALL.format(choice) for choice in ("south", "north", "dropoff")]
    tokenizer.add_tokens(calls)
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text("utf-8")
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **size, **heads, **ends))
    seen: list[tuple[int, float]] = []

    with served(app("taxi", sessions=4)) as url:

        class Taxi:
            def __init__(self) -> None:
                self.client = GenericEnvClient(base_url=url).sync()
                self.client.connect()

            def reset(self, seed: int = 0, **row: Any) -> str:
                self.seed, self.reward = seed, 0.0
                return str(self.client.reset(seed=seed).observation["text"])

            def move(self, choice: str) -> str:
                """Drive the taxi.

                Args:
                    choice: What to do.

                Returns:
                    What is seen next.
                """
                result = self.client.step({"choice": choice})
                self.reward += float(result.reward or 0)
                return str(result.observation["text"])

            def get_reward(self) -> float:
                seen.append((self.seed, self.reward))
                return self.reward

        keep = {tokenizer.eos_token_id, *map(tokenizer.convert_tokens_to_ids, calls)}
        rows = [{"prompt": [{"role": "user", "content": "Drive."}], "seed": seed} for seed in range(2)]
        config = trl.GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=2,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=300,
            max_tool_calling_iterations=3,
            learning_rate=1e-2,
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            generation_kwargs={"suppress_tokens": [i for i in range(len(tokenizer)) if i not in keep]},
        )
        before = {name: weight.clone() for name, weight in model.named_parameters()}
        trainer = trl.GRPOTrainer(
            model=model,
            args=config,
            processing_class=tokenizer,
            environment_factory=Taxi,
            train_dataset=Dataset.from_list(rows),
        )
        trainer.train()
    log = [line for line in trainer.state.log_history if "tools/call_frequency" in line]
    assert trainer.state.global_step == 2
    assert log[0]["tools/call_frequency"] > 0
    assert log[0]["tools/failure_frequency"] == 0
    assert len(seen) == 8
    assert all(reward < 0 for _, reward in seen)
    assert any(not torch.equal(weight, before[name]) for name, weight in model.named_parameters())
