"""The perfect agent of the service desk: what it says or calls next, given what the conversation has shown so far, and
its comment on where things stand.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from reflectkit.envs.conversation import ConversationTeacher
from reflectkit.envs.support.shop import DELIVERED, LATE_DAYS, PENDING, REASONS, RETURN_DAYS, TEN
from reflectkit.envs.support.tools import ESCALATE
from reflectkit.errors import ConfigError
from reflectkit.tools import use_of
from reflectkit.types import ToolCall, ToolUse

SCRIPTED = "scripted"
NO_ORACLE = "the oracle of env 'support' reads the scripted user's mind; leave out --user"
QUESTIONS = {
    "identity": "What is your email?",
    "order": "Which order is it?",
    "reason": "What is the reason?",
    "address": "What is the new address?",
    "item": "Which item is it?",
    "option": "Which option would you like?",
    "payment": "Which payment method?",
}
PROPOSALS = {
    "cancel": "cancel order {order} ({reason})",
    "address": "send order {order} to {address}",
    "payment": "change the payment of order {order} to {payment}",
    "swap": "swap the {item} of order {order} for {option}",
    "return": "take back the {item} of order {order}",
    "exchange": "exchange the {item} of order {order} for {option}",
    "move": "change your address to {address}",
    "credit": f"give you {TEN} euros for order {{order}}",
}
REPORTS = {
    "cancel": "order {order} is cancelled, {told} euros are refunded",
    "address": "order {order} goes to {address}",
    "payment": "order {order} is paid by {payment}",
    "swap": "order {order} has the {item} in {option} and costs {told} euros",
    "return": "{told} euros are refunded for the {item}",
    "exchange": "the {item} comes in {option}, order {order} costs {told} euros",
    "move": "your address is {address}",
    "credit": "you get {told} euros",
}
UNKNOWN = ("The customer is not known yet.", "It is not known who this is.")


class SupportTeacher(ConversationTeacher):
    """The perfect agent of `Support`, with the scripted user, whose mind it reads."""

    @property
    def need(self) -> tuple[str, str]:
        """(what is to be done now, about what): the first thing that is missing."""
        persona, request, conduct = self.env.persona, self.env.persona.current, self.env.conduct
        if not persona.identified:
            return "ask", "identity"
        if not conduct.found:
            return "look up", "customer"
        if request.kind == "danger":
            return "do", ESCALATE
        if request.kind == "extra":
            return "refuse", request.refused
        for name in request.facts:
            if name not in persona.revealed:
                return "ask", name
            if name == "order" and persona.revealed[name] not in conduct.orders:
                return "look up", "order"
            if forbidden := self.forbidden(name):
                return "refuse", forbidden
        if request.kind == "payment" and not conduct.account:
            return "look up", "account"
        if request.product and request.product not in conduct.products:
            return "look up", "product"
        if request.kind in ("paid", "stock"):
            return "answer", request.kind
        if request.refused:
            return "refuse", request.refused
        if all(call in conduct.done for call in request.actions):
            return "report", request.kind
        return ("do", request.actions[0].name) if persona.confirmed else ("confirm", request.kind)

    def forbidden(self, fact: str) -> str:
        """Why the policy forbids the request, by what is known since `fact` was told; "" if it does not."""
        request, revealed = self.env.persona.current, self.env.persona.revealed
        order = self.env.ledger.find("orders", revealed.get("order", ""))
        if fact == "order" and order is not None:
            is_recent = order["status"] != DELIVERED or order["days_since_delivery"] <= RETURN_DAYS
            fits = (
                order["customer"] == self.env.conduct.customer
                and (request.kind not in ("cancel", "address", "payment", "swap") or order["status"] == PENDING)
                and (request.kind not in ("return", "exchange") or is_recent)
                and (request.kind != "credit" or order["late_days"] >= LATE_DAYS)
            )
        elif fact == "reason":
            fits = revealed[fact] in REASONS
        else:
            fits = fact != "payment" or request.kind != "return"
        return "" if fits else str(request.refused)

    def action(self) -> ToolUse:
        """The best action given only the conversation. Raises ConfigError unless the user is scripted."""
        self._need_script()
        persona, (step, subject) = self.env.persona, self.need
        request = persona.current
        facts = {**request.facts, **persona.revealed}
        told = request.told[0][0] if request.told else ""
        if step == "ask":
            return ToolUse(QUESTIONS[subject])
        if step == "look up":
            return use_of([self._look_up(subject, facts)])
        if step == "do":
            return use_of(request.actions[:1])
        if step == "confirm":
            return ToolUse(f"Shall I {PROPOSALS[request.kind].format(**facts)}, yes or no?")
        if step == "refuse":
            said = f"I cannot do that: {subject}"
        elif step == "report":
            said = f"Done: {REPORTS[request.kind].format(**facts, told=told)}"
        elif request.kind == "paid":
            said = f"Order {facts['order']} cost {told} euros"
        else:
            said = f"We have {told} left" if told.isdigit() else f"The {facts['item']} in {facts['option']} is {told}"
        return ToolUse(f"{said}. Anything else?")

    def _look_up(self, subject: str, facts: Mapping[str, str]) -> ToolCall:
        identity = self.env.persona.identity
        if subject == "customer" and identity.email:
            return ToolCall("find_customer", {"email": identity.email})
        if subject == "customer":
            return ToolCall("find_customer_by_name", {"name": identity.name, "city": identity.city})
        if subject == "order":
            return ToolCall("get_order", {"order": facts["order"]})
        if subject == "account":
            return ToolCall("get_customer", {"customer": self.env.conduct.customer})
        return ToolCall("get_product", {"product": self.env.persona.current.product})

    def mistakes(self) -> list[ToolUse]:
        """Needless actions, which spoil nothing."""
        wrong = [use_of([ToolCall("list_products", {})]), ToolUse("One moment.")]
        if self.env.conduct.found:
            wrong.append(use_of([ToolCall("get_order", {"order": self.env.conduct.customer})]))
        return wrong

    def comment(self, generator: random.Random) -> str:
        """What is known, what the policy says, and what is missing. Raises ConfigError unless the user is scripted."""
        self._need_script()
        step, subject = self.need
        persona, conduct = self.env.persona, self.env.conduct
        parts = [f"The customer is {conduct.customer}." if conduct.found else generator.choice(UNKNOWN)]
        order = persona.revealed.get("order", "")
        if order in conduct.orders:
            parts.append(f"{order} is {self.env.ledger.of('orders', order)['status']}.")
        if step == "refuse":
            parts.append(f"{generator.choice(('Not allowed', 'The policy forbids it'))}: {subject}.")
        elif step in ("confirm", "do", "report"):
            parts.append(generator.choice(("It is allowed.", "The policy allows it.")))
        missing = {
            "ask": "who it is" if subject == "identity" else f"the {subject}",
            "look up": f"the record of the {subject}",
            "confirm": "a yes",
            "do": "the change itself" if subject != ESCALATE else "a colleague",
        }.get(step, "nothing but to say so")
        return " ".join([*parts, f"Missing: {missing}."])

    @classmethod
    def check(cls, settings: Any) -> None:
        """Raises ConfigError unless the user is scripted."""
        if settings.user != SCRIPTED:
            raise ConfigError(NO_ORACLE)

    def _need_script(self) -> None:
        if self.env.user is not None:
            raise ConfigError(NO_ORACLE)
