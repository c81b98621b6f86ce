"""The desk's 15 tools: six that look up, eight that change the records, and `escalate`.

They refuse only what the shop's software would: records that do not exist or do not belong
together, and an order in the wrong state. The rest of the policy is the agent's to keep.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from reflectkit.envs.support.shop import (
    CANCELLED,
    DELIVERED,
    PENDING,
    REASONS,
    TEN,
    Ledger,
    Record,
    euros,
)
from reflectkit.tools import check_call
from reflectkit.types import ToolCall, ToolSpec

STRING = {"type": "string"}
ESCALATE = "escalate"


class RefusedCallError(ValueError):
    """A call that cannot be done; the message is for the agent."""


Effect = Callable[..., Any]
"""What a tool does: a function of the ledger and the call's arguments."""
_EFFECTS: dict[str, Effect] = {}
_SPECS: list[ToolSpec] = []


def _tool(**arguments: Any) -> Callable[[Effect], Effect]:
    """Make a tool of a function. The agent reads its docstring. arguments: their JSON schemas."""
    schema = {
        "type": "object",
        "properties": arguments,
        "required": list(arguments),
        "additionalProperties": False,
    }

    def register(effect: Effect) -> Effect:
        name = effect.__name__
        _EFFECTS[name] = effect
        _SPECS.append(ToolSpec(name, effect.__doc__ or "", schema))
        return effect

    return register


def execute(ledger: Ledger, call: ToolCall) -> tuple[bool, str]:
    """(whether it could be done, the result for the agent) of one call. Never raises for what an
    agent wrote.
    """
    fault = check_call(call, TOOLS)
    if fault is not None:
        return False, f"Error: {fault}"
    try:
        # The effect checks what a schema cannot
        result = _EFFECTS[call.name](ledger, **call.arguments)
    except RefusedCallError as error:
        return False, f"Error: {error}"
    if not isinstance(result, str):
        result = json.dumps(result, ensure_ascii=False)
    return True, result


@_tool(email=STRING)
def find_customer(ledger: Ledger, email: str) -> Record:
    """The customer with this email."""
    matching = ledger.database.customers_with(email=email)
    if not matching:
        raise RefusedCallError(f"no customer has the email {email[:80]}")
    return {"customer": matching[0]}


@_tool(name=STRING, city=STRING)
def find_customer_by_name(ledger: Ledger, name: str, city: str) -> Record:
    """The customer with this name in this city."""
    matching = ledger.database.customers_with(name=name, city=city)
    if not matching:
        raise RefusedCallError("no such customer")
    if len(matching) > 1:
        raise RefusedCallError("several customers have this name; ask for the email")
    return {"customer": matching[0]}


@_tool(customer=STRING)
def get_customer(ledger: Ledger, customer: str) -> Record:
    """A customer's address, payment methods and orders."""
    record = _record(ledger, "customers", customer)
    # A payment method's number tells the user nothing
    payments = {}
    for payment in record["payments"]:
        payments[payment] = ledger.of("payments", payment)["kind"]
    return {
        "name": record["name"],
        "address": record["address"],
        "payments": payments,
        "orders": record["orders"],
    }


@_tool(order=STRING)
def get_order(ledger: Ledger, order: str) -> Record:
    """The state of an order, its items and payment."""
    record = _record(ledger, "orders", order)
    names = ["customer", "status"]
    if record["status"] == DELIVERED:
        names += ["days_since_delivery", "late_days"]
    names += ["items", "paid", "payment", "address"]
    if record["returned"]:
        names.append("returned")
    names.append("exchanged")
    view = {name: record[name] for name in names}
    # The agent reads the names of items, too
    view["items"] = {item: ledger.of("items", item)["name"] for item in record["items"]}
    return view


@_tool(product=STRING)
def get_product(ledger: Ledger, product: str) -> Record:
    """The items of a product, with option, price and stock."""
    name = product.strip().lower()
    for product_id, record in ledger.database.tables["products"].items():
        if name not in (product_id, record["name"]):
            continue
        view = {}
        for item_id in record["items"]:
            item = ledger.of("items", item_id)
            option = item["name"].rpartition(", ")[2]
            stock = f"{item['stock']} left" if item["stock"] else "sold out"
            view[item_id] = f"{option}, {item['price']:g} euros, {stock}"
        return view
    raise RefusedCallError(f"no product {product[:80]}")


@_tool()
def list_products(ledger: Ledger) -> list[str]:
    """The names of all products."""
    return [record["name"] for record in ledger.database.tables["products"].values()]


@_tool(order=STRING, reason={"type": "string", "enum": list(REASONS)})
def cancel_order(ledger: Ledger, order: str, reason: str) -> Record:
    """Cancel a pending order."""
    record = _in_state(ledger, order, PENDING)
    paid = record["paid"]
    ledger.change("orders", order, status=CANCELLED, reason=reason, refunded=paid)
    return {"status": CANCELLED, "refunded": paid}


@_tool(order=STRING, address=STRING)
def change_address(ledger: Ledger, order: str, address: str) -> Record:
    """Change the address of a pending order."""
    _in_state(ledger, order, PENDING)
    text = _text(address)
    ledger.change("orders", order, address=text)
    return {"address": text}


@_tool(order=STRING, payment=STRING)
def change_payment(ledger: Ledger, order: str, payment: str) -> Record:
    """Change the payment method of a pending order."""
    record = _in_state(ledger, order, PENDING)
    _check_payment(ledger, record, payment)
    ledger.change("orders", order, payment=payment)
    return {"payment": payment}


@_tool(order=STRING, item=STRING, new_item=STRING)
def swap_item(ledger: Ledger, order: str, item: str, new_item: str) -> Record:
    """Swap an item of a pending order."""
    record = _in_state(ledger, order, PENDING)
    total = _replace(ledger, order, record, item, new_item)
    return {"items": ledger.of("orders", order)["items"], "paid": total}


@_tool(order=STRING, item=STRING, payment=STRING)
def return_item(ledger: Ledger, order: str, item: str, payment: str) -> Record:
    """Take back an item of a delivered order."""
    # 1. What is allowed
    record = _in_state(ledger, order, DELIVERED)
    price = _item_of(ledger, record, item)["price"]
    _check_payment(ledger, record, payment)

    # 2. The order after it
    items = list(record["items"])
    items.remove(item)
    ledger.change(
        "orders",
        order,
        items=items,
        returned=[*record["returned"], [item, payment]],
        refunded=euros(record["refunded"] + price),
    )
    return {"refunded": price, "payment": payment}


@_tool(order=STRING, item=STRING, new_item=STRING)
def exchange_item(
    ledger: Ledger,
    order: str,
    item: str,
    new_item: str,
) -> Record:
    """Exchange an item of a delivered order."""
    record = _in_state(ledger, order, DELIVERED)
    total = _replace(ledger, order, record, item, new_item)
    ledger.change("orders", order, exchanged=True)
    return {"items": ledger.of("orders", order)["items"], "paid": total}


@_tool(customer=STRING, address=STRING)
def move_customer(ledger: Ledger, customer: str, address: str) -> Record:
    """Change a customer's own address."""
    _record(ledger, "customers", customer)
    text = _text(address)
    ledger.change("customers", customer, address=text)
    return {"address": text}


@_tool(order=STRING)
def credit(ledger: Ledger, order: str) -> Record:
    """Give 10 euros for a late delivery."""
    record = _in_state(ledger, order, DELIVERED)
    # Once only
    if record.get("credited"):
        raise RefusedCallError(f"order {order} already has its credit")
    ledger.change("orders", order, credited=TEN)
    return {"credited": TEN}


@_tool(reason=STRING)
def escalate(ledger: Ledger, reason: str) -> Record:
    """Hand over to a colleague; ends the conversation."""
    ledger.escalated = True
    return {"escalated": True}


TOOLS = tuple(_SPECS)
READING = tuple(tool.name for tool in TOOLS[:6])
"""Tools that change nothing."""


# The checks of the tools; each raises RefusedCallError


def _record(ledger: Ledger, table: str, name: str) -> Record:
    """The record called `name`."""
    try:
        return ledger.of(table, name)
    except KeyError:
        raise RefusedCallError(f"no {table[:-1]} {name[:80]}") from None


def _in_state(ledger: Ledger, order: str, state: str) -> Record:
    """The record of an order in this state."""
    record = _record(ledger, "orders", order)
    if record["status"] != state:
        raise RefusedCallError(f"order {order} is {record['status']}, not {state}")
    return record


def _check_payment(ledger: Ledger, order: Record, payment: str) -> None:
    """Refuse a payment method of another customer."""
    customer = order["customer"]
    record = _record(ledger, "payments", payment)
    if record["customer"] != customer:
        raise RefusedCallError(f"payment {payment} does not belong to customer {customer}")


def _item_of(ledger: Ledger, order: Record, item: str) -> Record:
    """The record of an item of the order."""
    if item not in order["items"]:
        raise RefusedCallError(f"the order has no item {item[:80]}")
    return ledger.of("items", item)


def _replace(
    ledger: Ledger,
    order: str,
    record: Record,
    item: str,
    new_item: str,
) -> float:
    """Put `new_item` in the place of `item`, and return what the order now costs."""
    # 1. The items. The new one need not be of the same product: that is the policy's matter
    old = _item_of(ledger, record, item)
    new = _record(ledger, "items", new_item)
    if new["stock"] < 1:
        raise RefusedCallError(f"item {new_item} is sold out")
    total = euros(record["paid"] - old["price"] + new["price"])

    # 2. The shelf, to which the old one goes back
    ledger.change("items", item, stock=old["stock"] + 1)
    ledger.change("items", new_item, stock=new["stock"] - 1)

    # 3. The order
    items = list(record["items"])
    place = items.index(item)
    items[place] = new_item
    ledger.change("orders", order, items=items, paid=total)
    return total


def _text(value: str) -> str:
    """`value` on one line."""
    # An agent may write an address over several lines
    text = " ".join(value.split())
    if not text:
        raise RefusedCallError("the address is empty")
    return text
