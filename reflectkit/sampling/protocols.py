"""The servers of vLLM and SGLang: what they are asked for, and the errors of their answers.

vLLM is as read in the sources of its 0.32.0 (`entrypoints/openai/completion`,
`entrypoints/serve/lora`, `entrypoints/serve/tokenize`, `v1/sample/sampler.py`) and as run; see
docs/large-policies.md. SGLang is as read in those of its main branch of 2026
(`srt/managers/io_struct.py` at 001067f, `srt/sampling/sampling_params.py` at 00c17ca,
`srt/entrypoints/http_server.py`), and was not run.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reflectkit.errors import CheckpointError, ConfigError, EnvironmentFailure
from reflectkit.sampling.base import EVERYTHING, SampleRequest, Truncation
from reflectkit.sampling.wire import GoneError, RefusedError, Wire

MOST_AT_ONCE = 128
"""Tokens whose log-probabilities vLLM returns in one request (its MAX_LOGPROB_TOKEN_IDS)."""
FLOOR = -9999.0
"""What vLLM writes for a log-probability of -inf."""


def sampling_parameters(truncation: Truncation, top_k: int) -> dict[str, Any]:
    """Parameters of sampling from the model's own distribution after `truncation`, whatever
    defaults come with the model. top_k: the server's word for all tokens.
    """
    # Servers take what a request leaves out from the model's generation_config.json
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
    """Weights that a server has. name: of the adapter, or of the base model. version: number of
    updates.
    """

    name: str
    version: int = 0
    adapter: bool = True
    path: str = ""
    """Where they are on the server's machine; empty for what it was started with."""


@dataclass(frozen=True)
class ServedModels:
    """What a server says of itself. models: the path of each base model by its name. context:
    tokens that it reads; None where it does not say.
    """

    models: Mapping[str, str]
    context: int | None


@dataclass(frozen=True)
class Drawn:
    """The text that a server says it sampled, and how likely each token was; unchecked. version: of
    the weights, where the server says it.
    """

    token_ids: tuple[Any, ...]
    logprobs: tuple[Any, ...]
    version: Any = None


class LostWeightsError(Exception):
    """The server does not have the weights that it was asked for: it was restarted, or dropped
    them.
    """


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
    async def served(self) -> ServedModels:
        """What the server serves. Raises ConfigError if it is not a server of this kind."""

    @abstractmethod
    async def decoded(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, special ones included. Raises ConfigError if it does not decode."""

    @abstractmethod
    async def children(
        self,
        weights: Weights,
        prompt: Sequence[int],
        tokens: Sequence[int],
        temperature: float = 1.0,
    ) -> tuple[dict[int, Any], Any]:
        """(the log-probability of each of `tokens` after `prompt`, the version of the weights), as
        the server says them; unchecked. Raises CheckpointError where it returns none,
        LostWeightsError.
        """

    @abstractmethod
    async def write(
        self,
        weights: Weights,
        request: SampleRequest,
        limit: int,
    ) -> Drawn:
        """A text of at most `limit` tokens. Raises CheckpointError without log-probabilities,
        LostWeightsError.
        """

    @abstractmethod
    async def load(self, weights: Weights, *, patient: bool = True) -> None:
        """Have the server read `weights`. Raises ConfigError if it cannot."""

    async def unload(self, name: str) -> None:
        """Have it forget adapter `name`, if it has that."""
        with contextlib.suppress(RefusedError, GoneError):  # it was restarted, or dropped it
            await self.wire.post(
                self.unload_path, {"lora_name": name}, patient=False, final=(500, 501)
            )

    async def models(self) -> list[dict[str, Any]]:
        """The entries of `/v1/models`. Raises ConfigError if the server is of another kind."""
        # A proxy or another program may answer, with any JSON value
        models = await self.about("/v1/models")
        data = models.get("data") if isinstance(models, dict) else None
        if not isinstance(data, list) or not all(
            isinstance(entry, dict) and "id" in entry for entry in data
        ):
            raise self.other_server()
        return data

    async def about(self, path: str) -> Any:
        """The JSON value at `path`, which each server of this kind has. Raises ConfigError."""
        try:
            return await self.wire.get(path, patient=False)
        except RefusedError as error:
            # A wrong key would look like another kind of server
            if error.status in (401, 403):
                raise ConfigError(
                    f"{self.wire.url} refuses the key ({error.reason}); export the right one"
                ) from None
            raise self.other_server() from None

    def other_server(self) -> ConfigError:
        """The error for an address where something else answers."""
        return ConfigError(
            f"{self.wire.url} answers, but is not a server of {self.kind}; correct the address"
            " or the kind of server"
        )

    async def detokenized(self, body: Mapping[str, Any], field: str) -> str:
        """The text that `/detokenize` returns in `field`. Raises ConfigError if it returns none."""
        try:
            answer = await self.wire.post("/detokenize", body, patient=False)
        except RefusedError as error:
            raise ConfigError(
                f"{self.wire.url} does not decode the policy's tokens ({error.reason}), so its"
                " tokenizer cannot be compared; serve the policy's own base, with its tokenizer"
            ) from None
        text = answer.get(field) if isinstance(answer, dict) else None
        if not isinstance(text, str):
            raise ConfigError(
                f"{self.wire.url}/detokenize does not answer with a text but {answer!r:.100};"
                " use a newer server"
            )
        return text

    def no_logprobs(self, advice: str) -> CheckpointError:
        """The error for an answer without the log-probabilities that were asked for."""
        return CheckpointError(
            f"{self.wire.url} does not return the log-probabilities that were asked for; {advice}"
        )

    def not_loaded(self, weights: Weights, error: RefusedError) -> ConfigError:
        """The error for weights that the server refused to load."""
        # The path is missing where the server was started without adapters
        if (
            error.status in (404, 405)
            and "not" in error.reason.lower()
            and weights.path not in error.reason
        ):
            return ConfigError(
                f"{self.wire.url} does not load adapters; start it with: {self.adapters_help}"
            )
        return ConfigError(
            f"{self.wire.url} cannot load the {'adapter' if weights.adapter else 'weights'}"
            f" {weights.path}: {error.reason}; it must see that folder and be started with:"
            f" {self.adapters_help}"
        )


class Vllm(InferenceServer):
    """vLLM's server with OpenAI's protocol, and its additions to it. It reads adapters from a
    folder, but no whole models.
    """

    kind = "vLLM"
    adapters_help = (
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve … --enable-lora --max-lora-rank RANK"
    )
    processed_help = "with --logprobs-mode processed_logprobs"
    unload_path = "/v1/unload_lora_adapter"

    async def served(self) -> ServedModels:
        """See `InferenceServer`."""
        # An adapter has a parent; the base has none
        bases = [entry for entry in await self.models() if not entry.get("parent")]
        contexts = [
            entry["max_model_len"] for entry in bases if isinstance(entry.get("max_model_len"), int)
        ]
        paths = {str(entry["id"]): str(entry.get("root") or entry["id"]) for entry in bases}
        return ServedModels(paths, min(contexts, default=None))

    async def decoded(self, tokens: Sequence[int]) -> str:
        """See `InferenceServer`."""
        return await self.detokenized({"tokens": list(tokens)}, "prompt")

    async def children(
        self,
        weights: Weights,
        prompt: Sequence[int],
        tokens: Sequence[int],
        temperature: float = 1.0,
    ) -> tuple[dict[int, Any], Any]:
        """See `InferenceServer`. They are the log-probabilities before a mask of allowed tokens;
        none is sent.
        """
        # A token must be sampled; it is not used
        parameters = {
            "max_tokens": 1,
            "temperature": temperature,
            "logprobs": len(tokens),
            "ignore_eos": True,
        }
        answer = await self._complete(
            weights,
            prompt,
            sampling_parameters(EVERYTHING, 0) | parameters | {"logprob_token_ids": list(tokens)},
        )
        try:
            values = answer["logprobs"]["top_logprobs"][0]
            return {token: values[f"token_id:{token}"] for token in tokens}, None
        except (TypeError, KeyError, IndexError):
            raise self.no_logprobs("vLLM 0.32 returns those of `logprob_token_ids`") from None

    async def write(
        self,
        weights: Weights,
        request: SampleRequest,
        limit: int,
    ) -> Drawn:
        """See `InferenceServer`."""
        # The model's own end ends a text only where it is one of the stop tokens
        parameters = {
            "max_tokens": limit,
            "temperature": request.temperature,
            "seed": request.seed,
            "logprobs": 0,
            "ignore_eos": True,
            "stop_token_ids": sorted(request.stop_ids),
        }
        answer = await self._complete(
            weights, request.prompt_ids, sampling_parameters(request.truncation, 0) | parameters
        )
        try:
            return Drawn(tuple(answer["token_ids"]), tuple(answer["logprobs"]["token_logprobs"]))
        except (TypeError, KeyError):
            raise self.no_logprobs("vLLM 0.32 returns them for `logprobs`") from None

    async def load(self, weights: Weights, *, patient: bool = True) -> None:
        """See `InferenceServer`."""
        body = {"lora_name": weights.name, "lora_path": weights.path}
        try:
            await self.wire.post("/v1/load_lora_adapter", body, patient=patient, final=(500, 501))
        except RefusedError as error:
            # A request that was sent again may have been answered before
            if "already been loaded" not in error.reason:
                raise self.not_loaded(weights, error) from None

    async def _complete(
        self,
        weights: Weights,
        prompt: Sequence[int],
        parameters: Mapping[str, Any],
    ) -> Any:
        """The only choice of a completion."""
        # One choice, with the ids of its tokens
        body = {
            "model": weights.name,
            "prompt": list(prompt),
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **parameters,
        }
        try:
            answer = await self.wire.post("/v1/completions", body)
        except RefusedError as error:
            if error.status == 404:
                raise LostWeightsError(error.reason) from None
            raise ConfigError(str(error)) from None
        try:
            return answer["choices"][0]
        except (TypeError, KeyError, IndexError):
            raise EnvironmentFailure(
                f"{self.wire.url}: an answer without a choice: {answer!r:.200}"
            ) from None


class Sglang(InferenceServer):
    """SGLang's native protocol."""

    kind = "SGLang"
    adapters_help = (
        "python -m sglang.launch_server … --enable-lora --max-lora-rank RANK"
        " --lora-target-modules all"
    )
    processed_help = "without SGLANG_RETURN_ORIGINAL_LOGPROB"
    whole_models = True
    unload_path = "/unload_lora_adapter"

    async def served(self) -> ServedModels:
        """See `InferenceServer`. Older versions describe the model only at a path that newer ones
        warn of.
        """
        try:
            info = await self.wire.get("/model_info", patient=False)
        except RefusedError:
            info = await self.about("/get_model_info")
        if not isinstance(info, dict) or "model_path" not in info:
            raise self.other_server()
        models = await self.models()
        contexts = [
            entry["max_model_len"]
            for entry in models
            if isinstance(entry.get("max_model_len"), int)
        ]
        path = str(info["model_path"])
        return ServedModels({path: path}, min(contexts, default=None))

    async def decoded(self, tokens: Sequence[int]) -> str:
        """See `InferenceServer`."""
        return await self.detokenized(
            {"tokens": list(tokens), "skip_special_tokens": False}, "text"
        )

    async def children(
        self,
        weights: Weights,
        prompt: Sequence[int],
        tokens: Sequence[int],
        temperature: float = 1.0,
    ) -> tuple[dict[int, Any], Any]:
        """See `InferenceServer`. The log-probabilities are those of the whole vocabulary."""
        # A token must be sampled; it is not used
        parameters = {"max_new_tokens": 1, "temperature": temperature}
        meta = await self._generate(
            weights, prompt, EVERYTHING, parameters, {"token_ids_logprob": list(tokens)}
        )
        try:
            values = {item[1]: item[0] for item in meta["output_token_ids_logprobs"][0]}
            return {token: values[token] for token in tokens}, meta.get("weight_version")
        except (TypeError, KeyError, IndexError):
            raise self.no_logprobs("SGLang returns those of `token_ids_logprob`") from None

    async def write(
        self,
        weights: Weights,
        request: SampleRequest,
        limit: int,
    ) -> Drawn:
        """See `InferenceServer`. The seed of the draw is the server's."""
        parameters = {
            "max_new_tokens": limit,
            "temperature": request.temperature,
            "stop_token_ids": sorted(request.stop_ids),
        }
        meta = await self._generate(weights, request.prompt_ids, request.truncation, parameters, {})
        try:
            token_ids = tuple(item[1] for item in meta["output_token_logprobs"])
            logprobs = tuple(item[0] for item in meta["output_token_logprobs"])
        except (TypeError, KeyError, IndexError):
            raise self.no_logprobs("SGLang returns them for `return_logprob`") from None
        return Drawn(token_ids, logprobs, meta.get("weight_version"))

    async def load(self, weights: Weights, *, patient: bool = True) -> None:
        """See `InferenceServer`. Whole models are read from their folder too."""
        path = "/update_weights_from_disk"
        body = {"model_path": weights.path, "weight_version": weights.name}
        if weights.adapter:
            path = "/load_lora_adapter"
            body = {"lora_name": weights.name, "lora_path": weights.path}
        try:
            answer = await self.wire.post(path, body, patient=patient, final=(500, 501))
            # SGLang says some failures with status 200
            if isinstance(answer, dict) and answer.get("success") is False:
                reason = str(answer.get("error_message") or answer.get("message"))
                raise RefusedError(self.wire.url + path, 200, reason)
        except RefusedError as error:
            if error.status == 200 or "already" not in error.reason:
                raise self.not_loaded(weights, error) from None

    async def _generate(
        self,
        weights: Weights,
        prompt: Sequence[int],
        truncation: Truncation,
        parameters: Mapping[str, Any],
        more: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """`meta_info` of what was generated."""
        # 1. The request; with ignore_eos it would also write on after stop_token_ids
        sampling = {**sampling_parameters(truncation, -1), "ignore_eos": False, **parameters}
        body = {
            "input_ids": list(prompt),
            "sampling_params": sampling,
            "return_logprob": True,
            **more,
        }
        if weights.adapter:
            body["lora_path"] = weights.name
        try:
            answer = await self.wire.post("/generate", body)
        except RefusedError as error:
            if weights.adapter and weights.name in error.reason:
                raise LostWeightsError(error.reason) from None
            raise ConfigError(str(error)) from None
        # 2. Whether it was answered, by weights that it was given
        meta = answer.get("meta_info") if isinstance(answer, dict) else None
        if not isinstance(meta, dict):
            raise EnvironmentFailure(
                f"{self.wire.url}: an answer without meta_info: {answer!r:.200}"
            )
        reason = meta.get("finish_reason")
        if isinstance(reason, dict) and reason.get("type") == "abort":
            raise EnvironmentFailure(
                f"{self.wire.url} aborted the request: {reason.get('message')}"
            )
        if not weights.adapter and weights.path and meta.get("weight_version") in (None, "default"):
            raise LostWeightsError("it has the weights that it was started with")
        return meta
