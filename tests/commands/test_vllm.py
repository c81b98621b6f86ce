"""A policy with a LoRA adapter is trained through a real vLLM, which is killed in the middle and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit.data.problems import Record, record_to_json
from reflectkit.envs import make
from reflectkit.envs.taxi import Taxi
from reflectkit.jsonl import read_jsonl, write_json
from reflectkit.models.load import LoadedModel, save_player
from reflectkit.models.tiny import build_tokenizer
from reflectkit.prompts import label, policy_prompt
from tests.rlft_runs import train

PYTHON = os.environ.get("VLLM_PYTHON", "")
pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not PYTHON, reason="needs vLLM: make vllm-check")]
BOOT_S = 900


def save_llama(folder: Path) -> None:
    """An untrained Llama of 0.6 M parameters that reads taxi's prompts."""
    from transformers import LlamaConfig, LlamaForCausalLM

    seen = [make("taxi").reset(task, 0) for task in Taxi.taskset.tasks("dropoff")]
    tokenizer = build_tokenizer([policy_prompt(one) for one in seen], [label(index) for index in range(6)])
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("eos", "pad")}
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=256, tie_word_embeddings=True, initializer_range=0.08, **ids,
    )  # fmt: skip
    torch.manual_seed(0)
    save_player(folder, LoadedModel(LlamaForCausalLM(config), tokenizer, None))


class Vllm:
    """vLLM on loopback, with adapters at run time."""

    def __init__(self, model: Path, log: Path, dtype: str) -> None:
        self.model, self.log, self.dtype, self.process = model, log, dtype, None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and return before it answers."""
        command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model), "--dtype",
            self.dtype, "--host", "127.0.0.1", "--port", str(self.port), "--enforce-eager", "--enable-lora",
            "--max-lora-rank", "16"]  # fmt: skip
        more = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
        with self.log.open("ab") as log:
            self.process: Any = subprocess.Popen(
                command, env=os.environ | more, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> None:
        """Until it answers."""
        for _ in range(BOOT_S):
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/v1/models", timeout=1):
                return
            assert self.process.poll() is None, self.log.read_text("utf-8")[-2000:]
            time.sleep(1)
        raise AssertionError(self.log.read_text("utf-8")[-2000:])

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vllm")
    save_llama(folder / "llama")
    write_json(folder / "train.json", [record_to_json(Record(task, ())) for task in Taxi.taskset.tasks("dropoff")])
    return folder / "llama"


@contextmanager
def serving(model: Path, dtype: str) -> Iterator[Vllm]:
    running = Vllm(model, model.parent / f"{dtype}.log", dtype)
    running.start()
    try:
        running.wait()
        yield running
    finally:
        running.kill()


@pytest.fixture
def server(model: Path) -> Iterator[Vllm]:
    with serving(model, "float32") as running:
        yield running


def settings_of(model: Path, **more: Any) -> dict[str, Any]:
    return {
        "env": "taxi", "task_file": model.parent / "train.json", "policy": model, "lora_r": 8,
        "curriculum": ("dropoff",), "episodes": 16, "max_steps": 4, "learning_rate": 3e-3, **more,
    }  # fmt: skip


def test_learning_is_that_of_this_process_and_survives_a_kill(server: Vllm, tmp_path: Path) -> None:
    settings = settings_of(server.model)
    runs: dict[str, list[dict[str, Any]]] = {}

    def run(name: str, **more: Any) -> None:
        checkpoint = train(tmp_path, tmp_path, **settings, name=name, **more)
        runs[name] = [row for _, row in read_jsonl(checkpoint.parent / "metrics.jsonl")]

    def kill_after_an_update() -> None:
        metrics = tmp_path / "killed" / "metrics.jsonl"
        while not metrics.is_file() or not metrics.read_text("utf-8"):
            time.sleep(0.05)
        server.kill()
        server.start()

    remote = {"sampler": f"vllm:{server.url}", "server_patience_s": float(BOOT_S)}
    run("local")
    run("vllm", **remote)
    killer = threading.Thread(target=kill_after_an_update)
    killer.start()
    run("killed", **remote)
    killer.join()
    for name in ("vllm", "killed"):
        for one, other in zip(runs["local"], runs[name], strict=True):
            assert (one["success_rate"], one["return"]) == (other["success_rate"], other["return"])
            assert other["aborted"] == 0
            assert other["logprob_difference_max"] < 1e-4
    assert "Loaded new LoRA adapter" in server.log.read_text("utf-8")
    for name, rows in runs.items():
        print(name, [round(row["return"], 3) for row in rows], [row["episodes_per_second"] for row in rows],
            [row.get("logprob_difference_max") for row in rows])  # fmt: skip
