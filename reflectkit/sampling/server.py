"""Sampler that asks an inference server.

A choice is not sampled by the server: it returns the log-probabilities of the tokens that may come next wherever the
labels part, these are normalised here, and the draw is this side's own, as for a model in this process. So it does not
matter whether the server's log-probabilities are those before or after a mask. A text is sampled by the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from reflectkit.config import flag
from reflectkit.errors import CheckpointError, ConfigError, EnvironmentFailure
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import sha256
from reflectkit.models.checkpoint_metadata import base_of, check_role, config_of, context_of, load_tokenizer
from reflectkit.models.hub import looks_local
from reflectkit.models.labels import Path, trie
from reflectkit.models.load import LoadedModel
from reflectkit.sampling import checks as answers
from reflectkit.sampling.base import Opening, SampleOutput, SampleRequest, draw_label
from reflectkit.sampling.checks import TOKENS, Probes, disagreement, spread, text_difference
from reflectkit.sampling.memo import ScoreMemo
from reflectkit.sampling.protocols import MOST_AT_ONCE, Drawn, LostWeightsError, Server, Weights
from reflectkit.sampling.settings import KEYS, ServerSettings
from reflectkit.sampling.sglang import Sglang
from reflectkit.sampling.store import Store
from reflectkit.sampling.vllm import Vllm
from reflectkit.sampling.wire import Wire

SERVERS: dict[str, type[Vllm] | type[Sglang]] = {"vllm": Vllm, "sglang": Sglang}
KEPT = 2  # versions that the server keeps: the current one, and that of requests still on their way
RESTORES = 20  # times that a request is made again because the server lost its weights
PUBLISHING_S = 0.05
"""How long a request waits whose answer came from weights that are just being published."""

Value = TypeVar("Value")
Key = tuple[int, tuple[Path, ...], tuple[int, ...], float]
"""Version, labels, prompt and temperature of a score."""


class _NewerWeightsError(Exception):
    """The server has newer whole weights than those that were asked for, which `publish` has not announced yet."""


class ServerSampler:
    """Samples from the model behind `server`.

    tokenizer, role, context: the policy's. vocabulary: how many tokens its model has. base: the model that the server
    must serve, as a path or hub id. store: where weights are written for the server.
    """

    remote = True

    def __init__(
        self,
        server: Server,
        tokenizer: Any,
        role: str | None,
        context: int | None,
        vocabulary: int,
        base: str,
        store: Store,
    ) -> None:
        self.server, self.tokenizer, self.role, self.store, self.base = server, tokenizer, role, store, base
        self.context, self.vocabulary = context or 2**20, vocabulary
        self.tokens = self.version = 0
        self.restored = 0
        """How often the server was given the current weights again."""
        self._served = self.context
        self._weights = Weights(base, adapter=False)
        self._held: list[Weights] = []
        self._probes = Probes(len(tokenizer))
        self._scaled: bool | None = None
        self._scores = ScoreMemo()
        self._asked: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Key, asyncio.Task[tuple[float, ...]]]]
        self._asked = WeakKeyDictionary()
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def check(self, served_model: str = "", chosen_by: str = "--served-model") -> None:
        """Whether this is the server of the base, with the model's tokenizer. chosen_by: the flag of `served_model`.

        Raises
        ------
        ConfigError: it is another kind of server, serves another model, or has another tokenizer. GoneError: nothing
        answers.
        """
        served = await self.server.served()
        url = self.server.wire.url
        names = [name for name, path in served.models.items() if _same_model(path, self.base)]
        if served_model:
            names = [name for name in served.models if name == served_model]
        if not names:
            whose = "reflector" if self.role == "reflection" else "policy"
            wanted = f"{chosen_by} {served_model}" if served_model else f"the {whose}'s base {self.base}"
            has = ", ".join(f"{name} ({path})" if name != path else name for name, path in served.models.items())
            raise ConfigError(
                f"{url} serves {has}, not {wanted}; serve that, or name the same model there with {chosen_by}"
            )
        self._weights = Weights(names[0], adapter=False)
        self._served = served.context or self._served
        self.context = min(self.context, self._served)
        await self._compare_vocabulary()

    async def load(self, folder: FilePath) -> None:
        """Sample from the adapter in `folder`, which the server must see. Raises ConfigError."""
        name = f"reflectkit-{sha256(folder / 'adapter_model.safetensors')[:12]}"
        weights = Weights(name, path=self.store.copy(folder, name))
        await self.server.load(weights, patient=False)
        self._weights = weights

    async def sample(self, ask: SampleRequest) -> SampleOutput:
        """What the model says.

        Raises
        ------
        CheckpointError, ConfigError: it cannot be asked like this. GoneError: the server is away for too long.
        EnvironmentFailure: this request fails again and again.
        """
        read = len(ask.prompt_ids) + (trie(ask.labels).depth if ask.labels else 1)
        if read > self.context or read + bool(ask.labels) > self._served:
            text = f"the policy's prompt is {len(ask.prompt_ids)} tokens, but the server's model reads {self.context}"
            return SampleOutput(version=self._weights.version, too_long=text)
        self._probes.see(ask)
        if not ask.labels:
            return await self._write(ask)
        version, row = await self._row(ask.labels, ask.prompt_ids, ask.temperature or 1.0)
        return draw_label(ask, row, version)

    async def publish(self, weights: Any, version: int) -> None:
        """Write the weights of a `LoadedModel`, have the server load them, and see whether it did. Requests from now on
        are for these.

        Raises
        ------
        ConfigError: the server cannot load them, or has others. GoneError: it is away for too long.
        """
        player: LoadedModel = weights
        adapter = hasattr(player.model, "peft_config")
        there = self.store.write(player, version)
        fresh = Weights(self.store.name(version), version, adapter, there)
        await self.server.load(fresh)
        self._weights, self.version = fresh, version
        self._scores = ScoreMemo()  # a new one: other threads may be reading the old one
        self._held.append(fresh)
        while len(self._held) > KEPT:
            old = self._held.pop(0)
            if adapter:
                await self.server.unload(old.name)
            self.store.remove(old.name)
        await self._compare(player)

    async def _row(
        self, labels: tuple[Path, ...], prompt: tuple[int, ...], temperature: float
    ) -> tuple[int, tuple[float, ...]]:
        """(version, the labels' log-probabilities behind `prompt`). Equal requests are sent once."""

        async def row(weights: Weights) -> tuple[int, tuple[float, ...]]:
            key = (weights.version, labels, prompt, temperature)
            kept = self._scores.get(labels, prompt, (weights.version, temperature))
            return weights.version, kept or await self._shared(key, weights)

        return await self._with_weights(row)

    async def _with_weights(self, request: Callable[[Weights], Awaitable[Value]]) -> Value:
        """What `request` returns for the current weights, which the server is given again if it lost them."""
        for _ in range(RESTORES):
            weights = self._weights
            try:
                return await request(weights)
            except LostWeightsError:
                await self._restore(weights)
            except _NewerWeightsError:
                await asyncio.sleep(PUBLISHING_S)
        raise EnvironmentFailure(f"{self.server.wire.url} lost the weights {RESTORES} times during one request")

    async def _shared(self, key: Key, weights: Weights) -> tuple[float, ...]:
        """The row of `key`, which others in this event loop may wait for too."""
        loop = asyncio.get_running_loop()
        asked = self._asked.setdefault(loop, {})
        if key not in asked:
            task = asked[key] = loop.create_task(self._scored(key, weights))
            task.add_done_callback(lambda done: (asked.pop(key, None), done.cancelled() or done.exception()))
        return await asyncio.shield(asked[key])

    async def _scored(self, key: Key, weights: Weights) -> tuple[float, ...]:
        """Ask for the tokens that may come next at each place where labels part, and add up along the paths."""
        version, labels, prompt, temperature = key
        one = trie(labels)
        steps = [self._step(weights, (*prompt, *node.prefix), node.children, temperature) for node in one.nodes]
        logprobs = await asyncio.gather(*steps)
        row = tuple(math.fsum(logprobs[node][child] for node, child in path) for path in one.steps)
        scores = self._scores
        scores.trim()
        scores.keep(labels, prompt, (version, temperature), row)
        return row

    async def _step(
        self, weights: Weights, prompt: tuple[int, ...], children: Path, temperature: float
    ) -> tuple[float, ...]:
        """Log-probabilities of the tokens `children` after `prompt`, among each other."""
        if len(children) == 1:
            return (0.0,)
        values: dict[int, float] = {}
        for start in range(0, len(children), MOST_AT_ONCE):
            values |= await self._next(weights, prompt, children[start : start + MOST_AT_ONCE])
            self.tokens += len(prompt) + 1
        return normalised([values[token] for token in children], temperature, self.server.wire.url)

    async def _next(
        self, weights: Weights, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0
    ) -> dict[int, float]:
        """The server's log-probabilities of `tokens`, MOST_AT_ONCE at most, after `prompt`."""
        found, version = await self.server.children(weights, prompt, tokens, temperature)
        self._check_version(weights, version)
        return answers.scores(found, self.server.wire.url)

    async def _written(self, weights: Weights, ask: SampleRequest, limit: int) -> tuple[Drawn, int]:
        """(a text of at most `limit` tokens, version of the weights that wrote it)."""
        drawn = await self.server.write(weights, ask, limit)
        with contextlib.suppress(_NewerWeightsError):  # it says which
            self._check_version(weights, drawn.version)
        version = self.store.version(drawn.version)
        checked = answers.text(drawn, ask.stop_ids, limit, self.vocabulary, self.server.wire.url)
        return checked, weights.version if version is None else version

    def _check_version(self, weights: Weights, name: Any) -> None:
        """Raises LostWeightsError or _NewerWeightsError if `weights` are of a whole model, and the server's, called
        `name`, are others.
        """
        if weights.adapter or not weights.path:
            return
        version = self.store.version(name)
        if version is not None and version > weights.version:
            raise _NewerWeightsError
        if version != weights.version:
            raise LostWeightsError(f"it has weights {name}")

    async def _write(self, ask: SampleRequest) -> SampleOutput:
        """A text, sampled by the server."""
        truncated = bool(ask.truncation) and ask.temperature > 0
        if (truncated or ask.temperature not in (0, 1)) and not await self._is_scaled():
            before = "truncation; leave out --top-p, --top-k and --min-p" if truncated else "the temperature; sample"
            raise ConfigError(
                f"{self.server.wire.url} returns log-probabilities from before {before}"
                f"{'' if truncated else ' with --temperature 1'}, or start it {self.server.processed_help}"
            )
        limit = min(ask.max_new_tokens, self._room(ask))
        drawn, version = await self._with_weights(lambda weights: self._written(weights, ask, limit))
        self.tokens += len(ask.prompt_ids) + len(drawn.token_ids)
        return SampleOutput(drawn.token_ids, drawn.logprobs, version=version)

    def _room(self, ask: SampleRequest) -> int:
        """How many tokens the context has left behind the prompt."""
        return min(self._served, self.context) - len(ask.prompt_ids)

    async def _restore(self, lost: Weights) -> None:
        """Give the server the current weights again, unless newer ones were published meanwhile."""
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:
            if self._weights is not lost:
                return
            if not lost.path:
                raise ConfigError(f"{self.server.wire.url} does not serve {lost.name} any more; serve it again")
            await self.server.load(lost)
            self._weights = replace(lost)  # so that whoever lost them too sees that they are back
            self.restored += 1

    async def _compare_vocabulary(self) -> None:
        """Raises ConfigError unless the server's tokens are the policy's: the text of the whole vocabulary, compared by
        its hash, white space aside (which libraries clean up differently).
        """
        ids = list(range(len(self.tokenizer)))
        here, there = self.tokenizer.decode(ids), await self.server.decoded(ids)
        hashes = [
            hashlib.sha256("".join(text.split()).encode("utf-8", "replace")).hexdigest() for text in (here, there)
        ]
        if hashes[0] != hashes[1]:
            raise ConfigError(
                f"{self.server.wire.url} has another tokenizer than the policy (vocabulary {hashes[1][:8]} there,"
                f" {hashes[0][:8]} here); serve the policy's own base, with its tokenizer"
            )

    async def _compare(self, player: LoadedModel) -> None:
        """Raises ConfigError unless the server has the weights that it was just given."""
        player.model.eval()
        player.activate()
        self._probes.choose(player)
        url, probes = self.server.wire.url, self._probes.chosen
        texts = [replace(one.text, seed=0) for one in probes if one.text is not None]

        async def there(weights: Weights) -> tuple[list[dict[int, float]], list[tuple[Drawn, int]]]:
            return (
                await asyncio.gather(*(self._next(weights, one.prompt, one.tokens) for one in probes)),
                await asyncio.gather(*(self._written(weights, ask, min(TOKENS, self._room(ask))) for ask in texts)),
            )

        scores, written = await self._with_weights(there)
        rows = [
            normalised([found[token] for token in one.tokens], 1.0, url)
            for found, one in zip(scores, probes, strict=True)
        ]
        complaint = self._probes.complaint(self._probes.own(player), [value for row in rows for value in row])
        difference_N = text_difference(player, texts, [(one.token_ids, one.logprobs) for one, _ in written])
        apart = disagreement(difference_N, min((ask.temperature or 1.0 for ask in texts), default=1.0))
        if apart and not complaint:
            complaint = f"log-probabilities of its texts differ {apart}"
        if complaint:
            raise ConfigError(
                f"{url} serves other weights than the policy's: {complaint}; serve {self.base} itself, unquantised, and"
                f" see in its log whether it loads {self._weights.path}"
            )

    async def _is_scaled(self) -> bool:
        """Whether the server's log-probabilities are those after the temperature."""
        if self._scaled is None:
            ids = spread(len(self.tokenizer), TOKENS)

            async def ranges(weights: Weights) -> list[float]:
                found = [await self._next(weights, ids[:4], ids, temperature) for temperature in (1.0, 2.0)]
                return [max(values.values()) - min(values.values()) for values in found]

            one, two = await self._with_weights(ranges)
            self._scaled = abs(2 * two - one) < abs(two - one)
        return self._scaled


def normalised(values: Sequence[float], temperature: float, url: str = "the server") -> tuple[float, ...]:
    """Log-probabilities of what `values` are the logits of, up to a constant, at `temperature`. Raises CheckpointError
    if one is not a number.

    >>> [round(one, 3) for one in normalised([-5.0, -5.0, -9999.0], 1.0)]
    [-0.693, -0.693, -9994.693]
    """
    scaled = [value / temperature for value in values]
    highest = max(scaled)
    if not all(map(math.isfinite, scaled)):
        raise CheckpointError(
            f"{url}: the policy's scores are not numbers: {list(values)!r:.100}; its weights are damaged"
        )
    total = highest + math.log(math.fsum(math.exp(value - highest) for value in scaled))
    return tuple(value - total for value in scaled)


def _same_model(there: str, here: str) -> bool:
    """Whether the server's path is that of the model called `here`: the same folder, or the same hub id."""
    return there == here or (looks_local(here) and os.path.realpath(there) == os.path.realpath(here))


def open_server(kind: str, url: str, opening: Opening, settings: ServerSettings) -> ServerSampler:
    """A sampler of the model behind `url`, checked before anything is sampled.

    Raises
    ------
    CheckpointError: the policy's folder is not usable. ConfigError, GoneError: the server is not.
    """
    wire = Wire(
        url,
        KEYS[kind],
        timeout_s=settings.server_timeout_s,
        patience_s=settings.server_patience_s,
        connections=settings.server_connections,
    )
    folder, player = FilePath(opening.checkpoint), opening.player
    role = player.role if player else check_role(opening.checkpoint, opening.role)
    tokenizer = player.tokenizer if player else load_tokenizer(opening.checkpoint)
    base = base_of(folder) or opening.checkpoint
    server = SERVERS[kind](wire)
    if player is not None and not hasattr(player.model, "peft_config") and not server.whole_models:
        raise ConfigError(
            f"--sampler {kind}:{url} loads adapters while it runs, but no whole models; train an adapter (--lora-r 16),"
            " or use sglang:URL"
        )
    store = Store(settings.adapter_dir, settings.server_adapter_dir)
    vocabulary = getattr(config_of(base), "vocab_size", None) or len(tokenizer)
    sampler = ServerSampler(server, tokenizer, role, context_of(opening.checkpoint), vocabulary, base, store)
    setting = "reflector_served_model" if opening.role == "reflection" else "served_model"
    run_sync(sampler.check(getattr(settings, setting), flag(setting)))
    if player is None and (folder / "adapter_config.json").is_file():
        run_sync(sampler.load(folder))
    return sampler
