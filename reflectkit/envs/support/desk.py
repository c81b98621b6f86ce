"""The perfect agent of the service desk: what it says or calls next, given what the conversation has shown so far, and
its comment on where things stand.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from reflectkit.envs.support.conduct import Conduct
from reflectkit.envs.support.database import Ledger
from reflectkit.envs.support.generate import DELIVERED, PENDING, RETURN_DAYS
from reflectkit.envs.support.persona import Persona
from reflectkit.envs.support.policy import LATE_DAYS
from reflectkit.envs.support.requests import (
    ADDRESS,
    CANCEL,
    CREDIT,
    DANGER,
    EXCHANGE,
    EXTRA,
    MOVE,
    PAID,
    PAYMENT,
    RETURN,
    STOCK,
    SWAP,
    Request,
)
from reflectkit.envs.support.tools import ESCALATE, REASONS, TEN
from reflectkit.tools import use_of
from reflectkit.types import ToolCall, ToolUse

ELSE = "Anything else?"
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
    CANCEL: "cancel order {order} ({reason})",
    ADDRESS: "send order {order} to {address}",
    PAYMENT: "change the payment of order {order} to {payment}",
    SWAP: "swap the {item} of order {order} for {option}",
    RETURN: "take back the {item} of order {order}",
    EXCHANGE: "exchange the {item} of order {order} for {option}",
    MOVE: "change your address to {address}",
    CREDIT: f"give you {TEN} euros for order {{order}}",
}
REPORTS = {
    CANCEL: "order {order} is cancelled, {told} euros are refunded",
    ADDRESS: "order {order} goes to {address}",
    PAYMENT: "order {order} is paid by {payment}",
    SWAP: "order {order} has the {item} in {option} and costs {told} euros",
    RETURN: "{told} euros are refunded for the {item}",
    EXCHANGE: "the {item} comes in {option}, order {order} costs {told} euros",
    MOVE: "your address is {address}",
    CREDIT: "you get {told} euros",
}
UNKNOWN = ("The customer is not known yet.", "It is not known who this is.")
CONFIRM, DO, REPORT, REFUSE, ANSWER = "confirm", "do", "report", "refuse", "answer"


@dataclass
class Desk:
    """The perfect agent.

    persona: the user. conduct: what has been done so far.
    """

    persona: Persona
    ledger: Ledger
    conduct: Conduct

    @property
    def need(self) -> tuple[str, str]:
        """(what is to be done now, about what): the first thing that is missing."""
        persona, request, conduct = self.persona, self.persona.current, self.conduct
        if not persona.identified:
            return "ask", "identity"
        if not conduct.found:
            return "look up", "customer"
        if request.kind == DANGER:
            return DO, ESCALATE
        if request.kind == EXTRA:
            return REFUSE, request.refused
        for name in request.facts:
            if name not in persona.revealed:
                return "ask", name
            if name == "order" and persona.revealed[name] not in conduct.orders:
                return "look up", "order"
            if forbidden := self.forbidden(name):
                return REFUSE, forbidden
        if request.kind == PAYMENT and not conduct.account:
            return "look up", "account"
        if request.product and request.product not in conduct.products:
            return "look up", "product"
        if request.kind in (PAID, STOCK):
            return ANSWER, request.kind
        if request.refused:
            return REFUSE, request.refused
        if all(call in conduct.done for call in request.actions):
            return REPORT, request.kind
        return (DO, request.actions[0].name) if persona.confirmed else (CONFIRM, request.kind)

    def forbidden(self, fact: str) -> str:
        """Why the policy forbids the request, by what is known since `fact` was told; "" if it does not."""
        request, persona = self.persona.current, self.persona
        if not request.refused:
            return ""
        order = self.ledger.find("orders", persona.revealed.get("order", ""))
        if fact == "order" and order is not None:
            pending = request.kind in (CANCEL, ADDRESS, PAYMENT, SWAP)
            late = order["status"] == DELIVERED and order["days_since_delivery"] > RETURN_DAYS
            if (
                order["customer"] != self.conduct.customer
                or (pending and order["status"] != PENDING)
                or (request.kind in (RETURN, EXCHANGE) and late)
                or (request.kind == CREDIT and order["late_days"] < LATE_DAYS)
            ):
                return request.refused
        if fact == "reason" and persona.revealed[fact] not in REASONS:
            return request.refused
        if fact == "payment" and request.kind == RETURN:
            return request.refused
        return ""

    def action(self) -> ToolUse:
        """The best action now."""
        request, (step, subject) = self.persona.current, self.need
        facts = {**request.facts, **self.persona.revealed}
        if step == "ask":
            return ToolUse(QUESTIONS[subject])
        if step == "look up":
            return use_of([self._look_up(subject, facts)])
        if step == DO:
            return use_of(request.actions[:1])
        if step == REFUSE:
            return ToolUse(f"I cannot do that: {subject}. {ELSE}")
        told = request.told[0][0] if request.told else ""
        if step == ANSWER:
            return ToolUse(f"{self._answer(request, facts, told)}. {ELSE}")
        if step == CONFIRM:
            return ToolUse(f"Shall I {PROPOSALS[request.kind].format(**facts)}, yes or no?")
        return ToolUse(f"Done: {REPORTS[request.kind].format(**facts, told=told)}. {ELSE}")

    def _answer(self, request: Request, facts: Mapping[str, str], told: str) -> str:
        if request.kind == PAID:
            return f"Order {facts['order']} cost {told} euros"
        return f"The {facts['item']} in {facts['option']} is {told}" if not told.isdigit() else f"We have {told} left"

    def _look_up(self, subject: str, facts: Mapping[str, str]) -> ToolCall:
        identity = self.persona.identity
        if subject == "customer" and identity.email:
            return ToolCall("find_customer", {"email": identity.email})
        if subject == "customer":
            return ToolCall("find_customer_by_name", {"name": identity.name, "city": identity.city})
        if subject == "order":
            return ToolCall("get_order", {"order": facts["order"]})
        if subject == "account":
            return ToolCall("get_customer", {"customer": self.conduct.customer})
        return ToolCall("get_product", {"product": self.persona.current.product})

    def comment(self, chance: random.Random) -> str:
        """What is known, what the policy says, and what is missing."""
        step, subject = self.need
        persona, request = self.persona, self.persona.current
        parts = [f"The customer is {self.conduct.customer}." if self.conduct.found else chance.choice(UNKNOWN)]
        order = persona.revealed.get("order", "")
        if order in self.conduct.orders:
            parts.append(f"{order} is {self.ledger.of('orders', order)['status']}.")
        if step == REFUSE:
            parts.append(f"{chance.choice(('Not allowed', 'The policy forbids it'))}: {subject}.")
        elif step in (CONFIRM, DO, REPORT):
            parts.append(chance.choice(("It is allowed.", "The policy allows it.")))
        missing = {
            "ask": "who it is" if subject == "identity" else f"the {subject}",
            "look up": f"the record of the {subject}",
            CONFIRM: "a yes",
            DO: "the change itself" if request.kind != DANGER else "a colleague",
            REPORT: "nothing but to say so",
            REFUSE: "nothing but to say so",
            ANSWER: "nothing but to say so",
        }[step]
        return " ".join([*parts, f"Missing: {missing}."])

    def mistakes(self) -> list[ToolUse]:
        """Actions that bring nothing and spoil nothing."""
        wrong = [use_of([ToolCall("list_products", {})]), ToolUse("One moment.")]
        if self.conduct.found:
            wrong.append(use_of([ToolCall("get_order", {"order": self.conduct.customer})]))
        return wrong
