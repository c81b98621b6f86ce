"""The two players: a reflector comments on what is seen, a policy acts on the comment, by a choice, by calls of
tools, or in its own words.

Each asks a `Sampler`; this file knows prompts, comments and decisions, and no model. Without a reflector the policy
acts on the observation alone (the plain arm).
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

from reflectkit.agents.comments import CommentSource, ShuffledComments
from reflectkit.env import Context
from reflectkit.errors import ConfigError
from reflectkit.models.chat import Dialogue
from reflectkit.models.labels import Path
from reflectkit.models.tokens import choice_ids, completion_ids, length_behind, prompt_ids
from reflectkit.prompts import one_line, policy_prompt, reflection_prompt, with_comments
from reflectkit.sampling.base import EVERYTHING, SampleOutput, Sampler, SampleRequest, Truncation
from reflectkit.seeding import derive, uniform
from reflectkit.tools import parse
from reflectkit.types import ANSWERS, THINKING, Comment, Decision, Observation, ToolUse, Turn

MEMO_LIMIT = 200_000  # comments; a full memo starts again
PROMPTS_KEPT = 20_000


class Reflector:
    """A model that writes one line about an observation.

    Greedy comments depend only on their prompt and are cached; `renew` forgets them when the model was trained.
    """

    def __init__(self, sampler: Sampler, *, temperature: float = 0.0, max_new_tokens: int = 100) -> None:
        self.sampler, self.temperature, self.max_new_tokens = sampler, temperature, max_new_tokens
        self.memo: dict[str, str] = {}
        """Comments by the hash of their prompt; empty if they are sampled."""
        self.requests = self.written = self.tokens = 0
        """Number of comments that were requested, of those that the model wrote, and of the tokens in these."""
        self._stop_ids = _line_ends(sampler)
        self._new: dict[str, str] = {}

    @property
    def hits(self) -> int:
        """Number of comments from the memo."""
        return self.requests - self.written

    async def comment(self, observation: Observation, seed: int) -> str:
        """A comment on `observation`; "" if the prompt leaves no room for it. `seed` matters only if comments are
        sampled.
        """
        prompt = reflection_prompt(observation)
        self.requests += 1
        if self.temperature > 0:
            self.written += 1
            comment, tokens = await self._write(prompt, seed, self.temperature)
            self.tokens += tokens
            return comment.text
        key = hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        if key not in self.memo:
            comment, tokens = await self._write(prompt, 0, 0.0)
            if key not in self.memo:  # no other episode asked for it meanwhile
                self.written += 1
                self.tokens += tokens
                if len(self.memo) >= MEMO_LIMIT:
                    self.memo.clear()
                self.memo[key] = self._new[key] = comment.text
        return self.memo[key]

    async def sampled(self, observation: Observation, temperature: float, seed: int) -> Comment:
        """A comment on `observation` that is sampled at `temperature` > 0 and not kept; without tokens if the prompt
        leaves no room for it.
        """
        comment, tokens = await self._write(reflection_prompt(observation), seed, temperature)
        self.tokens += tokens
        return comment

    async def renew(self, player: object, version: int) -> None:
        """Comment with the weights of `player` (a `models.load.LoadedModel`) from now on; forget earlier comments."""
        self.memo.clear()
        self._new.clear()
        await self.sampler.publish(player, version)

    async def remark(self, observation: Observation, context: Context) -> str:
        """The comment that a policy sees in its turn."""
        return await self.comment(observation, derive(context.seed, "comment"))

    async def comments(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[str]:
        """A comment on each observation, sampled concurrently."""
        return list(await asyncio.gather(*map(self.comment, observations, seeds)))

    def new_comments(self) -> dict[str, str]:
        """What was added to the memo since this was last called."""
        new, self._new = self._new, {}
        return new

    async def _write(self, prompt: str, seed: int, temperature: float) -> tuple[Comment, int]:
        """(the line after `prompt`, number of its tokens)."""
        ids = tuple(prompt_ids(self.sampler.tokenizer, prompt))
        if len(ids) >= self.sampler.context:
            return Comment("", ids, (), ()), 0
        sampled = await self.sampler.sample(
            SampleRequest(ids, (), self.max_new_tokens, temperature, seed, self._stop_ids)
        )
        text_ids = _text_ids(sampled, self._stop_ids)
        text = one_line(self.sampler.tokenizer.decode(text_ids, skip_special_tokens=True))
        return Comment(text, ids, sampled.token_ids, sampled.logprobs), len(text_ids)


class TwoPlayerAgent:
    """Asks the policy to choose among the legal actions, or to write a line or calls of tools where there are none.

    commentator: None for the plain arm. answer: what it chooses with, "label" or "text"; see `prompts.answers`.
    temperature: of the sampling; 0 takes the likeliest action. truncation: what of the policy's distribution may be
    drawn; for evaluation only. reflect_prob: share of decisions that see their comment. max_new_tokens: of a line, or
    of calls. episode_tokens: most tokens in an episode, which is then truncated; 0: no limit. thinking: see
    `models.chat.Dialogue`. show: record the probabilities of all choices.
    """

    def __init__(
        self,
        policy: Sampler,
        commentator: CommentSource | None = None,
        *,
        answer: str = ANSWERS[0],
        temperature: float = 1.0,
        truncation: Truncation = EVERYTHING,
        reflect_prob: float = 1.0,
        max_new_tokens: int = 64,
        episode_tokens: int = 0,
        thinking: str = THINKING[0],
        show: bool = False,
    ) -> None:
        self.policy, self.commentator, self.answer = policy, commentator, answer
        asked = commentator.asked if isinstance(commentator, ShuffledComments) else commentator
        self.reflector = asked if isinstance(asked, Reflector) else None
        """The model that comments, if one does."""
        self.episode_tokens, self.thinking = episode_tokens, thinking
        self.temperature, self.truncation, self.reflect_prob, self.show = temperature, truncation, reflect_prob, show
        self.max_new_tokens = max_new_tokens
        self._stop_ids = _line_ends(policy)
        self._tokenised: dict[str, tuple[int, ...]] = {}

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The policy's decision; what it draws depends on the turn's seed alone.

        If the observation is too long for the policy, the decision has a `truncation_reason`. Raises CheckpointError
        where none ever fits.
        """
        comment = None
        if self.commentator is not None and (
            self.reflect_prob >= 1 or uniform(context.seed, "reflect") < self.reflect_prob
        ):
            comment = await self.commentator.remark(observation, context)
        decision = await self.act_on(observation, comment, context)
        if comment is None:
            return decision
        return replace(decision, comment_tokens=length_behind(self.policy.tokenizer, comment))

    async def act_on(self, observation: Observation, comment: str | None, context: Context) -> Decision:
        """The policy's decision after `comment`; None: without one."""
        if observation.replies:
            observation = with_comments(observation, _comments(observation, context.turns))
        if not observation.choices:
            return await self._write(observation, comment, context)
        prompt = self._ids(policy_prompt(observation, comment, self.answer))
        labels = self.labels(observation.choices)
        ask = SampleRequest(prompt, labels, temperature=self.temperature, seed=context.seed, truncation=self.truncation)
        sampled = await self.policy.sample(ask)
        if sampled.too_long:
            return Decision(0, comment, truncation_reason=sampled.too_long)
        if sampled.token_ids not in labels or len(sampled.label_logprobs) != len(labels):
            raise ConfigError(
                f"the sampler was asked for one of {len(labels)} labels, and answered with tokens {sampled.token_ids}"
                f" and {len(sampled.label_logprobs)} log-probabilities"
            )
        probabilities = tuple(map(math.exp, sampled.label_logprobs))
        terms = zip(probabilities, sampled.label_logprobs, strict=True)
        return Decision(
            labels.index(sampled.token_ids),
            comment,
            prompt,
            sampled.token_ids,
            sampled.logprobs,
            entropy=-math.fsum(share * logprob for share, logprob in terms if share > 0),
            probabilities=probabilities if self.show else (),
            version=sampled.version,
        )

    def labels(self, choices: tuple[str, ...]) -> tuple[Path, ...]:
        """The tokens of the policy's answer for each of `choices`. Raises CheckpointError, ConfigError."""
        return choice_ids(self.policy.tokenizer, choices, self.answer)

    @functools.cached_property
    def dialogue(self) -> Dialogue:
        """How the policy is shown tools."""
        plain = self.policy.role is not None  # SFT's rows are plain
        return Dialogue(self.policy.tokenizer, plain=plain, thinking=self.thinking)

    async def _write(self, observation: Observation, comment: str | None, context: Context) -> Decision:
        """A line, or calls of tools."""
        left = self.max_new_tokens
        if self.episode_tokens:
            left = min(left, self.episode_tokens - sum(len(turn.decision.token_ids) for turn in context.turns))
        if left < 1:
            return Decision(0, comment, truncation_reason=f"it wrote its {self.episode_tokens} tokens")
        if observation.tools or observation.replies:
            prompt, stop_ids = self.dialogue.ids(observation, comment), self.dialogue.stop_ids
        else:
            prompt, stop_ids = self._ids(policy_prompt(observation, comment)), self._stop_ids
        ask = SampleRequest(prompt, (), left, self.temperature, derive(context.seed, "text"), stop_ids, self.truncation)
        sampled = await self.policy.sample(ask)
        if sampled.too_long:
            return Decision(0, comment, truncation_reason=sampled.too_long)
        text_ids = _text_ids(sampled, stop_ids)
        action: str | ToolUse
        if not observation.tools and not observation.replies:
            action = one_line(self.policy.tokenizer.decode(text_ids, skip_special_tokens=True))
        else:
            self.dialogue.remember(prompt, sampled.token_ids)
            action = self.dialogue.words(text_ids)
            if observation.tools:
                action = parse(action, observation.tools, self.dialogue.form, replies=observation.replies)
        return Decision(
            action,
            comment,
            prompt,
            sampled.token_ids,
            sampled.logprobs,
            version=sampled.version,
            thoughts=self.dialogue.thought_tokens(sampled.token_ids) if observation.tools else None,
        )

    def _ids(self, text: str) -> tuple[int, ...]:
        """The prompt's tokens, which are kept, since episodes repeat prompts."""
        if text not in self._tokenised:
            if len(self._tokenised) > PROMPTS_KEPT:
                self._tokenised.clear()
            self._tokenised[text] = tuple(prompt_ids(self.policy.tokenizer, text))
        return self._tokenised[text]


def _comments(observation: Observation, turns: Sequence[Turn]) -> list[str | None]:
    """The comment that was read before each of the agent's messages; None before one that none of the `turns` wrote."""
    messages, comments = observation.messages, list[str | None]()
    for place, message in enumerate(messages):
        if message.role == "assistant":
            written = (turn for turn in turns if len(turn.observation.messages) == place)
            turn = next((turn for turn in written if turn.observation.messages == messages[:place]), None)
            comments.append(turn.decision.reflection if turn else None)
    return comments


def _line_ends(sampler: Sampler) -> frozenset[int]:
    """The tokens that end a line: the tokenizer's end of text, and a newline where that is one token."""
    newline = completion_ids(sampler.tokenizer, "\n")
    ends = [sampler.tokenizer.eos_token_id, newline[0] if len(newline) == 1 else None]
    return frozenset(end for end in ends if end is not None)


def _text_ids(sampled: SampleOutput, stop_ids: frozenset[int]) -> list[int]:
    """The tokens without the stop token."""
    ids = list(sampled.token_ids)
    return ids[:-1] if ids and ids[-1] in stop_ids else ids
