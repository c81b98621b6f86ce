"""Sampler interface: prompt ids in, sampled ids and log-probabilities out.

A sampler holds the model in this process (`sampling.hf`) or asks a server (`sampling.server`);
`sampling.config` opens them by name. Nothing is decoded and encoded again on the way: what was
sampled is what is trained.
"""

from __future__ import annotations

import bisect
import itertools
import math
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import override

from reflectkit.config import Config, Rule, option
from reflectkit.seeding import uniform

if TYPE_CHECKING:
    import torch

    from reflectkit.models.labels import LabelPath


@dataclass(frozen=True, slots=True)
class Truncation:
    """Which outcomes may be drawn: those left after top-k, then top-p, then min-p, in
    `transformers`' order. The defaults leave all; the likeliest outcome is always left.
    """

    top_p: float = 1.0
    """The likeliest outcomes that together have at least this probability (Holtzman et al. 2020,
    arXiv 1904.09751).
    """
    top_k: int = 0
    """The k likeliest outcomes, and those as likely as the last of them; 0: all."""
    min_p: float = 0.0
    """Outcomes at least this many times as likely as the likeliest (Nguyen et al. 2024, arXiv
    2407.01082).
    """

    def __bool__(self) -> bool:
        return self != Truncation()


EVERYTHING = Truncation()
COLDEST = 1e-6
"""The least temperature above 0: logits divided by less may not be numbers any more."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A request to sample after one prompt."""

    prompt_ids: tuple[int, ...]
    """Token ids of the prompt (T)."""
    labels: tuple[LabelPath, ...] = ()
    """Tokens of each legal label (K); none begins another, and one is drawn. Without labels, a text
    is sampled.
    """
    max_new_tokens: int = 0
    """Maximum tokens of a text; fewer where the context has no room for them."""
    temperature: float = 1.0
    """≥ 0; 0 takes the likeliest, and so does one below `COLDEST`."""
    seed: int = 0
    """0 ≤ seed < 2**63; equal requests with equal seeds get equal answers."""
    stop_ids: frozenset[int] = frozenset()
    """A text ends with any of these tokens."""
    truncation: Truncation = EVERYTHING
    """Applied to the labels, or to each token of a text; for evaluation only."""
    shared: bool = False
    """Whether other requests of the same time begin alike, and what they share is to be read once.
    """
    separately: bool = False
    """Whether each label is read alone and given a score (`models.scoring.label_scores`), rather
    than drawn token by token.
    """

    def __post_init__(self) -> None:
        if self.temperature < COLDEST:
            object.__setattr__(self, "temperature", 0.0)

    @property
    def depth(self) -> int:
        """Tokens that are read after the prompt: labels up to where they part, or whole; at least
        one for a text.
        """
        from reflectkit.models.labels import trie

        if not self.labels:
            return 1
        return max(map(len, self.labels)) if self.separately else trie(self.labels).depth


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """The answer to a `SampleRequest`."""

    token_ids: tuple[int, ...] = ()
    """The label's tokens, or the text with its stop token, if any."""
    logprobs: tuple[float, ...] = ()
    """Natural-log probability of each token of a text, or of the label, under the distribution that
    it was drawn from (temperature 1 for greedy ones).
    """
    label_logprobs: tuple[float, ...] = ()
    """Of all K labels, in the order of `SampleRequest.labels`, before truncation; their
    probabilities sum to 1.
    """
    version: int = 0
    """Version of the weights that sampled it, as last passed to `publish`."""
    too_long: str = ""
    """Why nothing was sampled: the prompt leaves no room in the model's context. Empty where
    something was.
    """


class Sampler(Protocol):
    """A model that answers requests.

    tokenizer: the model's, of Hugging Face. role: what it was fine-tuned for ("policy", "plain",
    "reflection"); None if unknown. context: its length in tokens. tokens: number of tokens read and
    written so far.
    """

    tokenizer: Any
    role: str | None
    context: int

    @property
    def tokens(self) -> int:
        """As above."""
        ...

    async def sample(self, request: SampleRequest) -> SampleOutput:
        """The answer to `request`. Raises CheckpointError if the model cannot answer such a request."""
        ...

    async def publish(self, weights: Any, version: int) -> None:
        """Sample from `weights` from now on: the `models.load.LoadedModel` that was trained, which
        may be the sampler's own. `version` counts updates.
        """
        ...


@dataclass(frozen=True)
class Opening:
    """The model to sample, as a command knows it."""

    checkpoint: str
    """Its folder or hub id."""
    device: str = "auto"
    """Where to load it: "auto", "cpu", "cuda", …"""
    player: Any = None
    """Its `models.load.LoadedModel`, if this process has it; else the sampler loads what it needs.
    """
    scorer: Any = None
    """Of a model that is spread over processes: what scores with all its parts."""
    team: Any = None
    """Of a model that is spread over processes: the `train.processes.Processes` that score it
    together.
    """
    role: str = "policy"
    """What the model is sampled as, "policy" or "reflection"."""
    engine: Any = None
    """The `sampling.engine.PlayerEngineConfig` of a command that has one."""
    watch: Callable[[Any, Sequence[tuple[int, ...]]], None] | None = None
    """Called with the last hidden states (B, D) and the prompts of each batch that is scored in
    this process, for a critic.
    """


@dataclass(frozen=True)
class Backend:
    """A kind of sampler: its settings, and the function that opens it."""

    settings: type[Config]
    """Its own settings, which become flags of the commands."""
    open: Callable[[Opening, Any], Sampler]
    """Opens a sampler with the settings."""
    remote: bool = False
    """Whether another process samples, and can do so while this one learns."""


def draw(
    label_logprobs: Sequence[float],
    temperature: float,
    seed: int,
) -> int:
    """Index of the label at the seed's place in the cumulative distribution; of the likeliest at
    temperature 0.
    """
    # The likeliest, or the one in whose part of 0 … 1 the seed's draw falls
    if temperature == 0:
        return max(range(len(label_logprobs)), key=label_logprobs.__getitem__)
    cumulative = list(itertools.accumulate(map(math.exp, label_logprobs)))
    place = bisect.bisect_right(cumulative, uniform(seed, "action") * cumulative[-1])
    return min(place, len(label_logprobs) - 1)


def draw_label(
    request: SampleRequest,
    logprobs: tuple[float, ...],
    version: int,
) -> SampleOutput:
    """The label that `request` draws, given the log-probabilities of all."""
    # Truncation changes what is drawn, not what is recorded of all labels
    allowed = logprobs
    if request.temperature and request.truncation:
        import torch

        logprobs_1K = torch.tensor([logprobs], dtype=torch.float64)
        allowed = tuple(truncated_rows(logprobs_1K, request.truncation)[0].tolist())
    index = draw(allowed, request.temperature, request.seed)
    return SampleOutput(request.labels[index], (allowed[index],), logprobs, version)


def tempered(logprobs: Sequence[float], temperature: float) -> tuple[float, ...]:
    """Log-probabilities at another temperature > 0; their probabilities sum to 1.

    >>> [round(math.exp(value), 3) for value in tempered([math.log(0.8), math.log(0.2)], 2.0)]
    [0.667, 0.333]
    """
    # The highest is subtracted first, so that no exponential overflows
    scaled = [value / temperature for value in logprobs]
    highest = max(scaled)
    total = highest + math.log(math.fsum(math.exp(value - highest) for value in scaled))
    return tuple(value - total for value in scaled)


def truncated_rows(logprobs_BV: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    """Log-probabilities after truncation, in float64 where they are added up; -inf for what may not
    be drawn.

    >>> import torch
    >>> truncated_rows(torch.tensor([[0.5, 0.25, 0.25]]).log(), Truncation(top_p=0.7)).exp()
    tensor([[0.6667, 0.3333, 0.0000]])
    """
    import torch
    from torch.nn.functional import pad

    # 1. The likeliest tokens, by number
    if truncation.top_k:
        smallest_B1 = logprobs_BV.topk(min(truncation.top_k, logprobs_BV.shape[1])).values[:, -1:]
        logprobs_BV = logprobs_BV.masked_fill(logprobs_BV < smallest_B1, -torch.inf)
    # 2. Those before which the likelier ones have less than top_p together
    if truncation.top_p < 1:
        sorted_BV, order_BV = torch.log_softmax(logprobs_BV.double(), dim=-1).sort(
            descending=True, stable=True
        )
        before_BV = pad(sorted_BV.exp().cumsum(dim=-1)[:, :-1], (1, 0))
        left_BV = torch.zeros_like(order_BV, dtype=torch.bool).scatter(
            1, order_BV, before_BV < truncation.top_p
        )
        logprobs_BV = logprobs_BV.masked_fill(~left_BV, -torch.inf)
    # 3. Those that are not too much less likely than the likeliest
    if truncation.min_p:
        smallest_B1 = logprobs_BV.amax(dim=-1, keepdim=True) + math.log(truncation.min_p)
        logprobs_BV = logprobs_BV.masked_fill(logprobs_BV < smallest_B1, -torch.inf)
    return torch.log_softmax(logprobs_BV, dim=-1)


class ScoreMemo:
    """Log-probabilities of labels after prompts, by kind, which is what else they depend on: a
    temperature, a version.

    capacity: about how many bytes, after which `trim` forgets everything; 2**28 are 75,000 prompts
    of 800 tokens.
    """

    def __init__(self, capacity: int = 2**28) -> None:
        self.capacity, self.size = capacity, 0
        self._rows: dict[tuple[tuple[LabelPath, ...], bytes, Hashable], tuple[float, ...]] = {}
        self._labels: set[tuple[LabelPath, ...]] = set()
        """The labels of all rows. Options that change from prompt to prompt take more than these."""

    def get(
        self,
        labels: tuple[LabelPath, ...],
        prompt: Sequence[int],
        kind: Hashable,
    ) -> tuple[float, ...] | None:
        """The log-probabilities that were kept, if any."""
        return self._rows.get((labels, array("i", prompt).tobytes(), kind))

    def keep(
        self,
        labels: tuple[LabelPath, ...],
        prompt: Sequence[int],
        kind: Hashable,
        row: tuple[float, ...],
    ) -> None:
        """Keep the log-probabilities of all `labels`."""
        # As bytes, a prompt takes four of them a token
        self._rows[labels, array("i", prompt).tobytes(), kind] = row
        # About what Python takes for the key, the prompt's numbers and the row
        self.size += 160 + 4 * len(prompt) + 32 * len(row)
        if labels not in self._labels:
            self._labels.add(labels)
            self.size += sum(64 + 36 * len(path) for path in labels)

    def trim(self) -> None:
        """Forget everything if the capacity is exceeded."""
        if self.size > self.capacity:
            self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._rows.clear()
        self._labels.clear()
        self.size = 0


KEYS = {"vllm": "VLLM_API_KEY", "sglang": "SGLANG_API_KEY"}
"""The kinds of servers, and the environment variable with the key of each."""


class ServerSettings(Config):
    """How to use an inference server."""

    served_model: str = option(
        "",
        help=(
            "Name under which the server serves the policy's base; default: the one whose path is"
            " the base's."
        ),
        identity=False,
    )
    reflector_served_model: str = option(
        "",
        help=(
            "Name under which the server of --reflector-sampler serves the reflector's base;"
            " default: as above."
        ),
        identity=False,
    )
    adapter_dir: Path | None = option(
        None,
        help=(
            "Folder where trained weights are written for the server to load; default: a"
            " temporary one."
        ),
        identity=False,
    )
    server_adapter_dir: str = option(
        "",
        help="Path of --adapter-dir on the server's machine, if it differs from the one here.",
        identity=False,
    )
    server_timeout_s: float = option(
        120.0,
        help="Seconds after which a request to the server is sent again.",
        gt=0,
        identity=False,
    )
    server_patience_s: float = option(
        900.0,
        help="Seconds that the server may be away, e.g. to restart, before the command stops.",
        ge=0,
        identity=False,
    )
    server_connections: int = option(
        128, help="Most requests that the server is sent at once.", ge=1, identity=False
    )

    @override
    def contradictions(self) -> Iterator[Rule]:
        other_path = "--server-adapter-dir is the server's path of --adapter-dir; give that too"
        yield self.server_adapter_dir and self.adapter_dir is None, other_path


def is_server(name: str) -> bool:
    """Whether `name` is a server, e.g. "vllm:http://localhost:8000"."""
    return name.partition(":")[0] in KEYS and ":" in name
