"""Probe prompts: whether a server has the weights that it was given, from its log-probabilities after each publish.

The first prompts that are played become the probes. A server whose weights are others exceeds the limits of
`models.agreement`. A server that still has older weights may not, as an update moves log-probabilities little; but then
its log-probabilities do not move with those of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from reflectkit.models.agreement import disagreement
from reflectkit.models.labels import trie
from reflectkit.models.load import LoadedModel
from reflectkit.models.padding import right_pad
from reflectkit.models.sampler import SampleRequest
from reflectkit.models.scoring import Scorer, choice_logprobs, token_logprobs
from reflectkit.models.servers.protocols import MOST_AT_ONCE

PROMPTS = 8
TOKENS = 16
"""Of each prompt: tokens that are compared, and length of the text that is written."""
CLEAR = 5
"""A change of the weights is clear once it moves the log-probabilities so many times as far as rounding does. From 3
times on, vLLM in bfloat16 showed at least 0.8 of it.
"""
LEAST_ROUNDING = 1e-4
"""Root mean square of the difference between a server and this process in float32, in nats; most differ less."""


@dataclass(frozen=True)
class Probe:
    """A place whose next `tokens` are compared. text: what is written there and compared too, unless it is None."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: SampleRequest | None = None


class Probes:
    """The probes of one sampler. vocabulary: number of tokens."""

    def __init__(self, vocabulary: int) -> None:
        ids = spread(vocabulary, TOKENS)
        self.chosen = [Probe(tuple(ids[:4]), tuple(ids))]
        """Those that are compared now."""
        self._seen: list[SampleRequest] = []
        self._played = False
        self._agreed: tuple[torch.Tensor, torch.Tensor] | None = None
        """Log-probabilities here and there when they last agreed on weights that had clearly changed."""
        self._rounding = 0.0

    def see(self, ask: SampleRequest) -> None:
        """Remember what is played, as a later probe."""
        if len(self._seen) < PROMPTS and all(one.prompt_ids != ask.prompt_ids for one in self._seen):
            self._seen.append(ask)

    @torch.no_grad()
    def choose(self, player: LoadedModel) -> None:
        """Take what was played as the probes, once there is any: places where labels part, and texts with their
        likeliest tokens.
        """
        if self._played or not self._seen:
            return
        self._played, self._agreed, self.chosen = True, None, []
        for ask in self._seen[:PROMPTS]:
            node = max(trie(ask.labels).nodes, key=lambda one: len(one.children)) if ask.labels else None
            if node is not None:
                self.chosen.append(Probe((*ask.prompt_ids, *node.prefix), node.children[:MOST_AT_ONCE]))
            else:
                self.chosen.append(Probe(ask.prompt_ids, _likeliest(player, ask.prompt_ids), ask))

    @torch.no_grad()
    def own(self, player: LoadedModel) -> torch.Tensor:
        """Log-probabilities (N) of the tokens of all probes, among those of each."""
        prompts, labels = [one.prompt for one in self.chosen], [tuple((t,) for t in one.tokens) for one in self.chosen]
        own_BK, _ = choice_logprobs(player.model, prompts, labels, pad_id=player.pad_id)
        return torch.cat([row[: len(one.tokens)] for row, one in zip(own_BK.cpu().double(), self.chosen, strict=True)])

    def complaint(self, own_N: torch.Tensor, there: Sequence[float]) -> str:
        """Why the server does not have the weights whose log-probabilities are `own_N`, if it does not; else "".
        there: its own (N).
        """
        there_N = torch.tensor(there, dtype=torch.float64)
        if apart := disagreement(there_N - own_N):
            return f"log-probabilities differ {apart}"
        difference = _size(there_N - own_N)
        self._rounding = self._rounding or max(difference, LEAST_ROUNDING)
        if self._agreed is None:
            self._agreed = own_N, there_N
            return ""
        moved_N, moved_there_N = own_N - self._agreed[0], there_N - self._agreed[1]
        if _size(moved_N) < CLEAR * self._rounding:
            return ""
        share = float(moved_there_N @ moved_N / (moved_N @ moved_N))
        if not share > 0.5:
            return (
                f"the policy's log-probabilities have moved by {_size(moved_N):.2g} nats since an earlier update, of"
                f" which the server's show {max(share, 0.0):.0%}"
            )
        self._agreed, self._rounding = (own_N, there_N), max(self._rounding, difference)
        return ""


@torch.no_grad()
def text_difference(
    player: LoadedModel, asks: Sequence[SampleRequest], texts: Sequence[tuple[Sequence[int], Sequence[float]]]
) -> Any:
    """The server's log-probabilities of the tokens of `texts`, which it wrote for `asks`, less this process's (N)."""
    differences = []
    for ask, (token_ids, logprobs) in zip(asks, texts, strict=True):
        row, mask = [*ask.prompt_ids, *token_ids], [0] * len(ask.prompt_ids) + [1] * len(token_ids)
        own_N, _, _ = token_logprobs(
            player.model, [row], [mask], pad_id=player.pad_id, temperature=ask.temperature or 1.0
        )
        differences.append(torch.tensor(logprobs, dtype=torch.float64) - own_N.cpu().double())
    return torch.cat(differences) if differences else torch.zeros(0)


def spread(size: int, count: int) -> list[int]:
    """`count` different token ids, spread over a vocabulary of `size`."""
    return sorted({number * (size - 1) // (count - 1) for number in range(count)})


def _likeliest(player: LoadedModel, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """The likeliest tokens after `prompt`."""
    device = next(player.model.parameters()).device
    place_N, row_N = torch.tensor([len(prompt) - 1], device=device), torch.zeros(1, dtype=torch.long, device=device)
    _, logits_NV = Scorer(player.model)(right_pad([prompt], player.pad_id, device), row_N, place_N)
    return tuple(logits_NV[0].topk(min(TOKENS, logits_NV.shape[1])).indices.tolist())


def _size(value_N: torch.Tensor) -> float:
    """Root mean square."""
    return float(value_N.pow(2).mean().sqrt())
