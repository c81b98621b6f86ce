"""Training services that speak the Tinker API, by its client: Thinking Machines' own, or SkyRL's on
one's own machines.

What a service does with a loss is part of its API only for the hosted one: the sum over all tokens.
SkyRL on JAX takes the mean over a row's tokens, and then over rows. Which of the two it is, is
measured before the first step.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from json import JSONDecodeError
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from pydantic import ValidationError

from reflectkit.errors import ConfigError, ReflectkitError, refuse
from reflectkit.eventloop import in_thread
from reflectkit.keys import header_text, redacted
from reflectkit.sampling import checks
from reflectkit.sampling.base import SampleRequest
from reflectkit.sampling.engine import KEY, ServiceAccess
from reflectkit.sampling.protocols import Drawn
from reflectkit.sampling.service_interface import (
    LostWeightsError,
    OptimizerStep,
    ServiceAdapter,
)
from reflectkit.sampling.wire import GoneError

NO_KEY = "tml-none"
"""Sent to a service of one's own where no key is set; the client insists on one."""
HEALTH_S = 20.0
"""Seconds in which a service must say that it is there, when a command starts."""
SILENCE_S = 60.0
"""Seconds without an answer after which the user is told."""
SUM, MEAN = "sum", "mean"
"""How a service adds up the tokens of a loss: all of them, or the means over rows of the means over
a row's tokens.
"""
MOST_CONNECTIONS = 1000
"""To a service of one's own, as the client has them."""
CLOSE = 0.05
"""Relative difference up to which two norms of gradients are taken for equal."""
LARGEST_ARCHIVE = 8 * 2**30
"""The most bytes of an adapter that are read."""

Value = TypeVar("Value")


class TinkerService:
    """The service at `url`; "" is the hosted one. notify: called with a line of text when it is
    silent for long.

    Raises ConfigError: its client is not installed, or there is no key for the hosted one.
    GoneError: it is away.
    """

    def __init__(
        self,
        url: str,
        settings: ServiceAccess,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        # 1. Whether there is a client, a key for the hosted service, or a server that answers
        self.settings, self.notify = settings, notify
        self._told_of_silence = False
        self.url = url or "the Tinker service"
        if importlib.util.find_spec("tinker") is None:
            raise ConfigError('--engine tinker needs its client; pip install "reflectkit[tinker]"')
        key = header_text(KEY)
        if not url and not key:
            raise ConfigError(
                f"--engine tinker: set {KEY} for the hosted service, or give tinker:URL for your"
                " own"
            )
        if url:
            self._see_health(url)
        # 2. The client, which connects when it is first used
        os.environ.setdefault("TINKER_TELEMETRY", "0")
        logging.getLogger("tinker").setLevel(logging.CRITICAL)  # what it raises is told by us
        import tinker

        where: dict[str, Any] = {"base_url": url, "http_client": once_client()} if url else {}
        self._open: Callable[[], Any] = lambda: tinker.ServiceClient(api_key=key or NO_KEY, **where)
        self._client: Any = None

    def _see_health(self, url: str) -> None:
        """Raises GoneError if nothing answers, or the service is full or still starts: the client
        itself would wait for minutes. ConfigError: it is something else.
        """
        try:
            with httpx2.Client(timeout=HEALTH_S, trust_env=False) as client:
                status = client.get(f"{url}/api/v1/healthz").status_code
        except (httpx2.HTTPError, OSError) as error:
            raise self.gone(error) from None
        if status == 429 or status >= 500:
            raise GoneError(
                f"{url} is not ready (status {status} of /api/v1/healthz); wait for it, then run the"
                " same again"
            )
        if status != 200:
            raise ConfigError(
                f"{url} is no training service (status {status} of /api/v1/healthz); see --engine"
            )

    async def models(self) -> list[str]:
        """The names of its bases."""
        client = await self._connected()
        # The client's own methods that block run in a thread; this one is a coroutine
        listed = await self.wait(client.get_server_capabilities_async())
        names = [model.model_name for model in listed.supported_models]
        return [name for name in names if isinstance(name, str)]

    async def adapter(
        self,
        base: str,
        rank: int,
        seed: int,
    ) -> ServiceAdapter:
        """A new LoRA adapter. Raises ConfigError if the service has no place for it, or not for
        this rank.
        """
        client = await self._connected()

        def create() -> Any:
            # Without the output layer, as peft's adapters are by default
            seed_32 = seed % 2**31
            return client.create_lora_training_client(base, rank, seed_32, train_unembed=False)

        try:
            training_client = await self.wait(in_thread(create))
        except RefusedByServiceError as error:
            raise ConfigError(
                f"{self.url} gives no LoRA adapter of rank {rank} on {base}: {error.reason}"
            ) from None
        return TinkerAdapter(self, training_client)

    async def writer(self, base: str) -> ServiceAdapter:
        """The base itself, which only writes."""
        client = await self._connected()
        return TinkerAdapter(
            self, None, await self.wait(in_thread(client.create_sampling_client, None, base))
        )

    @property
    def client(self) -> Any:
        """The client, once it is connected."""
        return self._client

    async def _connected(self) -> Any:
        if self._client is None:
            self._client = await self.wait(in_thread(self._open))
        return self._client

    async def wait(self, answer: Awaitable[Value]) -> Value:
        """What the service answers. Raises GoneError if it takes too long, and
        RefusedByServiceError.
        """
        import tinker

        limit = self.settings.service_timeout_s
        reminder = asyncio.get_running_loop().call_later(SILENCE_S, self._tell_of_silence)
        try:
            value = await asyncio.wait_for(answer, limit)
            self._told_of_silence = False
            return value
        except TimeoutError:
            raise GoneError(
                f"{self.url} has not answered for {limit:g} s (--service-timeout-s); see what it"
                " does, then run the same again"
            ) from None
        except tinker.APIConnectionError as error:
            raise self.gone(error) from None
        except (JSONDecodeError, ValidationError) as error:
            raise ConfigError(
                f"{self.url} answered with what its client cannot read ({type(error).__name__}); run"
                " the same again, or use another version of the server"
            ) from None
        except Exception as error:  # the client raises many types, some of them bare
            reason = detail(redacted(str(error))) or type(error).__name__
            raise RefusedByServiceError(self.url, reason) from None
        finally:
            reminder.cancel()

    def _tell_of_silence(self) -> None:
        """Tell that the service is silent, once until its next answer."""
        if self._told_of_silence:
            return
        self._told_of_silence = True
        self.notify(
            f"{self.url} has not answered for {SILENCE_S:g} s; waiting for up to"
            f" {self.settings.service_timeout_s:g} s (--service-timeout-s)"
        )

    def gone(self, error: Exception) -> GoneError:
        """The error for a service that is away."""
        why = redacted(str(error)) or type(error).__name__
        return GoneError(
            f"{self.url} does not answer ({why}); start the service, then run the same again"
        )


def detail(message: str) -> str:
    """What a service says is wrong, in a `message` of its client.

    >>> detail("Error code: 400 - {'detail': 'Model m not loaded'} with status code 400")
    'Model m not loaded'
    """
    said = re.search(r"""'detail': (['"])(.+?)\1\}""", message)
    return said[2] if said else message


class RefusedByServiceError(ReflectkitError):
    """The service refused a request, or lost what it was about. reason: its message in one line."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url} refused a request ({reason}); run the same again")
        self.reason = reason


ONCE = ("/forward_backward", "/optim_step", "/save_weights", "/save_weights_for_sampler")
"""Requests that the client sends again when their answer is lost. SkyRL carries out the first two
as often as they arrive, and refuses to save under a name again.
"""
LOST = "its answer was lost, and it may have been carried out, so it was not sent twice"


class OnceTransport:
    """Sends what changes gradients, weights or checkpoints once, unless it certainly was not
    carried out.

    inner: an `httpx.AsyncBaseTransport`, to which it passes requests on.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._lost: set[bytes] = set()
        """Contents of requests that may have been carried out; the client numbers them."""

    async def handle_async_request(self, request: Any) -> Any:
        """The response to an `httpx.Request`; of status 400, which the client does not ask for
        again, to one that was lost before.
        """
        import httpx

        if not request.url.path.endswith(ONCE):
            return await self.inner.handle_async_request(request)
        content = await request.aread()
        if content in self._lost:
            return httpx.Response(400, json={"detail": LOST}, request=request)
        try:
            response = await self.inner.handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
            raise  # it never left
        except httpx.TransportError:
            self._lost.add(content)
            raise
        # A proxy that gave up does not know what the service did
        if response.status_code in (408, 502, 504):
            self._lost.add(content)
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self.inner.aclose()


def once_client() -> Any:
    """An `httpx.AsyncClient` for a service that does not notice a request that it has seen before."""
    import httpx
    import tinker

    inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=MOST_CONNECTIONS))
    return httpx.AsyncClient(
        transport=OnceTransport(inner),
        timeout=tinker.Timeout(60.0, connect=5.0),
        trust_env=False,
    )


class TinkerAdapter:
    """A LoRA adapter on a service. client: of training; None for a base. writer: what samples
    texts; None: made of the present weights when it is needed.
    """

    def __init__(
        self,
        service: TinkerService,
        client: Any,
        writer: Any = None,
    ) -> None:
        self.service, self.client = service, client
        self.reduction = ""
        """SUM or MEAN; empty until it is measured."""
        self._writer = writer
        self._publishing: asyncio.Future[Any] | None = None

    async def forward(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Of each row of T tokens, the T - 1 log-probabilities of the tokens after its first."""
        data = [_datum(row) for row in self._filled(rows)]
        answer = await self._wait(self.client.forward(data, "cross_entropy"))
        return self._logprobs(answer, len(rows))

    async def backward(
        self,
        rows: Sequence[Sequence[int]],
        logprobs: Sequence[Sequence[float]],
        slopes: Sequence[Sequence[float]],
    ) -> list[list[float]]:
        """See `ServiceAdapter`. The loss is importance sampling from the present weights: its
        gradient is that of the sum of advantages times log-probabilities.
        """
        if not self.reduction:
            self.reduction = await self._measured_reduction()
        return await self._backward(rows, logprobs, slopes, self.reduction)

    async def _backward(
        self,
        rows: Sequence[Sequence[int]],
        logprobs: Sequence[Sequence[float]],
        slopes: Sequence[Sequence[float]],
        reduction: str,
    ) -> list[list[float]]:
        data = self._weighted(rows, logprobs, slopes, reduction)
        answer = await self._wait(self.client.forward_backward(data, "importance_sampling"))
        return self._logprobs(answer, len(rows))

    def _weighted(
        self,
        rows: Sequence[Sequence[int]],
        logprobs: Sequence[Sequence[float]],
        slopes: Sequence[Sequence[float]],
        reduction: str,
    ) -> list[Any]:
        """Rows for the client whose advantages are `slopes`, so scaled that the service's loss is a
        sum over tokens.
        """
        # Rows that only fill the batch have advantages of 0
        filled = self._filled(rows)
        data = []
        for number, row in enumerate(filled):
            is_row = number < len(rows)
            scale = len(filled) * (len(row) - 1) if reduction == MEAN else 1
            advantages = (
                [-scale * slope for slope in slopes[number]] if is_row else [0.0] * (len(row) - 1)
            )
            data.append(
                _datum(row, list(logprobs[number if is_row else len(rows) - 1]), advantages)
            )
        return data

    async def clipped_backward(
        self,
        rows: Sequence[Sequence[int]],
        old_logprobs: Sequence[Sequence[float]],
        advantages: Sequence[Sequence[float]],
        clip: tuple[float, float],
    ) -> list[list[float]]:
        """See `ServiceAdapter`."""
        # Slopes of a loss, which are minus the advantages
        if not self.reduction:
            self.reduction = await self._measured_reduction()
        slopes = [[-value for value in row] for row in advantages]
        limits = {"clip_low_threshold": clip[0], "clip_high_threshold": clip[1]}
        data = self._weighted(rows, old_logprobs, slopes, self.reduction)
        answer = await self._wait(self.client.forward_backward(data, "ppo", limits))
        return self._logprobs(answer, len(rows))

    async def step(self, step: OptimizerStep) -> float | None:
        """Make an optimizer step. Returns the norm of the gradient, if the service tells."""
        import tinker

        parameters = tinker.types.AdamParams(
            learning_rate=step.learning_rate,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            weight_decay=step.weight_decay,
            grad_clip_norm=step.max_grad_norm,
        )
        answer = await self._wait(self.client.optim_step(parameters))
        # What wrote texts has the weights before the step
        self._writer = None
        norms = [value for name, value in (answer.metrics or {}).items() if "grad_norm" in name]
        if not norms:
            return None
        norm = float(norms[0])
        if norm < 0:
            raise checks.wrong(self.service.url, f"a gradient whose norm is {norm:.3g}")
        return norm

    async def write(self, request: SampleRequest, limit: int) -> Drawn:
        """A text of at most `limit` tokens, sampled with the present weights."""
        import tinker

        parameters = tinker.types.SamplingParams(
            max_tokens=limit,
            seed=request.seed % 2**31,
            stop=sorted(request.stop_ids),
            temperature=request.temperature,
        )
        prompt = tinker.types.ModelInput.from_ints(list(request.prompt_ids))
        writer = await self._present_writer()
        answer = await self._wait(writer.sample(prompt, 1, parameters))
        sequences = list(answer.sequences)
        if len(sequences) != 1:
            raise checks.wrong(self.service.url, f"{len(sequences)} texts where 1 was asked for")
        return Drawn(tuple(sequences[0].tokens), tuple(sequences[0].logprobs or ()))

    async def save(self, name: str) -> str:
        """Save weights and optimizer there. Returns the path on the service."""
        path = str((await self._wait(self.client.save_state(name))).path)
        if not path or not path.isprintable():
            raise checks.wrong(self.service.url, f"{path!r:.80} as the path of saved weights")
        return path

    async def load(self, path: str) -> None:
        """Restore what was saved at `path`. Raises LostWeightsError if it is not there."""
        try:
            await self._wait(self.client.load_state_with_optimizer(path))
        except RefusedByServiceError as error:
            raise LostWeightsError(
                f"{self.service.url} does not give out {path} ({error.reason}); run the same again;"
                " if the service has lost it, --force trains anew"
            ) from None
        self._writer = None

    async def archive(self, target: Path) -> None:
        """Write the present weights to the file `target`, as a .tar.gz of peft's two files. Raises
        ConfigError if the service keeps them.
        """
        # 1. Where the service keeps them: tinker://RUN/…/NAME
        saved = await self._wait(self.client.save_weights_for_sampler("reflectkit-export"))
        run, _, name = saved.path.removeprefix("tinker://").partition("/")
        # 2. It gives out an address from which they are read
        try:
            client = self.service.client.create_rest_client()
            answer = await self._wait(
                client.get_checkpoint_archive_url(run, name.rpartition("/")[2])
            )
            limit_s = self.service.settings.service_timeout_s
            async with (
                httpx2.AsyncClient(timeout=limit_s, trust_env=False) as http,
                http.stream("GET", answer.url) as response,
            ):
                response.raise_for_status()
                with target.open("wb") as file:
                    async for part in response.aiter_bytes():
                        refuse(
                            file.tell() + len(part) > LARGEST_ARCHIVE,
                            f"{self.service.url} gave out more than {LARGEST_ARCHIVE:,} bytes for"
                            f" {saved.path}, which is no adapter",
                        )
                        file.write(part)
        except (RefusedByServiceError, httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ConfigError(
                f"{self.service.url} does not give out {saved.path} ({redacted(str(error))})"
            ) from None

    async def close(self) -> None:
        """Give the adapter's place on the service back; what was saved stays."""
        if self.client is None:
            return
        import tinker

        # The client has no call for this, so its parts are used
        holder = self.client.holder
        request = tinker.types.UnloadModelRequest(model_id=self.client.model_id)

        async def unload() -> None:
            pools = type(holder).aclient.__globals__["ClientConnectionPoolType"]
            with holder.aclient(pools.TRAIN) as client:
                await client.models.unload(request=request)

        await self._wait(holder.run_coroutine_threadsafe(unload()))

    async def _present_writer(self) -> Any:
        """What samples with the present weights, made once for all who wait."""
        if self._writer is not None:
            return self._writer
        if self._publishing is None:
            future = in_thread(self.client.save_weights_and_get_sampling_client)
            self._publishing = asyncio.ensure_future(self.service.wait(future))
        # One that is cancelled must not end it for the others
        publishing = self._publishing
        try:
            self._writer = await asyncio.shield(publishing)
        finally:
            if self._publishing is publishing and publishing.done():
                self._publishing = None
        return self._writer

    async def _measured_reduction(self) -> str:
        """How the service adds up tokens, from the norms of two gradients: of a row, and of two
        longer ones that begin with it and have the same slopes. No weight changes. A service that
        tells no norm is taken to take the sum.
        """
        # 1. The norms of the gradients of one row, and of two rows twice as long
        before = await self.save("reflectkit-before-first-step")
        short = (1, 2, 3, 4, 5, 6)
        norms, expected = [], {}
        for rows in ([short], [(*short, 5, 4, 3, 2, 1)] * 2):
            logprobs = await self.forward(rows)
            slopes = [[0.0, 0.0, -1.0] + [0.0] * (len(row) - 4) for row in rows]
            await self._backward(rows, logprobs, slopes, SUM)
            norms.append(await self.step(OptimizerStep(0.0)))
            share = len(rows) / len(self._filled(rows)) / (len(rows[0]) - 1)
            expected[len(rows)] = {SUM: float(len(rows)), MEAN: share}
        await self.load(before)
        # 2. The ratio tells whether gradients are summed or averaged
        one, two = norms
        if not one or not two:
            return SUM
        for reduction in (SUM, MEAN):
            ratio = expected[2][reduction] / expected[1][reduction]
            if abs(two / one / ratio - 1) <= CLOSE:
                return reduction
        raise ConfigError(
            f"{self.service.url} adds up gradients in a way that is not known (two rows have"
            f" {two / one:.3g} times the gradient of one), so nothing was trained; use another"
            " backend of the service"
        )

    def _filled(self, rows: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """`rows`, and copies of the last up to a multiple of --service-rows."""
        multiple = self.service.settings.service_rows
        return [*rows, *[rows[-1]] * (-len(rows) % multiple if multiple else 0)]

    def _logprobs(self, answer: Any, count: int) -> list[list[float]]:
        """The log-probabilities of the first `count` rows in an answer of the client."""
        try:
            outputs = answer.loss_fn_outputs[:count]
            return [list(output["logprobs"].data) for output in outputs]
        except (AttributeError, LookupError, TypeError):
            raise checks.wrong(self.service.url, "rows without log-probabilities") from None

    async def _wait(self, future: Any) -> Any:
        """The result of a future of the client."""
        concurrent = future.future() if hasattr(future, "future") else future
        return await self.service.wait(asyncio.wrap_future(concurrent))


def _datum(
    row: Sequence[int],
    logprobs: list[float] | None = None,
    advantages: list[float] | None = None,
) -> Any:
    """A row for the client: all tokens but the last are read, and all but the first are predicted."""
    import tinker

    def column(values: Sequence[float], kind: Any = "float32") -> Any:
        return tinker.types.TensorData(data=list(values), dtype=kind, shape=[len(values)])

    # Weights for the log-probabilities alone; else the inputs of a policy-gradient loss
    inputs = {"target_tokens": column(row[1:], "int64")}
    if logprobs is None:
        inputs["weights"] = column([1.0] * (len(row) - 1))
    else:
        inputs |= {"logprobs": column(logprobs), "advantages": column(advantages or [])}
    return tinker.types.Datum(
        model_input=tinker.types.ModelInput.from_ints(list(row[:-1])), loss_fn_inputs=inputs
    )
