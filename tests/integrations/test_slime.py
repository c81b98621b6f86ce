"""The plug-in for slime, as far as it goes without slime: rows, rewards, figures, settings and prompt data."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from transformers import GPT2Config

from reflectkit.data.problems import Record, record_to_json
from reflectkit.envs.support.env import Support
from reflectkit.envs.taxi import Taxi
from reflectkit.errors import ConfigError, EnvironmentFailure
from reflectkit.eventloop import run_sync
from reflectkit.integrations.slime import generate, normalise_rewards
from reflectkit.integrations.slime.__main__ import main as write_prompts
from reflectkit.integrations.slime.__main__ import prompt_row
from reflectkit.integrations.slime.episodes import RouterAnswer, read_answer, reflector_of, to_samples
from reflectkit.sampling.base import SampleRequest
from reflectkit.types import Decision, Message, Observation, Status, Task, Trajectory, Turn
from tests.models.test_chat import byte_by_byte, make_tokenizer


@dataclass
class Cache:
    total_prompt_tokens: int = 0

    def add(self, meta: dict[str, Any]) -> None:
        self.total_prompt_tokens += meta.get("prompt_tokens", 0)


@dataclass
class FakeSample:
    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    reward: Any = None
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    weight_versions: list[str] = field(default_factory=list)
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None
    prefix_cache_info: Cache = field(default_factory=Cache)


TASK = Task("t", "support", "one", "g", {})
STATUS = FakeSample.Status


class Tokenizer:
    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


def turn(prompt: tuple[int, ...], written: tuple[int, ...], reward: float = 0.0, choices: int = 0) -> Turn:
    logprobs = tuple(-token / 10 for token in written)
    seen = Observation((Message("user", "?"),), ("",) * choices)
    return Turn(seen, Decision(0 if choices else "a", None, prompt, written, logprobs), reward)


def answers_of(turns: Sequence[Turn]) -> list[RouterAnswer]:
    return [
        RouterAnswer(
            SampleRequest(turn.decision.prompt_ids, tuple((index,) for index in range(len(turn.observation.choices)))),
            turn.decision.token_ids,
            turn.decision.logprobs,
            {"weight_version": f"w{number}", "prompt_tokens": 10},
        )
        for number, turn in enumerate(turns)
    ]


def samples_of(turns: Sequence[Turn], status: Status = Status.COMPLETED, **more: Any) -> list[FakeSample]:
    played = Trajectory(TASK, 0, tuple(turns), status, True, **more)
    return to_samples(played, answers_of(turns), FakeSample(group_index=2, index=7, metadata={"a": 1}), Tokenizer())


def ended(group: int | None, episode: int | None, reward: float | None, status: STATUS = STATUS.COMPLETED) -> Any:
    return FakeSample(group_index=group, index=episode, rollout_id=episode, reward=reward, status=status)


def test_a_conversation_that_grows_is_one_row() -> None:
    [row] = samples_of([turn((1, 2), (3, 4)), turn((1, 2, 3, 4, 5), (6,), reward=1.0)])
    assert row.tokens == [1, 2, 3, 4, 5, 6]
    assert row.response_length == len(row.loss_mask) == len(row.rollout_log_probs) == 4
    assert row.loss_mask == [1, 1, 0, 1]
    assert row.rollout_log_probs == [-0.3, -0.4, 0.0, -0.6]
    assert (row.reward, row.status, row.remove_sample, row.response) == (1.0, STATUS.COMPLETED, False, "3 4 5 6")
    assert (row.rollout_id, row.group_index, row.index) == (7, 2, 7)
    assert (row.weight_versions, row.prefix_cache_info.total_prompt_tokens) == (["w0", "w1"], 20)


def test_a_rewritten_history_makes_several_rows_of_one_rollout() -> None:
    turns = [turn((1, 2), (3,)), turn((1, 2, 3, 4), (5,)), turn((9,), (8, 7), reward=0.5)]
    first, second = samples_of(turns)
    assert (first.tokens, first.loss_mask, first.rollout_log_probs) == ([1, 2, 3, 4, 5], [1, 0, 1], [-0.3, 0.0, -0.5])
    assert (second.tokens, second.loss_mask, second.rollout_log_probs) == ([9, 8, 7], [1, 1], [-0.8, -0.7])
    assert first.rollout_id == second.rollout_id == 7
    assert first.reward == second.reward == 0.5
    assert (first.weight_versions, second.weight_versions) == (["w0", "w1"], ["w2"])
    assert first.metadata is not second.metadata
    assert first.metadata["episode"]["figures"]["rows"] == second.metadata["episode"]["figures"]["rows"] == 2


def test_a_failed_episode_teaches_nothing() -> None:
    [row] = samples_of([turn((1, 2), (3,), reward=5.0)], Status.ABORTED, reason="the user is gone")
    assert (row.status, row.reward, row.remove_sample, row.loss_mask) == (STATUS.ABORTED, 0.0, True, [0])
    assert len(row.tokens) - row.response_length == 1
    assert row.rollout_log_probs == [0.0]
    assert row.metadata["episode"]["reason"] == "the user is gone"


def test_choices_are_rows_and_an_answer_that_is_no_label_is_trained() -> None:
    turns = [turn((1, 2), (3,), -0.5, 4), turn((1, 2, 3), (9,), 0.0, 4)]
    played = Trajectory(TASK, 0, (turns[0],), Status.TRUNCATED, False)  # the second answer was none of the labels
    first, second = to_samples(played, answers_of(turns), FakeSample(index=1), Tokenizer())
    assert (first.tokens, second.tokens) == ([1, 2, 3], [1, 2, 3, 9])
    assert first.loss_mask == second.loss_mask == [1]
    assert second.rollout_log_probs == [-0.9]
    assert first.status == STATUS.TRUNCATED


def test_each_episode_counts_once_in_the_rewards_of_its_group() -> None:
    # group 0: episodes with rewards 1 (three rows), 0 (one), 0 (two), and one that failed: mean 1/3,
    # standard deviation sqrt(((2/3)² + 2 (1/3)²) / 2) = sqrt(1/3); counting rows, the mean would be 1/2.
    group = [ended(0, 1, 1.0)] * 3 + [ended(0, 2, 0.0)] + [ended(0, 3, 0.0)] * 2 + [ended(0, 4, 0.0, STATUS.ABORTED)]
    other = [ended(1, 5, 2.0), ended(1, 6, 4.0), ended(1, 6, 4.0)]  # mean 3, standard deviation sqrt(2)
    raw, rewards = normalise_rewards(SimpleNamespace(advantage_estimator="grpo"), [*other[:1], *group, *other[1:]])
    assert raw == [2.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 4.0, 4.0]
    high, low = (2 / 3) / (math.sqrt(1 / 3) + 1e-6), (-1 / 3) / (math.sqrt(1 / 3) + 1e-6)
    side = 1 / (math.sqrt(2) + 1e-6)
    assert rewards == pytest.approx([-side, high, high, high, low, low, low, 0.0, side, side], abs=1e-12)


GOOD = {"finish_reason": {"type": "stop"}, "output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, "x"]]}


@pytest.mark.parametrize(
    "output",
    [
        None,
        {"meta_info": GOOD | {"output_token_logprobs": [[float("nan"), 7, None]]}},
        {"meta_info": GOOD | {"finish_reason": {"type": "abort"}}},
    ],
)
def test_a_damaged_answer_is_a_failure_of_the_infrastructure(output: Any) -> None:
    with pytest.raises(EnvironmentFailure):
        read_answer(SampleRequest((1,)), output)


def prompt_of(task: Task, env: str = "support", split: str = "train") -> dict[str, Any]:
    return json.loads(json.dumps(prompt_row(env, task, split)))["metadata"]


POLICY = "  - name: actor\n    update_weights: true\n"
FROZEN = "  - name: reflector\n    model_path: their/reflector\n    update_weights: false\n"


def served(folder: Path, text: str) -> str | None:
    (folder / "sglang.yaml").write_text(text)
    return reflector_of(SimpleNamespace(sglang_config=folder / "sglang.yaml", hf_checkpoint="their/policy"))


def test_the_reflector_is_the_frozen_model_of_that_name(tmp_path: Path) -> None:
    assert served(tmp_path, f"sglang:\n{POLICY}{FROZEN}") == "their/reflector"
    assert reflector_of(SimpleNamespace(sglang_config=None, hf_checkpoint="p")) is None


class StubFailure(Exception):
    """httpx.HTTPError."""


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """slime's arguments, a tokenizer's folder, and stubs of what a request needs of slime; `answers` come in order."""
    stub = SimpleNamespace(
        hf_checkpoint=str(tmp_path), sglang_router_ip="h", sglang_router_port=1, answers=[], sent=[], aborted=False
    )

    async def post(url: str, request: dict[str, Any], headers: Any) -> Any:
        stub.sent.append((url, request))
        if isinstance(stub.answers[0], Exception):
            raise stub.answers.pop(0)
        pairs = [[-0.5, token, None] for token in stub.answers.pop(0)]
        return {"meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": pairs}}

    modules = {
        "httpx": {"HTTPError": StubFailure},
        "slime": {},
        "slime.utils": {},
        "slime.utils.http_utils": {"post": post},
        "slime.rollout": {},
        "slime.rollout.sglang_rollout": {"GenerateState": lambda args: stub},
    }
    for name, attributes in modules.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
        if "." in name:
            setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
    make_tokenizer("qwen").save_pretrained(tmp_path)
    GPT2Config(n_positions=50_000).save_pretrained(tmp_path)
    return stub


def generated(stub: SimpleNamespace, split: str = "train", evaluation: bool = False, **more: Any) -> Any:
    sample = FakeSample(index=3, group_index=1, metadata=prompt_of(Support.taskset.example("one", 0), split=split))
    return run_sync(generate(stub, sample, {"temperature": 1.0, "max_new_tokens": 500, **more}, evaluation))


def test_an_episode_is_played_through_the_router(stubbed: SimpleNamespace) -> None:
    tokenizer = make_tokenizer("qwen")
    call = '<tool_call>\n{"name": "escalate", "arguments": {"reason": "no"}}\n</tool_call>'
    written = [[*byte_by_byte(tokenizer, text), tokenizer.eos_token_id] for text in ("Who are you?", call)]
    stubbed.answers = list(written)
    [row] = generated(stubbed)
    assert [url for url, _ in stubbed.sent] == ["http://h:1/generate"] * 2
    assert (row.status, row.rollout_id, row.metadata["episode"]["figures"]["steps"]) == (STATUS.COMPLETED, 3, 2)
    response = zip(row.tokens[-row.response_length :], row.loss_mask, row.rollout_log_probs, strict=True)
    assert [(token, logprob) for token, mask, logprob in response if mask] == [
        (token, -0.5) for ids in written for token in ids
    ]
    first, second = (request for _, request in stubbed.sent)
    assert second["input_ids"][: len(first["input_ids"]) + len(written[0])] == first["input_ids"] + written[0]
    stubbed.answers = list(written)
    assert generated(stubbed, "test", evaluation=True).status == STATUS.COMPLETED


def test_a_router_that_fails_and_a_rollout_that_has_ended_abort_the_episode(stubbed: SimpleNamespace) -> None:
    stubbed.answers = [StubFailure("502 Bad Gateway")]
    [row] = generated(stubbed)
    assert (row.status, row.loss_mask) == (STATUS.ABORTED, [0])
    assert row.metadata["episode"]["reason"] == "http://h:1/generate: 502 Bad Gateway"
    stubbed.answers = [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")]  # slime decodes bodies
    [row] = generated(stubbed)
    assert (row.status, row.loss_mask) == (STATUS.ABORTED, [0])
    stubbed.aborted = True
    [row] = generated(stubbed)
    assert (row.status, len(stubbed.sent)) == (STATUS.ABORTED, 2)


def test_a_reflector_without_a_server_is_one_line_and_one_that_fails_aborts_the_episode(
    stubbed: SimpleNamespace, tmp_path: Path
) -> None:
    stubbed.sglang_config = tmp_path / "sglang.yaml"
    stubbed.sglang_config.write_text(f"sglang:\n{POLICY}{FROZEN.replace('their/reflector', str(tmp_path))}")
    with pytest.raises(ConfigError, match="slime started no server for 'reflector'"):
        generated(stubbed)
    stubbed.sglang_model_routers = {"reflector": ("r", 2)}
    stubbed.answers = [StubFailure("connection refused")]
    [row] = generated(stubbed)
    assert (row.status, row.loss_mask, row.remove_sample) == (STATUS.ABORTED, [0], True)
    assert row.metadata["episode"]["reason"] == "http://r:2/generate: connection refused"
    assert [url for url, _ in stubbed.sent] == ["http://r:2/generate"]


def write_splits(folder: Path, sizes: dict[str, int]) -> None:
    folder.mkdir(parents=True)
    tasks = iter(Taxi.taskset.tasks("full"))
    for split, size in sizes.items():
        records = [record_to_json(Record(next(tasks), ())) for _ in range(size)]
        (folder / f"{split}.json").write_text(json.dumps(records))


def test_the_command_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_splits(tmp_path / "taxi", {"train": 3, "test": 0})
    out = tmp_path / "out"
    words = ["--env", "taxi", "--data-dir", str(tmp_path), "--out-dir", str(out), "--level", "pickup"]
    monkeypatch.setattr(sys, "argv", ["slime", *words])
    write_prompts()
    assert capsys.readouterr().out == f"{out}/train.jsonl: 3 tasks\n"
    assert json.loads((out / "train.jsonl").read_text().splitlines()[0])["metadata"]["task"]["level"] == "pickup"
