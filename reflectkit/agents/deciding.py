"""Agents as decision models: an agent's probabilities for the options of questions about a state.

Each question is a prompt of its own, as `decisions.questions` renders it. The prompts begin with
the same state, which is read once. A reflector comments on the state, and each question has that
comment.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from typing import Any

from reflectkit.decisions.questions import NO, YES, Answer, Question, Usage, mean_over_orders
from reflectkit.env import SUCCEEDS, Agent, Context
from reflectkit.errors import EnvironmentFailure, ReflectkitError
from reflectkit.models.labels import prompt_ids
from reflectkit.types import Decision, Message, Observation


class TooLongError(ReflectkitError):
    """The state, or a question about it, is longer than the model's context."""


class QuestionTooLongError(TooLongError):
    """The state fits into the context, but not with a question about it."""


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """The answer to a question, and the decision that it was made from."""

    answer: Answer
    observation: Observation
    """The question, with its options in their own order."""
    decision: Decision
    """The agent's decision on `observation`, with the action and the probabilities of the answer.
    """


class Decider:
    """Answers questions with the probabilities of `agent` at temperature 1.

    orders: the number of orders in which the options of a question are read. Its probabilities are
    means over the orders.
    """

    def __init__(self, agent: Agent, orders: int = 1) -> None:
        self.orders = orders
        decider: Any = copy.copy(agent)
        # Temperature 0 takes the likeliest option; the probabilities that `show` records are of 1
        decider.temperature = 0.0
        decider.show = True
        self._agent = decider

    async def answer(
        self, state: str, questions: Sequence[Question], context: Context
    ) -> tuple[list[AnsweredQuestion], Usage]:
        """(the answers, in the order of the questions; the tokens that they took).

        context: its seed draws the agent's thoughts, if it thinks before it answers.

        Raises TooLongError. Raises EnvironmentFailure if a server that decides gave no usable
        answer. Raises other ReflectkitErrors if a question cannot be asked, for example because two
        of its options are the same tokens.
        """
        self._check_state(state)
        comments = await self._comments(state, questions, context)

        # 1. Each question in each order of its options
        observations: list[Observation] = []
        orders_of: list[list[tuple[int, ...]]] = []
        for question, comment in zip(questions, comments, strict=True):
            orders = question.orders(self.orders)
            orders_of.append(orders)
            for order in orders:
                observation = question.observation(state, comment, order)
                self._check_length(observation)
                observations.append(observation)

        # 2. The decisions on all of them, at once
        agent = copy.copy(self._agent)
        agent.shares_prompts = len(observations) > 1
        work = [_decision(agent, observation, context) for observation in observations]
        decisions = await asyncio.gather(*work)

        # 3. The answer to each question: the mean over its orders
        answers: list[AnsweredQuestion] = []
        first = 0
        for orders, comment in zip(orders_of, comments, strict=True):
            question_decisions = decisions[first : first + len(orders)]
            rows = [decision.probabilities for decision in question_decisions]
            answer = Answer(mean_over_orders(rows, orders))
            decision = replace(
                question_decisions[0],
                action=answer.likeliest,
                reflection=comment,
                probabilities=answer.probabilities,
            )
            answers.append(AnsweredQuestion(answer, observations[first], decision))
            first += len(orders)
        return answers, _usage(decisions)

    async def _comments(
        self, state: str, questions: Sequence[Question], context: Context
    ) -> list[str | None]:
        """The comment for each question; None for an agent without a reflector.

        There is one comment on the state for all questions, unless the reflector also reads the
        options.
        """
        commentator: Any = getattr(self._agent, "commentator", None)
        if commentator is None:
            return [None] * len(questions)

        # 1. One comment for all
        messages = (Message("user", state),)
        if not getattr(commentator, "reads_choices", False):
            comment = await commentator.remark(Observation(messages), context)
            return [comment] * len(questions)

        # 2. Or a comment for each
        observations = [Observation(messages, question.options) for question in questions]
        work = [commentator.remark(observation, context) for observation in observations]
        return list(await asyncio.gather(*work))

    def _check_state(self, state: str) -> None:
        """Raises TooLongError if the state alone is longer than the model's context."""
        check_characters(self._agent, len(state))
        policy = getattr(self._agent, "policy", None)
        if policy is None:  # a server checks its own limit
            return
        limit = policy.context
        length = len(prompt_ids(policy.tokenizer, state))
        if length > limit:
            raise TooLongError(f"the state has {length:,} tokens, but the model reads {limit:,}")

    def _check_length(self, observation: Observation) -> None:
        """Raises QuestionTooLongError if the prompt of a question is longer than the context."""
        policy = getattr(self._agent, "policy", None)
        if policy is None:
            return
        options_size = sum(map(len, observation.choices))
        try:
            check_characters(self._agent, len(observation.text) + options_size)
        except TooLongError as error:
            raise QuestionTooLongError(str(error)) from None
        length = len(self._agent.prompt(observation, None))
        if length > policy.context:
            raise QuestionTooLongError(
                f"the state, a question and its options have {length:,} tokens, but the model reads"
                f" {policy.context:,}"
            )


WILL_IT_SUCCEED = Question("predicate", SUCCEEDS.text, (YES, NO))


class SuccessForecaster:
    """`agent`, which also says at the start of each episode how likely success is."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._decider = Decider(agent)

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The agent's decision. The first one of an episode has the forecast among its answers.

        There is none if the question does not fit into the model's context.
        """
        # 1. The decision itself
        decision = await self._agent.decide(observation, context)
        if context.turns or decision.failure or decision.truncation_reason:
            return decision

        # 2. The forecast
        try:
            answers, _ = await self._decider.answer(observation.text, [WILL_IT_SUCCEED], context)
        except (EnvironmentFailure, TooLongError):
            return decision
        (forecast,) = answers

        # 3. The decision with both
        prices = (decision.price_usd, forecast.decision.price_usd)
        price = None if None in prices else sum(value or 0.0 for value in prices)
        all_answers = {**decision.answers, SUCCEEDS.name: forecast.answer.probabilities}
        return replace(decision, answers=all_answers, price_usd=price)


async def _decision(agent: Any, observation: Observation, context: Context) -> Decision:
    """The decision of `agent` on a question whose prompt already has the comment.

    Raises TooLongError and EnvironmentFailure.
    """
    if getattr(agent, "commentator", None) is None:
        decision = await agent.decide(observation, context)
    else:
        decision = await agent.act_on(observation, None, context)
    if decision.truncation_reason is not None:
        raise TooLongError(decision.truncation_reason)
    if decision.failure is not None:
        raise EnvironmentFailure(decision.failure)
    return decision  # type: ignore[no-any-return]


def check_characters(agent: Any, count: int) -> None:
    """Raises TooLongError if a text of `count` characters is longer than the model's context,
    however it is encoded, since encoding a very long text takes long.
    """
    policy = getattr(agent, "policy", None)
    if policy is not None and count > policy.context * _longest_token(policy.tokenizer):
        raise TooLongError(
            f"the text has {count:,} characters, but the model reads {policy.context:,} tokens"
        )


@lru_cache(maxsize=8)
def _longest_token(tokenizer: Any) -> int:
    """The number of characters in the longest token."""
    return max(map(len, tokenizer.get_vocab()))


def _usage(decisions: Sequence[Decision]) -> Usage:
    """The tokens that these decisions took."""
    # 1. Prompts, whose common beginning counts once. It is what the first and the last in sorted
    # order have in common
    prompts = [decision.prompt_ids for decision in decisions]
    columns = zip(min(prompts), max(prompts), strict=False)
    prefix = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], columns))
    prompt_tokens = prefix + sum(len(prompt) - prefix for prompt in prompts)

    # 2. Thoughts that the agent wrote before it answered
    thoughts = [decision.thought for decision in decisions if decision.thought]
    thought_tokens = sum(len(thought.token_ids) for thought in thoughts)
    return Usage(prompt_tokens, thought_tokens)
