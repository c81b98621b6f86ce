"""The two players: a frozen reflector comments on what is seen, a policy acts on the comment.

Without a reflector the policy acts on the observation alone (the plain arm). Greedy comments are a function of their prompt
and are memoised for good; the policy's scores are memoised until its weights change (`forget_scores`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from reflectkit.core.errors import CheckpointError
from reflectkit.core.prompts import one_line, policy_prompt, reflection_prompt
from reflectkit.core.protocols import Context
from reflectkit.core.seeding import derive, uniform
from reflectkit.core.types import Decision, Observation
from reflectkit.models.decoding import decode
from reflectkit.models.load import Player
from reflectkit.models.scoring import choice_logprobs
from reflectkit.models.tokens import completion_ids, label_ids, prompt_ids

MEMO_LIMIT = 200_000  # entries; a full memo starts again


class Reflector:
    """A frozen model that writes one line about an observation.

    temperature: 0 decodes greedily, and memoises. max_new_tokens: the paper's 100. batch: prompts decoded at once.
    hits, asked: how many comments came from the memo, and how many were asked for.
    """

    def __init__(self, player: Player, *, temperature: float = 0.0, max_new_tokens: int = 100, batch: int = 64) -> None:
        self.player, self.temperature, self.max_new_tokens, self.batch = player, temperature, max_new_tokens, batch
        self.memo: dict[str, str] = {}
        self.hits = self.asked = self.tokens = 0
        player.model.eval().requires_grad_(False)
        newline = completion_ids(player.tokenizer, "\n")
        stops = [player.tokenizer.eos_token_id, newline[0] if len(newline) == 1 else None]
        self.stop_ids = frozenset(stop for stop in stops if stop is not None)

    def comment(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[str]:
        """One comment for each observation, "" for one that leaves no room to write; `seeds` matter only where comments are
        sampled.
        """
        prompts = [reflection_prompt(observation) for observation in observations]
        self.asked += len(prompts)
        if self.temperature > 0:
            return self._decode(prompts, seeds)
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self.memo]
        self.hits += len(prompts) - len(new)
        if len(self.memo) + len(new) > MEMO_LIMIT:
            self.memo.clear()
            new = list(dict.fromkeys(prompts))
        self.memo.update(zip(new, self._decode(new, [0] * len(new)), strict=True))
        return [self.memo[prompt] for prompt in prompts]

    def _decode(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        """What is written behind each prompt, whoever shares its batch: those with little room left are decoded alone."""
        ids = [prompt_ids(self.player.tokenizer, prompt) for prompt in prompts]
        room = [min(self.max_new_tokens, self.player.context - len(row)) for row in ids]
        roomy = [index for index, left in enumerate(room) if left == self.max_new_tokens]
        batches = [roomy[start : start + self.batch] for start in range(0, len(roomy), self.batch)]
        batches += [[index] for index, left in enumerate(room) if 0 < left < self.max_new_tokens]
        comments = [""] * len(prompts)
        for batch in batches:
            written = decode(
                self.player.model,
                [ids[index] for index in batch],
                pad_id=self.player.pad_id,
                stop_ids=self.stop_ids,
                max_new_tokens=room[batch[0]],
                temperature=self.temperature,
                seeds=[seeds[index] for index in batch],
            )
            self.tokens += sum(map(len, written))
            for index, row in zip(batch, written, strict=True):
                comments[index] = one_line(self.player.tokenizer.decode(row, skip_special_tokens=True))
        return comments


class TwoPlayerAgent:
    """Scores the legal labels behind each prompt and picks one.

    reflector: None for the plain arm. temperature: of the sampling; 0 takes the likeliest action. reflect_prob: share of
    decisions that see their comment; the rest act without. critic: a module from the last hidden state (B, D) to values (B, 1),
    recorded with each decision; None records none. tokens: how many prompt tokens the policy has read.
    """

    def __init__(
        self,
        policy: Player,
        reflector: Reflector | None = None,
        *,
        temperature: float = 1.0,
        reflect_prob: float = 1.0,
        batch: int = 64,
        critic: Any = None,
    ) -> None:
        self.policy, self.reflector, self.batch, self.critic = policy, reflector, batch, critic
        self.temperature, self.reflect_prob = temperature, reflect_prob
        self.tokens = 0
        self._has_read = False
        self._scores: dict[tuple[int, tuple[int, ...]], tuple[tuple[float, ...], float | None]] = {}

    def act(self, observations: Sequence[Observation], contexts: Sequence[Context]) -> list[Decision]:
        """One decision for each observation; the draw depends on the turn's own seed alone.

        An observation that is too long for the policy gets a decision with `overflow`. Raises CheckpointError where all are.
        """
        comments = self._comments(observations, contexts)
        prompts = [
            tuple(prompt_ids(self.policy.tokenizer, policy_prompt(observation, comment)))
            for observation, comment in zip(observations, comments, strict=True)
        ]
        keys = [(len(observation.choices), prompt) for observation, prompt in zip(observations, prompts, strict=True)]
        fitting = [key for key in keys if len(key[1]) <= self.policy.context]
        self._has_read = self._has_read or bool(fitting)
        if keys and not self._has_read:
            raise CheckpointError(_too_long(min(len(prompt) for _, prompt in keys), self.policy.context))
        self._score(fitting)
        decisions = []
        for key, comment, context in zip(keys, comments, contexts, strict=True):
            if len(key[1]) > self.policy.context:
                decisions.append(Decision(0, comment, overflow=_too_long(len(key[1]), self.policy.context)))
                continue
            row, value = self._scores[key]
            logprobs = torch.tensor(row, dtype=torch.float64)
            probabilities = logprobs.exp()
            action = int(probabilities.argmax()) if self.temperature == 0 else _draw(probabilities, context.seed)
            entropy = float(-(probabilities * logprobs.clamp(min=-1e4)).sum())
            token = label_ids(self.policy.tokenizer, key[0])[action]
            decisions.append(Decision(action, comment, key[1], (token,), (row[action],), entropy, value))
        return decisions

    def forget_scores(self) -> None:
        """To be called when the policy's weights have changed."""
        self._scores.clear()

    def _comments(self, observations: Sequence[Observation], contexts: Sequence[Context]) -> list[str | None]:
        comments: list[str | None] = [None] * len(observations)
        if self.reflector is None:
            return comments
        seen = [
            index
            for index, context in enumerate(contexts)
            if self.reflect_prob >= 1 or uniform(context.seed, "reflect") < self.reflect_prob
        ]
        seeds = [derive(contexts[index].seed, "comment") for index in seen]
        for index, comment in zip(seen, self.reflector.comment([observations[i] for i in seen], seeds), strict=True):
            comments[index] = comment
        return comments

    @torch.no_grad()
    def _score(self, keys: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        if len(self._scores) > MEMO_LIMIT:
            self._scores.clear()
        new = [key for key in dict.fromkeys(keys) if key not in self._scores]
        self.policy.model.eval()
        for start in range(0, len(new), self.batch):
            part = new[start : start + self.batch]
            labels = [label_ids(self.policy.tokenizer, count) for count, _ in part]
            logprobs_BK, hidden_BD = choice_logprobs(
                self.policy.model,
                [prompt for _, prompt in part],
                labels,
                pad_id=self.policy.pad_id,
                temperature=self.temperature or 1.0,
            )
            self.tokens += sum(len(prompt) for _, prompt in part)
            values = [None] * len(part) if self.critic is None else self.critic(hidden_BD.float()).squeeze(-1).tolist()
            for key, row, value in zip(part, logprobs_BK.double().tolist(), values, strict=True):
                self._scores[key] = tuple(row[: key[0]]), value


def _draw(probabilities: torch.Tensor, seed: int) -> int:
    """The action at the seed's own place in the cumulative distribution."""
    cumulative = probabilities.cumsum(dim=0)
    place: Any = torch.searchsorted(cumulative, uniform(seed, "action") * cumulative[-1:], right=True)
    return min(int(place), len(probabilities) - 1)


def _too_long(tokens: int, context: int) -> str:
    return f"the policy's prompt is {tokens} tokens, but its model reads {context}; train one with a larger --max-length"
