"""The two players: a reflector comments on each observation, and a policy reads the comment and
acts.

The policy acts by a choice, by calls of tools, or by a text. Without a reflector it reads the
observation alone (the plain arm). Both players ask a `Sampler`. This file makes prompts, comments
and decisions, and knows no model.

In prompts and in a `Decision`, a comment is called a reflection. A *hint* is a comment that the
policy did not read, and a *thought* is one that it wrote itself.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from cachetools import LRUCache

from reflectkit.env import Context, Env, teacher_of
from reflectkit.errors import ConfigError, EnvironmentFailure, refuse
from reflectkit.models.chat import Dialogue
from reflectkit.models.labels import (
    LabelPath,
    choice_ids,
    completion_ids,
    completion_length,
    prompt_ids,
    trie,
)
from reflectkit.prompts import (
    THEN_ACT,
    one_line,
    policy_prompt,
    reflection_prompt,
    thinking_prompt,
    with_comments,
)
from reflectkit.sampling.base import (
    EVERYTHING,
    SampleOutput,
    Sampler,
    SampleRequest,
    Truncation,
    draw_label,
    tempered,
)
from reflectkit.seeding import derive, generator, uniform
from reflectkit.tools import parse
from reflectkit.types import (
    ANSWERS,
    SCORE,
    THINKING,
    Comment,
    Decision,
    Observation,
    PaidComment,
    ToolUse,
    Turn,
    TypedComment,
)


class CommentSource(Protocol):
    """Comments on each turn before the policy acts."""

    async def remark(self, observation: Observation, context: Context) -> str:
        """A comment in one line: a text, a `PaidComment` with a price, or a `TypedComment` with
        answers.
        """


class TeacherComments:
    """The comments of the env's own teacher, which are always true."""

    async def remark(self, observation: Observation, context: Context) -> str:
        """The teacher's comment on the env's state. Raises ConfigError if the env has no such
        teacher.
        """
        teacher = teacher_of(context.env, "comment")
        return teacher.comment(generator(context.seed, "comment"))


class NoComments:
    """An empty comment in each turn. The prompt still has the marker of a comment."""

    async def remark(self, observation: Observation, context: Context) -> str:
        """An empty text."""
        return ""


REFLECTOR_ANSWER = "reflector: "
"""The prefix in the names of a reflector's answers in a decision."""
DRAWS = 1000
"""The maximum number of draws until a comment on another state is found."""


class ShuffledComments:
    """The comments of `source`, some of which are replaced by comments on other states.

    others: at least one pair of a reflector's prompt and the comment on that state, to draw from.
    share: the share of turns whose comment is replaced, 0 to 1. The turn's seed decides.
    """

    def __init__(
        self, source: CommentSource, others: Sequence[tuple[str, str]], share: float
    ) -> None:
        self.source = source
        self.others = tuple(others)
        self.share = share
        self.reads_choices = getattr(source, "reads_choices", False)
        """Whether a comment of `source` depends on the legal actions."""

    async def remark(self, observation: Observation, context: Context) -> str:
        """The comment of `source`, or a comment on another state; `source` is not asked for both.

        Raises ConfigError if no draw gives a comment on another state.
        """
        # 1. The comment on this state
        chance = generator(context.seed, "swapped comment")
        if chance.random() >= self.share:
            return await self.source.remark(observation, context)

        # 2. Or one with another prompt, which the teacher does not confirm on this state
        prompt_here = reflection_prompt(observation)
        for _ in range(DRAWS):
            prompt, comment = chance.choice(self.others)
            if prompt != prompt_here and not _is_true(context.env, comment):
                return comment
        raise ConfigError(
            f"--swap-comments: the {len(self.others)} comments are on this state; give --swap-from"
            " more"
        )


def _is_true(env: Env, comment: str) -> bool:
    """Whether the env's teacher confirms `comment` on its state; False if it cannot say."""
    if getattr(env, "over", True):  # no episode is being played, as in `serve`
        return False
    teacher = env.teacher()
    return teacher.has("confirms") and teacher.confirms(comment)


MEMO_LIMIT = 200_000
"""The maximum number of comments in a memo. A full memo is cleared."""
MEMO_TOKENS = 2**24
"""How many tokens a memo of prompts holds."""
COMMENT_TOKENS = 100
"""The maximum length of a comment, in tokens."""
NEVER_END = 0.95
"""If at least this share of answers has no end, the token that ends the model's turns may be
unknown.
"""


class Reflector:
    """A model that writes a comment of one line on an observation.

    Greedy comments depend only on their prompt, and are cached. After the model was trained,
    `forget` clears the cache.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        temperature: float = 0.0,
        max_new_tokens: int = COMMENT_TOKENS,
    ) -> None:
        self.sampler, self.temperature, self.max_new_tokens = sampler, temperature, max_new_tokens
        self.memo: dict[str, str] = {}
        """Greedy comments, by the hash of their prompt."""
        self.requests = 0
        """The number of comments that were requested."""
        self.writes = 0
        """The number of comments that the model wrote."""
        self.tokens = 0
        """The number of tokens in the comments that the model wrote."""
        self._stop_ids = _line_ends(sampler)
        self._new: dict[str, str] = {}

    @property
    def hits(self) -> int:
        """The number of comments that came from the memo."""
        return self.requests - self.writes

    async def comment(self, observation: Observation, seed: int) -> str:
        """A comment on `observation`; "" if the prompt leaves no room for one.

        seed: of the sampling; greedy comments do not depend on it.
        """
        prompt = reflection_prompt(observation)
        self.requests += 1

        # 1. A sampled comment is a new one each time
        if self.temperature > 0:
            self.writes += 1
            comment, tokens = await self._write(prompt, seed, self.temperature)
            self.tokens += tokens
            return comment.text

        # 2. A greedy comment is the same for the same prompt
        key = hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        if key not in self.memo:
            comment, tokens = await self._write(prompt, 0, 0.0)
            # Another episode may have asked for it in the meantime
            if key not in self.memo:
                self.writes += 1
                self.tokens += tokens
                if len(self.memo) >= MEMO_LIMIT:
                    self.memo.clear()
                    self._new.clear()
                self.memo[key] = self._new[key] = comment.text
        return self.memo[key]

    async def sampled(self, observation: Observation, temperature: float, seed: int) -> Comment:
        """A comment on `observation`, sampled at `temperature` > 0. It is not cached.

        It has no tokens if the prompt leaves no room for one.
        """
        comment, tokens = await self._write(reflection_prompt(observation), seed, temperature)
        self.tokens += tokens
        return comment

    def forget(self) -> None:
        """Clear the cache, since the comments are those of other weights."""
        self.memo.clear()
        self._new.clear()

    async def remark(self, observation: Observation, context: Context) -> str:
        """The comment that a policy sees in its turn."""
        return await self.comment(observation, derive(context.seed, "comment"))

    async def comments(
        self, observations: Sequence[Observation], seeds: Sequence[int]
    ) -> list[str]:
        """A comment on each observation, sampled concurrently."""
        return list(await asyncio.gather(*map(self.comment, observations, seeds)))

    def new_comments(self) -> dict[str, str]:
        """The comments that were added to the memo since the last call of this method."""
        new, self._new = self._new, {}
        return new

    async def _write(self, prompt: str, seed: int, temperature: float) -> tuple[Comment, int]:
        """(the comment that the model writes after `prompt`, the number of tokens of its text)."""
        ids = tuple(prompt_ids(self.sampler.tokenizer, prompt))
        if len(ids) >= self.sampler.context:
            return Comment("", ids, (), ()), 0
        request = SampleRequest(
            ids,
            (),
            self.max_new_tokens,
            temperature,
            seed,
            self._stop_ids,
        )
        output = await self.sampler.sample(request)
        text_ids = _text_ids(output, self._stop_ids)
        text = one_line(self.sampler.tokenizer.decode(text_ids, skip_special_tokens=True))
        return Comment(text, ids, output.token_ids, output.logprobs), len(text_ids)


class PromptMemo:
    """A cache of the tokens of prompts, which recur in episodes.

    tokens: how many it holds; the prompts that were used least recently go first.
    """

    def __init__(self, tokenizer: Any, tokens: int = MEMO_TOKENS) -> None:
        self._tokenizer = tokenizer
        self._ids: LRUCache[str, tuple[int, ...]] = LRUCache(tokens, getsizeof=len)

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self, text: str) -> tuple[int, ...]:
        """The token ids of the prompt `text`."""
        ids = self._ids.get(text)
        if ids is None:
            ids = tuple(prompt_ids(self._tokenizer, text))
            if len(ids) <= self._ids.maxsize:
                self._ids[text] = ids
        return ids


class TwoPlayerAgent:
    """The agent whose policy chooses among the legal actions, or writes a line or calls of tools.

    A policy that was trained to think first writes its comment itself, and has no commentator.

    Parameters
    ----------
    policy: the sampler of the policy.
    commentator: the source of comments; None for the plain arm.
    answer: the form of a choice, see `types.Answer`.
    temperature: of the sampling; 0 takes the likeliest action.
    truncation: the part of the policy's distribution that may be drawn; for evaluation only.
    reflect_prob: the share of decisions whose comment the policy reads.
    distills: whether the other decisions get a comment too, as a hint that the policy does not
    read.
    max_new_tokens: the maximum length of a line, or of calls.
    episode_tokens: the maximum number of tokens in an episode, which is then truncated; 0 for no
    limit.
    thinking: see `models.chat.Dialogue`.
    show: whether decisions record the probabilities of all choices.
    calibration: the temperature at which the probabilities of choices fit the right answers
    (`rlft --calibrate`). It is applied before that of the sampling; 1 in training.
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
        distills: bool = False,
        max_new_tokens: int = 64,
        episode_tokens: int = 0,
        thinking: str = THINKING[0],
        show: bool = False,
        calibration: float = 1.0,
    ) -> None:
        # 1. The policy, and how it answers
        if answer not in ANSWERS:
            raise ValueError(f"answer is {answer!r}, and not one of {', '.join(ANSWERS)}")
        self.policy = policy
        self.answer = answer
        self.temperature = temperature
        self.truncation = truncation
        self.calibration = calibration
        self.max_new_tokens = max_new_tokens
        self.episode_tokens = episode_tokens
        self.thinking = thinking
        self.show = show

        # 2. The comments
        self.thinks = policy.role == "think"
        refuse(
            self.thinks and commentator is not None,
            "the policy was trained with --role think and writes its own comments; drop the"
            " reflector",
        )
        self.commentator = commentator
        self.reflect_prob = reflect_prob
        self.distills = distills
        source = commentator.source if isinstance(commentator, ShuffledComments) else commentator
        self.reflector = source if isinstance(source, Reflector) else None
        """The model that writes the comments; None if they have another source."""

        # 3. The cache of prompts
        self.shares_prompts = False
        """Whether prompts that are asked at the same time begin alike; see `SampleRequest.shared`.
        """
        self._prompts = PromptMemo(policy.tokenizer)

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The policy's decision. Its draws depend on the turn's seed alone.

        If the observation is too long for the policy, the decision has a `truncation_reason`.
        Raises CheckpointError if no observation can fit.
        """
        # 1. Without a comment, which may be added as a hint
        if self.commentator is None:
            return await self.act_on(observation, None, context)
        if self.reflect_prob < 1 and uniform(context.seed, "reflect") >= self.reflect_prob:
            decision = await self.act_on(observation, None, context)
            if not self.distills:
                return decision
            return await self._with_hint(decision, observation, context, self.commentator)

        # 2. Or with a comment
        comment = await self.commentator.remark(observation, context)
        decision = await self.act_on(observation, comment, context)

        # 3. The decision with the cost and the answers of the comment
        price = comment.price_usd if isinstance(comment, PaidComment) else 0.0
        answers = {}
        if isinstance(comment, TypedComment):
            for name, probabilities in comment.answers.items():
                answers[f"{REFLECTOR_ANSWER}{name}"] = probabilities
        return replace(
            decision,
            comment_tokens=completion_length(self.policy.tokenizer, comment),
            price_usd=price,
            answers=answers,
        )

    async def _with_hint(
        self,
        decision: Decision,
        observation: Observation,
        context: Context,
        commentator: CommentSource,
    ) -> Decision:
        """`decision` with a hint, and with the prompt that has it, if that fits the context."""
        if decision.truncation_reason:
            return decision

        # 1. Ask for the comment
        try:
            hint = await commentator.remark(observation, context)
        except EnvironmentFailure as error:
            return replace(decision, hint="", hint_failure=str(error))
        if not hint.strip():
            return replace(decision, hint="")

        # 2. Check that the prompt with it and the longest answer fit
        earlier = _comments(observation, context.turns, hinted=True)
        prompt = self.prompt(observation, hint, earlier)
        labels = self.labels(observation.choices) if observation.choices else ()
        if labels and self.answer != SCORE:
            answer_length = trie(labels).depth
        else:
            answer_length = max(map(len, labels or (decision.token_ids,)))
        if len(prompt) + answer_length > self.policy.context:
            reason = (
                f"a prompt with its comment is {len(prompt)} tokens, but the model reads"
                f" {self.policy.context}"
            )
            return replace(decision, hint=hint, hint_failure=reason)
        if observation.tools or observation.replies:
            self.dialogue.remember(prompt, decision.token_ids)
        return replace(decision, hint=hint, hint_prompt_ids=prompt)

    def prompt(
        self, observation: Observation, comment: str | None, earlier: Sequence[str | None] = ()
    ) -> tuple[int, ...]:
        """The token ids of the policy's prompt.

        comment: on this observation; None without one. earlier: the comments on earlier turns,
        which a conversation shows.
        """
        if observation.replies:
            observation = with_comments(observation, earlier)
        if observation.tools or observation.replies:
            return self.dialogue.ids(observation, comment)
        return self._ids(policy_prompt(observation, comment, self.answer))

    async def act_on(
        self, observation: Observation, comment: str | None, context: Context
    ) -> Decision:
        """The policy's decision after `comment`, or without a comment if that is None."""
        # 1. The prompt; a policy that thinks first writes the comment in it
        thought: Comment | None = None
        if self.thinks:
            if observation.tools or observation.replies:
                raise ConfigError(
                    "a policy that thinks first chooses among actions or writes a line; in an env"
                    " with tools or a conversation, train --role plain"
                )
            thought, too_long = await self._think(observation, context)
            if too_long:
                return Decision(0, truncation_reason=too_long)
            prompt = (*thought.prompt_ids, *thought.token_ids, *self._acting_ids)
            comment = thought.text
        else:
            prompt = self.prompt(observation, comment, _comments(observation, context.turns))

        # 2. The action
        act = self._choose if observation.choices else self._write
        decision = await act(observation, prompt, comment, context)
        if thought is None:
            return decision
        return replace(
            decision,
            thought=thought,
            comment_tokens=completion_length(self.policy.tokenizer, thought.text),
        )

    async def _think(self, observation: Observation, context: Context) -> tuple[Comment, str]:
        """(the comment that the policy writes before it acts, why its prompt is too long or "")."""
        prompt = self._ids(thinking_prompt(observation, self.answer))
        request = SampleRequest(
            prompt,
            (),
            COMMENT_TOKENS,
            self.temperature,
            derive(context.seed, "thought"),
            self._stop_ids,
            self.truncation,
        )
        output = await self.policy.sample(request)
        text_ids = _text_ids(output, self._stop_ids)
        text = one_line(self.policy.tokenizer.decode(text_ids, skip_special_tokens=True))
        return Comment(text, prompt, output.token_ids, output.logprobs), output.too_long

    @functools.cached_property
    def _acting_ids(self) -> tuple[int, ...]:
        """The token ids between a thought and the action after it."""
        return tuple(completion_ids(self.policy.tokenizer, THEN_ACT))

    @functools.cached_property
    def _stop_ids(self) -> frozenset[int]:
        """The tokens that end a line."""
        return _line_ends(self.policy)

    async def _choose(
        self,
        observation: Observation,
        prompt: tuple[int, ...],
        comment: str | None,
        context: Context,
    ) -> Decision:
        """The decision for one of the choices, after `prompt` (token ids) with `comment`."""
        # 1. Sample one of the labels
        labels = self.labels(observation.choices)
        request = SampleRequest(
            prompt,
            labels,
            temperature=self.temperature,
            seed=context.seed,
            truncation=self.truncation,
            shared=self.shares_prompts,
            separately=self.answer == SCORE,
        )
        output = await self.policy.sample(request)
        if output.too_long:
            return Decision(0, comment, truncation_reason=output.too_long)
        if output.token_ids not in labels or len(output.label_logprobs) != len(labels):
            raise ConfigError(
                f"the sampler was asked for one of {len(labels)} labels, and answered with tokens"
                f" {output.token_ids} and {len(output.label_logprobs)} log-probabilities"
            )

        # 2. Draw again from calibrated probabilities, if the checkpoint has a temperature for them
        if self.calibration != 1.0:
            logprobs = tempered(output.label_logprobs, self.calibration)
            output = draw_label(request, logprobs, output.version)

        # 3. The decision, with the entropy of the choice in nats
        probabilities = tuple(map(math.exp, output.label_logprobs))
        pairs = zip(probabilities, output.label_logprobs, strict=True)
        entropy = -math.fsum(share * logprob for share, logprob in pairs if share > 0)
        return Decision(
            labels.index(output.token_ids),
            comment,
            prompt,
            output.token_ids,
            output.logprobs,
            entropy=entropy,
            probabilities=probabilities if self.show else (),
            version=output.version,
        )

    def labels(self, choices: tuple[str, ...]) -> tuple[LabelPath, ...]:
        """The token ids of the answer for each choice. Raises CheckpointError, ConfigError."""
        return choice_ids(self.policy.tokenizer, choices, self.answer)

    @functools.cached_property
    def dialogue(self) -> Dialogue:
        """The form in which the policy reads tools and conversations."""
        # The rows of SFT have the plain form, which a policy with a role has learned
        is_plain = self.policy.role is not None
        return Dialogue(
            self.policy.tokenizer,
            plain=is_plain,
            thinking=self.thinking,
            context=self.policy.context,
        )

    async def _write(
        self,
        observation: Observation,
        prompt: tuple[int, ...],
        comment: str | None,
        context: Context,
    ) -> Decision:
        """The decision to write a line or calls, after `prompt` (token ids) with `comment`."""
        # 1. Limit its length
        token_limit = self.max_new_tokens
        if self.episode_tokens:
            token_count = sum(len(turn.decision.token_ids) for turn in context.turns)
            token_limit = min(token_limit, self.episode_tokens - token_count)
        if token_limit < 1:
            reason = f"it wrote its {self.episode_tokens} tokens"
            return Decision(0, comment, truncation_reason=reason)

        # 2. Sample its tokens
        is_dialogue = bool(observation.tools or observation.replies)
        stop_ids = self.dialogue.stop_ids if is_dialogue else self._stop_ids
        request = SampleRequest(
            prompt,
            (),
            token_limit,
            self.temperature,
            derive(context.seed, "text"),
            stop_ids,
            self.truncation,
        )
        output = await self.policy.sample(request)
        if output.too_long:
            return Decision(0, comment, truncation_reason=output.too_long)

        # 3. Read the line, the reply or the calls
        text_ids = _text_ids(output, stop_ids)
        action: str | ToolUse
        if not is_dialogue:
            action = one_line(self.policy.tokenizer.decode(text_ids, skip_special_tokens=True))
        else:
            self.dialogue.remember(prompt, output.token_ids)
            action = self.dialogue.words(text_ids)
            if observation.tools:
                form = self.dialogue.form
                action = parse(action, observation.tools, form, replies=observation.replies)
        thoughts = None
        if observation.tools:
            thoughts = self.dialogue.thought_tokens(output.token_ids)

        # 4. The decision; without a stop token the text was cut off
        return Decision(
            action,
            comment,
            prompt,
            output.token_ids,
            output.logprobs,
            version=output.version,
            thoughts=thoughts,
            cut=len(text_ids) == len(output.token_ids),
        )

    def _ids(self, text: str) -> tuple[int, ...]:
        """The token ids of the prompt `text`."""
        return self._prompts.ids(text)


def _comments(
    observation: Observation,
    turns: Sequence[Turn],
    *,
    hinted: bool = False,
) -> list[str | None]:
    """For each of the agent's messages, the comment that it read before; None without one.

    It is also None for a message that none of the `turns` wrote. hinted: whether the comment is
    instead the hint, if there is one.
    """
    messages = observation.messages
    comments: list[str | None] = []
    for place, message in enumerate(messages):
        if message.role != "assistant":
            continue
        # The turn that wrote the message has seen exactly the messages before it
        decision = Decision(0)
        for turn in turns:
            earlier = turn.observation.messages
            if len(earlier) == place and earlier == messages[:place]:
                decision = turn.decision
                break
        is_hint = hinted and decision.hint_prompt_ids
        comments.append(decision.hint if is_hint else decision.reflection)
    return comments


def cut_report(
    cut: int,
    answers: int,
    limit: int,
    tokenizer: Callable[[], Any],
    role: str | None,
) -> str:
    """A note about answers that were cut off at the maximum length; "" unless most of them were.

    cut: the number of answers that were cut off, of `answers`. limit: the maximum length in tokens.
    tokenizer: loads the policy's tokenizer. role: the role that the policy was fine-tuned for.
    """
    if 2 * cut <= answers:
        return ""
    note = f"{cut} of {answers} answers were cut at --max-new-tokens {limit}"
    if cut < NEVER_END * answers:
        return note
    stop_tokens = Dialogue(tokenizer(), plain=role is not None).stop_tokens
    end_tokens = ", ".join(stop_tokens) or "none is known"
    return (
        f"warning: {note} without an end token ({end_tokens}); raise it, or add the token with"
        " which the model ends its turns to eos_token_id in its generation_config.json"
    )


def _line_ends(sampler: Sampler) -> frozenset[int]:
    """The tokens that end a line: those that end the model's answers, and a newline if it is one
    token.
    """
    newline = completion_ids(sampler.tokenizer, "\n")
    end_ids = Dialogue(sampler.tokenizer, plain=sampler.role is not None).stop_ids
    if len(newline) == 1:
        return end_ids | set(newline)
    return end_ids


def _text_ids(output: SampleOutput, stop_ids: frozenset[int]) -> list[int]:
    """The token ids of the text, without a stop token at its end."""
    ids = list(output.token_ids)
    if ids and ids[-1] in stop_ids:
        return ids[:-1]
    return ids
