"""What vLLM's and SGLang's servers have in common: what they are asked for, and the errors of their answers."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reflectkit.errors import CheckpointError, ConfigError
from reflectkit.sampling.base import SampleRequest, Truncation
from reflectkit.sampling.wire import GoneError, RefusedError, Wire

MOST_AT_ONCE = 128
"""Tokens whose log-probabilities vLLM returns in one request (its MAX_LOGPROB_TOKEN_IDS)."""
FLOOR = -9999.0
"""What vLLM writes for a log-probability of -inf."""


def sampling_parameters(truncation: Truncation, top_k: int) -> dict[str, Any]:
    """Parameters of sampling from the model's own distribution after `truncation`, whatever defaults come with the
    model. top_k: the server's word for all tokens.
    """
    return {
        "top_p": 1.0,
        "top_k": top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "skip_special_tokens": False,
        **{name: value for name, value in asdict(truncation).items() if value},
    }


@dataclass(frozen=True)
class Weights:
    """Weights that a server has. name: of the adapter, or of the base model. version: number of updates."""

    name: str
    version: int = 0
    adapter: bool = True
    path: str = ""
    """Where they are on the server's machine; empty for what it was started with."""


@dataclass(frozen=True)
class Served:
    """What a server says of itself. models: the path of each base model by its name. context: tokens that it reads;
    None where it does not say.
    """

    models: Mapping[str, str]
    context: int | None


@dataclass(frozen=True)
class Drawn:
    """The text that a server says it sampled, and how likely each token was; unchecked. version: of the weights, where
    the server says it.
    """

    token_ids: tuple[Any, ...]
    logprobs: tuple[Any, ...]
    version: Any = None


class LostWeightsError(Exception):
    """The server does not have the weights that it was asked for: it was restarted, or dropped them."""


class InferenceServer(ABC):
    """A kind of inference server at the other end of `wire`."""

    kind: str
    adapters_help: str
    """How the server is started so that it can load adapters."""
    processed_help: str
    """How it is started so that log-probabilities are those of the sampling distribution."""
    whole_models = False
    """Whether it can load whole models while it runs."""
    unload_path: str

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    @abstractmethod
    async def served(self) -> Served:
        """What the server serves. Raises ConfigError if it is not a server of this kind."""

    @abstractmethod
    async def decoded(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, special ones included. Raises ConfigError if it does not decode."""

    @abstractmethod
    async def children(
        self, weights: Weights, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0
    ) -> tuple[dict[int, Any], Any]:
        """(the log-probability of each of `tokens` after `prompt`, the version of the weights), as the server says
        them; unchecked. Raises CheckpointError where it returns none, LostWeightsError.
        """

    @abstractmethod
    async def write(self, weights: Weights, ask: SampleRequest, limit: int) -> Drawn:
        """A text of at most `limit` tokens. Raises CheckpointError without log-probabilities, LostWeightsError."""

    @abstractmethod
    async def load(self, weights: Weights, *, patient: bool = True) -> None:
        """Have the server read `weights`. Raises ConfigError if it cannot."""

    async def unload(self, name: str) -> None:
        """Have it forget adapter `name`, if it has that."""
        with contextlib.suppress(RefusedError, GoneError):  # it was restarted, or dropped it
            await self.wire.post(self.unload_path, {"lora_name": name}, patient=False, final=(500, 501))

    async def models(self) -> list[dict[str, Any]]:
        """The entries of `/v1/models`. Raises ConfigError if the server is of another kind."""
        models = await self.about("/v1/models")
        data = models.get("data") if isinstance(models, dict) else None
        if not isinstance(data, list) or not all(isinstance(entry, dict) and "id" in entry for entry in data):
            raise self.other_server()
        return data

    async def about(self, path: str) -> Any:
        """The JSON value at `path`, which each server of this kind has. Raises ConfigError."""
        try:
            return await self.wire.get(path, patient=False)
        except RefusedError as error:
            if error.status in (401, 403):
                raise ConfigError(f"{self.wire.url} refuses the key ({error.reason}); export the right one") from None
            raise self.other_server() from None

    def other_server(self) -> ConfigError:
        """The error for an address where something else answers."""
        return ConfigError(
            f"{self.wire.url} answers, but is not a server of {self.kind}; correct the address or the kind of server"
        )

    async def detokenized(self, body: Mapping[str, Any], field: str) -> str:
        """The text that `/detokenize` returns in `field`. Raises ConfigError if it returns none."""
        try:
            answer = await self.wire.post("/detokenize", body, patient=False)
        except RefusedError as error:
            raise ConfigError(
                f"{self.wire.url} does not decode the policy's tokens ({error.reason}), so its tokenizer cannot be"
                " compared; serve the policy's own base, with its tokenizer"
            ) from None
        text = answer.get(field) if isinstance(answer, dict) else None
        if not isinstance(text, str):
            raise ConfigError(
                f"{self.wire.url}/detokenize does not answer with a text but {answer!r:.100}; use a newer server"
            )
        return text

    def no_logprobs(self, advice: str) -> CheckpointError:
        """The error for an answer without the log-probabilities that were asked for."""
        return CheckpointError(f"{self.wire.url} does not return the log-probabilities that were asked for; {advice}")

    def not_loaded(self, weights: Weights, error: RefusedError) -> ConfigError:
        """The error for weights that the server refused to load."""
        if error.status in (404, 405) and "not" in error.reason.lower() and weights.path not in error.reason:
            return ConfigError(f"{self.wire.url} does not load adapters; start it with: {self.adapters_help}")
        return ConfigError(
            f"{self.wire.url} cannot load the {'adapter' if weights.adapter else 'weights'} {weights.path}:"
            f" {error.reason}; it must see that folder and be started with: {self.adapters_help}"
        )
