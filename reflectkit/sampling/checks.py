"""Checks of an inference server: that its answers are possible, and that it has the weights that it
was given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from reflectkit.errors import ConfigError
from reflectkit.models.labels import trie
from reflectkit.models.load import LoadedModel
from reflectkit.models.scoring import choice_logprobs, token_logprobs
from reflectkit.sampling.base import SampleRequest
from reflectkit.sampling.protocols import FLOOR, MOST_AT_ONCE, Drawn
from reflectkit.text import pluralize

MEAN_LIMIT = 0.3
"""Maximum mean difference over many tokens, in nats. Between a policy in float32 or bfloat16 here
and vLLM in bfloat16 it was 0.02 to 0.05 (SmolLM2-135M with LoRA; see docs/large-policies.md).
"""
SHARE = 0.95
HIGH_LIMIT = 1.0
"""Maximum difference, in nats, of the best-agreeing SHARE of the tokens; there it was 0.13."""


USUAL_NOISE = 0.13
"""That difference of the best-agreeing SHARE. The limits of single answers are wider for a noisier
server.
"""


def disagreement(
    difference_N: torch.Tensor,
    temperature: float = 1.0,
    lengths: Sequence[int] = (),
) -> str:
    """Which limit the differences exceed, with the figure; "" if none. The limit of a mean over N
    tokens is 1 + 2 / √N times as large. temperature: of the log-probabilities; a lower one enlarges
    the differences of the logits.

    lengths: of the answers, in tokens, that the differences belong to. Then each answer has limits,
    too, which a single wrong token exceeds.
    """
    if not len(difference_N):
        return ""
    # 1. All tokens: the mean and a quantile
    distance_N, count = difference_N.abs().double(), len(difference_N)
    scale = max(1.0, 1 / temperature)
    high = float(distance_N.quantile(SHARE, interpolation="lower"))
    for what, figure, limit in (
        ("on average over", float(distance_N.mean()), MEAN_LIMIT * (1 + 2 / math.sqrt(count))),
        (f"at the {SHARE:.0%} quantile of", high, HIGH_LIMIT),
    ):
        if not figure <= limit * scale:
            return (
                f"by {figure:.3g} nats {what} {pluralize(count, 'token')} (limit"
                f" {limit * scale:.3g})"
            )

    # 2. Each answer: its largest difference and its mean
    noise = max(scale, high / USUAL_NOISE)
    for answer_N in distance_N.split(list(lengths)) if lengths else ():
        size = pluralize(len(answer_N), "token")
        for what, figure, limit in (
            ("at a token of", float(answer_N.max()), _answer_limit(1)),
            ("on average over", float(answer_N.mean()), _answer_limit(len(answer_N))),
        ):
            if figure > limit * noise:
                return (
                    f"by {figure:.3g} nats {what} an answer of {size} (limit {limit * noise:.3g})"
                )
    return ""


def _answer_limit(count: int) -> float:
    """Maximum mean difference over `count` tokens of one answer, in nats: 5 for one, and near
    HIGH_LIMIT for many.
    """
    return HIGH_LIMIT * (1 + 4 / math.sqrt(count))


LEAST_DRAWN = math.log(2.0**-149)
"""Log-probability of float32's smallest number, -103.3: what is less likely has probability 0, and
is never drawn.
"""
ROUNDING = 1e-4
"""How far above 0 rounding may lift a log-probability."""
SURPLUS = 1e-2
"""How far above 1 rounding may lift the sum of a distribution's probabilities."""


def scores(values: Mapping[int, Any], url: str) -> dict[int, float]:
    """The log-probabilities of different tokens at one place. Raises ConfigError if they cannot be
    that.
    """
    # Some of the tokens at a place have a probability of 1 together, at most
    result = {token: _logprob(value, FLOOR, url) for token, value in values.items()}
    total = math.fsum(map(math.exp, result.values()))
    if total > 1 + SURPLUS:
        fault = (
            f"log-probabilities of {len(result)} tokens whose probabilities add up to {total:.4g}"
        )
        raise wrong(url, fault)
    return result


def text(
    drawn: Drawn,
    stop_ids: frozenset[int],
    limit: int,
    vocabulary: int,
    url: str,
) -> Drawn:
    """`drawn`. Raises ConfigError unless it is a text of at most `limit` tokens, each of the
    `vocabulary` (its size) and with the log-probability of a token that can be drawn, and ends
    where a stop token does.
    """
    # 1. As many tokens as were asked for, each of the vocabulary
    ids = drawn.token_ids
    if len(ids) != len(drawn.logprobs):
        raise wrong(url, f"{len(ids)} tokens with {len(drawn.logprobs)} log-probabilities")
    if not 1 <= len(ids) <= limit:
        raise wrong(url, f"{len(ids)} tokens where 1 to {limit} were asked for")
    for token in ids:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise wrong(url, f"the token {token!r:.40}, but the model's are 0 to {vocabulary - 1}")
    # 2. The end, and how likely each token was
    early = stop_ids.intersection(ids[:-1])
    if early:
        raise wrong(url, f"more tokens after the stop token {min(early)}")
    return replace(
        drawn, logprobs=tuple(_logprob(value, LEAST_DRAWN, url) for value in drawn.logprobs)
    )


def rows(
    read: Sequence[Sequence[int]],
    logprobs: Sequence[Sequence[Any]],
    url: str,
) -> None:
    """Raises ConfigError unless each row that was `read` has a log-probability for each of its
    tokens but the first.
    """
    if len(logprobs) != len(read):
        raise wrong(
            url, f"log-probabilities of {len(logprobs)} rows where {len(read)} were asked for"
        )
    for row, values in zip(read, logprobs, strict=True):
        if len(values) != len(row) - 1:
            raise wrong(url, f"{len(values)} log-probabilities of a row of {len(row)} tokens")
        for value in values:
            _logprob(value, FLOOR, url)


def _logprob(
    value: Any,
    least: float,
    url: str,
) -> float:
    """A JSON value as a log-probability. Raises ConfigError if it is not a number from `least` to
    0.
    """
    if type(value) not in (int, float) or not least <= value <= ROUNDING:
        raise wrong(
            url, f"the log-probability {value!r:.40}, which is no number from {least:.0f} to 0"
        )
    return float(value)


def wrong(url: str, what: str) -> ConfigError:
    """The error for an answer that a working server never gives."""
    return ConfigError(
        f"{url} answered with {what}; use another version of the server, or sample in this process"
    )


PROMPTS = 8
TOKENS = 16
"""Of each prompt: tokens that are compared, and length of the text that is written."""
CLEAR = 5
"""A change of the weights is clear once it moves the log-probabilities this many times as far as
rounding does. From 3 on, vLLM in bfloat16 showed at least 0.8 of it.
"""
LEAST_ROUNDING = 1e-4
"""Root mean square of the difference between a server and this process in float32, in nats; most
differ less.
"""


@dataclass(frozen=True)
class Probe:
    """A place whose next `tokens` are compared. text: a request for a text there, which is compared
    too.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: SampleRequest | None = None


class Probes:
    """The probes of one sampler. vocabulary: number of tokens."""

    def __init__(self, vocabulary: int) -> None:
        ids = spread(vocabulary, TOKENS)
        self.chosen = [Probe(tuple(ids[:4]), tuple(ids))]
        """The current probes."""
        self._seen: list[SampleRequest] = []
        self._played = False
        self._agreed: tuple[torch.Tensor, torch.Tensor] | None = None
        """Log-probabilities here and there when they last agreed on weights that had clearly
        changed.
        """
        self._rounding = 0.0

    def see(self, request: SampleRequest) -> None:
        """Remember a request of an episode as a later probe."""
        if len(self._seen) < PROMPTS and all(
            earlier.prompt_ids != request.prompt_ids for earlier in self._seen
        ):
            self._seen.append(request)

    @torch.no_grad()
    def choose(self, player: LoadedModel) -> None:
        """Use requests of episodes as the probes, once there are any: places where labels part, and
        texts with their likeliest tokens.
        """
        if self._played or not self._seen:
            return
        self._played, self._agreed, self.chosen = True, None, []
        for request in self._seen[:PROMPTS]:
            # Where most labels part, or after the prompt of a text
            if request.labels:
                node = max(trie(request.labels).nodes, key=lambda node: len(node.children))
                self.chosen.append(
                    Probe((*request.prompt_ids, *node.prefix), node.children[:MOST_AT_ONCE])
                )
                continue
            prompt = torch.tensor(
                [request.prompt_ids], device=next(player.model.parameters()).device
            )
            logits_V = player.model(prompt, logits_to_keep=1).logits[0, -1]
            likeliest = logits_V.topk(min(TOKENS, len(logits_V))).indices.tolist()
            self.chosen.append(Probe(request.prompt_ids, tuple(likeliest), request))

    @torch.no_grad()
    def own(self, player: LoadedModel) -> torch.Tensor:
        """Log-probabilities (N) of the tokens of all probes, among those of each."""
        # Each token is a label: their log-probabilities are normalised over the probe's
        prompts = [probe.prompt for probe in self.chosen]
        labels = [tuple((token,) for token in probe.tokens) for probe in self.chosen]
        own_BK, _ = choice_logprobs(player.model, prompts, labels, pad_id=player.pad_id)
        rows = []
        for row, probe in zip(own_BK.cpu().double(), self.chosen, strict=True):
            rows.append(row[: len(probe.tokens)])
        return torch.cat(rows)

    def complaint(self, own_N: torch.Tensor, there: Sequence[float]) -> str:
        """Why the server does not have the weights whose log-probabilities are `own_N`; "" if it
        has. there: those of the server (N).
        """
        # 1. Whether the log-probabilities agree
        there_N = torch.tensor(there, dtype=torch.float64)
        if difference_text := disagreement(there_N - own_N):
            return f"log-probabilities differ {difference_text}"
        difference = _size(there_N - own_N)
        self._rounding = self._rounding or max(difference, LEAST_ROUNDING)
        if self._agreed is None:
            self._agreed = own_N, there_N
            return ""
        # 2. Whether both have moved alike, once the policy has moved by more than rounding
        moved_N, moved_there_N = own_N - self._agreed[0], there_N - self._agreed[1]
        if _size(moved_N) < CLEAR * self._rounding:
            return ""
        share = float(moved_there_N @ moved_N / (moved_N @ moved_N))
        if not share > 0.5:
            return (
                f"the policy's log-probabilities have moved by {_size(moved_N):.2g} nats since an"
                f" earlier update, of which the server's show {max(share, 0.0):.0%}"
            )
        self._agreed, self._rounding = (own_N, there_N), max(self._rounding, difference)
        return ""


@torch.no_grad()
def text_difference(
    player: LoadedModel,
    requests: Sequence[SampleRequest],
    texts: Sequence[tuple[Sequence[int], Sequence[float]]],
) -> Any:
    """The server's log-probabilities of the tokens of `texts`, which it wrote for `requests`, less
    this process's (N).
    """
    differences = []
    for request, (token_ids, logprobs) in zip(requests, texts, strict=True):
        # The text is scored as a row of training is: its prompt is masked
        row = [*request.prompt_ids, *token_ids]
        mask = [0] * len(request.prompt_ids) + [1] * len(token_ids)
        own_N, *_ = token_logprobs(
            player.model,
            [row],
            [mask],
            pad_id=player.pad_id,
            temperature=request.temperature or 1.0,
        )
        differences.append(torch.tensor(logprobs, dtype=torch.float64) - own_N.cpu().double())
    return torch.cat(differences) if differences else torch.zeros(0)


def spread(size: int, count: int) -> list[int]:
    """`count` different token ids, spread over a vocabulary of `size`."""
    return sorted({number * (size - 1) // (count - 1) for number in range(count)})


def _size(value_N: torch.Tensor) -> float:
    """Root mean square."""
    return float(value_N.pow(2).mean().sqrt())
