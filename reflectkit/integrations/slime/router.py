"""A sampler that asks SGLang's router: token ids in (`input_ids`), sampled ids and log-probs out.

One of several labels is drawn from the whole vocabulary, as slime's loss is over the whole vocabulary: an answer that
is none of them ends the episode. SGLang reports the labels' own log-probs (`token_ids_logprob`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scipy.special import log_softmax

from reflectkit.errors import CheckpointError, EnvironmentFailure
from reflectkit.sampling.base import SampleOutput, SampleRequest


@dataclass(frozen=True, slots=True)
class RouterAnswer:
    """One answer of the router. meta: SGLang's `meta_info`."""

    ask: SampleRequest
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    meta: Mapping[str, Any]


class RouterSampler:
    """Samples from a model behind a router.

    url: of the router's `/generate`. context: tokens that the model can read. role: what it was fine-tuned for, if
    known. parameters: SGLang's sampling parameters, over which a request's own are laid. headers: of each request.
    stopped: whether slime has ended the rollout; no request is then sent. on_answer: called with each answer.
    """

    def __init__(
        self,
        url: str,
        tokenizer: Any,
        context: int,
        role: str | None,
        parameters: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        stopped: Callable[[], bool] = lambda: False,
        on_answer: Callable[[RouterAnswer], None] = lambda answer: None,
    ) -> None:
        self.url, self.tokenizer, self.context, self.role = url, tokenizer, context, role
        self.parameters, self.headers, self.stopped, self.on_answer = parameters, headers, stopped, on_answer
        self.tokens = 0

    async def sample(self, ask: SampleRequest) -> SampleOutput:
        """What the model says.

        Raises EnvironmentFailure: the router fails, or slime has ended the rollout. CheckpointError: a label has
        several tokens.
        """
        import httpx
        from slime.utils.http_utils import post

        if any(len(label) > 1 for label in ask.labels):
            raise CheckpointError(
                f"one of {len(ask.labels)} labels is several tokens of this model, and slime samples one for each;"
                " train with `reflectkit rlft`, or use a model whose tokenizer has them"
            )
        room = self.context - len(ask.prompt_ids)
        if room < 1:
            return SampleOutput(
                too_long=f"the prompt is {len(ask.prompt_ids)} tokens, but the model reads {self.context}"
            )
        parameters = {
            **self.parameters,
            "temperature": ask.temperature,
            "max_new_tokens": 1 if ask.labels else min(ask.max_new_tokens, room),
            "stop_token_ids": sorted({*(self.parameters.get("stop_token_ids") or ()), *ask.stop_ids}),
        }
        if "sampling_seed" in parameters:  # --sglang-enable-deterministic-inference
            parameters["sampling_seed"] = ask.seed % 2**31
        request = {"input_ids": list(ask.prompt_ids), "sampling_params": parameters, "return_logprob": True}
        if ask.labels:
            request["token_ids_logprob"] = [token for (token,) in ask.labels]
        if self.stopped():
            raise EnvironmentFailure("slime has ended the rollout")
        try:
            output = await post(self.url, request, headers=self.headers)
        except (httpx.HTTPError, ValueError) as error:  # a ValueError for a body that is not text
            raise EnvironmentFailure(f"{self.url}: {error or type(error).__name__}") from None
        answer = read_answer(ask, output)
        self.tokens += len(ask.prompt_ids) + len(answer.token_ids)
        self.on_answer(answer)
        if not ask.labels:
            return SampleOutput(answer.token_ids, answer.logprobs)
        if answer.token_ids not in ask.labels:
            word = self.tokenizer.decode(answer.token_ids)
            return SampleOutput(too_long=f"the policy answered {word!r}, which is none of the {len(ask.labels)} labels")
        try:
            by_token = {int(item[1]): float(item[0]) for item in answer.meta["output_token_ids_logprobs"][0]}
            logprobs = [by_token[token] for (token,) in ask.labels]
        except (TypeError, KeyError, IndexError, ValueError):
            raise EnvironmentFailure("SGLang's answer has no output_token_ids_logprobs for the labels") from None
        return SampleOutput(answer.token_ids, answer.logprobs, tuple(log_softmax(logprobs).tolist()))

    async def publish(self, weights: Any, version: int) -> None:
        """Nothing: slime updates the servers' weights."""


def read_answer(ask: SampleRequest, output: Any) -> RouterAnswer:
    """The answer in what the router returned. Raises EnvironmentFailure if it has none, or was aborted."""
    try:
        meta = output["meta_info"]
        if meta["finish_reason"]["type"] == "abort":
            raise EnvironmentFailure("SGLang aborted the request")
        pairs = [(float(item[0]), int(item[1])) for item in meta["output_token_logprobs"]]
    except (TypeError, KeyError, IndexError, ValueError, OverflowError):
        raise EnvironmentFailure(f"SGLang's answer has no token log-probs: {output!r:.200}") from None
    if not pairs or not all(math.isfinite(logprob) and token >= 0 for logprob, token in pairs):
        raise EnvironmentFailure(f"SGLang's answer has no token, or one without a finite log-prob: {pairs!r:.200}")
    logprobs, token_ids = zip(*pairs, strict=True)
    return RouterAnswer(ask, token_ids, logprobs, meta)
