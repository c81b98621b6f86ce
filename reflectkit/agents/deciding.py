"""An agent that chooses among actions as a decision model: probabilities of the options of questions about a state.

Each question is a prompt of its own, as `decisions.questions` renders it. The state, which they share, is read once. A
reflector comments on the state alone, and all questions read that comment.
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


@dataclass(frozen=True, slots=True)
class Decided:
    """The answer to a question."""

    answer: Answer
    observation: Observation
    """The question with its options in the order in which they were given."""
    decision: Decision
    """The agent's on that, with the probabilities of the answer."""


class Decider:
    """Answers questions with the probabilities of `agent` at temperature 1.

    orders: in how many orders each question's options are read; the probabilities are the means over them.
    """

    def __init__(self, agent: Agent, orders: int = 1) -> None:
        self.orders = orders
        decider: Any = copy.copy(agent)
        decider.temperature = 0.0  # the likeliest option; the probabilities are those of 1
        decider.show = True
        self._agent = decider

    async def answer(
        self, state: str, questions: Sequence[Question], context: Context
    ) -> tuple[list[Decided], Usage]:
        """The answers, in the order of the questions. context: its seed draws what the agent writes first.

        Raises TooLongError. EnvironmentFailure: a server that decides gave no usable answer. Other ReflectkitErrors: a
        question cannot be asked, for example because two of its options are the same tokens.
        """
        self._check_state(state)
        comments = await self._comments(state, questions, context)

        # 1. Every question in each of its orders
        variants: list[tuple[int, tuple[int, ...], Observation]] = []
        for number, question in enumerate(questions):
            for order in question.orders(self.orders):
                observation = question.observation(state, comments[number], order)
                self._check_length(observation)
                variants.append((number, order, observation))

        # 2. Their answers, at once
        agent = copy.copy(self._agent)
        agent.shares_prompts = len(variants) > 1
        work = [_decision(agent, observation, context) for _, _, observation in variants]
        decisions = await asyncio.gather(*work)

        # 3. The mean over the orders of each question
        answers: list[Decided] = []
        for number in range(len(questions)):
            places = [place for place, variant in enumerate(variants) if variant[0] == number]
            orders = [variants[place][1] for place in places]
            shares = mean_over_orders([decisions[place].probabilities for place in places], orders)
            answer = Answer(shares)
            first = places[0]
            decision = replace(
                decisions[first],
                action=answer.likeliest,
                reflection=comments[number],
                probabilities=shares,
            )
            answers.append(Decided(answer, variants[first][2], decision))
        return answers, _usage(decisions)

    async def _comments(
        self, state: str, questions: Sequence[Question], context: Context
    ) -> list[str | None]:
        """The comment for each question, which only a policy with a reflector reads: on the state alone, or also on the
        options.
        """
        commentator: Any = getattr(self._agent, "commentator", None)
        if commentator is None:
            return [None] * len(questions)
        messages = (Message("user", state),)
        if not getattr(commentator, "reads_choices", False):
            return [await commentator.remark(Observation(messages), context)] * len(questions)
        observations = [Observation(messages, question.options) for question in questions]
        work = [commentator.remark(observation, context) for observation in observations]
        return list(await asyncio.gather(*work))

    def _check_state(self, state: str) -> None:
        """Raises TooLongError if the state alone is longer than the context. One that no tokens could hold is not
        encoded.
        """
        policy = getattr(self._agent, "policy", None)
        if policy is None:  # a server knows its own limit
            return
        limit = policy.context
        if len(state) > limit * _longest_token(policy.tokenizer):
            raise TooLongError(
                f"the state has {len(state):,} characters, but the model reads {limit:,} tokens"
            )
        length = len(prompt_ids(policy.tokenizer, state))
        if length > limit:
            raise TooLongError(f"the state has {length:,} tokens, but the model reads {limit:,}")

    def _check_length(self, observation: Observation) -> None:
        """Raises TooLongError if the prompt of a question is longer than the context."""
        policy = getattr(self._agent, "policy", None)
        if policy is None:
            return
        length = len(self._agent.prompt(observation, None))
        if length > policy.context:
            reason = f"with a question, the state has {length:,} tokens, but the model reads {policy.context:,}"
            raise TooLongError(reason)


WILL_IT_SUCCEED = Question("predicate", SUCCEEDS.text, (YES, NO))


class Foreteller:
    """`agent`, which says at the start of each episode how likely success is."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._decider = Decider(agent)

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The agent's decision; the first of an episode has the answer. A question that does not fit has none."""
        decision = await self._agent.decide(observation, context)
        if context.turns or decision.failure or decision.truncation_reason:
            return decision
        try:
            answers, _ = await self._decider.answer(observation.text, [WILL_IT_SUCCEED], context)
        except (EnvironmentFailure, TooLongError):
            return decision
        (forecast,) = answers
        prices = decision.price_usd, forecast.decision.price_usd
        price = None if None in prices else sum(value or 0.0 for value in prices)
        shares = {**decision.answers, SUCCEEDS.name: forecast.answer.probabilities}
        return replace(decision, answers=shares, price_usd=price)


async def _decision(agent: Any, observation: Observation, context: Context) -> Decision:
    """The decision of `agent` on a prompt that has the comment already."""
    if getattr(agent, "commentator", None) is None:
        decision = await agent.decide(observation, context)
    else:
        decision = await agent.act_on(observation, None, context)
    if decision.truncation_reason is not None:
        raise TooLongError(decision.truncation_reason)
    if decision.failure is not None:
        raise EnvironmentFailure(decision.failure)
    return decision  # type: ignore[no-any-return]


@lru_cache(maxsize=8)
def _longest_token(tokenizer: Any) -> int:
    """The most characters in a token."""
    return max(map(len, tokenizer.get_vocab()))


def _usage(decisions: Sequence[Decision]) -> Usage:
    """The tokens of these decisions."""
    # 1. Prompts: what all begin with counts once, and the first and the last in order begin with that
    prompts = [decision.prompt_ids for decision in decisions]
    columns = zip(min(prompts), max(prompts), strict=False)
    prefix = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], columns))
    prompt_tokens = prefix + sum(len(prompt) - prefix for prompt in prompts)

    # 2. What the agent thought before it answered
    thoughts = [decision.thought for decision in decisions if decision.thought]
    return Usage(prompt_tokens, sum(len(thought.token_ids) for thought in thoughts))
