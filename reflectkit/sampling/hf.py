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
from reflectkit.models.labels import LabelPath, check_embedded, trie
from reflectkit.models.load import LoadedModel
from reflectkit.models.scoring import choice_logprobs, label_scores
from reflectkit.rollouts.episode import Batcher
from reflectkit.sampling.base import SampleOutput, SampleRequest, ScoreMemo, Truncation, draw_label
from reflectkit.sampling.decoding import PrefixCache, decode

Key = tuple[tuple[LabelPath, ...], tuple[int, ...], float]
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
        self.prefixes = PrefixCache()
        """KV cache of the prompts of texts."""
        self.scores = ScoreMemo()
        """What was scored since the weights changed."""
        self.label_scores: dict[tuple[int, ...], dict[LabelPath, float]] = {}
        """The scores of labels that were read alone since then, by prompt."""
        self._batcher: Batcher[SampleRequest, SampleOutput] = Batcher(self._answer, rank)

    async def sample(self, request: SampleRequest) -> SampleOutput:
        """What the model says.

        Raises CheckpointError: the prompt has tokens that the model cannot read; its scores are not
        numbers; or it is spread over processes and was asked to write.
        """
        check_embedded(self.tokenizer, request.prompt_ids, self.player.vocabulary)
        return await self._batcher.ask(request)

    async def publish(self, weights: Any, version: int) -> None:
        """Forget what was read: the model's weights, which are trained in place, have changed."""
        self.version = version
        self.forget()
        self.scores.clear()
        self.label_scores.clear()

    def forget(self) -> None:
        """Give back the memory of texts that were read."""
        if self.prefixes.size:
            self.prefixes.clear()

    def _answer(self, requests: list[SampleRequest]) -> list[SampleOutput]:
        # 1. What the context has room for
        fitting = {request for request in requests if self._fits(request)}
        # 2. Read it: choices, choices whose labels are read alone, texts
        self.player.model.eval()
        self.player.activate()
        self.scores.trim()
        separate: list[SampleRequest] = []
        texts: list[SampleRequest] = []
        keys: dict[bool, list[Key]] = {False: [], True: []}
        for request in filter(fitting.__contains__, requests):
            if request.separately:
                separate.append(request)
            elif request.labels:
                key = (request.labels, request.prompt_ids, request.temperature)
                keys[request.shared].append(key)
            else:
                texts.append(request)
        for share_prefixes, group in keys.items():
            self._score(group, share_prefixes)
        self._score_labels(separate)
        text_of = self._write(texts)
        # 3. Draw, each by its own seed
        answers = []
        for request in requests:
            if request not in fitting:
                too_long = self._too_long(len(request.prompt_ids))
                answers.append(SampleOutput(version=self.version, too_long=too_long))
            elif request.separately:
                answers.append(draw_label(request, self._from_scores(request), self.version))
            elif request.labels:
                row = self.scores.get(request.labels, request.prompt_ids, request.temperature)
                assert row is not None
                answers.append(draw_label(request, row, self.version))
            else:
                answers.append(text_of[request])
        return answers

    def _fits(self, request: SampleRequest) -> bool:
        """Whether the context holds the prompt and what is read after it: labels up to where they
        part, or a token.
        """
        return len(request.prompt_ids) + request.depth <= self.context

    @torch.no_grad()
    def _score(self, keys: Sequence[Key], share_prefixes: bool) -> None:
        """Add the log-probabilities of the labels after each prompt to what is kept.
        share_prefixes: see `SampleRequest`.
        """
        waiting = [key for key in dict.fromkeys(keys) if self.scores.get(*key) is None]
        size = self.batch * (self.team.count if self.team else 1)
        for temperature in dict.fromkeys(key[2] for key in waiting):
            alike = [key for key in waiting if key[2] == temperature]
            for start in range(0, len(alike), size):
                self._score_batch(alike[start : start + size], temperature, share_prefixes)

    @torch.no_grad()
    def _score_labels(self, requests: Sequence[SampleRequest]) -> None:
        """Read the labels that were not read after their prompts yet, and keep their scores."""
        if not requests:
            return
        if self.team:
            raise CheckpointError(
                "a policy that scores each choice plays and trains in one process; leave out"
                " --processes"
            )
        if sum(map(len, self.label_scores.values())) > MOST_LABELS:
            self.label_scores.clear()
        # 1. The labels that are missing, by prompt
        missing: dict[tuple[int, ...], dict[LabelPath, None]] = {}
        for request in requests:
            scores = self.label_scores.setdefault(request.prompt_ids, {})
            new = dict.fromkeys(path for path in request.labels if path not in scores)
            if new:
                missing.setdefault(request.prompt_ids, {}).update(new)
        if not missing:
            return
        # 2. Their scores, and the tokens that were read for them
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

    def _from_scores(self, request: SampleRequest) -> tuple[float, ...]:
        """The log-probabilities of the labels of `request`. Raises CheckpointError: the scores are
        not numbers.
        """
        scores = self.label_scores[request.prompt_ids]
        scores_K = torch.tensor([scores[path] for path in request.labels], dtype=torch.float32)
        logprobs_K = torch.log_softmax(scores_K / (request.temperature or 1.0), dim=-1)
        if logprobs_K.isnan().any():
            raise CheckpointError(DAMAGED)
        return tuple(logprobs_K.tolist())

    def _score_batch(
        self,
        keys: Sequence[Key],
        temperature: float,
        share_prefixes: bool,
    ) -> None:
        share = self.team.share(keys) if self.team else keys
        part = share or keys[:1]  # all processes must make the pass
        prompts = [prompt for _, prompt, _ in part]
        logprobs_BK, hidden_BD = choice_logprobs(
            self.scorer,
            prompts,
            [labels for labels, _, _ in part],
            pad_id=self.player.pad_id,
            temperature=temperature or 1.0,
            share=share_prefixes,
        )
        self._count({hash(key): len(key[1]) + sum(map(len, trie(key[0]).chains)) for key in part})
        if self.watch is not None:
            self.watch(hidden_BD, prompts)
        mine = logprobs_BK.tolist()[: len(share)]
        rows = self.team.gather_shares(mine) if self.team else mine
        for key, row in zip(keys, rows, strict=True):
            if any(map(math.isnan, row)):
                raise CheckpointError(DAMAGED)
            self.scores.keep(*key, tuple(row[: len(key[0])]))

    def _write(self, requests: Sequence[SampleRequest]) -> dict[SampleRequest, SampleOutput]:
        """A text for each request; equal ones are written once. A full context cuts them short."""
        if requests and self.team:
            raise CheckpointError(
                "a policy that is spread over processes chooses among enumerated actions only; use"
                ' `accelerate launch --config_file "$(reflectkit list --configs multi_gpu)"`'
            )
        # 1. Batches of requests with the same settings
        texts: dict[SampleRequest, SampleOutput] = {}
        kinds: dict[tuple[frozenset[int], float, Truncation], list[SampleRequest]] = {}
        for request in dict.fromkeys(requests):
            kinds.setdefault(
                (request.stop_ids, request.temperature, request.truncation), []
            ).append(request)
        for (stop_ids, temperature, truncation), part in kinds.items():
            # 2. Write them, as far as the context has room
            prompts = [request.prompt_ids for request in part]
            rows = decode(
                self.player.model,
                prompts,
                pad_id=self.player.pad_id,
                stop_ids=stop_ids,
                max_new_tokens=[
                    min(request.max_new_tokens, self.context - len(request.prompt_ids))
                    for request in part
                ],
                temperature=temperature,
                truncation=truncation,
                seeds=[request.seed for request in part],
                width=self.batch,
                prefix_cache=self.prefixes,
            )
            self._count(
                {
                    hash(request): len(request.prompt_ids) + len(row.token_ids)
                    for request, row in zip(part, rows, strict=True)
                }
            )
            for request, row in zip(part, rows, strict=True):
                texts[request] = SampleOutput(
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
