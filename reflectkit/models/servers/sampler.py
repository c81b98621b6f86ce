"""A sampler that asks an inference server.

A choice is not sampled by the server: it returns the log-probabilities of the tokens that may come next wherever the
labels part, these are normalised here, and the draw is this side's own, as for a model in this process. So it does not
matter whether the server's log-probabilities are those before or after a mask. A text is sampled by the server.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any
from weakref import WeakKeyDictionary

import torch

from reflectkit.core.errors import CheckpointError, ConfigError, EnvironmentFailure
from reflectkit.core.jsonl import sha256
from reflectkit.models.hub import looks_local
from reflectkit.models.labels import Path, trie
from reflectkit.models.load import Player
from reflectkit.models.memo import ScoreMemo
from reflectkit.models.sampler import Ask, Sampled, draw_label
from reflectkit.models.scoring import choice_logprobs
from reflectkit.models.servers.protocols import MOST_AT_ONCE, LostWeightsError, Server, Weights
from reflectkit.models.servers.store import Store

KEPT = 2  # versions that the server keeps: the current one, and that of requests still on their way
RESTORES = 20  # times that a request is made again because the server lost its weights
SAME = 0.5
"""Largest difference of log-probabilities, in nats, between a server and this process for the same weights; bfloat16
and kernels of another order stay far below it.
"""
PROBES = 16

PUBLISHING_S = 0.05
"""How long a request waits whose answer came from weights that are just being published."""

Key = tuple[int, tuple[Path, ...], tuple[int, ...], float]
"""Version, labels, prompt and temperature of a score."""


class _NewerWeightsError(Exception):
    """The server has newer whole weights than those that were asked for, which `publish` has not announced yet."""


class ServerSampler:
    """Samples from the model behind `server`.

    tokenizer, role, context: the policy's. base: the model that the server must serve, as a path or hub id. store:
    where weights are written for the server.
    """

    remote = True

    def __init__(
        self, server: Server, tokenizer: Any, role: str | None, context: int | None, base: str, store: Store
    ) -> None:
        self.server, self.tokenizer, self.role, self.store, self.base = server, tokenizer, role, store, base
        self.context = context or 2**20
        self.tokens = self.version = 0
        self.restored = 0
        """How often the server was given the current weights again."""
        self._served = self.context
        self._weights = Weights(base, adapter=False)
        self._held: list[Weights] = []
        self._compared = False
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

    async def sample(self, ask: Ask) -> Sampled:
        """What the model says.

        Raises
        ------
        CheckpointError, ConfigError: it cannot be asked like this. GoneError: the server is away for too long.
        EnvironmentFailure: this request fails again and again.
        """
        read = len(ask.prompt_ids) + (trie(ask.labels).depth if ask.labels else 1)
        if read > self.context or read + bool(ask.labels) > self._served:
            text = f"the policy's prompt is {len(ask.prompt_ids)} tokens, but the server's model reads {self.context}"
            return Sampled(version=self._weights.version, too_long=text)
        if not ask.labels:
            return await self._write(ask)
        version, row = await self._row(ask.labels, ask.prompt_ids, ask.temperature or 1.0)
        return draw_label(ask, row, version)

    async def publish(self, weights: Any, version: int) -> None:
        """Write the `Player`'s weights, and have the server load them. Requests from now on are for these.

        Raises
        ------
        ConfigError: the server cannot load them. GoneError: it is away for too long.
        """
        player: Player = weights
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
        if not self._compared:
            await self._compare(player)
            self._compared = True

    async def _row(
        self, labels: tuple[Path, ...], prompt: tuple[int, ...], temperature: float
    ) -> tuple[int, tuple[float, ...]]:
        """(version, the labels' log-probabilities behind `prompt`). Equal requests are sent once."""
        for _ in range(RESTORES):
            weights = self._weights
            key = (weights.version, labels, prompt, temperature)
            if (row := self._scores.get(labels, prompt, (weights.version, temperature))) is not None:
                return weights.version, row
            try:
                return weights.version, await self._shared(key, weights)
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
            part = children[start : start + MOST_AT_ONCE]
            found, version = await self.server.children(weights, prompt, part)
            if weights.path and not weights.adapter:
                self._check_version(weights, version)
            values |= found
            self.tokens += len(prompt) + 1
        return normalised([values[token] for token in children], temperature, self.server.wire.url)

    def _check_version(self, weights: Weights, name: str | None) -> None:
        """Raises LostWeightsError or _NewerWeightsError unless the server's weights, called `name`, are `weights`."""
        version = self.store.version(name)
        if version is not None and version > weights.version:
            raise _NewerWeightsError
        if version != weights.version:
            raise LostWeightsError(f"it has weights {name}")

    async def _write(self, ask: Ask) -> Sampled:
        """A text, sampled by the server."""
        truncated = bool(ask.truncation) and ask.temperature > 0
        if (truncated or ask.temperature not in (0, 1)) and not await self._is_scaled():
            before = "truncation; leave out --top-p, --top-k and --min-p" if truncated else "the temperature; sample"
            raise ConfigError(
                f"{self.server.wire.url} returns log-probabilities from before {before}"
                f"{'' if truncated else ' with --temperature 1'}, or start it {self.server.processed_help}"
            )
        limit = min(ask.max_new_tokens, self._served - len(ask.prompt_ids), self.context - len(ask.prompt_ids))
        for _ in range(RESTORES):
            weights = self._weights
            try:
                drawn = await self.server.write(weights, ask, limit)
            except LostWeightsError:
                await self._restore(weights)
                continue
            self.tokens += len(ask.prompt_ids) + len(drawn.token_ids)
            version = self.store.version(drawn.version)
            return Sampled(drawn.token_ids, drawn.logprobs, version=weights.version if version is None else version)
        raise EnvironmentFailure(f"{self.server.wire.url} lost the weights {RESTORES} times during one request")

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

    @torch.no_grad()
    async def _compare(self, player: Player) -> None:
        """Raises ConfigError unless the server's log-probabilities are those of the weights that it was just given."""
        ids = _spread(len(self.tokenizer), PROBES)
        prompt, labels = tuple(ids[:4]), tuple((token,) for token in ids)
        player.model.eval()
        player.activate()
        own_BK, _ = choice_logprobs(player.model, [prompt], [labels], pad_id=player.pad_id)
        _, row = await self._row(labels, prompt, 1.0)
        difference = max(abs(one - other) for one, other in zip(own_BK[0].tolist(), row, strict=True))
        if not difference <= SAME:
            raise ConfigError(
                f"{self.server.wire.url} serves other weights than the policy's: log-probabilities differ by"
                f" {difference:.2f} nats; serve {self.base} itself, unquantised"
            )

    async def _is_scaled(self) -> bool:
        """Whether the server's log-probabilities are those after the temperature."""
        if self._scaled is None:
            ids = _spread(len(self.tokenizer), PROBES)
            spread = []
            for temperature in (1.0, 2.0):
                values, _ = await self.server.children(self._weights, ids[:4], ids, temperature)
                spread.append(max(values.values()) - min(values.values()))
            self._scaled = abs(2 * spread[1] - spread[0]) < abs(spread[1] - spread[0])
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


def _spread(size: int, count: int) -> list[int]:
    """`count` different token ids, spread over a vocabulary of `size`."""
    return sorted({number * (size - 1) // (count - 1) for number in range(count)})
