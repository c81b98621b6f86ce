"""A published method that an env knows (`BaseEnv.methods`), played with a chat model or with a model in this process.

The env says what the model is asked, and which action its answer stands for. An answer that stands for none leaves
everything as it is, and counts as not readable.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from reflectkit.agents.chat import SPENT
from reflectkit.agents.client import ChatClient
from reflectkit.agents.exchange import ASKED_AGAIN, Request
from reflectkit.agents.requests import action_words
from reflectkit.core.protocols import Agent, Context
from reflectkit.core.tools import use_of
from reflectkit.core.types import Decision, Observation


def request_of(name: str, context: Context) -> Request:
    """What a chat model is asked in the state of the context's env."""
    env: Any = context.env
    messages = env.method_messages(name)
    subject = f"{name}, step {len(context.turns) + 1}"
    return Request(subject, messages, env.methods[name], context.seed, cuts=True)


class ChatMethod:
    """Method `name` with a chat model, which is asked again, at most twice, after an answer that stands for nothing."""

    def __init__(self, name: str, client: ChatClient) -> None:
        self.name, self.client = name, client

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The action of the model's answer; a `failure` if the server gave none."""
        env: Any = context.env
        outcome = await self.client.ask(request_of(self.name, context), partial(env.method_action, self.name))
        price = outcome.cost_usd if self.client.prices.known else None
        if outcome.value is None and outcome.answers <= ASKED_AGAIN:
            reason = outcome.rejected.explained if outcome.rejected else SPENT
            return Decision(0, failure=f"{self.client.endpoint}: {reason}", price_usd=price)
        action = use_of(()) if outcome.value is None else outcome.value
        unreadable = outcome.answers - (outcome.value is not None)
        return Decision(action, unreadable=unreadable, price_usd=price, tokens=outcome.tokens)


class ModelMethod:
    """Method `name` with `writer`, an agent that answers in a conversation."""

    def __init__(self, name: str, writer: Agent) -> None:
        self.name, self.writer = name, writer

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The action of the writer's answer; its own decision where it could not answer."""
        env: Any = context.env
        asked = Observation(env.method_messages(self.name), replies=True)
        decision = await self.writer.decide(asked, replace(context, turns=()))
        if decision.failure is not None or decision.overflow is not None:
            return decision
        try:
            return replace(decision, action=env.method_action(self.name, action_words(asked, decision.action)))
        except ValueError:
            return replace(decision, action=use_of(()), unreadable=1)


class MethodRehearsal:
    """Asks nobody, and does nothing. requests: what method `name` would ask first; those about later states also show
    what the model wrote by then.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: list[Request] = []

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """No calls."""
        self.requests.append(request_of(self.name, context))
        return Decision(use_of(()))
