"""Sampler that asks an inference server.

A choice is not sampled by the server: it returns the log-probabilities of the tokens that may come
next wherever the labels part. They are normalised and drawn from here, as for a model in this
process, so it does not matter whether the server's log-probabilities are those before or after a
mask. A text is sampled by the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import re
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from reflectkit.config import flag
from reflectkit.errors import CheckpointError, ConfigError, EnvironmentFailure
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import LOCK, is_locked, locked, replacing_folder, sha256
from reflectkit.models.checkpoint_metadata import (
    base_of,
    check_role,
    config_of,
    context_of,
    load_tokenizer,
)
from reflectkit.models.hub import same_model
from reflectkit.models.labels import LabelPath, check_embedded, trie
from reflectkit.models.load import POLICY_ADAPTER, LoadedModel
from reflectkit.sampling import checks
from reflectkit.sampling.base import (
    KEYS,
    Opening,
    SampleOutput,
    SampleRequest,
    ScoreMemo,
    ServerSettings,
    draw_label,
)
from reflectkit.sampling.protocols import (
    MOST_AT_ONCE,
    Drawn,
    InferenceServer,
    LostWeightsError,
    Sglang,
    Vllm,
    Weights,
)
from reflectkit.sampling.wire import Wire

SERVERS: dict[str, type[InferenceServer]] = {"vllm": Vllm, "sglang": Sglang}
VERSIONS = (
    2  # versions that the server keeps: the current one, and that of requests still on their way
)
RESTORES = 20  # times that a request is made again because the server lost its weights
PUBLISHING_S = 0.05
"""How long a request waits whose answer came from weights that are just being published."""

Value = TypeVar("Value")


class WeightsFolder:
    """A folder where trained weights are written for the server to read.

    folder: None for a temporary one, which is removed at the end, or by the next process if this
    one is killed. there: its path on the server's machine, if it differs. The names of all weights
    of this process have a random prefix, so that a server never takes one process's for another's.
    They are removed at the end.
    """

    def __init__(self, folder: Path | None, there: str = "") -> None:
        self._temporary = folder is None
        self._holding = contextlib.ExitStack()
        self.folder = _temporary_folder(self._holding) if folder is None else folder
        self.there = there.rstrip("/")
        self.prefix = f"reflectkit-{secrets.token_hex(4)}"
        self._holding.callback(_remove_versions, self.folder, self.prefix)
        weakref.finalize(self, self._holding.close)

    def name(self, version: int) -> str:
        """What the weights of `version` are called."""
        return f"{self.prefix}-v{version}"

    def version(self, name: Any) -> int | None:
        """The version of weights that a server calls `name`; None if they are not of this process."""
        match = (
            re.fullmatch(rf"{self.prefix}-v([0-9]{{1,18}})", name)
            if isinstance(name, str)
            else None
        )
        return int(match[1]) if match else None

    def write(self, player: LoadedModel, version: int) -> str:
        """Write the adapter of `player`, or its whole model, and return its path on the server's
        machine. Raises ConfigError if the folder cannot be written.
        """
        name = self.name(version)
        adapter = hasattr(player.model, "peft_config")
        only = {"selected_adapters": [player.adapter or POLICY_ADAPTER]} if adapter else {}
        with self._writing(), replacing_folder(self.folder / name) as staging:
            player.model.save_pretrained(staging, safe_serialization=True, **only)
            player.tokenizer.save_pretrained(staging)
        return self._path_there(name)

    def copy(self, folder: Path, name: str) -> str:
        """The path on the server's machine of the adapter in `folder`: a copy called `name` if the
        user named a folder that the server sees. Raises ConfigError if that cannot be written.
        """
        if self._temporary:
            return str(folder.resolve())
        with self._writing():
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            for file in ("adapter_config.json", "adapter_model.safetensors"):
                shutil.copyfile(folder / file, self.folder / name / file)
        return self._path_there(name)

    def remove(self, name: str) -> None:
        """Remove weights that are no longer used."""
        shutil.rmtree(self.folder / name, ignore_errors=True)

    @contextlib.contextmanager
    def _writing(self) -> Any:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"--adapter-dir {self.folder}: {error.strerror or error}; name another folder"
            ) from None

    def _path_there(self, name: str) -> str:
        return f"{self.there}/{name}" if self.there else str((self.folder / name).resolve())


TEMPORARY = "reflectkit-weights-"


def _temporary_folder(holding: contextlib.ExitStack) -> Path:
    """A new temporary folder, locked and then removed by `holding`. Those that killed processes
    left are removed.
    """
    for leftover in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):  # of another user
            if (leftover / LOCK).exists() and not is_locked(leftover):
                shutil.rmtree(leftover, ignore_errors=True)
    while True:
        folder = Path(
            holding.enter_context(
                tempfile.TemporaryDirectory(prefix=TEMPORARY, ignore_cleanup_errors=True)
            )
        )
        # Another process has just taken it for a leftover
        with contextlib.suppress(FileNotFoundError):
            holding.enter_context(locked(folder))
            return folder


def _remove_versions(folder: Path, prefix: str) -> None:
    for version in folder.glob(f"{prefix}-v*"):
        shutil.rmtree(version, ignore_errors=True)


class _NewerWeightsError(Exception):
    """The server has newer whole weights than those that were asked for, which `publish` has not
    announced yet.
    """


class ServerSampler:
    """Samples from the model that `server` serves.

    tokenizer, role, context: the policy's. vocabulary: number of its model's tokens. base: the
    model that the server must serve, as a path or hub id. store: where weights are written for the
    server.
    """

    def __init__(
        self,
        server: InferenceServer,
        tokenizer: Any,
        role: str | None,
        context: int | None,
        vocabulary: int,
        base: str,
        store: WeightsFolder,
    ) -> None:
        self.server, self.tokenizer, self.role = server, tokenizer, role
        self.store, self.base = store, base
        self.context, self.vocabulary, self.url = context or 2**20, vocabulary, server.wire.url
        self.tokens = self.version = 0
        self.restored = 0
        """Number of times that the server was given the current weights again."""
        # What the server has: its context, its weights, those that it was given, newest last
        self._served = self.context
        self._weights = Weights(base, adapter=False)
        self._held: list[Weights] = []
        # What it was checked with, and whether its log-probabilities follow the temperature
        self._known = min(len(tokenizer), vocabulary)
        self._probes = checks.Probes(self._known)
        self._scaled: bool | None = None
        # Scores with the current weights, and requests for more on their way, by event loop
        self._scores = ScoreMemo()
        self._asked: WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[Hashable, asyncio.Task[tuple[float, ...]]]
        ]
        self._asked = WeakKeyDictionary()
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    async def check(self, served_model: str = "", chosen_by: str = "--served-model") -> None:
        """Whether this is the server of the base, with the model's tokenizer. chosen_by: the flag
        of `served_model`.

        Raises ConfigError: it is another kind of server, serves another model, or has another
        tokenizer. GoneError: nothing answers.
        """
        # 1. What it calls the base
        served = await self.server.served()
        names = [name for name, path in served.models.items() if same_model(path, self.base)]
        if served_model:
            names = [name for name in served.models if name == served_model]
        if not names:
            whose = "reflector" if self.role == "reflection" else "policy"
            model = (
                f"{chosen_by} {served_model}" if served_model else f"the {whose}'s base {self.base}"
            )
            has = ", ".join(
                f"{name} ({path})" if name != path else name for name, path in served.models.items()
            )
            raise ConfigError(
                f"{self.url} serves {has}, not {model}; serve that, or name the same model"
                f" there with {chosen_by}"
            )
        # 2. Its context and its tokenizer
        self._weights = Weights(names[0], adapter=False)
        self._served = served.context or self._served
        self.context = min(self.context, self._served)
        ids = list(range(len(self.tokenizer)))
        here, there = (  # white space aside, which libraries clean up differently
            hashlib.sha256("".join(text.split()).encode("utf-8", "replace")).hexdigest()[:8]
            for text in (self.tokenizer.decode(ids), await self.server.decoded(ids))
        )
        if here != there:
            raise ConfigError(
                f"{self.url} has another tokenizer than the policy (vocabulary {there} there,"
                f" {here} here); serve the policy's own base, with its tokenizer"
            )

    async def load(self, folder: Path) -> None:
        """Sample from the adapter in `folder`, which the server must see. Raises ConfigError."""
        name = f"reflectkit-{sha256(folder / 'adapter_model.safetensors')[:12]}"
        weights = Weights(name, path=self.store.copy(folder, name))
        await self.server.load(weights, patient=False)
        self._weights = weights

    async def sample(self, request: SampleRequest) -> SampleOutput:
        """What the model says.

        Raises CheckpointError, ConfigError: it cannot be asked like this. GoneError: the server is
        away for too long. EnvironmentFailure: this request fails again and again.
        """
        check_embedded(self.tokenizer, request.prompt_ids, self.vocabulary)
        if request.separately:
            raise CheckpointError(
                "the policy scores each choice alone, which a server of text cannot do; use"
                " --sampler local"
            )
        read = len(request.prompt_ids) + request.depth
        if read > self.context or read + bool(request.labels) > self._served:
            text = (
                f"the policy's prompt is {len(request.prompt_ids)} tokens, but the server's model"
                f" reads {self.context}"
            )
            return SampleOutput(version=self._weights.version, too_long=text)
        self._probes.see(request)
        if not request.labels:
            return await self._write(request)
        version, row = await self._with_weights(
            lambda weights: self._label_logprobs(weights, request)
        )
        return draw_label(request, row, version)

    async def publish(self, weights: Any, version: int) -> None:
        """Write the weights of a `LoadedModel`, have the server load them, and see whether it did.
        Requests from now on are for these.

        Raises ConfigError: the server cannot load them, or has others. GoneError: it is away for
        too long.
        """
        # 1. Write and load them; requests that are on their way keep the ones before
        player: LoadedModel = weights
        adapter = hasattr(player.model, "peft_config")
        there = self.store.write(player, version)
        fresh = Weights(self.store.name(version), version, adapter, there)
        await self.server.load(fresh)
        self._weights, self.version = fresh, version
        self._scores = ScoreMemo()  # a new one: other threads may be reading the old one
        # 2. Remove the oldest, and compare the server's scores and texts with the policy's
        self._held.append(fresh)
        while len(self._held) > VERSIONS:
            old = self._held.pop(0)
            if adapter:
                await self.server.unload(old.name)
            self.store.remove(old.name)
        await self._compare(player)

    async def _with_weights(self, call: Callable[[Weights], Awaitable[Value]]) -> Value:
        """What `call` returns for the current weights, which the server is given again if it
        lost them.
        """
        for _ in range(RESTORES):
            weights = self._weights
            try:
                return await call(weights)
            except LostWeightsError:
                await self._restore(weights)
            except _NewerWeightsError:
                await asyncio.sleep(PUBLISHING_S)
        raise EnvironmentFailure(f"{self.url} lost the weights {RESTORES} times during one request")

    async def _restore(self, weights: Weights) -> None:
        """Give the server the current weights again, unless newer ones were published meanwhile."""
        # One request restores them, the others that lost them wait and find them there
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:
            if self._weights is not weights:
                return
            if not weights.path:
                raise ConfigError(
                    f"{self.url} does not serve {weights.name} any more; serve it again"
                )
            await self.server.load(weights)
            # Another object, so that other requests that lost them see the change
            self._weights = replace(weights)
            self.restored += 1

    async def _label_logprobs(
        self, weights: Weights, request: SampleRequest
    ) -> tuple[int, tuple[float, ...]]:
        """(version, the labels' log-probabilities after the prompt). Equal requests in an event
        loop are sent once.
        """
        temperature = request.temperature or 1.0
        kind = (weights.version, temperature)
        row = self._scores.get(request.labels, request.prompt_ids, kind)
        if row is not None:
            return weights.version, row
        loop = asyncio.get_running_loop()
        tasks = self._asked.setdefault(loop, {})
        key = (request.labels, request.prompt_ids, kind)
        if key not in tasks:
            task = tasks[key] = loop.create_task(
                self._score(weights, request.labels, request.prompt_ids, temperature)
            )
            task.add_done_callback(
                lambda done: (tasks.pop(key, None), done.cancelled() or done.exception())
            )
        return weights.version, await asyncio.shield(tasks[key])

    async def _score(
        self,
        weights: Weights,
        labels: tuple[LabelPath, ...],
        prompt: tuple[int, ...],
        temperature: float,
    ) -> tuple[float, ...]:
        """Ask for the tokens that may come next at each place where labels part, and add up along
        the paths.
        """

        async def at(prefix: LabelPath, children: LabelPath) -> tuple[float, ...]:
            if len(children) == 1:
                return (0.0,)
            values: dict[int, float] = {}
            for start in range(0, len(children), MOST_AT_ONCE):
                values |= await self._next(
                    weights, (*prompt, *prefix), children[start : start + MOST_AT_ONCE]
                )
                self.tokens += len(prompt) + len(prefix) + 1
            return normalised([values[token] for token in children], temperature, self.url)

        # The places where labels part at once, then sums along the paths
        tree = trie(labels)
        logprobs = await asyncio.gather(*(at(node.prefix, node.children) for node in tree.nodes))
        row = tuple(math.fsum(logprobs[node][child] for node, child in path) for path in tree.steps)
        scores = self._scores
        scores.trim()
        scores.keep(labels, prompt, (weights.version, temperature), row)
        return row

    async def _next(
        self,
        weights: Weights,
        prompt: Sequence[int],
        tokens: Sequence[int],
        temperature: float = 1.0,
    ) -> dict[int, float]:
        """The server's log-probabilities of `tokens`, MOST_AT_ONCE at most, after `prompt`."""
        values, version = await self.server.children(weights, prompt, tokens, temperature)
        self._check_version(weights, version)
        return checks.scores(values, self.url)

    def _check_version(self, weights: Weights, name: Any) -> None:
        """Raises LostWeightsError or _NewerWeightsError if `weights` are of a whole model, and the
        server's, called `name`, are others.
        """
        if weights.adapter or not weights.path:
            return
        # A newer version answered a request that began before it was published
        version = self.store.version(name)
        if version is not None and version > weights.version:
            raise _NewerWeightsError
        if version != weights.version:
            raise LostWeightsError(f"it has weights {name}")

    async def _write(self, request: SampleRequest) -> SampleOutput:
        """A text, sampled by the server."""
        truncated = bool(request.truncation) and request.temperature > 0
        if (truncated or request.temperature not in (0, 1)) and not await self._is_scaled():
            before = (
                "truncation; leave out --top-p, --top-k and --min-p"
                if truncated
                else "the temperature; sample"
            )
            raise ConfigError(
                f"{self.url} returns log-probabilities from before {before}"
                f"{'' if truncated else ' with --temperature 1'}, or start it"
                f" {self.server.processed_help}"
            )
        text, version = await self._with_weights(
            lambda weights: self._text(weights, request, request.max_new_tokens)
        )
        self.tokens += len(request.prompt_ids) + len(text.token_ids)
        return SampleOutput(text.token_ids, text.logprobs, version=version)

    async def _text(
        self,
        weights: Weights,
        request: SampleRequest,
        limit: int,
    ) -> tuple[Drawn, int]:
        """(a text of at most `limit` tokens, and of what the context has room for; version of the
        weights).
        """
        limit = min(
            limit, self._served - len(request.prompt_ids), self.context - len(request.prompt_ids)
        )
        drawn = await self.server.write(weights, request, limit)
        with contextlib.suppress(_NewerWeightsError):  # it says which
            self._check_version(weights, drawn.version)
        version = self.store.version(drawn.version)
        checked = checks.text(drawn, request.stop_ids, limit, self.vocabulary, self.url)
        return checked, weights.version if version is None else version

    async def _is_scaled(self) -> bool:
        """Whether the server's log-probabilities are those after the temperature."""
        if self._scaled is None:
            ids = checks.spread(self._known, checks.TOKENS)

            async def ranges(weights: Weights) -> list[float]:
                scores_of = [
                    await self._next(weights, ids[:4], ids, temperature)
                    for temperature in (1.0, 2.0)
                ]
                return [max(values.values()) - min(values.values()) for values in scores_of]

            one, two = await self._with_weights(ranges)
            self._scaled = abs(2 * two - one) < abs(two - one)
        return self._scaled

    async def _compare(self, player: LoadedModel) -> None:
        """Raises ConfigError unless the server has the weights that it was just given."""
        # 1. The server's scores and texts of the probes
        player.model.eval()
        player.activate()
        self._probes.choose(player)
        probes = self._probes.chosen
        texts = [replace(probe.text, seed=0) for probe in probes if probe.text is not None]

        async def there(weights: Weights) -> tuple[list[dict[int, float]], list[tuple[Drawn, int]]]:
            calls = [self._next(weights, probe.prompt, probe.tokens) for probe in probes]
            scores = await asyncio.gather(*calls)
            text_calls = [self._text(weights, request, checks.TOKENS) for request in texts]
            return scores, await asyncio.gather(*text_calls)

        scores, drafts = await self._with_weights(there)
        logprobs: list[float] = []
        for logprob_of, probe in zip(scores, probes, strict=True):
            values = [logprob_of[token] for token in probe.tokens]
            logprobs += normalised(values, 1.0, self.url)

        # 2. Against those of the policy itself
        complaint = self._probes.complaint(self._probes.own(player), logprobs)
        drawn_texts = [(drawn.token_ids, drawn.logprobs) for drawn, _ in drafts]
        difference_N = checks.text_difference(player, texts, drawn_texts)
        temperature = min((request.temperature or 1.0 for request in texts), default=1.0)
        lengths = [len(drawn.token_ids) for drawn, _ in drafts]
        difference = checks.disagreement(difference_N, temperature, lengths)
        if difference and not complaint:
            complaint = f"log-probabilities of its texts differ {difference}"
        if complaint:
            raise ConfigError(
                f"{self.url} serves other weights than the policy's: {complaint}; serve {self.base}"
                f" itself, unquantised, and see in its log whether it loads {self._weights.path}"
            )


def normalised(
    values: Sequence[float],
    temperature: float,
    url: str = "the server",
) -> tuple[float, ...]:
    """Log-probabilities of what `values` are the logits of, up to a constant, at `temperature`.
    Raises CheckpointError if one is not a number.

    >>> [round(value, 3) for value in normalised([-5.0, -5.0, -9999.0], 1.0)]
    [-0.693, -0.693, -9994.693]
    """
    scaled = [value / temperature for value in values]
    highest = max(scaled)
    if not all(map(math.isfinite, scaled)):
        raise CheckpointError(
            f"{url}: the policy's scores are not numbers: {list(values)!r:.100}; its weights"
            " are damaged"
        )
    total = highest + math.log(math.fsum(math.exp(value - highest) for value in scaled))
    return tuple(value - total for value in scaled)


def open_server(
    kind: str,
    url: str,
    opening: Opening,
    settings: ServerSettings,
) -> ServerSampler:
    """A sampler of the model that `url` serves, checked before anything is sampled.

    Raises CheckpointError: the policy's folder is not usable. ConfigError, GoneError: the server is
    not.
    """
    # 1. The connection, and what the model needs of the server
    wire = Wire(
        url,
        KEYS[kind],
        timeout_s=settings.server_timeout_s,
        patience_s=settings.server_patience_s,
        connections=settings.server_connections,
    )
    folder, player = Path(opening.checkpoint), opening.player
    role = player.role if player else check_role(opening.checkpoint, opening.role)
    tokenizer = player.tokenizer if player else load_tokenizer(opening.checkpoint)
    base = base_of(folder) or opening.checkpoint
    server = SERVERS[kind](wire)
    if player is not None and not hasattr(player.model, "peft_config") and not server.whole_models:
        raise ConfigError(
            f"--sampler {kind}:{url} loads adapters while it runs, but no whole models; train an"
            " adapter (--lora-r 16), or use sglang:URL"
        )
    # 2. The sampler; the server must have the base, or the adapter that is to be sampled
    store = WeightsFolder(settings.adapter_dir, settings.server_adapter_dir)
    vocabulary = getattr(config_of(base), "vocab_size", None) or len(tokenizer)
    sampler = ServerSampler(
        server, tokenizer, role, context_of(opening.checkpoint), vocabulary, base, store
    )
    setting = "reflector_served_model" if opening.role == "reflection" else "served_model"
    run_sync(sampler.check(getattr(settings, setting), flag(setting)))
    if player is None and (folder / "adapter_config.json").is_file():
        run_sync(sampler.load(folder))
    return sampler
