"""The two players: a frozen reflector comments on what is seen, a policy acts on the comment, by a choice, by calls of
tools, or in its own words.

Without a reflector the policy acts on the observation alone (the plain arm). Greedy comments are a function of their
prompt and are memoised for good; the policy's scores are memoised until its weights change (`forget_scores`).
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from reflectkit.core.errors import CheckpointError
from reflectkit.core.prompts import one_line, policy_prompt, reflection_prompt
from reflectkit.core.protocols import Context
from reflectkit.core.seeding import derive, uniform
from reflectkit.core.tools import parse
from reflectkit.core.types import Decision, Observation, ToolUse
from reflectkit.models.chat import Dialogue
from reflectkit.models.decoding import Written, decode
from reflectkit.models.load import Player
from reflectkit.models.scoring import choice_logprobs
from reflectkit.models.tokens import completion_ids, label_ids, prompt_ids

MEMO_LIMIT = 200_000  # entries; a full memo starts again


class Reflector:
    """A frozen model that writes one line about an observation.

    temperature: 0 decodes greedily, and memoises. max_new_tokens: the paper's 100. batch: prompts decoded at once.
    hits, asked: how many comments came from the memo, and how many were asked for. memo: comments by their prompt's
    key.
    """

    def __init__(self, player: Player, *, temperature: float = 0.0, max_new_tokens: int = 100, batch: int = 64) -> None:
        self.player, self.temperature, self.max_new_tokens, self.batch = player, temperature, max_new_tokens, batch
        self.memo: dict[str, str] = {}
        self.hits = self.asked = self.tokens = 0
        player.model.eval()
        if player.adapter is None:  # a shared base has nothing to freeze, and the policy's adapter in it
            player.model.requires_grad_(False)
        newline = completion_ids(player.tokenizer, "\n")
        stops = [player.tokenizer.eos_token_id, newline[0] if len(newline) == 1 else None]
        self.stop_ids = frozenset(stop for stop in stops if stop is not None)
        self._new: dict[str, str] = {}

    def comment(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[str]:
        """One comment for each observation, "" for one that leaves no room to write; `seeds` matter only where comments
        are sampled.
        """
        prompts = [reflection_prompt(observation) for observation in observations]
        self.asked += len(prompts)
        if self.temperature > 0:
            return self._decode(prompts, seeds)
        keys = [
            hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest() for prompt in prompts
        ]
        new = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in self.memo}
        self.hits += len(prompts) - len(new)
        if len(self.memo) + len(new) > MEMO_LIMIT:
            self.memo.clear()
            new = dict(zip(keys, prompts, strict=True))
        made = dict(zip(new, self._decode(list(new.values()), [0] * len(new)), strict=True))
        self.memo.update(made)
        self._new.update(made)
        return [self.memo[key] for key in keys]

    def new_comments(self) -> dict[str, str]:
        """What was added to the memo since this was last asked."""
        new, self._new = self._new, {}
        return new

    def _decode(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        """What is written behind each prompt; nothing where it leaves no room."""
        ids = [prompt_ids(self.player.tokenizer, prompt) for prompt in prompts]
        self.player.activate()
        written = decode(
            self.player.model,
            ids,
            pad_id=self.player.pad_id,
            stop_ids=self.stop_ids,
            max_new_tokens=[min(self.max_new_tokens, self.player.context - len(row)) for row in ids],
            temperature=self.temperature,
            seeds=seeds,
            width=self.batch,
        )
        self.tokens += sum(len(row.text_ids) for row in written)
        texts = [self.player.tokenizer.decode(row.text_ids, skip_special_tokens=True) for row in written]
        return [one_line(text) for text in texts]


class TwoPlayerAgent:
    """Scores the legal labels behind each prompt and picks one; where there are no choices, writes one line, or calls
    of tools.

    reflector: None for the plain arm. temperature: of the sampling; 0 takes the likeliest action. reflect_prob: share
    of decisions that see their comment; the rest act without. critic: from last hidden states (B, D) and their prompts
    to values (B), recorded with each decision; None records none. max_new_tokens: of a line, or of calls. tokens: how
    many the policy has read and written. show: record the probabilities of all choices. scorer, team: of a policy that
    is spread over
    processes: its Scorer, and the `Processes` that see the same observations and score them together.
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
        max_new_tokens: int = 64,
        scorer: Any = None,
        team: Any = None,
        show: bool = False,
    ) -> None:
        self.scorer, self.team = scorer or policy.model, team
        self.policy, self.reflector, self.batch, self.critic = policy, reflector, batch, critic
        self.max_new_tokens = max_new_tokens
        newline = completion_ids(policy.tokenizer, "\n")
        self._stops = frozenset(
            [policy.tokenizer.eos_token_id, *newline] if len(newline) == 1 else [policy.tokenizer.eos_token_id]
        )
        self.temperature, self.reflect_prob, self.show = temperature, reflect_prob, show
        self.tokens = 0
        self._has_read = False
        self._tokenised: dict[str, tuple[int, ...]] = {}
        self._scores: dict[tuple[int, tuple[int, ...]], tuple[tuple[float, ...], float | None]] = {}

    def act(self, observations: Sequence[Observation], contexts: Sequence[Context]) -> list[Decision]:
        """One decision for each observation; the draw depends on the turn's own seed alone.

        An observation that is too long for the policy gets a decision with `overflow`. Raises CheckpointError where all
        are.
        """
        comments = self._comments(observations, contexts)
        seen = list(zip(observations, comments, strict=True))
        keys = [(len(observation.choices), self._prompt(observation, comment)) for observation, comment in seen]
        room = [self.policy.context - len(prompt) - (0 if count else 1) for count, prompt in keys]
        self._has_read = self._has_read or any(left >= 0 for left in room)
        if keys and not self._has_read:
            raise CheckpointError(_too_long(min(len(prompt) for _, prompt in keys), self.policy.context))
        self.policy.model.eval()
        self.policy.activate()
        self._score([key for key, left in zip(keys, room, strict=True) if left >= 0 and key[0]])
        free = [index for index, (count, _) in enumerate(keys) if not count and room[index] >= 0]
        said: dict[int, tuple[Written, float | None]] = {}
        for calling in (False, True):
            part = [index for index in free if bool(observations[index].tools) is calling]
            written = self._write([keys[index][1] for index in part], [contexts[index].seed for index in part], calling)
            said |= zip(part, written, strict=True)
        decisions = []
        for index, (key, comment, context) in enumerate(zip(keys, comments, contexts, strict=True)):
            if room[index] < 0:
                decisions.append(Decision(0, comment, overflow=_too_long(len(key[1]), self.policy.context)))
                continue
            if index in said:
                line, value = said[index]
                said_so = self._read(observations[index], key[1], line)
                decisions.append(
                    Decision(said_so, comment, key[1], tuple(line.token_ids), tuple(line.logprobs), None, value)
                )
                continue
            row, value = self._scores[key]
            probabilities = [math.exp(logprob) for logprob in row]
            greedy = max(range(len(row)), key=row.__getitem__)
            action = greedy if self.temperature == 0 else _draw(probabilities, context.seed)
            entropy = -math.fsum(
                share * logprob for share, logprob in zip(probabilities, row, strict=True) if share > 0
            )
            token = label_ids(self.policy.tokenizer, key[0])[action]
            shown = tuple(probabilities) if self.show else ()
            decisions.append(Decision(action, comment, key[1], (token,), (row[action],), entropy, value, shown))
        return decisions

    def forget_scores(self) -> None:
        """To be called when the policy's weights have changed."""
        self._scores.clear()

    @functools.cached_property
    def dialogue(self) -> Dialogue:
        """How the policy is shown tools."""
        return Dialogue(self.policy.tokenizer, plain=self.policy.role is not None)  # SFT's rows are plain

    def _prompt(self, observation: Observation, comment: str | None) -> tuple[int, ...]:
        """The tokens that the policy reads."""
        return (
            self.dialogue.ids(observation, comment)
            if observation.tools
            else self._ids(policy_prompt(observation, comment))
        )

    def _ids(self, text: str) -> tuple[int, ...]:
        """The prompt's tokens; an episode's prompts come again in others, so they are kept."""
        if text not in self._tokenised:
            if len(self._tokenised) > MEMO_LIMIT // 10:
                self._tokenised.clear()
            self._tokenised[text] = tuple(prompt_ids(self.policy.tokenizer, text))
        return self._tokenised[text]

    def _read(self, observation: Observation, prompt: tuple[int, ...], line: Written) -> str | ToolUse:
        """What was written behind `prompt`, as an action."""
        if not observation.tools:
            return one_line(self.policy.tokenizer.decode(line.text_ids, skip_special_tokens=True))
        self.dialogue.remember(prompt, line.token_ids)
        return parse(self.dialogue.words(line.text_ids), observation.tools, self.dialogue.form)

    def _write(
        self, prompts: Sequence[tuple[int, ...]], seeds: Sequence[int], calling: bool
    ) -> list[tuple[Written, float | None]]:
        """A line behind each prompt, or calls of tools, with the critic's value of the prompt. A full context cuts it
        short.
        """
        if prompts and self.team:
            raise CheckpointError(
                "a policy that is spread over processes chooses among enumerated actions only; use multi_gpu.yaml"
            )
        written = decode(
            self.policy.model,
            prompts,
            pad_id=self.policy.pad_id,
            stop_ids=self.dialogue.stop_ids if calling else self._stops,
            max_new_tokens=[min(self.max_new_tokens, self.policy.context - len(prompt)) for prompt in prompts],
            temperature=self.temperature,
            seeds=[derive(seed, "text") for seed in seeds],
            width=self.batch,
        )
        self.tokens += sum(map(len, prompts)) + sum(len(row.token_ids) for row in written)
        return list(zip(written, self._values(prompts), strict=True))

    @torch.no_grad()
    def _values(self, prompts: Sequence[tuple[int, ...]]) -> list[float | None]:
        """The critic's value of each prompt, where there is a critic."""
        if self.critic is None:
            return [None] * len(prompts)
        values: list[float | None] = []
        for start in range(0, len(prompts), self.batch):
            part = prompts[start : start + self.batch]
            any_label = [(0,)] * len(part)  # the hidden state is wanted, not a choice
            _, hidden_BD = choice_logprobs(self.policy.model, part, any_label, pad_id=self.policy.pad_id)
            values += self.critic(hidden_BD, part).tolist()
        return values

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
        crowd = self.team.count if self.team else 1
        for start in range(0, len(new), self.batch * crowd):
            everyones = new[start : start + self.batch * crowd]
            share = self.team.share(everyones) if self.team else everyones
            part = share or everyones[:1]  # all must make the pass
            labels = [label_ids(self.policy.tokenizer, count) for count, _ in part]
            logprobs_BK, hidden_BD = choice_logprobs(
                self.scorer,
                [prompt for _, prompt in part],
                labels,
                pad_id=self.policy.pad_id,
                temperature=self.temperature or 1.0,
            )
            self.tokens += sum(len(prompt) for _, prompt in part)
            values = (
                [None] * len(part) if self.critic is None else self.critic(hidden_BD, [p for _, p in part]).tolist()
            )
            found = list(zip(logprobs_BK.tolist(), values, strict=True))[: len(share)]
            for key, (row, value) in zip(everyones, self.team.together(found) if self.team else found, strict=True):
                if math.isnan(row[0]):
                    raise CheckpointError(
                        "the policy's scores are not numbers: its weights are spoilt; load an earlier checkpoint"
                    )
                self._scores[key] = tuple(row[: key[0]]), value


def _draw(probabilities: Sequence[float], seed: int) -> int:
    """The action at the seed's own place in the cumulative distribution."""
    cumulative = list(itertools.accumulate(probabilities))
    return min(bisect.bisect_right(cumulative, uniform(seed, "action") * cumulative[-1]), len(probabilities) - 1)


def _too_long(tokens: int, context: int) -> str:
    return (
        f"the policy's prompt is {tokens} tokens, but its model reads {context}; train one with a larger --max-length"
    )
