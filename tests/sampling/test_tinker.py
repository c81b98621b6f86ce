"""The client of the Tinker API: gradients however a service adds up tokens, and services that fail."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reflectkit.errors import ConfigError
from reflectkit.eventloop import run_sync
from reflectkit.models.load import LoadedModel, load_player, save_player, with_adapter
from reflectkit.sampling.base import SampleRequest
from reflectkit.sampling.engine import ServiceSettings
from reflectkit.sampling.service_interface import LostWeightsError, OptimizerStep
from reflectkit.sampling.wire import GoneError
from tests.train.fake_service import ALPHA, FakeAdapter, FakeService

pytest.importorskip("tinker")

from reflectkit.sampling import tinker as tinker_client
from reflectkit.sampling.tinker import MEAN, SUM, OnceTransport, RefusedByServiceError, TinkerAdapter, TinkerService


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class FakeClient:
    """A training client that computes with `adapter`. reduction: SUM as the hosted service, MEAN as SkyRL on JAX."""

    def __init__(self, adapter: FakeAdapter, reduction: str) -> None:
        self.adapter, self.reduction, self.rows = adapter, reduction, list[int]()

    def forward(self, data: list[Any], loss: str) -> Future[Any]:
        return done(self._outputs(data))

    def forward_backward(self, data: list[Any], loss: str, limits: Any = None) -> Future[Any]:
        self.rows.append(len(data))
        for datum in data:
            given = {name: torch.tensor(column.data) for name, column in datum.loss_fn_inputs.items()}
            ratio_T = (self._logprobs(datum) - given["logprobs"]).exp()
            objective_T = ratio_T * given["advantages"]
            if loss == "ppo":
                clipped_T = ratio_T.clamp(limits["clip_low_threshold"], limits["clip_high_threshold"])
                objective_T = objective_T.minimum(clipped_T * given["advantages"])
            scale = 1 / (len(data) * len(ratio_T)) if self.reduction == MEAN else 1.0
            (-scale * objective_T.sum()).backward()
        return done(self._outputs(data))

    def _outputs(self, data: list[Any]) -> Any:
        with torch.no_grad():
            rows = [SimpleNamespace(data=self._logprobs(datum).tolist()) for datum in data]
        return SimpleNamespace(loss_fn_outputs=[{"logprobs": row} for row in rows])

    def _logprobs(self, datum: Any) -> torch.Tensor:
        tokens = datum.model_input.to_ints()
        return self.adapter._logprobs([*tokens, datum.loss_fn_inputs["target_tokens"].data[-1]])

    def optim_step(self, given: Any) -> Future[Any]:
        step = OptimizerStep(given.learning_rate, given.weight_decay, given.grad_clip_norm or 1e9)
        return done(SimpleNamespace(metrics={"grad_norm": asyncio.run(self.adapter.step(step))}))

    def save_state(self, name: str) -> Future[Any]:
        return done(SimpleNamespace(path=asyncio.run(self.adapter.save(name))))

    def load_state_with_optimizer(self, path: str) -> Future[Any]:
        return done(asyncio.run(self.adapter.load(path)))


def service_of(settings: ServiceSettings) -> TinkerService:
    """A service that is never connected."""
    service = object.__new__(TinkerService)
    service.settings, service.url, service._told_of_silence = settings, "http://fake", False
    service.notify = lambda text: None
    return service


ROWS = ((1, 2, 3, 4), (5, 6, 7, 8, 9, 10, 11), (1, 2, 9))
SLOPES = ((0.0, 0.5, -0.2), (0.0, 0.0, 0.3, 0.0, -0.4, 0.1), (-0.7, 0.6))


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("reduction", [SUM, MEAN])
def test_the_gradient_is_ours_however_the_service_adds_up(
    policy: LoadedModel, tmp_path: Path, reduction: str, clipped: bool
) -> None:
    """Rows of different lengths, filled up to four. The measured reduction leaves no trace in weights or optimizer."""
    save_player(tmp_path / "base", policy)
    own, there = (
        FakeAdapter(
            FakeService(tmp_path / "base"),
            with_adapter(load_player(tmp_path / "base", device="cpu"), 4, ALPHA, seed=0),
        )
        for _ in range(2)
    )
    client = FakeClient(there, reduction)
    for name in ("forward", "forward_backward", "optim_step", "save_state", "load_state_with_optimizer"):
        inner = getattr(client, name)
        setattr(client, name, lambda *more, inner=inner: threaded(inner, *more))
    adapter = TinkerAdapter(service_of(ServiceSettings(service_rows=4)), client)
    for _ in range(2):
        logprobs = run_sync(own.forward(ROWS))
        if clipped:
            advantages = [[-slope for slope in row] for row in SLOPES]
            old = [[value - 0.3 * (place % 2) for place, value in enumerate(row)] for row in logprobs]
            run_sync(own.clipped_backward(ROWS, old, advantages, (0.9, 1.2)))
            answer = run_sync(adapter.clipped_backward(ROWS, old, advantages, (0.9, 1.2)))
            assert len(answer) == 3
        else:
            run_sync(own.backward(ROWS, logprobs, SLOPES))
            run_sync(adapter.backward(ROWS, run_sync(adapter.forward(ROWS)), SLOPES))
        run_sync(own.step(OptimizerStep(1e-3, max_grad_norm=1e9)))
        run_sync(adapter.step(OptimizerStep(1e-3)))
    assert adapter.reduction == reduction
    assert set(client.rows) == {4}
    for mine, theirs in zip(own.weights, there.weights, strict=True):
        torch.testing.assert_close(theirs, mine, atol=1e-5, rtol=0)


def threaded(function: Any, *more: Any) -> Future[Any]:
    """The client's future, made in another thread as by the real client."""
    future: Future[Any] = Future()
    threading.Thread(target=lambda: future.set_result(function(*more).result())).start()
    return future


def test_a_future_that_never_comes_ends_in_one_line() -> None:
    adapter = TinkerAdapter(
        service_of(ServiceSettings(service_timeout_s=0.05)), SimpleNamespace(forward=lambda data, loss: Future())
    )
    with pytest.raises(GoneError, match=r"has not answered for 0\.05 s"):
        run_sync(adapter.forward([(1, 2, 3)]))


def test_who_waits_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests wait."""
    monkeypatch.setattr(tinker_client, "SILENCE_S", 0.01)
    service, told = service_of(ServiceSettings(service_timeout_s=5)), list[str]()
    service.notify = told.append

    async def asked() -> None:
        await asyncio.gather(*(service.wait(asyncio.sleep(0.1)) for _ in range(3)))

    asyncio.run(asked())
    assert len(told) == 1
    assert "waiting for up to 5 s" in told[0]


def test_a_service_that_forgot_the_client_is_told_in_one_line_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret-of-mine")
    failed: Future[Any] = Future()
    said = "Error code: 400 - {'detail': 'Model m not loaded\n(key tml-secret-of-mine)'} for self.request_id='159'"
    failed.set_exception(ValueError(said))
    adapter = TinkerAdapter(service_of(ServiceSettings()), SimpleNamespace(forward=lambda data, loss: failed))
    with pytest.raises(RefusedByServiceError, match="run the same again") as caught:
        run_sync(adapter.forward([(1, 2, 3)]))
    assert "(Model m not loaded " in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_there_and_no_key_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(GoneError, match="does not answer"):
        TinkerService("http://127.0.0.1:9", ServiceSettings())
    with pytest.raises(ConfigError, match="TINKER_API_KEY"):
        TinkerService("", ServiceSettings())


@pytest.mark.parametrize(
    ("status", "kind", "reason"), [(503, GoneError, "is not ready"), (404, ConfigError, "is no training service")]
)
def test_a_service_that_is_full_is_another_thing_than_none(status: int, kind: type[Exception], reason: str) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *more: Any) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(kind, match=reason):
            TinkerService(f"http://127.0.0.1:{server.server_port}", ServiceSettings())
        server.shutdown()


@pytest.mark.parametrize(
    ("first", "sent"),
    [
        ("ReadError", 1),  # the service may have made the step
        (504, 1),
        ("ConnectError", 2),  # it has not
        (429, 2),
        (503, 2),
    ],
)
def test_a_step_whose_answer_was_lost_is_not_made_twice(first: str | int, sent: int) -> None:
    """The client would send it again, and SkyRL would carry it out again."""
    import httpx
    import tinker

    requests = []

    class Lossy:
        async def handle_async_request(self, request: Any) -> Any:
            requests.append(request.url.path)
            if len(requests) > 1:
                return httpx.Response(200, json={"request_id": "1"}, request=request)
            if isinstance(first, int):
                return httpx.Response(first, json={"detail": "full"}, request=request)
            raise getattr(httpx, first)("away")

        async def aclose(self) -> None:
            """Nothing is open."""

    async def step() -> Any:
        client = tinker._client.AsyncTinker(
            api_key="tml-none",
            base_url="http://fake",
            http_client=httpx.AsyncClient(transport=OnceTransport(Lossy())),
        )
        request = tinker.types.OptimStepRequest(adam_params=tinker.types.AdamParams(), model_id="m", seq_id=1)
        return await client.training.optim_step(request=request)

    if sent == 1:
        with pytest.raises(tinker.APIStatusError, match="may have been carried out"):
            asyncio.run(step())
    else:
        asyncio.run(step())
    assert len(requests) == sent


def answering(**answers: Any) -> TinkerAdapter:
    """An adapter whose client answers each call with the value of its name."""

    def answer(value: Any) -> Any:
        if not isinstance(value, Exception):
            return done(value)
        failed: Future[Any] = Future()
        failed.set_exception(value)
        return failed

    calls = {name: lambda *more, value=value: answer(value) for name, value in answers.items()}
    return TinkerAdapter(service_of(ServiceSettings()), SimpleNamespace(**calls))


@pytest.mark.parametrize(
    ("call", "answer", "reason"),
    [
        ("forward", SimpleNamespace(loss_fn_outputs=[{}]), "rows without log-probabilities"),
        ("forward", SimpleNamespace(loss_fn_outputs=[{"logprobs": None}]), "rows without log-probabilities"),
        ("forward", json.JSONDecodeError("no", "<html>", 0), r"cannot read \(JSONDecodeError\)"),
        ("save_state", SimpleNamespace(path=""), "'' as the path"),
        ("save_state", SimpleNamespace(path="tinker://a\n\x1b[2J"), "as the path"),
        ("optim_step", SimpleNamespace(metrics={"grad_norm": -1.0}), "a gradient whose norm is -1"),
    ],
)
def test_answers_that_no_service_gives_are_refused_in_one_line(call: str, answer: Any, reason: str) -> None:
    adapter = answering(**{call: answer})
    asked: dict[str, Any] = {
        "forward": lambda: adapter.forward([(1, 2, 3)]),
        "save_state": lambda: adapter.save("name"),
        "optim_step": lambda: adapter.step(OptimizerStep(1e-3)),
    }
    with pytest.raises(ConfigError, match=reason) as caught:
        run_sync(asked[call]())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("count", [0, 2])
def test_a_service_writes_one_text(count: int) -> None:
    sequence = SimpleNamespace(tokens=[1], logprobs=[-1.0])
    adapter = answering()
    adapter._writer = answering(sample=SimpleNamespace(sequences=[sequence] * count)).client
    request = SampleRequest((1, 2), max_new_tokens=4)
    with pytest.raises(ConfigError, match=f"{count} texts where 1 was asked for"):
        run_sync(adapter.write(request, 4))


def test_weights_that_are_not_given_out_are_told_with_a_next_step() -> None:
    adapter = answering(load_state_with_optimizer=ValueError("no such file"))
    with pytest.raises(LostWeightsError, match=r"\(no such file\); run the same again; if .* lost it, --force"):
        run_sync(adapter.load("tinker://a"))


def test_a_refusal_without_a_reason_names_the_error() -> None:
    adapter = answering(forward=RuntimeError())
    with pytest.raises(RefusedByServiceError, match=r"\(RuntimeError\)"):
        run_sync(adapter.forward([(1, 2, 3)]))
