"""Sampler that holds its model in this process: requests are batched, and scores are kept until the
weights change.

Greedy texts and scores are functions of their prompt, so equal requests in a batch are answered
once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from reflectkit.errors import CheckpointError
from reflectkit.models.labels import Path, check_embedded, trie
from reflectkit.models.load import LoadedModel
from reflectkit.models.scoring import choice_logprobs, label_scores
from reflectkit.rollouts.episode import Batcher
from reflectkit.sampling.base import SampleOutput, SampleRequest, ScoreMemo, Truncation, draw_label
from reflectkit.sampling.decoding import PrefixCache, decode

Key = tuple[tuple[Path, ...], tuple[int, ...], float]
"""Labels, prompt and temperature of a score."""


DAMAGED = (
    "the policy's scores are not numbers: its weights are damaged; load an earlier checkpoint, or"
    " train again with a lower --learning-rate"
)
MOST_LABELS = 300_000  # scores of labels that are kept


class LocalSampler:
    """Samples from `player`'s model.

    frozen: the model is not trained. rank: of several samplers with waiting requests, the lowest
    answers first. batch: prompts in one forward pass. scorer, team: of a model that is spread over
    processes: its Scorer, and the `train.processes.Processes` that make the same requests and share
    the scoring. watch: called with the last hidden states (B, D) and the prompts of each batch that
    is scored.
    """

    def __init__(
        self,
        player: LoadedModel,
        *,
        frozen: bool = False,
        rank: int = 1,
        batch: int = 64,
        scorer: Any = None,
        team: Any = None,
        watch: Callable[[torch.Tensor, Sequence[tuple[int, ...]]], None] | None = None,
    ) -> None:
        self.player, self.batch, self.team, self.watch = player, batch, team, watch
        self.scorer = scorer or player.model
        self.tokenizer, self.role, self.context = player.tokenizer, player.role, player.context
        self.tokens = self.version = 0
        self.reads: dict[int, int] | None = None
        """Number of tokens by request, of those since this was emptied; None: not needed."""
        # A shared base has nothing to freeze, and the policy's adapter in it
        if frozen and player.adapter is None:
            player.model.requires_grad_(False)
        self.kept = PrefixCache()
        """KV cache of the prompts of texts."""
        self.scores = ScoreMemo()
        """What was scored since the weights changed."""
        self.label_scores: dict[tuple[int, ...], dict[Path, float]] = {}
        """The scores of labels that were read alone since then, by prompt."""
        self._has_read = False
        self._batcher: Batcher[SampleRequest, SampleOutput] = Batcher(self._answer, rank)

    async def sample(self, ask: SampleRequest) -> SampleOutput:
        """What the model says.

        Raises CheckpointError: no prompt fits into the model's context, or one has tokens that it
        cannot read; its scores are not numbers; or it is spread over processes and was asked to
        write.
        """
        check_embedded(self.tokenizer, ask.prompt_ids, self.player.vocabulary)
        return await self._batcher.ask(ask)

    async def publish(self, weights: Any, version: int) -> None:
        """Forget what was read: the model's weights, which are trained in place, have changed."""
        self.version = version
        self.forget()
        self.scores.clear()
        self.label_scores.clear()

    def forget(self) -> None:
        """Give back the memory of texts that were read."""
        if self.kept.size:
            self.kept.clear()

    def _answer(self, asks: list[SampleRequest]) -> list[SampleOutput]:
        fitting = {ask for ask in asks if self._fits(ask)}
        self._has_read = self._has_read or bool(fitting)
        if not self._has_read:
            raise CheckpointError(self._too_long(min(len(ask.prompt_ids) for ask in asks)))
        self.player.model.eval()
        self.player.activate()
        self.scores.trim()
        for shared in (False, True):
            chosen = [ask for ask in asks if ask.labels and ask in fitting and ask.shared == shared]
            keys = [
                (ask.labels, ask.prompt_ids, ask.temperature)
                for ask in chosen
                if not ask.separately
            ]
            self._score(keys, shared)
        self._score_labels([ask for ask in asks if ask.separately and ask in fitting])
        written = self._write([ask for ask in asks if not ask.labels and ask in fitting])
        answers = []
        for ask in asks:
            if ask not in fitting:
                answers.append(
                    SampleOutput(version=self.version, too_long=self._too_long(len(ask.prompt_ids)))
                )
            elif ask.separately:
                answers.append(draw_label(ask, self._from_scores(ask), self.version))
            elif ask.labels:
                row = self.scores.get(ask.labels, ask.prompt_ids, ask.temperature)
                assert row is not None
                answers.append(draw_label(ask, row, self.version))
            else:
                answers.append(written[ask])
        return answers

    def _fits(self, ask: SampleRequest) -> bool:
        """Whether the context holds the prompt and what is read after it: labels up to where they
        part, or a token.
        """
        return len(ask.prompt_ids) + ask.depth <= self.context

    @torch.no_grad()
    def _score(self, keys: Sequence[Key], shared: bool) -> None:
        """Add the log-probabilities of the labels after each prompt to what is kept. shared: see
        `SampleRequest`.
        """
        waiting = [key for key in dict.fromkeys(keys) if self.scores.get(*key) is None]
        size = self.batch * (self.team.count if self.team else 1)
        for temperature in dict.fromkeys(key[2] for key in waiting):
            alike = [key for key in waiting if key[2] == temperature]
            for start in range(0, len(alike), size):
                self._score_batch(alike[start : start + size], temperature, shared)

    @torch.no_grad()
    def _score_labels(self, asks: Sequence[SampleRequest]) -> None:
        """Read the labels that were not read after their prompts yet, and keep their scores."""
        if not asks:
            return
        if self.team:
            raise CheckpointError(
                "a policy that scores each choice plays and trains in one process; leave out"
                " --processes"
            )
        if sum(map(len, self.label_scores.values())) > MOST_LABELS:
            self.label_scores.clear()
        missing: dict[tuple[int, ...], dict[Path, None]] = {}
        for ask in asks:
            known = self.label_scores.setdefault(ask.prompt_ids, {})
            new = dict.fromkeys(path for path in ask.labels if path not in known)
            if new:
                missing.setdefault(ask.prompt_ids, {}).update(new)
        if not missing:
            return
        labels = [tuple(paths) for paths in missing.values()]
        scores_BK, _ = label_scores(self.scorer, list(missing), labels, pad_id=self.player.pad_id)
        self._count(
            {
                hash((prompt, paths)): len(prompt) + sum(map(len, paths))
                for prompt, paths in zip(missing, labels, strict=True)
            }
        )
        for prompt, paths, row in zip(missing, labels, scores_BK.tolist(), strict=True):
            self.label_scores[prompt].update(zip(paths, row, strict=False))

    def _from_scores(self, ask: SampleRequest) -> tuple[float, ...]:
        """The log-probabilities of the labels of `ask`. Raises CheckpointError: the scores are not
        numbers.
        """
        known = self.label_scores[ask.prompt_ids]
        scores_K = torch.tensor([known[path] for path in ask.labels], dtype=torch.float32)
        logprobs_K = torch.log_softmax(scores_K / (ask.temperature or 1.0), dim=-1)
        if logprobs_K.isnan().any():
            raise CheckpointError(DAMAGED)
        return tuple(logprobs_K.tolist())

    def _score_batch(self, keys: Sequence[Key], temperature: float, shared: bool) -> None:
        share = self.team.share(keys) if self.team else keys
        part = share or keys[:1]  # all processes must make the pass
        prompts = [prompt for _, prompt, _ in part]
        logprobs_BK, hidden_BD = choice_logprobs(
            self.scorer,
            prompts,
            [labels for labels, _, _ in part],
            pad_id=self.player.pad_id,
            temperature=temperature or 1.0,
            share=shared,
        )
        self._count({hash(key): len(key[1]) + sum(map(len, trie(key[0]).chains)) for key in part})
        if self.watch is not None:
            self.watch(hidden_BD, prompts)
        mine = logprobs_BK.tolist()[: len(share)]
        for key, row in zip(
            keys, self.team.gather_shares(mine) if self.team else mine, strict=True
        ):
            if any(map(math.isnan, row)):
                raise CheckpointError(DAMAGED)
            self.scores.keep(*key, tuple(row[: len(key[0])]))

    def _write(self, asks: Sequence[SampleRequest]) -> dict[SampleRequest, SampleOutput]:
        """A text for each request; equal ones are written once. A full context cuts them short."""
        if asks and self.team:
            raise CheckpointError(
                "a policy that is spread over processes chooses among enumerated actions only; use"
                ' `accelerate launch --config_file "$(reflectkit list --configs multi_gpu)"`'
            )
        texts: dict[SampleRequest, SampleOutput] = {}
        kinds: dict[tuple[frozenset[int], float, Truncation], list[SampleRequest]] = {}
        for ask in dict.fromkeys(asks):
            kinds.setdefault((ask.stop_ids, ask.temperature, ask.truncation), []).append(ask)
        for (stop_ids, temperature, truncation), part in kinds.items():
            prompts = [ask.prompt_ids for ask in part]
            rows = decode(
                self.player.model,
                prompts,
                pad_id=self.player.pad_id,
                stop_ids=stop_ids,
                max_new_tokens=[
                    min(ask.max_new_tokens, self.context - len(ask.prompt_ids)) for ask in part
                ],
                temperature=temperature,
                truncation=truncation,
                seeds=[ask.seed for ask in part],
                width=self.batch,
                kept=self.kept,
            )
            self._count(
                {
                    hash(ask): len(ask.prompt_ids) + len(row.token_ids)
                    for ask, row in zip(part, rows, strict=True)
                }
            )
            for ask, row in zip(part, rows, strict=True):
                texts[ask] = SampleOutput(
                    tuple(row.token_ids), tuple(row.logprobs), version=self.version
                )
        return texts

    def _count(self, tokens: Mapping[int, int]) -> None:
        """Count the tokens of requests, by their hash, which is the same in all processes as it is
        made of numbers.
        """
        self.tokens += sum(tokens.values())
        if self.reads is not None:
            self.reads |= tokens

    def _too_long(self, tokens: int) -> str:
        return (
            f"the policy's prompt is {tokens} tokens, but its model reads {self.context}; shorten"
            " what the env shows, or train a model with a longer context, as --model tiny makes"
            " for this env"
        )
