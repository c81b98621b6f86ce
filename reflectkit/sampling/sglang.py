"""SGLang's server, as read in the sources of its main branch of 2026 (`srt/managers/io_struct.py` at 001067f,
`srt/sampling/sampling_params.py` at 00c17ca, `srt/entrypoints/http_server.py`). It was not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reflectkit.errors import ConfigError, EnvironmentFailure
from reflectkit.sampling.base import EVERYTHING, SampleRequest, Truncation
from reflectkit.sampling.protocols import (
    Drawn,
    InferenceServer,
    LostWeightsError,
    Served,
    Weights,
    sampling_parameters,
)
from reflectkit.sampling.wire import RefusedError


class Sglang(InferenceServer):
    """SGLang's native protocol."""

    kind = "SGLang"
    adapters_help = "python -m sglang.launch_server … --enable-lora --max-lora-rank RANK --lora-target-modules all"
    processed_help = "without SGLANG_RETURN_ORIGINAL_LOGPROB"
    whole_models = True
    unload_path = "/unload_lora_adapter"

    async def served(self) -> Served:
        """See `InferenceServer`. Older versions describe the model only at a path that newer ones warn of."""
        try:
            info = await self.wire.get("/model_info", patient=False)
        except RefusedError:
            info = await self.about("/get_model_info")
        if not isinstance(info, dict) or "model_path" not in info:
            raise self.other_server()
        models = await self.models()
        contexts = [entry["max_model_len"] for entry in models if isinstance(entry.get("max_model_len"), int)]
        path = str(info["model_path"])
        return Served({path: path}, min(contexts, default=None))

    async def decoded(self, tokens: Sequence[int]) -> str:
        """See `InferenceServer`."""
        return await self.detokenized({"tokens": list(tokens), "skip_special_tokens": False}, "text")

    async def children(
        self, weights: Weights, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0
    ) -> tuple[dict[int, Any], Any]:
        """See `InferenceServer`. The log-probabilities are those of the whole vocabulary."""
        wanted = {"max_new_tokens": 1, "temperature": temperature}
        meta = await self._generate(weights, prompt, EVERYTHING, wanted, {"token_ids_logprob": list(tokens)})
        try:
            values = {item[1]: item[0] for item in meta["output_token_ids_logprobs"][0]}
            return {token: values[token] for token in tokens}, meta.get("weight_version")
        except (TypeError, KeyError, IndexError):
            raise self.no_logprobs("SGLang returns those of `token_ids_logprob`") from None

    async def write(self, weights: Weights, ask: SampleRequest, limit: int) -> Drawn:
        """See `InferenceServer`. The seed of the draw is the server's."""
        wanted = {"max_new_tokens": limit, "temperature": ask.temperature, "stop_token_ids": sorted(ask.stop_ids)}
        meta = await self._generate(weights, ask.prompt_ids, ask.truncation, wanted, {})
        try:
            token_ids = tuple(item[1] for item in meta["output_token_logprobs"])
            logprobs = tuple(item[0] for item in meta["output_token_logprobs"])
        except (TypeError, KeyError, IndexError):
            raise self.no_logprobs("SGLang returns them for `return_logprob`") from None
        return Drawn(token_ids, logprobs, meta.get("weight_version"))

    async def load(self, weights: Weights, *, patient: bool = True) -> None:
        """See `InferenceServer`. Whole models are read from their folder too."""
        if weights.adapter:
            path, body = "/load_lora_adapter", {"lora_name": weights.name, "lora_path": weights.path}
        else:
            path, body = "/update_weights_from_disk", {"model_path": weights.path, "weight_version": weights.name}
        try:
            answer = await self.wire.post(path, body, patient=patient, final=(500, 501))
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
        wanted: Mapping[str, Any],
        more: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """`meta_info` of what was generated."""
        # with ignore_eos it would also write on after stop_token_ids
        sampling = {**sampling_parameters(truncation, -1), "ignore_eos": False, **wanted}
        body = {"input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True, **more}
        if weights.adapter:
            body["lora_path"] = weights.name
        try:
            answer = await self.wire.post("/generate", body)
        except RefusedError as error:
            if weights.adapter and weights.name in error.reason:
                raise LostWeightsError(error.reason) from None
            raise ConfigError(str(error)) from None
        meta = answer.get("meta_info") if isinstance(answer, dict) else None
        if not isinstance(meta, dict):
            raise EnvironmentFailure(f"{self.wire.url}: an answer without meta_info: {answer!r:.200}")
        reason = meta.get("finish_reason")
        if isinstance(reason, dict) and reason.get("type") == "abort":
            raise EnvironmentFailure(f"{self.wire.url} aborted the request: {reason.get('message')}")
        if not weights.adapter and weights.path and meta.get("weight_version") in (None, "default"):
            raise LostWeightsError("it has the weights that it was started with")
        return meta
