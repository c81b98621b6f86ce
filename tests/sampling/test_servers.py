"""Samplers that ask a server: the same probabilities as in this process, the weights by version, and every fault."""

from __future__ import annotations

import gc
import gzip
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit.errors import CheckpointError, ConfigError, ReflectkitError
from reflectkit.eventloop import run_sync
from reflectkit.keys import secrets
from reflectkit.models.labels import label_ids, prompt_ids
from reflectkit.models.load import LoadedModel, save_player, with_adapter
from reflectkit.models.scoring import token_logprobs
from reflectkit.models.tiny import build_tokenizer
from reflectkit.sampling.base import Opening, SampleRequest
from reflectkit.sampling.checks import disagreement
from reflectkit.sampling.config import backend
from reflectkit.sampling.hf import LocalSampler
from reflectkit.sampling.server import ServerSampler
from reflectkit.sampling.wire import RefusedError, Wire
from tests.fakes.inference import Inference, serve_model
from tests.sampling.test_local import sample
from tests.server import serve

KINDS = ("vllm", "sglang")


@pytest.fixture
def base(policy: LoadedModel, tmp_path: Path) -> Path:
    """The folder of an untrained policy."""
    save_player(tmp_path / "base", policy)
    return tmp_path / "base"


@pytest.fixture
def server(policy: LoadedModel, base: Path) -> Iterator[Inference]:
    with serve_model(policy, str(base), context=policy.context) as running:
        yield running


def opened(kind: str, server: Inference, base: Path, player: Any = None, **settings: Any) -> ServerSampler:
    row = backend(f"{kind}:{server.url}")
    options = {"server_timeout_s": 60.0, "server_patience_s": 60.0, **settings}
    sampler = row.open(Opening(str(base), "cpu", player), row.settings(**options))
    sampler.server.wire.pause_s = 0.02  # type: ignore[attr-defined]
    return sampler  # type: ignore[return-value]


def asks_of(player: LoadedModel, temperature: float = 1.0, text: str = "a taxi") -> list[SampleRequest]:
    prompt = tuple(prompt_ids(player.tokenizer, text))
    one = label_ids(player.tokenizer, 4)
    a, b, c = (label[0] for label in one[:3])
    tree = ((a, b), (a, c, b), (a, c, c), (b,), (c, 0))  # labels of several tokens, with a place that is certain
    return [
        SampleRequest(prompt, labels, temperature=temperature, seed=seed) for labels in (one, tree) for seed in range(6)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("processed", "temperature"), [(False, 0.0), (True, 2.5)])
def test_choices_are_those_of_this_process(
    kind: str, processed: bool, temperature: float, policy: LoadedModel, server: Inference, base: Path
) -> None:
    """Whatever the server's log-probabilities mean: they are normalised here, at the ask's own temperature."""
    server.processed = processed
    asks = asks_of(policy, temperature)
    here = sample(LocalSampler(policy), *asks)
    there = sample(opened(kind, server, base), *asks)
    for one, other in zip(here, there, strict=True):
        assert other.label_logprobs == pytest.approx(one.label_logprobs, abs=1e-4)
        assert math.fsum(map(math.exp, other.label_logprobs)) == pytest.approx(1, abs=1e-9)
        assert (other.token_ids, other.version) == (one.token_ids, 0)


def test_equal_requests_are_sent_once(policy: LoadedModel, server: Inference, base: Path) -> None:
    asks = asks_of(policy)[:6]
    sampler = opened("vllm", server, base)
    sample(sampler, *asks)
    sample(sampler, *asks)
    assert len(server.bodies) == 1
    assert server.bodies[0]["prompt"] == list(asks[0].prompt_ids)
    assert sampler.tokens == len(asks[0].prompt_ids) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_text_has_the_log_probs_of_its_sampling(kind: str, policy: LoadedModel, server: Inference, base: Path) -> None:
    server.processed, temperature = True, 0.5
    prompt = tuple(prompt_ids(policy.tokenizer, "a taxi"))
    ask = SampleRequest(prompt, (), 12, temperature, 3, frozenset({0}))
    (sampled,) = sample(opened(kind, server, base), ask)
    row = [*prompt, *sampled.token_ids]
    mask = [0] * len(prompt) + [1] * len(sampled.token_ids)
    with torch.no_grad():
        own, *_ = token_logprobs(policy.model, [row], [mask], pad_id=policy.pad_id, temperature=temperature)
    assert sampled.logprobs == pytest.approx(own.tolist(), abs=1e-4)
    assert 1 <= len(sampled.token_ids) <= 12


def moved(player: LoadedModel, by: float) -> None:
    """Change an adapter so that its model says something else."""
    with torch.no_grad():
        for name, weight in player.model.named_parameters():
            if "lora_B" in name:
                weight.add_(by)


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_is_published_after_each_update(
    kind: str, policy: LoadedModel, server: Inference, base: Path
) -> None:
    player = with_adapter(policy, 4, 16, seed=0)
    sampler, local = opened(kind, server, base, player), LocalSampler(player)
    ask = asks_of(player)[0]
    rows = []
    for version in range(4):
        moved(player, 0.05 * version)
        run_sync(sampler.publish(player, version))
        run_sync(local.publish(player, version))
        (there,), (here,) = sample(sampler, ask), sample(local, ask)
        assert there.version == version
        assert there.label_logprobs == pytest.approx(here.label_logprobs, abs=1e-4)
        rows.append(there.label_logprobs)
    assert len(set(rows)) == 4
    assert [name.rpartition("-v")[2] for name in server.loaded] == ["0", "1", "2", "3"]
    assert [name.rpartition("-v")[2] for name in server.weights] == ["2", "3"]  # and those on the disk
    assert len(list(sampler.store.folder.glob("*-v*"))) == 2
    assert not any(name == server.root for name in server.asked)


def test_whole_models_are_for_sglang(policy: LoadedModel, server: Inference, base: Path) -> None:
    sampler = opened("sglang", server, base, policy)
    for version in range(2):
        with torch.no_grad():
            policy.model.get_output_embeddings().weight.mul_(1.5)
        run_sync(sampler.publish(policy, version))
        (here,) = sample(LocalSampler(policy), asks_of(policy)[0])
        (there,) = sample(sampler, asks_of(policy)[0])
        assert there.label_logprobs == pytest.approx(here.label_logprobs, abs=1e-4)
        assert there.version == version
    server.kill()
    (after,) = sample(sampler, asks_of(policy, text="another taxi")[0])
    (here,) = sample(LocalSampler(policy), asks_of(policy, text="another taxi")[0])
    assert after.label_logprobs == pytest.approx(here.label_logprobs, abs=1e-4)
    assert sampler.restored == 1
    with pytest.raises(ConfigError, match="loads adapters while it runs, but no whole models; train an adapter"):
        opened("vllm", server, base, policy)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restarted_server_gets_its_weights_before_it_is_asked(
    kind: str, policy: LoadedModel, server: Inference, base: Path
) -> None:
    player = with_adapter(policy, 4, 16, seed=0)
    sampler = opened(kind, server, base, player)
    moved(player, 0.1)
    run_sync(sampler.publish(player, 7))
    server.faults = ["kill"]
    asks = [ask for text in ("a", "b", "c", "d") for ask in asks_of(player, text=text)]
    there, here = sample(sampler, *asks), sample(LocalSampler(player), *asks)
    for one, other in zip(there, here, strict=True):
        assert one.label_logprobs == pytest.approx(other.label_logprobs, abs=1e-4)
    assert (server.kills, sampler.restored) == (1, 1)
    assert {one.version for one in there} == {7}
    assert {name.rpartition("-v")[2] for name in server.asked} == {"7"}


@pytest.mark.parametrize(("kind", "fault"), [("vllm", 429), ("vllm", 503), ("vllm", "drop"), ("sglang", "hang")])
def test_passing_faults_are_waited_out(
    kind: str, fault: Any, policy: LoadedModel, server: Inference, base: Path
) -> None:
    sampler = opened(kind, server, base)
    wire: Any = sampler.server.wire
    if fault == "hang":
        wire.timeout_s = 1.0
    server.faults = [fault] * (1 if fault == "hang" else 2)
    (there,) = sample(sampler, asks_of(policy)[0])
    (here,) = sample(LocalSampler(policy), asks_of(policy)[0])
    assert there.label_logprobs == pytest.approx(here.label_logprobs, abs=1e-4)
    assert server.faults == []
    assert wire.retries >= 1


def test_another_tokenizer_is_refused_before_the_first_sample(server: Inference, base: Path) -> None:
    server.tokenizer = build_tokenizer(["another text altogether, of other words"] * 3, [" 1"])
    with pytest.raises(ConfigError, match=r"another tokenizer than the policy \(vocabulary \w{8} there, \w{8} here\)"):
        opened("vllm", server, base)
    assert server.bodies == []


def wrong(server: Inference, what: str) -> None:
    setattr(server, *{"model": ("root", "/other/model")}.get(what, (what, False)))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("model", "serves /other/model, not the policy's base"),
        ("decodes", "does not decode the policy's tokens"),
        ("adapters", "does not load adapters; start it with: "),
        ("logprobs", "does not return the log-probabilities that were asked for"),
    ],
)
def test_a_server_that_will_not_do_is_one_line(
    what: str, message: str, policy: LoadedModel, server: Inference, base: Path
) -> None:
    player = with_adapter(policy, 4, 16, seed=0)
    wrong(server, what)
    with pytest.raises(ReflectkitError, match=message) as error:
        run_sync(opened("vllm", server, base, player).publish(player, 0))
    assert "\n" not in str(error.value)


def test_other_weights_behind_the_same_path_are_refused(policy: LoadedModel, server: Inference, base: Path) -> None:
    player = with_adapter(policy, 4, 16, seed=0)
    sampler = opened("vllm", server, base, player)
    with torch.no_grad():
        player.model.get_output_embeddings().weight.mul_(-9)
    with pytest.raises(ConfigError, match=r"serves other weights than the policy's: log-probabilities differ by \d"):
        run_sync(sampler.publish(player, 0))


def test_a_token_that_the_model_cannot_read_is_not_sent(policy: LoadedModel, server: Inference, base: Path) -> None:
    sampler, sent = opened("vllm", server, base), len(server.bodies)
    sampler.tokenizer.add_tokens(["<tool>"])
    prompt = tuple(prompt_ids(sampler.tokenizer, "a <tool>"))
    with pytest.raises(CheckpointError, match="'<tool>'"):
        sample(sampler, SampleRequest(prompt, label_ids(policy.tokenizer, 4)))
    assert len(server.bodies) == sent


def test_a_checkpoint_that_is_an_adapter_is_loaded(
    policy: LoadedModel, server: Inference, base: Path, tmp_path: Path
) -> None:
    from reflectkit.models.load import load_player

    player = with_adapter(load_player(base, device="cpu"), 4, 16, seed=0)
    moved(player, 0.1)
    save_player(tmp_path / "adapter", player)
    sampler = opened("vllm", server, tmp_path / "adapter")
    (there,), (here,) = sample(sampler, asks_of(policy)[0]), sample(LocalSampler(player), asks_of(policy)[0])
    assert there.label_logprobs == pytest.approx(here.label_logprobs, abs=1e-4)
    server.kill()
    assert sample(sampler, asks_of(policy, text="b")[0])[0].token_ids  # and loaded again
    server.weights.clear()
    with pytest.raises(ConfigError, match="cannot load the adapter /there/reflectkit-"):  # it has no such folder
        opened("vllm", server, tmp_path / "adapter", adapter_dir=tmp_path / "seen", server_adapter_dir="/there")
    assert len(list((tmp_path / "seen").glob("reflectkit-*/adapter_model.safetensors"))) == 1
    with pytest.raises(CheckpointError, match="not a reflector"):
        backend(f"vllm:{server.url}").open(
            Opening(str(base), "cpu", role="reflection"), backend(f"vllm:{server.url}").settings()
        )


def test_no_weights_stay(
    policy: LoadedModel, server: Inference, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those of a killed process, nor a finished one's; a running one's do."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    player = with_adapter(policy, 2, 4, seed=0)
    running = opened("vllm", server, base, player)
    run_sync(running.publish(player, 0))
    killed = tmp_path / "reflectkit-weights-killed"
    (killed / "reflectkit-00000000-v3").mkdir(parents=True)
    (killed / ".lock").touch()
    other = opened("vllm", server, base, player, adapter_dir=tmp_path / "seen")
    assert killed.is_dir()
    run_sync(other.publish(player, 0))
    assert len(list(tmp_path.glob("seen/*"))) == 1
    del other
    gc.collect()
    assert list(tmp_path.glob("seen/*")) == []
    temporary = opened("vllm", server, base, player)
    assert not killed.exists()
    assert len(list(tmp_path.glob("reflectkit-weights-*"))) == 2
    del temporary
    gc.collect()
    assert [path.parent for path in tmp_path.glob("reflectkit-weights-*/*-v0")] == [running.store.folder]


def test_the_key_goes_to_this_address_alone(
    policy: LoadedModel, server: Inference, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # nothing listens there
    sample(opened("vllm", server, base), asks_of(policy)[0])
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer secret"}
    assert "secret" in secrets()  # which are removed from what is shown
    server.headers.clear()
    monkeypatch.delenv("VLLM_API_KEY")
    sample(opened("vllm", server, base), asks_of(policy)[0])
    assert {headers["Authorization"] for headers in server.headers} == {None}


@pytest.mark.parametrize("filler", [288, 299])
def test_a_key_across_a_cut_leaves_no_part_of_it(filler: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", key := "sk-very-secret-key-0123456789")
    page = f"{'x' * filler}{key} and more"
    with serve(lambda body: "") as server:
        wire = Wire(server.url, "VLLM_API_KEY", timeout_s=60, patience_s=60, connections=1)
        server.faults = [("status", 400, {}, page), ("raw", page.encode())]
        with pytest.raises(RefusedError) as error:
            run_sync(wire.post("", {}))
        shown = f"{run_sync(wire.post('', {}))!r:.300}"
    assert key[:8] not in str(error.value)
    assert key[:8] not in shown


def test_what_is_compressed_is_not_read() -> None:
    encoding = "gzip, gzip"
    bomb = gzip.compress(gzip.compress(bytes(2**20)))
    with serve(lambda body: "") as server:
        wire = Wire(server.url, "VLLM_API_KEY", timeout_s=60, patience_s=60, connections=1)
        server.faults = [("sent", status, {"Content-Encoding": encoding}, bomb) for status in (200, 400)]
        for _ in range(2):
            with pytest.raises(ReflectkitError, match=f"encoded \\({encoding}\\)"):
                run_sync(wire.post("", {}))
        assert {headers["Accept-Encoding"] for headers in server.headers} == {"identity"}


@pytest.mark.parametrize(
    ("differences", "temperature", "figure"),
    [
        ([0.05, -0.05] * 50, 1.0, ""),
        ([0.5, -0.5] * 50, 1.0, "by 0.5 nats on average over 100 tokens (limit 0.36)"),  # 0.3 · (1 + 2 / 10)
        ([0.5, -0.5] * 2, 1.0, ""),  # four tokens: 0.3 · (1 + 2 / 2)
        ([0.5, -0.5] * 50, 0.5, ""),  # half the temperature, twice the logits
        ([0.0] * 95 + [2.0] * 5, 1.0, ""),
        ([0.0] * 93 + [2.0] * 7, 1.0, "by 2 nats at the 95% quantile of 100 tokens (limit 1)"),
        ([math.nan], 1.0, "by nan nats on average over 1 token (limit 0.9)"),
        ([], 1.0, ""),
    ],
)
def test_limits(differences: list[float], temperature: float, figure: str) -> None:
    assert disagreement(torch.tensor(differences), temperature) == figure


@pytest.mark.parametrize(
    ("usual", "answer", "figure"),
    [
        (0.05, [0.0] * 9 + [4.9], ""),
        (0.05, [0.0] * 9 + [5.1], "by 5.1 nats at a token of an answer of 10 tokens (limit 5)"),  # 1 + 4 / √1
        (0.05, [2.9] * 4, ""),
        (0.05, [3.1] * 4, "by 3.1 nats on average over an answer of 4 tokens (limit 3)"),  # 1 + 4 / √4
        (0.26, [0.0] * 9 + [9.9], ""),  # twice the usual noise, twice the limit
        (0.26, [0.0] * 9 + [10.1], "by 10.1 nats at a token of an answer of 10 tokens (limit 10)"),
    ],
)
def test_limits_of_one_answer_among_many(usual: float, answer: list[float], figure: str) -> None:
    differences = torch.tensor([usual] * 990 + answer)
    assert disagreement(differences) == ""
    assert disagreement(differences, 1.0, [99] * 10 + [len(answer)]) == figure
