"""The two players: a reflector comments on what is seen, a policy acts on the comment, by a choice, by calls of
tools, or in its own words.

Each asks a `Sampler`; this file knows prompts, comments and decisions, and no model. Without a reflector the policy
acts on the observation alone (the plain arm).

In prompts and in a `Decision`, a comment is called a reflection. A hint is a comment that the policy did not read, and
a thought one that it wrote itself.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from reflectkit.env import Context, Env, teacher_of
from reflectkit.errors import ConfigError, EnvironmentFailure, refuse
from reflectkit.models.chat import Dialogue
from reflectkit.models.labels import (
    Path,
    choice_ids,
    completion_ids,
    length_behind,
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
        """A comment in one line; a `PaidComment` or a `TypedComment` where more is known of it."""


class TeacherComments:
    """The comments of the env's own teacher, which are always true."""

    async def remark(self, observation: Observation, context: Context) -> str:
        """The teacher's comment on the state of the turn's env. Raises ConfigError if it has no oracle teacher."""
        return teacher_of(context.env, "comment").comment(generator(context.seed, "comment"))


class NoComments:
    """An empty comment in each turn, with the marker around it."""

    async def remark(self, observation: Observation, context: Context) -> str:
        """Nothing."""
        return ""


REFLECTOR_ANSWER = "reflector: "
"""What the names of a reflector's answers begin with in a decision."""
DRAWS = 1000  # at most, until a comment is found that is on another state


class ShuffledComments:
    """Comments of `source`, of which a share is replaced by comments on other states.

    others: what to draw those from, a reflector's prompt on a state and a comment on it, at least one. share: 0 … 1.
    The turn's seed decides which turns.
    """

    def __init__(
        self, source: CommentSource, others: Sequence[tuple[str, str]], share: float
    ) -> None:
        self.source = source
        self.others = tuple(others)
        self.share = share

    async def remark(self, observation: Observation, context: Context) -> str:
        """Another state's comment, or the comment of `source`, which is called only then. Raises ConfigError if there
        seems to be none on another state.
        """
        # 1. Whether this turn gets its own
        chance = generator(context.seed, "swapped comment")
        if chance.random() >= self.share:
            return await self.source.remark(observation, context)

        # 2. One that is not about this state, as far as its prompt and the teacher say
        here = reflection_prompt(observation)
        for _ in range(DRAWS):
            prompt, comment = chance.choice(self.others)
            if prompt != here and not _is_true(context.env, comment):
                return comment
        raise ConfigError(
            f"--swap-comments: the {len(self.others)} comments are on this state; give --swap-from more"
        )


def _is_true(env: Env, comment: str) -> bool:
    """Whether the teacher of an env that is being played confirms `comment` on its state."""
    if getattr(env, "over", True):
        return False  # as in `serve`
    teacher = env.teacher()
    return teacher.has("confirms") and teacher.confirms(comment)


MEMO_LIMIT = 200_000  # comments; a full memo starts again
MEMO_CHARACTERS = 50_000_000  # of prompts whose tokens are remembered
COMMENT_TOKENS = 100  # at most, in a comment
NEVER_END = 0.95
"""Share of answers without an end from which on the end of the model's turns may be unknown."""


class Reflector:
    """A model that writes one line about an observation.

    Greedy comments depend only on their prompt and are cached; `forget` drops them when the model
    was trained.
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
        """Comments by the hash of their prompt; empty if they are sampled."""
        self.requests = self.writes = self.tokens = 0
        """Number of comments that were requested, of those that the model wrote, and of the tokens in these."""
        self._stop_ids = _line_ends(sampler)
        self._new: dict[str, str] = {}

    @property
    def hits(self) -> int:
        """Number of comments from the memo."""
        return self.requests - self.writes

    async def comment(self, observation: Observation, seed: int) -> str:
        """A comment on `observation`; "" if the prompt leaves no room for it. `seed` matters only if comments are
        sampled.
        """
        prompt = reflection_prompt(observation)
        self.requests += 1

        # 1. One that is sampled is new each time
        if self.temperature > 0:
            self.writes += 1
            comment, tokens = await self._write(prompt, seed, self.temperature)
            self.tokens += tokens
            return comment.text

        # 2. A greedy one is the same for the same prompt
        key = hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        if key not in self.memo:
            comment, tokens = await self._write(prompt, 0, 0.0)
            if key not in self.memo:  # no other episode has asked for it since
                self.writes += 1
                self.tokens += tokens
                if len(self.memo) >= MEMO_LIMIT:
                    self.memo.clear()
                    self._new.clear()
                self.memo[key] = self._new[key] = comment.text
        return self.memo[key]

    async def sampled(self, observation: Observation, temperature: float, seed: int) -> Comment:
        """A comment on `observation` that is sampled at `temperature` > 0 and not kept; without tokens if the prompt
        leaves no room for it.
        """
        comment, tokens = await self._write(reflection_prompt(observation), seed, temperature)
        self.tokens += tokens
        return comment

    def forget(self) -> None:
        """Forget all comments, as those of other weights."""
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
        """What was added to the memo since this was last called."""
        new, self._new = self._new, {}
        return new

    async def _write(self, prompt: str, seed: int, temperature: float) -> tuple[Comment, int]:
        """(the line after `prompt`, number of its tokens)."""
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
    """The tokens of prompts, which are kept, since episodes repeat prompts.

    characters: of all prompts together, after which it forgets them.
    """

    def __init__(self, tokenizer: Any, characters: int = MEMO_CHARACTERS) -> None:
        self._tokenizer, self._limit, self._characters = tokenizer, characters, 0
        self._tokens: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def ids(self, text: str) -> tuple[int, ...]:
        """The tokens of `text`."""
        if text not in self._tokens:
            if self._characters > self._limit:
                self._tokens.clear()
                self._characters = 0
            self._tokens[text] = tuple(prompt_ids(self._tokenizer, text))
            self._characters += len(text)
        return self._tokens[text]


class TwoPlayerAgent:
    """Asks the policy to choose among the legal actions, or to write a line or calls of tools where there are none.

    A policy that was trained to think first writes its comment itself, and needs no commentator.

    commentator: None for the plain arm. answer: what it chooses with; see `types.Answer`.
    temperature: of the sampling; 0 takes the likeliest action. truncation: what of the policy's distribution may be
    drawn; for evaluation only. reflect_prob: share of decisions that see their comment. distills: the others get theirs
    too, as a hint that the policy does not read. max_new_tokens: of a line, or
    of calls. episode_tokens: most tokens in an episode, which is then truncated; 0: no limit. thinking: see
    `models.chat.Dialogue`. show: record the probabilities of all choices. calibration: the temperature that makes the
    probabilities of choices fit what is right (`rlft --calibrate`), before that of the sampling; 1 in training.
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
        # 1. The policy and what it answers
        self.policy, self.answer = policy, answer
        self.temperature, self.truncation, self.calibration = temperature, truncation, calibration
        self.max_new_tokens, self.episode_tokens = max_new_tokens, episode_tokens
        self.thinking, self.show = thinking, show

        # 2. Who comments
        self.thinks = policy.role == "think"
        drop = "the policy was trained with --role think and writes its own comments; drop the reflector"
        refuse(self.thinks and commentator is not None, drop)
        self.commentator, self.reflect_prob, self.distills = commentator, reflect_prob, distills
        source = commentator.source if isinstance(commentator, ShuffledComments) else commentator
        self.reflector = source if isinstance(source, Reflector) else None
        """The model that comments, if one does."""

        # 3. What it remembers
        self.shares_prompts = False
        """Whether prompts of the same time begin alike; see `SampleRequest.shared`."""
        self._prompts = PromptMemo(policy.tokenizer)

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The policy's decision; what it draws depends on the turn's seed alone.

        If the observation is too long for the policy, the decision has a `truncation_reason`. Raises CheckpointError
        where none ever fits.
        """
        # 1. Without a comment, which may follow as a hint
        if self.commentator is None:
            return await self.act_on(observation, None, context)
        if self.reflect_prob < 1 and uniform(context.seed, "reflect") >= self.reflect_prob:
            decision = await self.act_on(observation, None, context)
            if not self.distills:
                return decision
            return await self._with_hint(decision, observation, context, self.commentator)

        # 2. With one, and what it took
        comment = await self.commentator.remark(observation, context)
        decision = await self.act_on(observation, comment, context)
        price = comment.price_usd if isinstance(comment, PaidComment) else 0.0
        answers = comment.answers if isinstance(comment, TypedComment) else {}
        return replace(
            decision,
            comment_tokens=length_behind(self.policy.tokenizer, comment),
            price_usd=price,
            answers={f"{REFLECTOR_ANSWER}{name}": shares for name, shares in answers.items()},
        )

    async def _with_hint(
        self,
        decision: Decision,
        observation: Observation,
        context: Context,
        commentator: CommentSource,
    ) -> Decision:
        """`decision` with a comment that it was made without, and the prompt with that, if it fits."""
        if decision.truncation_reason:
            return decision

        # 1. The comment
        try:
            hint = await commentator.remark(observation, context)
        except EnvironmentFailure as error:
            return replace(decision, hint="", hint_failure=str(error))
        if not hint.strip():
            return replace(decision, hint="")

        # 2. Whether the prompt with it fits, with the longest answer that is read after it
        prompt = self.prompt(observation, hint, _comments(observation, context.turns, hinted=True))
        labels = self.labels(observation.choices) if observation.choices else ()
        if labels and self.answer != SCORE:
            answer_length = trie(labels).depth
        else:
            answer_length = max(map(len, labels or (decision.token_ids,)))
        if len(prompt) + answer_length > self.policy.context:
            why = f"a prompt with its comment is {len(prompt)} tokens, but the model reads {self.policy.context}"
            return replace(decision, hint=hint, hint_failure=why)
        if observation.tools or observation.replies:
            self.dialogue.remember(prompt, decision.token_ids)
        return replace(decision, hint=hint, hint_prompt_ids=prompt)

    def prompt(
        self, observation: Observation, comment: str | None, earlier: Sequence[str | None] = ()
    ) -> tuple[int, ...]:
        """The policy's prompt. earlier: the comments on the earlier turns, which a conversation shows."""
        if observation.replies:
            observation = with_comments(observation, earlier)
        if observation.tools or observation.replies:
            return self.dialogue.ids(observation, comment)
        return self._ids(policy_prompt(observation, comment, self.answer))

    async def act_on(
        self, observation: Observation, comment: str | None, context: Context
    ) -> Decision:
        """The policy's decision after `comment`; None: without one."""
        # 1. The prompt, with the comment that a policy that thinks writes itself
        thought: Comment | None = None
        if self.thinks:
            if observation.tools or observation.replies:
                raise ConfigError(
                    "a policy that thinks first chooses among actions or writes a line; in an env with tools or a"
                    " conversation, train --role plain"
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
            comment_tokens=length_behind(self.policy.tokenizer, thought.text),
        )

    async def _think(self, observation: Observation, context: Context) -> tuple[Comment, str]:
        """(the comment that the policy writes before it acts; why its prompt is too long, or "")."""
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
        """What a policy reads between its comment and its action."""
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
        """One of the choices."""
        # 1. The sampler's answer
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
                f"the sampler was asked for one of {len(labels)} labels, and answered with tokens {output.token_ids}"
                f" and {len(output.label_logprobs)} log-probabilities"
            )

        # 2. Drawn again from calibrated probabilities, where the checkpoint has a temperature for that
        if self.calibration != 1.0:
            logprobs = tempered(output.label_logprobs, self.calibration)
            output = draw_label(request, logprobs, output.version)

        # 3. The decision
        probabilities = tuple(map(math.exp, output.label_logprobs))
        terms = zip(probabilities, output.label_logprobs, strict=True)
        return Decision(
            labels.index(output.token_ids),
            comment,
            prompt,
            output.token_ids,
            output.logprobs,
            entropy=-math.fsum(share * logprob for share, logprob in terms if share > 0),
            probabilities=probabilities if self.show else (),
            version=output.version,
        )

    def labels(self, choices: tuple[str, ...]) -> tuple[Path, ...]:
        """The tokens of the policy's answer for each of `choices`. Raises CheckpointError, ConfigError."""
        return choice_ids(self.policy.tokenizer, choices, self.answer)

    @functools.cached_property
    def dialogue(self) -> Dialogue:
        """How the policy is shown tools."""
        plain = self.policy.role is not None  # SFT's rows are plain
        return Dialogue(
            self.policy.tokenizer, plain=plain, thinking=self.thinking, context=self.policy.context
        )

    async def _write(
        self,
        observation: Observation,
        prompt: tuple[int, ...],
        comment: str | None,
        context: Context,
    ) -> Decision:
        """A line, or calls of tools."""
        # 1. How long it may be
        token_limit = self.max_new_tokens
        if self.episode_tokens:
            spent = sum(len(turn.decision.token_ids) for turn in context.turns)
            token_limit = min(token_limit, self.episode_tokens - spent)
        if token_limit < 1:
            why = f"it wrote its {self.episode_tokens} tokens"
            return Decision(0, comment, truncation_reason=why)

        # 2. The sampler's answer
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

        # 3. What it says
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
        """The prompt's tokens."""
        return self._prompts.ids(text)


def _comments(
    observation: Observation,
    turns: Sequence[Turn],
    *,
    hinted: bool = False,
) -> list[str | None]:
    """The comment that was read before each of the agent's messages; None before one that none of the `turns` wrote.

    hinted: the comment without which it was made, where there is one.
    """
    messages = observation.messages
    comments: list[str | None] = []
    for place, message in enumerate(messages):
        if message.role != "assistant":
            continue
        # The turn that wrote it has seen the messages before it
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
    """What to report about `cut` of the `answers`, which reached their `limit` in tokens; "" unless these are most.

    tokenizer: loads the policy's. role: what the policy was fine-tuned for.
    """
    if 2 * cut <= answers:
        return ""
    news = f"{cut} of {answers} answers were cut at --max-new-tokens {limit}"
    if cut < NEVER_END * answers:
        return news
    stop_tokens = Dialogue(tokenizer(), plain=role is not None).stop_tokens
    ends = ", ".join(stop_tokens) or "none is known"
    return (
        f"warning: {news} without an end token ({ends}); raise it, or add the token with which the model ends its turns"
        " to eos_token_id in its generation_config.json"
    )


def _line_ends(sampler: Sampler) -> frozenset[int]:
    """The tokens that end a line: those that end the model's answers, and a newline where that is one token."""
    newline = completion_ids(sampler.tokenizer, "\n")
    ends = Dialogue(sampler.tokenizer, plain=sampler.role is not None).stop_ids
    return ends | set(newline) if len(newline) == 1 else ends


def _text_ids(output: SampleOutput, stop_ids: frozenset[int]) -> list[int]:
    """The tokens without the stop token."""
    ids = list(output.token_ids)
    return ids[:-1] if ids and ids[-1] in stop_ids else ids
