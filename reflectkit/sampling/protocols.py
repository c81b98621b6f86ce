"""What every inference server is asked for: the part that vLLM's and SGLang's protocols have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from reflectkit.sampling.base import SampleRequest, Truncation
from reflectkit.sampling.wire import Wire

MOST_AT_ONCE = 128
"""Tokens whose log-probabilities vLLM returns in one request (its MAX_LOGPROB_TOKEN_IDS)."""
UNSHAPED = {
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,
    "skip_special_tokens": False,
}
"""Sampling from the model's own distribution, whatever defaults come with the model; "top_k" differs by server."""
FLOOR = -9999.0
"""What vLLM writes for a log-probability of -inf."""


def shaped(truncation: Truncation) -> dict[str, float]:
    """The parameters of `truncation` that replace those of `UNSHAPED`."""
    return {name: value for name, value in asdict(truncation).items() if value}


@dataclass(frozen=True)
class Weights:
    """Weights that a server has. name: of the adapter, or of the base model. version: number of updates."""

    name: str
    version: int = 0
    adapter: bool = True
    path: str = ""
    """Where they lie on the server's machine; empty for what it was started with."""


@dataclass(frozen=True)
class Served:
    """What a server says of itself. models: the path of each base model by its name. context: tokens that it reads;
    None where it does not say. adapters: names of those loaded.
    """

    models: Mapping[str, str]
    context: int | None
    adapters: frozenset[str]


@dataclass(frozen=True)
class Drawn:
    """What a server says it sampled, and how likely each token was; nothing of it is checked. version: of the weights,
    where the server says it.
    """

    token_ids: tuple[Any, ...]
    logprobs: tuple[Any, ...]
    version: Any = None


class LostWeightsError(Exception):
    """The server does not have the weights that it was asked for: it was restarted, or dropped them."""


class Server(Protocol):
    """One kind of inference server."""

    wire: Wire
    adapters_help: str
    """How the server is started so that it can load adapters."""
    processed_help: str
    """How it is started so that log-probabilities are those of the sampling distribution."""
    whole_models: bool
    """Whether it can load whole models while it runs."""

    async def served(self) -> Served:
        """What the server serves. Raises ConfigError if it is not a server of this kind."""
        ...

    async def decoded(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, special ones included. Raises ConfigError if it does not decode."""
        ...

    async def children(
        self, weights: Weights, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0
    ) -> tuple[dict[int, Any], Any]:
        """(what the server says of the log-probability of each of `tokens` after `prompt`, and of the version of its
        weights); nothing of it is checked. Raises CheckpointError where it returns none, LostWeightsError.
        """
        ...

    async def write(self, weights: Weights, ask: SampleRequest, limit: int) -> Drawn:
        """A text of at most `limit` tokens, as the server says it. Raises CheckpointError without log-probabilities,
        LostWeightsError.
        """
        ...

    async def load(self, weights: Weights, *, patient: bool = True) -> None:
        """Have the server read `weights`. Raises ConfigError if it cannot."""
        ...

    async def unload(self, name: str) -> None:
        """Have it forget an adapter, if it has it."""
        ...
