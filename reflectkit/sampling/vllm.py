"""vLLM's server, as read in the sources of vLLM 0.32.0 (`entrypoints/openai/completion`, `entrypoints/serve/lora`,
`entrypoints/serve/tokenize`, `v1/sample/sampler.py`) and as run; see docs/large-policies.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reflectkit.errors import ConfigError, EnvironmentFailure
from reflectkit.sampling.base import EVERYTHING, SampleRequest
from reflectkit.sampling.protocols import (
    Drawn,
    InferenceServer,
    LostWeightsError,
    Served,
    Weights,
    sampling_parameters,
)
from reflectkit.sampling.wire import RefusedError


class Vllm(InferenceServer):
    """vLLM's server with OpenAI's protocol, and its additions to it. It reads adapters from a folder, but no whole
    models.
    """

    kind = "vLLM"
    adapters_help = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve … --enable-lora --max-lora-rank RANK"
    processed_help = "with --logprobs-mode processed_logprobs"
    unload_path = "/v1/unload_lora_adapter"

    async def served(self) -> Served:
        """See `InferenceServer`."""
        bases = [entry for entry in await self.models() if not entry.get("parent")]
        contexts = [entry["max_model_len"] for entry in bases if isinstance(entry.get("max_model_len"), int)]
        paths = {str(entry["id"]): str(entry.get("root") or entry["id"]) for entry in bases}
        return Served(paths, min(contexts, default=None))

    async def decoded(self, tokens: Sequence[int]) -> str:
        """See `InferenceServer`."""
        return await self.detokenized({"tokens": list(tokens)}, "prompt")

    async def children(
        self, weights: Weights, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0
    ) -> tuple[dict[int, Any], Any]:
        """See `InferenceServer`. They are the log-probabilities before a mask of allowed tokens; none is sent."""
        wanted = {"max_tokens": 1, "temperature": temperature, "logprobs": len(tokens), "ignore_eos": True}
        answer = await self._complete(
            weights, prompt, sampling_parameters(EVERYTHING, 0) | wanted | {"logprob_token_ids": list(tokens)}
        )
        try:
            values = answer["logprobs"]["top_logprobs"][0]
            return {token: values[f"token_id:{token}"] for token in tokens}, None
        except (TypeError, KeyError, IndexError):
            raise self.no_logprobs("vLLM 0.32 returns those of `logprob_token_ids`") from None

    async def write(self, weights: Weights, ask: SampleRequest, limit: int) -> Drawn:
        """See `InferenceServer`."""
        wanted = {
            "max_tokens": limit,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "logprobs": 0,
            "ignore_eos": True,
            "stop_token_ids": sorted(ask.stop_ids),
        }
        answer = await self._complete(weights, ask.prompt_ids, sampling_parameters(ask.truncation, 0) | wanted)
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
            if "already been loaded" not in error.reason:
                raise self.not_loaded(weights, error) from None

    async def _complete(self, weights: Weights, prompt: Sequence[int], wanted: Mapping[str, Any]) -> Any:
        """The only choice of a completion."""
        body = {
            "model": weights.name,
            "prompt": list(prompt),
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **wanted,
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
            raise EnvironmentFailure(f"{self.wire.url}: an answer without a choice: {answer!r:.200}") from None
