"""What the agent has done in a conversation, call by call."""

from __future__ import annotations

from dataclasses import dataclass, field

from reflectkit.envs.support.database import Database
from reflectkit.envs.support.requests import QUESTIONS, Request
from reflectkit.envs.support.rules import RULES
from reflectkit.envs.support.tools import ESCALATE, READING
from reflectkit.types import ToolCall

FINDING = READING[:2]


@dataclass
class Conduct:
    """What the agent has done.

    customer: who the user is, by id. found: the agent found them. orders, products: what it looked up; products by the
    name that it used. account: whether it looked up the customer. done: the changes that it made. hasty: it made one
    before it had found the customer. unconfirmed: it made one without a yes.
    """

    database: Database
    customer: str
    found: bool = False
    orders: set[str] = field(default_factory=set)
    products: set[str] = field(default_factory=set)
    account: bool = False
    done: list[ToolCall] = field(default_factory=list)
    hasty: bool = False
    unconfirmed: bool = False

    def saw(self, call: ToolCall, agreed: bool) -> bool:
        """A call was carried out. agreed: the user has said yes to it. Returns whether it changed a record."""
        arguments = call.arguments
        if call.name in FINDING:
            self.found = self.found or self._finds(call)
        elif call.name == "get_order":
            self.orders.add(arguments["order"])
        elif call.name == "get_product":
            self.products.add(arguments["product"].strip().lower())
        elif call.name == "get_customer":
            self.account = self.account or arguments["customer"] == self.customer
        elif call.name not in READING:
            self.done.append(call)
            if call.name != ESCALATE:
                self.hasty |= not self.found
                self.unconfirmed |= not agreed
                return True
        return False

    def has_looked_up(self, request: Request) -> bool:
        """Whether the agent has read what a refusal of `request`, or its answer, depends on; True if neither is due."""
        refused = bool(request.rule) and RULES[request.rule].needs_look_up
        if not refused and request.kind not in QUESTIONS:
            return True
        if request.product:
            return not self.products.isdisjoint(self._names_of(request.product))
        return request.facts.get("order") in self.orders

    def _names_of(self, product: str) -> set[str]:
        """The ways to call a product."""
        ids = [name for name, record in self.database.tables["products"].items() if record["name"] == product]
        return {product, *ids}

    def _finds(self, call: ToolCall) -> bool:
        if "email" in call.arguments:
            found = self.database.customer_of_email.get(call.arguments["email"].strip().lower())
        else:
            found = next(iter(self.database.customers_named(**call.arguments)), None)
        return found == self.customer
