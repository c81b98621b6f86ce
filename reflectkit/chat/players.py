"""Chat models as players: policies, reflectors, teachers, and the published methods of an env
(`Env.methods`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from reflectkit.chat import templates
from reflectkit.chat.client import ASKED_AGAIN, ChatClient, Outcome, Request
from reflectkit.chat.config import HISTORY_TOKENS, RESUMES, ApiError, BudgetSpentError
from reflectkit.chat.templates import Action, UnreadableError, action_words
from reflectkit.env import Agent, Context, teacher_of
from reflectkit.errors import EnvironmentFailure
from reflectkit.tools import PLAIN, parse, reads_as_calls, use_of
from reflectkit.types import Decision, Observation, PaidComment, ToolUse


class ChatPolicy:
    """A chat model that plays without hints, for comparison: one line of analysis and an action in
    one call per step.

    With tools, it writes calls in the plain form. reflector: a chat model that first comments on
    each state in one line (two calls per step), if any. history_tokens: approximate length of the
    earlier turns that both models see.
    """

    def __init__(
        self,
        client: ChatClient,
        reflector: ChatClient | None = None,
        history_tokens: int = HISTORY_TOKENS,
    ) -> None:
        self.client, self.reflector, self.history_tokens = client, reflector, history_tokens

    async def decide(
        self,
        observation: Observation,
        context: Context,
    ) -> Decision:
        """The model's decision; a `failure` if there is no answer whose action can be read, a
        `truncation_reason` if each names an action that was not offered.
        """
        # 1. The reflector's comment
        comment: Outcome[str] = Outcome()
        if self.reflector is not None:
            request = templates.reflecting_request(observation, context, self.history_tokens)
            comment = await self.reflector.ask(request, templates.plain_comment)
            if comment.value is None:
                reason = f"{self.reflector.endpoint}: {comment.reason}"
                return Decision(0, failure=reason, price_usd=self._price(comment))
        unreadable = 0

        def read(text: str) -> tuple[str | None, int | ToolUse]:
            nonlocal unreadable
            try:
                if observation.tools or observation.replies:
                    return None, parse(text, observation.tools, PLAIN, replies=observation.replies)
                return templates.parse_reply(text, observation.choices, analysed=False)
            except UnreadableError:
                unreadable += 1
                raise

        # 2. The answer
        request = templates.playing_request(
            observation,
            context,
            comment.value,
            self.history_tokens,
        )
        outcome = await self.client.ask(request, read)
        # 3. What it stands for
        decision = Decision(0, comment.value, price_usd=self._price(comment, outcome))
        reason = f"{self.client.endpoint}: {outcome.reason}"
        decision = replace(decision, illegal=outcome.unparsed - unreadable, unreadable=unreadable)
        if outcome.value is None and outcome.unparsed and not unreadable:
            return replace(decision, truncation_reason=reason)
        if outcome.value is None:
            return replace(decision, failure=reason)
        thought, action = outcome.value
        # Words where only calls count
        is_reply = isinstance(action, ToolUse) and not reads_as_calls(action.text, PLAIN)
        if is_reply and not observation.replies:
            decision = replace(decision, unreadable=unreadable + 1)
        return replace(
            decision,
            action=action,
            reflection=(thought or None) if comment.value is None else comment.value,
            tokens=outcome.tokens,
            answer=templates.answer_text(thought, action),
        )

    def _price(self, *outcomes: Outcome[Any]) -> float | None:
        """Total cost of the outcomes; None if a model's price is unknown."""
        for client in (self.client, self.reflector):
            if client is not None and not client.prices.known:
                return None
        return sum(outcome.cost_usd for outcome in outcomes)


class ChatReflector:
    """A chat model that comments for a trained policy: one line on what the policy sees, and no
    earlier turns.

    It is told the env's rules. At temperature 0, equal states are asked about once; else each turn
    draws its own.
    """

    def __init__(self, client: ChatClient) -> None:
        self.client = client

    async def remark(self, observation: Observation, context: Context) -> str:
        """The comment that a policy sees in its turn.

        Raises
        ------
        EnvironmentFailure: no answer can be used. ApiError: the server does not
        answer. BudgetSpentError: the budget does not allow the call. The last two end the run,
        after the calls in flight are in the journal.
        """
        # 1. Ask; without a temperature, equal states are one request
        seed = context.seed if self.client.temperature else 0
        request = templates.reflecting_request(observation, Context(seed, context.env))
        outcome = await self.client.ask(request, templates.plain_comment)
        if outcome.value is not None:
            comment = PaidComment(outcome.value)
            comment.price_usd = outcome.cost_usd if self.client.prices.known else None
            return comment
        # 2. No comment: the budget, the server, or the answers
        who, rejected = f"the reflector {self.client.endpoint}", outcome.rejected
        if rejected is None:
            await self.client.finish()
            raise BudgetSpentError(
                f"{who} may cost {self.client.budget.limit:g} US dollars, and the next call could"
                " exceed that; run the same command again with a larger --max-cost-usd to continue"
            )
        if rejected.unanswered:
            await self.client.finish()
            raise ApiError(f"{who} gave {rejected.reason}; {RESUMES}")
        raise EnvironmentFailure(f"{who} gave no usable comment: {rejected.explained}")


def request_of(name: str, context: Context) -> Request:
    """What a chat model is asked in the state of the context's env."""
    env: Any = context.env
    messages = env.method_messages(name)
    subject = f"{name}, step {len(context.turns) + 1}"
    return Request(subject, messages, env.methods[name], context.seed, cuts=True)


class ChatMethod:
    """Method `name` with a chat model, which is asked at most twice more after an answer that names
    no action.
    """

    def __init__(self, name: str, client: ChatClient) -> None:
        self.name, self.client = name, client

    async def decide(
        self,
        observation: Observation,
        context: Context,
    ) -> Decision:
        """The action of the model's answer; a `failure` if the server gave none."""
        env: Any = context.env
        read = partial(env.method_action, self.name)
        outcome = await self.client.ask(request_of(self.name, context), read)
        price = outcome.cost_usd if self.client.prices.known else None
        if outcome.value is None and outcome.answers <= ASKED_AGAIN:
            return Decision(0, failure=f"{self.client.endpoint}: {outcome.reason}", price_usd=price)
        action = use_of(()) if outcome.value is None else outcome.value
        unreadable = outcome.answers - (outcome.value is not None)
        return Decision(action, unreadable=unreadable, price_usd=price, tokens=outcome.tokens)


class ModelMethod:
    """Method `name` with `writer`, an agent that answers in a conversation."""

    def __init__(self, name: str, writer: Agent) -> None:
        self.name, self.writer = name, writer

    async def decide(
        self,
        observation: Observation,
        context: Context,
    ) -> Decision:
        """The action of the writer's answer; its own decision where it could not answer."""
        env: Any = context.env
        observation = Observation(env.method_messages(self.name), replies=True)
        decision = await self.writer.decide(observation, replace(context, turns=()))
        if decision.failure is not None or decision.truncation_reason is not None:
            return decision
        try:
            words = action_words(observation, decision.action)
            return replace(decision, action=env.method_action(self.name, words))
        except ValueError:
            return replace(decision, action=use_of(()), unreadable=1)


Lesson = tuple[str, Action | None]
"""A comment and an action; None if an expert acts."""


def lesson_asked(
    observation: Observation,
    context: Context,
    history_tokens: int,
    *,
    acts: bool,
) -> tuple[Request, Callable[[str], Lesson]]:
    """The request of a teacher about `observation`, and the parser of its answer, which raises
    ValueError with the reason. acts: whether the teacher acts; otherwise it comments on what an
    expert does.
    """
    # 1. A comment that leads to the best action
    if not acts:
        right: Action = teacher_of(context.env).action()
        words = action_words(observation, right)
        request = templates.commenting_request(
            observation,
            context,
            words,
            _mistaken(context),
            history_tokens,
        )
        return request, lambda text: (templates.parse_comment(text, observation, right), None)
    # 2. An analysis and an action
    request = templates.teaching_request(
        observation,
        context,
        _corrects(observation, context),
        history_tokens,
    )
    return request, partial(templates.parse_lesson, observation=observation)


class ChatTeacher:
    """Asks a chat model for an analysis and an action in one call, or only for a comment if an
    `actor` acts.

    actor: an expert, who also marks each action. The model then sees the env's best action, and
    must not name it.
    """

    def __init__(
        self,
        client: ChatClient,
        actor: Agent | None = None,
        history_tokens: int = HISTORY_TOKENS,
    ) -> None:
        self.client, self.actor, self.history_tokens = client, actor, history_tokens

    async def decide(
        self,
        observation: Observation,
        context: Context,
    ) -> Decision:
        """The model's action, or the expert's with the model's comment; a `failure` if there is no
        usable answer.
        """
        request, read = lesson_asked(
            observation,
            context,
            self.history_tokens,
            acts=self.actor is None,
        )
        outcome = await self.client.ask(request, read)
        if outcome.value is None:
            text = f" (the answer was: {outcome.rejected.text!r})" if outcome.rejected else ""
            return Decision(0, failure=outcome.reason + text)
        comment, action = outcome.value
        if self.actor is not None:
            decision = await self.actor.decide(observation, context)
            return replace(decision, reflection=comment, answer=comment)
        assert action is not None
        note = "correction" if _corrects(observation, context) else "positive"
        return Decision(action, comment, note=note, answer=templates.answer_text(comment, action))


def _corrects(observation: Observation, context: Context) -> bool:
    """Whether a teacher that acts corrects the last action here. What calls did wrong is in the
    state.
    """
    return _mistaken(context) and not observation.tools


def _mistaken(context: Context) -> bool:
    """Whether the last action was a mistake."""
    return context.env.teacher().note() == "mistake"
