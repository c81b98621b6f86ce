"""Training services: choices and texts from weights that another machine holds, and their
export.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from safetensors import safe_open
from typing_extensions import override

from reflectkit.config import with_values
from reflectkit.errors import CheckpointError, ConfigError, refuse
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import write_json
from reflectkit.models.checkpoint_metadata import (
    SERVICE,
    check_role,
    config_of,
    context_of,
    load_tokenizer,
    model_facts,
)
from reflectkit.models.hub import looks_local, same_model
from reflectkit.models.labels import LabelPath, Trie, check_embedded, trie
from reflectkit.runs.run import refuse_damage
from reflectkit.sampling import checks
from reflectkit.sampling.base import SampleOutput, SampleRequest, ScoreMemo, draw_label, tempered
from reflectkit.sampling.engine import PlayerEngineConfig, ServiceAccess, service_url
from reflectkit.sampling.protocols import Drawn
from reflectkit.sampling.service_interface import (
    LostWeightsError,
    OptimizerStep,
    ServiceAdapter,
    TrainingService,
)
from reflectkit.sampling.wire import GoneError


class WrappedAdapter:
    """`adapter`, to which every request is passed on."""

    def __init__(self, adapter: ServiceAdapter) -> None:
        self.adapter = adapter

    async def forward(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `ServiceAdapter`."""
        return await self.adapter.forward(rows)

    async def backward(
        self,
        rows: Sequence[Sequence[int]],
        logprobs: Sequence[Sequence[float]],
        slopes: Sequence[Sequence[float]],
    ) -> list[list[float]]:
        """See `ServiceAdapter`."""
        return await self.adapter.backward(rows, logprobs, slopes)

    async def clipped_backward(
        self,
        rows: Sequence[Sequence[int]],
        old_logprobs: Sequence[Sequence[float]],
        advantages: Sequence[Sequence[float]],
        clip: tuple[float, float],
    ) -> list[list[float]]:
        """See `ServiceAdapter`."""
        return await self.adapter.clipped_backward(rows, old_logprobs, advantages, clip)

    async def step(self, step: OptimizerStep) -> float | None:
        """See `ServiceAdapter`."""
        return await self.adapter.step(step)

    async def write(self, request: SampleRequest, limit: int) -> Drawn:
        """See `ServiceAdapter`."""
        return await self.adapter.write(request, limit)

    async def save(self, name: str) -> str:
        """See `ServiceAdapter`."""
        return await self.adapter.save(name)

    async def load(self, path: str) -> None:
        """See `ServiceAdapter`."""
        await self.adapter.load(path)

    async def archive(self, target: Path) -> None:
        """See `ServiceAdapter`."""
        await self.adapter.archive(target)

    async def close(self) -> None:
        """See `ServiceAdapter`."""
        await self.adapter.close()


class RememberingAdapter(WrappedAdapter):
    """An adapter that is asked for the same row once between two changes of its weights.

    What was read to play need not be read again for the first gradient step of the update.
    """

    def __init__(self, adapter: ServiceAdapter) -> None:
        super().__init__(adapter)
        self._known: dict[tuple[int, ...], list[float]] = {}

    @override
    async def forward(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        keys = [tuple(row) for row in rows]
        unknown = [key for key in dict.fromkeys(keys) if key not in self._known]
        if unknown:
            answer = await self.adapter.forward(unknown)
            if len(answer) != len(unknown):
                return answer  # which is refused by whoever asked
            self._known |= zip(unknown, answer, strict=True)
        return [self._known[key] for key in keys]

    @override
    async def step(self, step: OptimizerStep) -> float | None:
        self._known.clear()
        return await self.adapter.step(step)

    @override
    async def load(self, path: str) -> None:
        self._known.clear()
        await self.adapter.load(path)


def open_service(
    name: str,
    settings: ServiceAccess,
    notify: Callable[[str], None] = lambda text: None,
) -> TrainingService:
    """The service called `name`. notify: called with a line of text when it is silent for long.
    Raises ConfigError if its client is not installed, and GoneError if it is away.
    """
    from reflectkit.sampling.tinker import TinkerService

    return TinkerService(service_url(name), settings, notify)


def label_rows(prompt: Sequence[int], labels: tuple[LabelPath, ...]) -> list[tuple[int, ...]]:
    """What is read to score `labels` after `prompt`: a row for each label, up to its last token
    that tells it from others.

    >>> label_rows((7, 8), ((1, 2, 3), (1, 4), (5, 6)))
    [(7, 8, 1, 2), (7, 8, 1, 4), (7, 8, 5)]
    """
    tree = trie(labels)
    rows = []
    for label, path in zip(labels, tree.steps, strict=True):
        last = max(len(tree.nodes[node].prefix) for node, _ in path)
        rows.append((*prompt, *label[: last + 1]))
    return rows


def label_places(tree: Trie, labels: Sequence[LabelPath]) -> list[list[tuple[int, int]]]:
    """For each child of each node, where its token is read: (the row of `label_rows`, the place in
    the label).

    >>> labels = ((1, 2), (1, 4), (5,))
    >>> label_places(trie(labels), labels)
    [[(0, 0), (2, 0)], [(0, 1), (1, 1)]]
    """
    # 1. The first row with each child
    place_of: dict[tuple[int, int], tuple[int, int]] = {}
    for row, path in enumerate(tree.steps):
        for number, child in path:
            place_of.setdefault((number, child), (row, len(tree.nodes[number].prefix)))

    # 2. By node
    places = []
    for number, node in enumerate(tree.nodes):
        places.append([place_of[number, child] for child in range(len(node.children))])
    return places


def label_logprobs(
    prompt: Sequence[int],
    labels: tuple[LabelPath, ...],
    logprobs: Sequence[Sequence[float]],
    temperature: float,
) -> tuple[float, ...]:
    """Log-probabilities of the labels, normalised wherever they part, from those of the tokens of
    `label_rows`.
    """
    # 1. A softmax at each node
    tree = trie(labels)
    start = len(prompt) - 1
    scores: list[tuple[float, ...]] = []
    for places in label_places(tree, labels):
        values = [logprobs[row][start + place] for row, place in places]
        scores.append(tempered(values, temperature))

    # 2. Sums along the paths
    return tuple(math.fsum(scores[node][child] for node, child in path) for path in tree.steps)


ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""The files of an adapter in peft's form."""
LARGEST = 8 * 2**30
"""The most bytes of a file in an archive."""


def unpack(
    archive: Path,
    base: str,
    folder: Path,
    url: str,
) -> None:
    """Write the adapter in the file `archive` to `folder`, as one of `base`. Raises ConfigError if
    it is none.
    """
    # 1. The two files of an adapter, wherever they are in the archive
    try:
        with tarfile.open(archive, mode="r:*") as files:
            for member in files:
                name = Path(member.name).name
                if member.isfile() and name in ADAPTER_FILES and member.size <= LARGEST:
                    reader = files.extractfile(member)
                    assert reader is not None
                    with (folder / name).open("wb") as target:
                        shutil.copyfileobj(reader, target)
        config = json.loads((folder / ADAPTER_FILES[0]).read_bytes())
        (folder / ADAPTER_FILES[1]).stat()  # it has to be there, too
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{url} gave out an archive that holds no adapter of peft ({reason:.80})"
        ) from None
    # 2. They are written with the base that is here
    settings: dict[str, Any] = {"base_model_name_or_path": base, "task_type": "CAUSAL_LM"}
    # SkyRL names none, and peft would take its own for this kind of model
    if not config.get("target_modules"):
        with safe_open(folder / ADAPTER_FILES[1], "pt") as file:
            names = [
                name.split(".lora_")[0].rpartition(".")[2]
                for name in file.keys()  # noqa: SIM118
                if ".lora_" in name
            ]
        settings["target_modules"] = sorted(set(names))
    write_json(folder / ADAPTER_FILES[0], config | settings)


ScoreKey = tuple[tuple[int, ...], tuple[LabelPath, ...], float]
"""Prompt, labels and temperature of a score."""


@dataclass(frozen=True)
class ServiceBase:
    """What is known here of a base on a service. context: tokens that it reads. vocabulary: the
    number of tokens that it knows.
    """

    tokenizer: Any
    context: int
    vocabulary: int

    @classmethod
    def of(cls, source: str) -> ServiceBase:
        """Of `source`, a folder or a hub id."""
        tokenizer = load_tokenizer(source)
        vocabulary = getattr(config_of(source), "vocab_size", None) or len(tokenizer)
        return cls(tokenizer, context_of(source) or 2**20, vocabulary)


class ServiceSampler:
    """Samples from an adapter on a service. Choices are scored there and drawn here; texts are
    sampled there.

    The requests of one turn of the event loop are one request to the service; later ones do not
    wait for its answer.
    """

    def __init__(
        self,
        adapter: ServiceAdapter,
        base: ServiceBase,
        role: str | None,
        url: str,
    ) -> None:
        self.adapter, self.tokenizer, self.role, self.url = adapter, base.tokenizer, role, url
        self.context, self.vocabulary = base.context, base.vocabulary
        self.tokens = self.version = 0
        self.most_in_flight = 0
        """The most draws that waited for the service at once, since `publish`."""
        self._in_flight = 0
        self._scores = ScoreMemo()
        self._asked: dict[ScoreKey, asyncio.Future[tuple[float, ...]]] = {}
        self._waiting: list[ScoreKey] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def sample(self, request: SampleRequest) -> SampleOutput:
        """What the model says.

        Raises CheckpointError, ConfigError: it cannot be asked like this, or answers with what no
        model says. GoneError: the service is away for too long.
        """
        check_embedded(self.tokenizer, request.prompt_ids, self.vocabulary)
        refuse(
            request.separately,
            "a policy that scores each choice alone cannot be on a training service",
        )
        if len(request.prompt_ids) + request.depth > self.context:
            text = (
                f"the policy's prompt is {len(request.prompt_ids)} tokens, but its model reads"
                f" {self.context}"
            )
            return SampleOutput(version=self.version, too_long=text)
        if request.labels:
            version = self.version
            return draw_label(request, await self._label_logprobs(request), version)
        return await self._write(request)

    async def publish(self, weights: Any, version: int) -> None:
        """Sample from `weights`, a `ServiceAdapter`, which have changed."""
        self.adapter, self.version = weights, version
        self.most_in_flight = self._in_flight
        self._scores.clear()

    @contextmanager
    def _waiting_for_service(self, request: SampleRequest) -> Iterator[None]:
        """Count `request` while it waits. The greedy ones of validation are not part of an update."""
        is_draw = request.temperature > 0
        self._in_flight += is_draw
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            yield
        finally:
            self._in_flight -= is_draw

    async def _write(self, request: SampleRequest) -> SampleOutput:
        # 1. What the service cannot do
        refuse(
            bool(request.truncation) and request.temperature > 0,
            (
                f"{self.url} returns log-probabilities from before truncation; leave out --top-p,"
                " --top-k and --min-p"
            ),
        )
        refuse(
            request.temperature not in (0, 1),
            (
                f"{self.url} returns log-probabilities of temperature 1; leave out --temperature"
                f" {request.temperature:g}"
            ),
        )
        # 2. The text, as far as the context has room
        limit = min(request.max_new_tokens, self.context - len(request.prompt_ids))
        with self._waiting_for_service(request):
            answer = await self.adapter.write(request, limit)
        text = checks.text(answer, request.stop_ids, limit, self.vocabulary, self.url)
        self.tokens += len(request.prompt_ids) + len(text.token_ids)
        return SampleOutput(text.token_ids, text.logprobs, version=self.version)

    async def _label_logprobs(self, request: SampleRequest) -> tuple[float, ...]:
        temperature = request.temperature or 1.0
        row = self._scores.get(request.labels, request.prompt_ids, temperature)
        if row is not None:
            return row
        key: ScoreKey = (request.prompt_ids, request.labels, temperature)
        # All that is requested in this turn of the loop is sent together at its end
        if key not in self._asked:
            loop = asyncio.get_running_loop()
            self._asked[key] = loop.create_future()
            self._waiting.append(key)
            if len(self._waiting) == 1:
                loop.call_soon(self._send)
        with self._waiting_for_service(request):
            return await asyncio.shield(self._asked[key])

    def _send(self) -> None:
        """Ask the service for all scores that wait."""
        keys, self._waiting = self._waiting, []
        task = asyncio.get_running_loop().create_task(self._score(keys))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _score(self, keys: Sequence[ScoreKey]) -> None:
        # 1. One request for the rows of all keys; whoever waits gets its error
        parts = [label_rows(prompt, labels) for prompt, labels, _ in keys]
        rows = [row for part in parts for row in part]
        try:
            logprobs = await self.adapter.forward(rows)
            checks.rows(rows, logprobs, self.url)
        except Exception as error:
            for key in keys:
                self._asked[key].set_exception(error)
                self._asked.pop(key).exception()  # whoever asked may have been cancelled
            return
        except BaseException:
            for key in keys:
                self._asked.pop(key).cancel()
            raise
        # 2. The labels' log-probabilities, key by key
        self.tokens += sum(map(len, rows))
        self._scores.trim()
        start = 0
        for key, part in zip(keys, parts, strict=True):
            prompt, labels, temperature = key
            row = label_logprobs(prompt, labels, logprobs[start : start + len(part)], temperature)
            start += len(part)
            self._scores.keep(labels, prompt, temperature, row)
            self._asked.pop(key).set_result(row)


PROBE_TOKENS = 16
"""Tokens of the row whose log-probabilities identify saved weights."""
PROBE_TOLERANCE = 0.1
"""Mean difference of these, in nats, up to which weights are taken for the same. Services round to
bfloat16, in which numbers from -8 to -16 are 0.06 apart.
"""


async def probe(
    adapter: ServiceAdapter,
    tokenizer: Any,
    url: str,
) -> list[float]:
    """Log-probabilities of tokens that are spread over the vocabulary, which identify weights.

    Raises ConfigError if the service at `url` answers with something else.
    """
    row = checks.spread(len(tokenizer), PROBE_TOKENS)
    answer = await adapter.forward([row])
    checks.rows([row], answer, url)
    return answer[0]


async def load_weights(
    adapter: ServiceAdapter,
    record: Mapping[str, Any],
    tokenizer: Any,
    url: str,
) -> None:
    """Load the weights that a checkpoint's `record` names: their path on the service at `url`, and
    their `probe` when they were saved.

    Raises LostWeightsError if they are not there, or others are. A service that was restarted may
    have other weights under that path.
    """
    path = record["state"]
    await adapter.load(path)
    now = await probe(adapter, tokenizer, url)
    saved = record["probe"]
    gap = math.inf
    if len(now) == len(saved):
        gap = fmean(abs(one - other) for one, other in zip(now, saved, strict=True))
    if not gap <= PROBE_TOLERANCE:
        raise LostWeightsError(
            f"{path} on {url} holds other weights than were saved (log-probabilities differ by"
            f" {gap:.2g} nats on average); run the same again; if they are lost, --force trains anew"
        )


async def opened_adapter(
    service: TrainingService,
    base: str,
    rank: int,
    seed: int,
    record: Mapping[str, Any],
    tokenizer: Any,
) -> ServiceAdapter:
    """An adapter on `base`: with the weights that a checkpoint's `record` names, see `load_weights`,
    or a new one if that is empty.
    """
    adapter = await service.adapter(base, rank, seed)
    if record:
        await load_weights(adapter, record, tokenizer, service.url)
    return adapter


def sampler_of(
    adapter: ServiceAdapter,
    source: str,
    role: str | None,
    url: str,
) -> ServiceSampler:
    """The sampler of `adapter`, whose tokenizer and config are those of `source`, a folder or a hub
    id.
    """
    return ServiceSampler(adapter, ServiceBase.of(source), role, url)


@contextmanager
def _naming_engine(engine: PlayerEngineConfig | None) -> Iterator[None]:
    """Errors of a service at the address where a checkpoint was trained name the flag for another
    address, if the command has it.
    """
    try:
        yield
    except (GoneError, ConfigError, CheckpointError, LostWeightsError) as error:
        if engine is None or engine.name:
            raise
        raise type(error)(
            f"{error}; if it has another address now, give --engine tinker:URL"
        ) from None


def saved_on(
    record: Mapping[str, Any], engine: PlayerEngineConfig | None
) -> tuple[TrainingService, str]:
    """The service that holds the weights that a checkpoint's `record` names, and what it calls
    their base.

    engine: where the service is now; None or without a name: at the address of `record`. Raises
    ConfigError, GoneError.
    """
    rows = int(record["rows"])
    with _naming_engine(engine):
        if engine is None or not engine.name:
            return open_service(record["engine"], ServiceAccess(service_rows=rows)), record["base"]
        access = engine.settings
        service = open_service(
            engine.name, with_values(access, service_rows=access.service_rows or rows)
        )
        names = run_sync(service.models())
        return service, base_on_service(names, record["base"], access.service_model, service.url)


def record_of(source: str | Path) -> dict[str, Any]:
    """What checkpoint `source` says of its weights on a training service; empty if they are not
    there, or it is another model. Raises CheckpointError if one of its files is damaged.
    """
    if not looks_local(source):
        return {}
    folder = Path(source)
    record = model_facts(folder).get(SERVICE)
    if record is None:
        return {}
    refuse_damage(folder)
    return dict(record)


def open_saved(
    checkpoint: str,
    role: str,
    engine: PlayerEngineConfig | None = None,
) -> ServiceSampler | None:
    """The sampler of a checkpoint whose weights are on a training service, or of a base of the
    service `engine`; None for other models.

    engine: see `saved_on`. Raises CheckpointError: it was trained for another role.
    LostWeightsError: the service does not have its weights any more. GoneError: it is away.
    """
    # 1. Weights that were trained there
    if record := record_of(checkpoint):
        trained_for = check_role(checkpoint, role)
        service, base = saved_on(record, engine)
        with _naming_engine(engine):
            here, rank = ServiceBase.of(checkpoint), int(record["rank"])
            opening = opened_adapter(service, base, rank, 0, record, here.tokenizer)
            adapter = run_sync(opening)
        return ServiceSampler(adapter, here, trained_for, service.url)

    # 2. A base, by an adapter that changes nothing. What was trained here plays here
    if engine is None or not engine.name:
        return None
    service = open_service(engine.name, engine.settings)
    names = run_sync(service.models())
    facts = model_facts(Path(checkpoint)) if looks_local(checkpoint) else {}
    if facts.get("role") and not any(same_model(name, checkpoint) for name in names):
        return None
    base = base_on_service(names, checkpoint, engine.settings.service_model, service.url)
    adapter = run_sync(service.adapter(base, 1, 0))
    return sampler_of(adapter, checkpoint, check_role(checkpoint, role), service.url)


def base_on_service(
    names: Sequence[str],
    wanted: str,
    given: str,
    url: str,
) -> str:
    """The name on the service of the base `wanted`, a folder or a hub id. given: --service-model.

    Raises ConfigError.
    """
    # By --service-model, or the same folder or hub id
    if given:
        matching = [name for name in names if name == given]
    else:
        matching = [name for name in names if same_model(name, wanted)]
    if matching:
        return matching[0]
    listed = ", ".join(list(names)[:8]) or "no model"
    if given:
        raise ConfigError(f"--service-model {given}: {url} has {listed}; name one of these")
    raise ConfigError(
        f"{url} has {listed}, not {wanted}; start it with that, or name it as --service-model NAME"
    )
