"""Decision models as players: one chooses among the legal actions, or tells a policy which are likely.

It is asked a question with the actions as options, and answers with a probability for each. It sees what a policy sees,
and the env's rules as instructions, but no earlier turns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import NoReturn

from reflectkit.agents.typed import comment_on
from reflectkit.chat.client import ChatClient, Outcome, Request
from reflectkit.chat.config import RESUMES, ApiError, BudgetSpentError, Endpoint
from reflectkit.decisions import openai_form, systemone
from reflectkit.decisions.questions import MOST_OPTIONS, Question
from reflectkit.env import LIKELY, Agent, Context, Env, rules_of
from reflectkit.errors import ConfigError, EnvironmentFailure
from reflectkit.models.labels import encodable
from reflectkit.prompts import label
from reflectkit.sampling.base import draw
from reflectkit.seeding import generator
from reflectkit.types import Decision, Message, Observation, StateQuestion, TypedComment

Shares = tuple[float, ...]
"""The probability of each option of a question."""
FORMS: dict[str, ModuleType] = {"decisions": openai_form, "systemone": systemone}
"""The protocol of each kind of decision model."""
INSTRUCTION = "Choose the next action."
ORDERS = 2
"""In how many orders of the options it is asked, where its answers are unusable."""


def options_of(observation: Observation, endpoint: Endpoint) -> tuple[str, ...]:
    """The actions as options, which must all differ and have words. Raises ConfigError for none, and for too many."""
    # 1. Whether it can choose here
    choices = tuple(map(encodable, observation.choices))
    if not choices:
        raise ConfigError(
            f"{endpoint} chooses from a list of actions and writes nothing; use a chat model here"
        )
    if len(choices) > MOST_OPTIONS:
        most = f"{endpoint} chooses from at most {MOST_OPTIONS} actions, and a state has {len(choices)}"
        raise ConfigError(f"{most}; use another player")

    # 2. Options that do not differ in words get numbers
    if len(set(choices)) == len(choices) and all(choices):
        return choices
    return tuple(f"{label(index).strip()} {choice}" for index, choice in enumerate(choices))


def further_questions(env: Env) -> list[StateQuestion]:
    """What a decision model that comments is asked besides the action: the questions that the env declares, and that
    have options. One that declares none is asked nothing else.
    """
    questions = env.questions()
    if questions == Env.questions():
        return []
    return [question for question in questions if question.options]


def deciding_request(
    observation: Observation,
    context: Context,
    endpoint: Endpoint,
    options: Sequence[str],
    *,
    rules: bool,
    more: Sequence[StateQuestion] = (),
) -> Request:
    """The request for a choice among `options`. rules: whether the instructions are the env's rules; else there are
    none, as for a policy that was trained here. more: further questions.
    """
    instructions = f"{rules_of(context.env)}\n\n{INSTRUCTION}".strip() if rules else ""
    body = FORMS[endpoint.kind].request_body(
        encodable(observation.text), instructions, options, more
    )
    name = f"{context.env.name}, step {len(context.turns) + 1}"
    return Request(name, (Message("user", json.dumps(body, ensure_ascii=False)),), 0, again=0)


class DecisionModel:
    """A decision model behind a client. rules: see `deciding_request`."""

    def __init__(self, client: ChatClient, *, rules: bool = True) -> None:
        self.client, self.rules = client, rules

    async def ask(
        self, observation: Observation, context: Context, more: Sequence[StateQuestion] = ()
    ) -> tuple[list[Shares], list[Outcome[tuple[Shares, ...]]]]:
        """(the probability of each action, and then of each option of the questions `more`; none without a usable
        answer; the outcome of each request). Where there is one action, nothing is asked.

        A refusal and other unusable answers depend on the exact request, so it is asked once more with the options in
        the reverse order.
        """
        endpoint = self.client.endpoint
        options = options_of(observation, endpoint)
        outcomes: list[Outcome[tuple[Shares, ...]]] = []
        if len(options) == 1:
            return [(1.0,)], outcomes
        for order in Question("choice", "", options).orders(ORDERS):
            # 1. The request with the options in this order
            in_order = [options[index] for index in order]
            request = deciding_request(
                observation,
                context,
                endpoint,
                in_order,
                rules=self.rules,
                more=more,
            )
            read = partial(_read, FORMS[endpoint.kind], in_order, more)
            outcome = await self.client.ask(request, read)
            outcomes.append(outcome)

            # 2. Its answer, with the probabilities in the order of the choices
            if outcome.value is not None:
                shares = [0.0] * len(options)
                for index, share in zip(order, outcome.value[0], strict=True):
                    shares[index] = share
                return [tuple(shares), *outcome.value[1:]], outcomes
            if outcome.rejected is None or outcome.rejected.unanswered:  # the budget, or the server
                break
        return [], outcomes

    def price(self, outcomes: Sequence[Outcome[tuple[Shares, ...]]]) -> float | None:
        """The cost of the outcomes in US dollars; None if the price is unknown."""
        return sum(outcome.cost_usd for outcome in outcomes) if self.client.prices.known else None


def _read(
    form: ModuleType,
    options: Sequence[str],
    more: Sequence[StateQuestion],
    text: str,
) -> tuple[Shares, ...]:
    """The probabilities in the text of an answer. Raises ValueError."""
    rows: tuple[Shares, ...] = form.read_probabilities(json.loads(text), options, more)
    return rows


class DecisionPolicy:
    """A decision model that plays: the likeliest action, or one drawn at `temperature`."""

    def __init__(self, model: DecisionModel, temperature: float = 0.0) -> None:
        self.model, self.temperature = model, temperature

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The model's decision, with its probabilities; a `failure` if there is no usable answer."""
        # 1. The probability of each action
        rows, outcomes = await self.model.ask(observation, context)
        unreadable = [outcome for outcome in outcomes if outcome.rejected and outcome.answers > 0]
        decision = Decision(
            0,
            price_usd=self.model.price(outcomes),
            unreadable=len(unreadable),
            tokens=sum(outcome.tokens for outcome in outcomes),
        )
        if not rows:
            return replace(decision, failure=f"{self.model.client.endpoint}: {outcomes[-1].reason}")
        (shares,) = rows

        # 2. One of them
        logprobs = [math.log(share) if share else -math.inf for share in shares]
        highest = max(logprobs)
        scaled = [(value - highest) / (self.temperature or 1.0) for value in logprobs]
        terms = zip(shares, logprobs, strict=True)
        entropy = -math.fsum(share * logprob for share, logprob in terms if share)
        return replace(
            decision,
            action=draw(scaled, self.temperature, context.seed),
            probabilities=shares,
            entropy=entropy,
        )


class DecisionReflector:
    """A decision model that comments for a policy: the actions that it takes for the best, with their probabilities."""

    def __init__(self, model: DecisionModel) -> None:
        self.model = model

    async def remark(self, observation: Observation, context: Context) -> str:
        """The comment, for example "likely: go left 0.62, go right 0.21", and answers to the questions that the env
        declares.

        Raises EnvironmentFailure: no answer can be used. ApiError, BudgetSpentError: no further one will come.
        """
        more = further_questions(context.env)
        rows, outcomes = await self.model.ask(observation, context, more)
        if not rows:
            await self._give_up(outcomes[-1])
        questions = [(LIKELY.name, observation.choices)]
        questions += [(question.name, question.options) for question in more]
        answers = []
        for (name, options), shares in zip(questions, rows, strict=False):
            answers.append((name, options, shares))
        comment = TypedComment(comment_on(answers))
        comment.answers = {name: shares for name, _, shares in answers}
        comment.price_usd = self.model.price(outcomes)
        return comment

    async def _give_up(self, last: Outcome[tuple[Shares, ...]]) -> NoReturn:
        """Raise what `remark` says, after the `last` outcome without an answer."""
        client = self.model.client
        who = f"the reflector {client.endpoint}"
        if last.rejected is None:
            await client.finish()
            raise BudgetSpentError(
                f"{who} may not cost more; run the same command again with a larger --max-cost-usd"
            )
        if last.rejected.unanswered:
            await client.finish()
            raise ApiError(f"{who} gave {last.reason}; {RESUMES}")
        raise EnvironmentFailure(f"{who} gave no usable answer: {last.reason}")


class CommentedActor:
    """`actor`, with the comments of the env's teacher if it has any."""

    def __init__(self, actor: Agent) -> None:
        self.actor = actor

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The actor's decision, as a demonstration shows it."""
        teacher = context.env.teacher()
        has = context.env.teacher_type.has
        comment = teacher.comment(generator(context.seed, "comment")) if has("comment") else ""
        note = "positive"
        if has("note") and teacher.note() == "mistake":
            note = "correction"
        decision = await self.actor.decide(observation, context)
        return replace(decision, reflection=comment, note=note)
