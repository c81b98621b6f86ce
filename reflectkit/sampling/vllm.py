"""vLLM's server, as read in the sources of vLLM 0.32.0 (`entrypoints/openai/completion`, `entrypoints/serve/lora`,
`entrypoints/serve/tokenize`, `v1/sample/sampler.py`) and as run; see docs/large-policies.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reflectkit.errors import ConfigError, EnvironmentFailure
from reflectkit.sampling import checks as answers
from reflectkit.sampling.base import SampleRequest
from reflectkit.sampling.protocols import UNSHAPED, Drawn, LostWeightsError, Served, Weights, shaped
from reflectkit.sampling.wire import RefusedError, Wire


class Vllm:
    """vLLM's server with OpenAI's protocol, and its additions to it."""

    adapters_help = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve … --enable-lora --max-lora-rank RANK"
    processed_help = "with --logprobs-mode processed_logprobs"
    whole_models = False

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    async def served(self) -> Served:
        """See `Server`."""
        data = answers.listed(await answers.known(self.wire, "/v1/models", "vLLM"), self.wire.url, "vLLM")
        bases = [one for one in data if not one.get("parent")]
        return Served(
            {str(one["id"]): str(one.get("root") or one["id"]) for one in bases},
            min((one["max_model_len"] for one in bases if isinstance(one.get("max_model_len"), int)), default=None),
            frozenset(str(one["id"]) for one in data if one.get("parent")),
        )

    async def decoded(self, tokens: Sequence[int]) -> str:
        """See `Server`."""
        return await answers.decoded(self.wire, {"tokens": list(tokens)}, "prompt")

    async def children(
        self, weights: Weights, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0
    ) -> tuple[dict[int, Any], Any]:
        """See `Server`. The log-probabilities are those before the mask of allowed tokens, or of the whole vocabulary;
        no mask is sent, so these are the same.
        """
        wanted = {"max_tokens": 1, "temperature": temperature, "logprobs": len(tokens)}
        answer = await self._complete(weights, prompt, wanted | {"logprob_token_ids": list(tokens)})
        try:
            values = answer["logprobs"]["top_logprobs"][0]
            return {token: values[f"token_id:{token}"] for token in tokens}, None
        except (TypeError, KeyError, IndexError):
            raise answers.no_logprobs(self.wire.url, "vLLM 0.32 returns those of `logprob_token_ids`") from None

    async def write(self, weights: Weights, ask: SampleRequest, limit: int) -> Drawn:
        """See `Server`."""
        wanted = {
            "max_tokens": limit,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "logprobs": 0,
            "stop_token_ids": sorted(ask.stop_ids),
            **shaped(ask.truncation),
        }
        answer = await self._complete(weights, ask.prompt_ids, wanted)
        try:
            return Drawn(tuple(answer["token_ids"]), tuple(answer["logprobs"]["token_logprobs"]))
        except (TypeError, KeyError):
            raise answers.no_logprobs(self.wire.url, "vLLM 0.32 returns them for `logprobs`") from None

    async def load(self, weights: Weights, *, patient: bool = True) -> None:
        """See `Server`. vLLM reads adapters from a folder, but no whole models."""
        body = {"lora_name": weights.name, "lora_path": weights.path}
        try:
            await self.wire.post("/v1/load_lora_adapter", body, patient=patient, final=(500, 501))
        except RefusedError as error:
            if "already been loaded" not in error.reason:
                raise answers.not_loaded(self.wire.url, weights, error, self.adapters_help) from None

    async def unload(self, name: str) -> None:
        """See `Server`."""
        await answers.unload(self.wire, "/v1/unload_lora_adapter", name)

    async def _complete(self, weights: Weights, prompt: Sequence[int], wanted: Mapping[str, Any]) -> Any:
        """The one choice of a completion. The model's own sampling defaults are overridden."""
        body = {
            "model": weights.name,
            "prompt": list(prompt),
            **UNSHAPED,
            "top_k": 0,
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
