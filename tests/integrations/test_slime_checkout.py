"""The plug-in inside slime itself, on a CPU, with a router that answers as SGLang does.

Needs a checkout of slime in SLIME_DIR, and the packages `httpx`, `aiohttp` and `pylatexenc`. Ray, SGLang and the like
are stubs, as in slime's own tests on a CPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import threading
import types
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from transformers import GPT2Config
from transformers.utils import import_utils

from reflectkit.envs.support.env import Support
from reflectkit.eventloop import result_of
from reflectkit.integrations.slime.__main__ import prompt_row
from reflectkit.integrations.slime.episodes import episode_of, read_prompt
from reflectkit.models.chat import Dialogue
from reflectkit.types import Task
from tests.handler import QuietHandler
from tests.models.test_chat import byte_by_byte, make_tokenizer

SLIME = os.environ.get("SLIME_DIR", "")
ROOT = Path(__file__).parents[2]
STUBS = ("ray", "sglang", "sglang_router", "wandb", "requests", "urllib3")

pytestmark = [pytest.mark.slime, pytest.mark.skipif(not SLIME, reason="needs a checkout of slime in SLIME_DIR")]


Answer = Callable[[list[int]], Sequence[int]]
"""From a prompt's ids to the sampled ids."""


@dataclass
class Router:
    """port: on 127.0.0.1. requests: every body, with its answer's ids and log-probs. headers: of each request."""

    port: int
    answer: Answer
    requests: list[tuple[dict[str, Any], list[int], list[float]]] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def respond(self, body: dict[str, Any]) -> dict[str, Any]:
        """SGLang's response: no two tokens have the same log-prob."""
        answer = self.answer(body["input_ids"])
        with self.lock:
            ids = list(answer)[: body["sampling_params"]["max_new_tokens"]]
            logprobs = [-next(self.numbers) / 1024 for _ in ids]
            self.requests.append((body, ids, logprobs))
        meta = {
            "finish_reason": {"type": "stop" if len(ids) == len(answer) else "length"},
            "output_token_logprobs": [[logprob, token, None] for logprob, token in zip(logprobs, ids, strict=True)],
            "weight_version": "3",
            "prompt_tokens": len(body["input_ids"]),
            "cached_tokens": 1,
        }
        return {"text": "", "meta_info": meta}


@contextmanager
def serve_router(answer: Answer) -> Iterator[Router]:
    """A router for as long as the context lasts."""

    class Handler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802 (http.server calls it so)
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/generate":
                router.headers.append(self.headers)
                self._send(router.respond(body))
            else:
                self._send({})

        def do_GET(self) -> None:  # noqa: N802 (http.server calls it so)
            self._send({"workers": []})

        def _send(self, value: dict[str, Any]) -> None:
            self.send(200, json.dumps(value).encode())

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    router = Router(listener.server_address[1], answer)
    threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield router
    finally:
        listener.shutdown()
        listener.server_close()


class Stub(types.ModuleType):
    """A module that has every attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return (lambda kind: kind) if (self.__name__, name) == ("ray", "remote") else MagicMock(name=name)


class Stubs:
    """Finds a stub for the modules of each package that is not installed."""

    def __init__(self) -> None:
        self.names = [name for name in STUBS if importlib.util.find_spec(name) is None]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self.names else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> Stub:
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


@pytest.fixture(scope="module")
def slime() -> Iterator[Callable[[str], Any]]:
    """Imports modules of the checkout. Afterwards nothing of it is left, nor of the stubs."""
    with pytest.MonkeyPatch.context() as patch:
        stubs = Stubs()
        patch.setattr(sys, "meta_path", [*sys.meta_path, stubs])
        patch.syspath_prepend(SLIME)
        try:
            importlib.import_module("slime.rollout.sglang_rollout")
        except ModuleNotFoundError as error:
            pytest.skip(f"slime's rollouts need the package {error.name}")
        yield importlib.import_module
        for name in list(sys.modules):
            if name.partition(".")[0] in ("slime", *stubs.names):
                del sys.modules[name]
    for answer in list(vars(import_utils).values()):  # whether a package is installed, as it was with the stubs
        if hasattr(answer, "cache_clear"):
            answer.cache_clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with a chat template, and a config."""
    folder = tmp_path_factory.mktemp("qwen")
    make_tokenizer("qwen").save_pretrained(folder)
    GPT2Config(n_positions=100_000).save_pretrained(folder)
    return folder


@pytest.fixture
def arguments(slime: Any, folder: Path) -> Iterator[Callable[..., Namespace]]:
    """Makes slime's arguments for a router; its singletons are new in each test."""

    def make(router: Router, **more: Any) -> Namespace:
        args = Namespace(
            hf_checkpoint=str(folder), sglang_router_ip="127.0.0.1", sglang_router_port=router.port,
            sglang_server_concurrency=8, rollout_num_engines=1, use_distributed_post=False, sglang_dp_size=1,
            custom_generate_function_path="reflectkit.integrations.slime.generate", custom_rm_path=None,
            partial_rollout=False, group_rm=False, rollout_seed=42, rollout_temperature=1.0, rollout_top_p=1.0,
            rollout_top_k=-1, rollout_max_response_len=1000, rollout_stop=None, rollout_stop_token_ids=None,
            rollout_skip_special_tokens=False, rollout_max_context_len=None, eval_max_context_len=None,
            n_samples_per_prompt=2, rollout_batch_size=2, over_sampling_batch_size=2, rollout_global_dataset=True,
            dynamic_sampling_filter_path="reflectkit.integrations.slime.keep_group", rollout_sample_filter_path=None,
            rollout_all_samples_process_path=None, buffer_filter_path=None, rollout_max_prompt_len=None,
            input_key="prompt", label_key=None, metadata_key="metadata", tool_key=None, multimodal_keys=None,
            apply_chat_template=False, apply_chat_template_kwargs=None, rollout_shuffle=False, dump_details=None,
            load_debug_rollout_data=None, advantage_estimator="grpo", rewards_normalization=True,
            grpo_std_normalization=True, eval_max_prompt_len=None, reward_key=None, eval_reward_key=None,
            sglang_config=None, reflectkit={},
        )  # fmt: skip
        vars(args).update(more)
        slime("slime.utils.http_utils").init_http_client(args)
        return args

    yield make
    slime("slime.utils.misc").SingletonMeta._instances.clear()
    slime("slime.utils.http_utils")._http_client = None


def play(slime: Any, args: Namespace, sample: Any, evaluation: bool = False) -> Any:
    """What slime's `generate_and_rm` makes of `sample`, in slime's own loop."""
    rollouts = slime("slime.rollout.sglang_rollout")
    params = rollouts.GenerateState(args).sampling_params.copy()
    return slime("slime.utils.async_utils").run(rollouts.generate_and_rm(args, sample, params, evaluation=evaluation))


def sample_of(slime: Any, task: Task, env: str = "support", split: str = "train", **more: Any) -> Any:
    row = prompt_row(env, task, split)
    return slime("slime.utils.types").Sample(prompt=row["prompt"], metadata=row["metadata"], **more)


def oracle(slime: Any, args: Namespace, task: Task) -> list[str]:
    """What the oracle writes in group 0 of the training."""
    sample = sample_of(slime, task, index=0, group_index=0)
    env, texts, over = Support(horizon=Support.horizons["one"]), [], False
    result_of(env.reset(task, episode_of(args, sample, read_prompt(args, sample.metadata), False).start or 0))
    while not over:
        action = env.teacher().action()
        texts.append(Dialogue(make_tokenizer("qwen")).completion(action))
        over = result_of(env.step(action)).terminated
    return texts


class Script:
    """Writes the text of the turn byte by byte, which tokenising it would not give, and ends with the end token. The
    last text is that of all further turns.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts, self.tokenizer = texts, make_tokenizer("qwen")

    def ids(self, text: str) -> list[int]:
        return [*byte_by_byte(self.tokenizer, text), self.tokenizer.eos_token_id]

    def __call__(self, prompt: list[int]) -> list[int]:
        turn = self.tokenizer.decode(prompt).count("<|im_start|>assistant") - 1
        return self.ids(self.texts[min(turn, len(self.texts) - 1)])


def trained(rows: Sequence[Any]) -> list[tuple[int, float]]:
    """The trained tokens of an episode with their log-probs."""
    pairs = []
    for row in rows:
        assert row.response_length == len(row.loss_mask) == len(row.rollout_log_probs)
        response = zip(row.tokens[-row.response_length :], row.rollout_log_probs, row.loss_mask, strict=True)
        for token, logprob, mask in response:
            assert mask or logprob == 0
            pairs += [(token, logprob)] if mask else []
    return pairs


def sampled(router: Router) -> list[tuple[int, float]]:
    """What the router sampled, in order."""
    return [pair for _, ids, logprobs in router.requests for pair in zip(ids, logprobs, strict=True)]


TASK = Support.taskset.example("one", 0)
REFUSAL = 'I think so.\n<tool_call>\n{"name": "escalate", "arguments": {"reason": "no"}}\n</tool_call>'


def test_a_conversation_is_one_row_with_the_tokens_that_sglang_sampled(slime: Any, arguments: Any) -> None:
    with serve_router(lambda prompt: script(prompt)) as router:
        args = arguments(router, router_policy="consistent_hashing")
        script = Script(oracle(slime, args, TASK))
        rows = play(slime, args, sample_of(slime, TASK, index=0, group_index=0, session_id="s1"))
    [row] = rows
    assert len(router.requests) == len(script.texts) > 5
    assert (row.reward, row.status.value, row.rollout_id, row.remove_sample) == (1.0, "completed", 0, False)
    assert trained(rows) == sampled(router)
    for body, ids, _ in router.requests:  # each prompt is the row so far, and its answer follows
        count = len(body["input_ids"])
        assert row.tokens[:count] == body["input_ids"]
        assert row.tokens[count : count + len(ids)] == ids
        assert body["return_logprob"] is True
        assert body["sampling_params"]["stop_token_ids"] == sorted(Dialogue(script.tokenizer).stop_ids)
        assert body["sampling_params"]["top_k"] == -1
    assert {headers["X-SMG-Routing-Key"] for headers in router.headers} == {"s1"}
    assert row.weight_versions == ["3"] * len(script.texts)
    assert row.prefix_cache_info.total_prompt_tokens == sum(len(body["input_ids"]) for body, *_ in router.requests)
    assert row.response.startswith(script.texts[0])
    row._validate_response_metadata_lengths()


CONTRACTS = (
    "test_plugin_generate_contracts.py",
    "test_plugin_path_loading_contracts.py",
    "test_plugin_runtime_hook_contracts.py",
    "test_plugin_rollout_contracts.py",
)


def test_slimes_own_contract_tests_pass_with_our_functions(slime: Any, folder: Path) -> None:
    with serve_router(Script([REFUSAL])) as router:
        args = {
            "hf_checkpoint": str(folder), "sglang_router_ip": "127.0.0.1", "sglang_router_port": router.port,
            "sglang_server_concurrency": 8, "rollout_num_engines": 1, "use_distributed_post": False,
            "reflectkit": {"one_row": True},
        }  # fmt: skip
        metadata = prompt_row("support", TASK, "train")["metadata"]
        paths = [SLIME, str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "REFLECTKIT_CONTRACT": json.dumps({"args": args, "metadata": metadata}),
            "SLIME_CONTRACT_CUSTOM_GENERATE_FUNCTION_PATH": "slime_contract.generate",
            "SLIME_CONTRACT_DYNAMIC_SAMPLING_FILTER_PATH": "reflectkit.integrations.slime.keep_group",
            "SLIME_CONTRACT_CUSTOM_REWARD_POST_PROCESS_PATH": "reflectkit.integrations.slime.normalise_rewards",
        }
        files = [f"{SLIME}/tests/plugin_contracts/{name}" for name in CONTRACTS]
        command = [sys.executable, "-m", "pytest", "-p", "slime_contract", "-p", "no:cacheprovider", *files]
        done = subprocess.run(command, cwd=SLIME, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert len(router.requests) == 1  # the override test, which played an episode
