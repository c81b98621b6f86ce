"""SGLang's server, as read in the sources of its main branch of 2026 (`srt/managers/io_struct.py` at 001067f,
`srt/sampling/sampling_params.py` at 00c17ca, `srt/entrypoints/http_server.py`). It was not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reflectkit.errors import ConfigError, EnvironmentFailure
from reflectkit.sampling import checks as answers
from reflectkit.sampling.base import SampleRequest
from reflectkit.sampling.protocols import UNSHAPED, Drawn, LostWeightsError, Served, Weights, shaped
from reflectkit.sampling.wire import RefusedError, Wire


class Sglang:
    """SGLang's native protocol."""

    adapters_help = "python -m sglang.launch_server … --enable-lora --max-lora-rank RANK --lora-target-modules all"
    processed_help = "without SGLANG_RETURN_ORIGINAL_LOGPROB"
    whole_models = True

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    async def served(self) -> Served:
        """See `Server`."""
        info = await self._info()
        data = answers.listed(await answers.known(self.wire, "/v1/models", "SGLang"), self.wire.url, "SGLang")
        context = [one["max_model_len"] for one in data if isinstance(one.get("max_model_len"), int)]
        path = str(info["model_path"])
        adapters = frozenset(str(one["id"]) for one in data if one.get("parent"))
        return Served({path: path}, min(context, default=None), adapters)

    async def decoded(self, tokens: Sequence[int]) -> str:
        """See `Server`."""
        return await answers.decoded(self.wire, {"tokens": list(tokens), "skip_special_tokens": False}, "text")

    async def children(
        self, weights: Weights, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0
    ) -> tuple[dict[int, Any], Any]:
        """See `Server`."""
        meta = await self._generate(
            weights, prompt, {"max_new_tokens": 1, "temperature": temperature}, {"token_ids_logprob": list(tokens)}
        )
        try:
            values = {item[1]: item[0] for item in meta["output_token_ids_logprobs"][0]}
            return {token: values[token] for token in tokens}, meta.get("weight_version")
        except (TypeError, KeyError, IndexError):
            raise answers.no_logprobs(self.wire.url, "SGLang returns those of `token_ids_logprob`") from None

    async def write(self, weights: Weights, ask: SampleRequest, limit: int) -> Drawn:
        """See `Server`. The seed of the draw is the server's."""
        wanted = {
            "max_new_tokens": limit,
            "temperature": ask.temperature,
            "stop_token_ids": sorted(ask.stop_ids),
            **shaped(ask.truncation),
        }
        meta = await self._generate(weights, ask.prompt_ids, wanted, {})
        try:
            pairs = [(item[1], item[0]) for item in meta["output_token_logprobs"]]
        except (TypeError, KeyError, IndexError):
            raise answers.no_logprobs(self.wire.url, "SGLang returns them for `return_logprob`") from None
        return Drawn(tuple(token for token, _ in pairs), tuple(one for _, one in pairs), meta.get("weight_version"))

    async def load(self, weights: Weights, *, patient: bool = True) -> None:
        """See `Server`. Whole models are read from their folder too."""
        if weights.adapter:
            path, body = "/load_lora_adapter", {"lora_name": weights.name, "lora_path": weights.path}
        else:
            path, body = "/update_weights_from_disk", {"model_path": weights.path, "weight_version": weights.name}
        try:
            answer = await self.wire.post(path, body, patient=patient, final=(500, 501))
        except RefusedError as error:
            if "already" not in error.reason:
                raise answers.not_loaded(self.wire.url, weights, error, self.adapters_help) from None
            return
        if isinstance(answer, dict) and answer.get("success") is False:
            refused = RefusedError(self.wire.url + path, 200, str(answer.get("error_message") or answer.get("message")))
            raise answers.not_loaded(self.wire.url, weights, refused, self.adapters_help)

    async def unload(self, name: str) -> None:
        """See `Server`."""
        await answers.unload(self.wire, "/unload_lora_adapter", name)

    async def _info(self) -> Mapping[str, Any]:
        """What SGLang says of its model; older versions only at a path that newer ones warn of."""
        try:
            info = await self.wire.get("/model_info", patient=False)
        except RefusedError:
            info = await answers.known(self.wire, "/get_model_info", "SGLang")
        if not isinstance(info, dict) or "model_path" not in info:
            raise answers.other_server(self.wire.url, "SGLang")
        return info

    async def _generate(
        self, weights: Weights, prompt: Sequence[int], parameters: Mapping[str, Any], more: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """`meta_info` of what was generated. Sampling defaults of the model are overridden."""
        # with ignore_eos it would also write on behind stop_token_ids
        sampling = {**UNSHAPED, "top_k": -1, "ignore_eos": False, **parameters}
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
