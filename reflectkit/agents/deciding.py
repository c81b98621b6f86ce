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

from reflectkit.decisions.questions import NO, YES, Answer, Question, Usage, averaged
from reflectkit.env import SUCCEEDS, Agent, Context
from reflectkit.errors import EnvironmentFailure, ReflectkitError
from reflectkit.models.labels import prompt_ids
from reflectkit.types import Decision, Message, Observation


class TooLongError(ReflectkitError):
    """The state, or a question about it, is longer than the model's context."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The answer to a question. observation, decision: of the options in the order in which they were given; the
    decision has the probabilities of the answer.
    """

    answer: Answer
    observation: Observation
    decision: Decision


class Decider:
    """Answers questions with the probabilities of `agent` at temperature 1.

    orders: in how many orders each question's options are read; the probabilities are the means over them.
    """

    def __init__(self, agent: Agent, orders: int = 1) -> None:
        self.orders = orders
        decider: Any = copy.copy(agent)
        decider.temperature = (
            0.0  # takes the likeliest option; probabilities are those of temperature 1
        )
        decider.show = True
        self._agent = decider

    async def answer(
        self, state: str, questions: Sequence[Question], context: Context
    ) -> tuple[list[Decided], Usage]:
        """The answers, in the order of the questions. context: its seed draws what the agent writes first.

        Raises TooLongError. EnvironmentFailure: a server that decides gave no usable answer. Other ReflectkitErrors: a
        question cannot be asked, for example because two of its options are the same tokens.
        """
        # 1. The comment, which only a policy with a reflector reads: on the state, or also on the options
        self._check_state(state)
        commentator: Any = getattr(self._agent, "commentator", None)
        comments: list[str | None] = [None] * len(questions)
        if getattr(commentator, "reads_choices", False):
            seen = (
                Observation((Message("user", state),), question.options) for question in questions
            )
            comments = list(
                await asyncio.gather(*(commentator.remark(each, context) for each in seen))
            )
        elif commentator is not None:
            comments = [
                await commentator.remark(Observation((Message("user", state),)), context)
            ] * len(questions)
        # 2. Every question in each of its orders, at once
        asked: list[tuple[int, tuple[int, ...], Observation]] = []
        for number, question in enumerate(questions):
            for order in question.orders(self.orders):
                asked.append((number, order, question.observation(state, comments[number], order)))
        for _, _, observation in asked:
            self._check_length(observation)
        agent = copy.copy(self._agent)
        agent.shares_prompts = len(asked) > 1
        decisions = await asyncio.gather(
            *(_chosen(agent, observation, context) for *_, observation in asked)
        )
        # 3. The mean over the orders of each question
        decided: list[Decided] = []
        for number in range(len(questions)):
            places = [
                place for place, (of_question, *_) in enumerate(asked) if of_question == number
            ]
            shares = averaged(
                [decisions[place].probabilities for place in places],
                [asked[place][1] for place in places],
            )
            answer, first = Answer(shares), places[0]
            decision = replace(
                decisions[first],
                action=answer.likeliest,
                reflection=comments[number],
                probabilities=shares,
            )
            decided.append(Decided(answer, asked[first][2], decision))
        return decided, _usage(decisions)

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
        self._agent, self._decider = agent, Decider(agent)

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The agent's decision; the first of an episode has the answer. A question that does not fit has none."""
        decision = await self._agent.decide(observation, context)
        if context.turns or decision.failure or decision.truncation_reason:
            return decision
        try:
            (told,), _ = await self._decider.answer(observation.text, [WILL_IT_SUCCEED], context)
        except (EnvironmentFailure, TooLongError):
            return decision
        prices = decision.price_usd, told.decision.price_usd
        price = None if None in prices else sum(value or 0.0 for value in prices)
        answers = {**decision.answers, SUCCEEDS.name: told.answer.probabilities}
        return replace(decision, answers=answers, price_usd=price)


async def _chosen(agent: Any, observation: Observation, context: Context) -> Decision:
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
    prompts = [decision.prompt_ids for decision in decisions]
    columns = zip(min(prompts), max(prompts), strict=False)  # what these two begin with, all do
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], columns))
    written = sum(len(decision.thought.token_ids) for decision in decisions if decision.thought)
    return Usage(shared + sum(len(prompt) - shared for prompt in prompts), written)
