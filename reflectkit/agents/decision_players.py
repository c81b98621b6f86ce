"""Decision models as players: they act, or comment for a policy on which actions are likely.

A decision model is asked a question whose options are the legal actions, and answers with a
probability for each. It sees what a policy sees, and the env's rules as instructions, but no
earlier turns. Shapes: K options.
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

Probabilities = tuple[float, ...]
"""The probability of each option of a question (K)."""
FORMS: dict[str, ModuleType] = {"decisions": openai_form, "systemone": systemone}
"""The protocol of each kind of decision model."""
INSTRUCTION = "Choose the next action."
ORDERS = 2
"""How often a model is asked at most: if an answer is unusable, again with another order of the
options.
"""


def options_of(observation: Observation, endpoint: Endpoint) -> tuple[str, ...]:
    """The legal actions as options, each a different text that is not empty (K).

    Raises ConfigError if there are no enumerated actions, or too many for the protocol.
    """
    # 1. Check that there are options to choose from
    choices = tuple(map(encodable, observation.choices))
    if not choices:
        raise ConfigError(
            f"{endpoint} chooses from a list of actions and writes nothing; use a chat model here"
        )
    if len(choices) > MOST_OPTIONS:
        raise ConfigError(
            f"{endpoint} chooses from at most {MOST_OPTIONS} actions, and a state has"
            f" {len(choices)}; use another player"
        )

    # 2. Put labels before actions that are empty or that do not differ
    if len(set(choices)) == len(choices) and all(choices):
        return choices
    return tuple(f"{label(index).strip()} {choice}" for index, choice in enumerate(choices))


def further_questions(env: Env) -> list[StateQuestion]:
    """The further questions to a decision model that comments: those that the env declares, with
    options.
    """
    # An env that declares none has the questions of `Env`, which are not for decision models
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
    """The request for a choice among `options`.

    rules: whether the instructions are the env's rules; otherwise there are none, as for a policy
    that was trained with reflectkit. more: further questions.
    """
    instructions = ""
    if rules:
        instructions = f"{rules_of(context.env)}\n\n{INSTRUCTION}".strip()
    form = FORMS[endpoint.kind]
    body = form.request_body(encodable(observation.text), instructions, options, more)
    message = Message("user", json.dumps(body, ensure_ascii=False))
    name = f"{context.env.name}, step {len(context.turns) + 1}"
    return Request(name, (message,), 0, again=0)


class DecisionModel:
    """A decision model that is asked through `client`. rules: see `deciding_request`."""

    def __init__(self, client: ChatClient, *, rules: bool = True) -> None:
        self.client, self.rules = client, rules

    async def ask(
        self, observation: Observation, context: Context, more: Sequence[StateQuestion] = ()
    ) -> tuple[list[Probabilities], list[Outcome[tuple[Probabilities, ...]]]]:
        """(a row of probabilities for each question; the outcome of each request).

        The first row is of the actions, the others are of the questions `more`. There are no rows
        without a usable answer. If there is only one action, nothing is asked.

        Refusals and other unusable answers depend on the exact request. So after one, the model is
        asked again with the options in the reverse order.
        """
        endpoint = self.client.endpoint
        options = options_of(observation, endpoint)
        outcomes: list[Outcome[tuple[Probabilities, ...]]] = []
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

            # 2. A usable answer, its probabilities in the order of the actions
            if outcome.value is not None:
                in_this_order, *others = outcome.value
                probabilities = [0.0] * len(options)
                for index, probability in zip(order, in_this_order, strict=True):
                    probabilities[index] = probability
                return [tuple(probabilities), *others], outcomes

            # 3. No answer, since the budget is spent or the server failed
            if outcome.rejected is None or outcome.rejected.unanswered:
                break
        return [], outcomes

    def price(self, outcomes: Sequence[Outcome[tuple[Probabilities, ...]]]) -> float | None:
        """The cost of the requests in US dollars; None if the price is unknown."""
        if not self.client.prices.known:
            return None
        return sum(outcome.cost_usd for outcome in outcomes)


def _read(
    form: ModuleType,
    options: Sequence[str],
    more: Sequence[StateQuestion],
    text: str,
) -> tuple[Probabilities, ...]:
    """The rows of probabilities in the text of a reply. Raises ValueError if it is unusable."""
    rows: tuple[Probabilities, ...] = form.read_probabilities(json.loads(text), options, more)
    return rows


class DecisionPolicy:
    """A decision model that plays.

    temperature: of the draw of an action; 0 takes the likeliest one.
    """

    def __init__(self, model: DecisionModel, temperature: float = 0.0) -> None:
        self.model, self.temperature = model, temperature

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The model's decision, with its probabilities, or a `failure` if no answer is usable."""
        # 1. Ask for the probability of each action
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
        (probabilities,) = rows

        # 2. Draw one of them
        logprobs = [math.log(value) if value else -math.inf for value in probabilities]
        highest = max(logprobs)
        scaled = [(logprob - highest) / (self.temperature or 1.0) for logprob in logprobs]
        action = draw(scaled, self.temperature, context.seed)

        # 3. The entropy of the choice, in nats
        pairs = zip(probabilities, logprobs, strict=True)
        entropy = -math.fsum(value * logprob for value, logprob in pairs if value)
        return replace(decision, action=action, probabilities=probabilities, entropy=entropy)


class DecisionReflector:
    """A decision model that comments for a policy: on how likely each action is the best."""

    reads_choices = True
    """Whether the comment depends on the legal actions."""

    def __init__(self, model: DecisionModel) -> None:
        self.model = model

    async def remark(self, observation: Observation, context: Context) -> str:
        """The comment, for example "likely: go left 0.62, go right 0.21".

        It also has the answers to the questions that the env declares. Raises EnvironmentFailure if
        no answer is usable, and ApiError or BudgetSpentError if no further one can be asked for.
        """
        # 1. Ask for the probabilities of the actions and of the further questions' options
        more = further_questions(context.env)
        rows, outcomes = await self.model.ask(observation, context, more)
        if not rows:
            await self._give_up(outcomes[-1])

        # 2. Make a comment of them
        questions = [(LIKELY.name, observation.choices)]
        questions += [(question.name, question.options) for question in more]
        answers = []
        for (name, options), probabilities in zip(questions, rows, strict=False):
            answers.append((name, options, probabilities))
        comment = TypedComment(comment_on(answers))
        comment.answers = {name: probabilities for name, _, probabilities in answers}
        comment.price_usd = self.model.price(outcomes)
        return comment

    async def _give_up(self, last: Outcome[tuple[Probabilities, ...]]) -> NoReturn:
        """Raise the error of `remark`. last: the outcome of the last request."""
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
    """`actor` with the comments of the env's teacher, if that comments, as a demonstration."""

    def __init__(self, actor: Agent) -> None:
        self.actor = actor

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The actor's decision, with the teacher's comment and a note for demonstrations."""
        teacher = context.env.teacher()
        has = context.env.teacher_type.has
        comment = teacher.comment(generator(context.seed, "comment")) if has("comment") else ""
        note = "positive"
        if has("note") and teacher.note() == "mistake":
            note = "correction"
        decision = await self.actor.decide(observation, context)
        return replace(decision, reflection=comment, note=note)
