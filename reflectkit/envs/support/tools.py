"""The desk's 15 tools: six that look up, eight that change the records, and `escalate`.

They refuse only what the shop's software would: records that do not exist or do not belong together, and an order in
the wrong state. The rest of the policy is the agent's to keep.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from reflectkit.envs.support.database import Ledger, Record, euros
from reflectkit.envs.support.generate import CANCELLED, DELIVERED, PENDING
from reflectkit.tools import check_call
from reflectkit.types import ToolCall, ToolSpec

STRING = {"type": "string"}
REASONS = ("no longer needed", "ordered by mistake")
ESCALATE = "escalate"
TEN = 10
"""Euros of the credit for a late delivery."""


class RefusedError(ValueError):
    """A call that cannot be done; the message is for the agent."""


def _tool(tool: str, description: str, /, **arguments: Any) -> ToolSpec:
    schema = {"type": "object", "properties": arguments, "required": list(arguments), "additionalProperties": False}
    return ToolSpec(tool, description, schema)


TOOLS = (
    _tool("find_customer", "The customer with this email.", email=STRING),
    _tool("find_customer_by_name", "The customer with this name in this city.", name=STRING, city=STRING),
    _tool("get_customer", "A customer's address, payment methods and orders.", customer=STRING),
    _tool("get_order", "The state of an order, its items and payment.", order=STRING),
    _tool("get_product", "The items of a product, with option, price and stock.", product=STRING),
    _tool("list_products", "The names of all products."),
    _tool("cancel_order", "Cancel a pending order.", order=STRING, reason={"type": "string", "enum": list(REASONS)}),
    _tool("change_address", "Send a pending order elsewhere.", order=STRING, address=STRING),
    _tool("change_payment", "Pay a pending order otherwise.", order=STRING, payment=STRING),
    _tool("swap_item", "Swap an item of a pending order.", order=STRING, item=STRING, new_item=STRING),
    _tool("return_item", "Take back an item of a delivered order.", order=STRING, item=STRING, payment=STRING),
    _tool("exchange_item", "Exchange an item of a delivered order.", order=STRING, item=STRING, new_item=STRING),
    _tool("move_customer", "Change a customer's own address.", customer=STRING, address=STRING),
    _tool("credit", f"Give {TEN} euros for a late delivery.", order=STRING),
    _tool(ESCALATE, "Hand over to a colleague; ends the conversation.", reason=STRING),
)
READING = tuple(tool.name for tool in TOOLS[:6])
"""Tools that change nothing."""


def execute(ledger: Ledger, call: ToolCall) -> tuple[bool, str]:
    """(whether it could be done, the result for the agent) of one call. Never raises for what an agent wrote."""
    if (wrong := check_call(call, TOOLS)) is not None:
        return False, f"Error: {wrong}"
    try:
        result = _EFFECTS[call.name](ledger, **call.arguments)
    except RefusedError as error:
        return False, f"Error: {error}"
    return True, result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _find_customer(ledger: Ledger, email: str) -> Record:
    name = ledger.database.customer_of_email.get(email.strip().lower())
    if name is None:
        raise RefusedError(f"no customer has the email {email[:80]}")
    return {"customer": name}


def _find_customer_by_name(ledger: Ledger, name: str, city: str) -> Record:
    matching = ledger.database.customers_named(name, city)
    if len(matching) != 1:
        raise RefusedError("several customers have this name; ask for the email" if matching else "no such customer")
    return {"customer": matching[0]}


def _get_customer(ledger: Ledger, customer: str) -> Record:
    record = _record(ledger, "customers", customer)
    payments = {payment: ledger.of("payments", payment)["kind"] for payment in record["payments"]}
    return {"name": record["name"], "address": record["address"], "payments": payments, "orders": record["orders"]}


def _get_order(ledger: Ledger, order: str) -> Record:
    record = _record(ledger, "orders", order)
    shown = {"customer": record["customer"], "status": record["status"]}
    if record["status"] == DELIVERED:
        shown |= {"days_since_delivery": record["days_since_delivery"], "late_days": record["late_days"]}
    shown["items"] = {item: ledger.of("items", item)["name"] for item in record["items"]}
    shown |= {"paid": record["paid"], "payment": record["payment"], "address": record["address"]}
    if record["returned"]:
        shown["returned"] = record["returned"]
    return shown | {"exchanged": record["exchanged"]}


def _get_product(ledger: Ledger, product: str) -> Record:
    wanted = product.strip().lower()
    for name, record in ledger.database.tables["products"].items():
        if wanted in (name, record["name"]):
            return {item: _offer(ledger.of("items", item)) for item in record["items"]}
    raise RefusedError(f"no product {product[:80]}")


def _offer(item: Record) -> str:
    stock = f"{item['stock']} left" if item["stock"] else "sold out"
    return f"{item['name'].rpartition(', ')[2]}, {item['price']:g} euros, {stock}"


def _list_products(ledger: Ledger) -> list[str]:
    return [record["name"] for record in ledger.database.tables["products"].values()]


def _cancel_order(ledger: Ledger, order: str, reason: str) -> Record:
    record = _in_state(ledger, order, PENDING)
    ledger.change("orders", order, status=CANCELLED, reason=reason, refunded=record["paid"])
    return {"status": CANCELLED, "refunded": record["paid"]}


def _change_address(ledger: Ledger, order: str, address: str) -> Record:
    _in_state(ledger, order, PENDING)
    ledger.change("orders", order, address=_text(address))
    return {"address": _text(address)}


def _change_payment(ledger: Ledger, order: str, payment: str) -> Record:
    record = _in_state(ledger, order, PENDING)
    _owned(ledger, record, payment)
    ledger.change("orders", order, payment=payment)
    return {"payment": payment}


def _swap_item(ledger: Ledger, order: str, item: str, new_item: str) -> Record:
    record = _in_state(ledger, order, PENDING)
    paid = _replace(ledger, order, record, item, new_item)
    return {"items": ledger.of("orders", order)["items"], "paid": paid}


def _return_item(ledger: Ledger, order: str, item: str, payment: str) -> Record:
    record = _in_state(ledger, order, DELIVERED)
    price = _item_of(ledger, record, item)["price"]
    _owned(ledger, record, payment)
    returned = [*record["returned"], [item, payment]]
    kept = list(record["items"])
    kept.remove(item)
    ledger.change("orders", order, items=kept, returned=returned, refunded=euros(record["refunded"] + price))
    return {"refunded": price, "payment": payment}


def _exchange_item(ledger: Ledger, order: str, item: str, new_item: str) -> Record:
    record = _in_state(ledger, order, DELIVERED)
    paid = _replace(ledger, order, record, item, new_item)
    ledger.change("orders", order, exchanged=True)
    return {"items": ledger.of("orders", order)["items"], "paid": paid}


def _move_customer(ledger: Ledger, customer: str, address: str) -> Record:
    _record(ledger, "customers", customer)
    ledger.change("customers", customer, address=_text(address))
    return {"address": _text(address)}


def _credit(ledger: Ledger, order: str) -> Record:
    record = _in_state(ledger, order, DELIVERED)
    if record.get("credited"):
        raise RefusedError(f"order {order} has its credit already")
    ledger.change("orders", order, credited=TEN)
    return {"credited": TEN}


def _escalate(ledger: Ledger, reason: str) -> Record:
    ledger.escalated = True
    return {"escalated": True}


_EFFECTS: dict[str, Callable[..., Any]] = {
    "find_customer": _find_customer,
    "find_customer_by_name": _find_customer_by_name,
    "get_customer": _get_customer,
    "get_order": _get_order,
    "get_product": _get_product,
    "list_products": _list_products,
    "cancel_order": _cancel_order,
    "change_address": _change_address,
    "change_payment": _change_payment,
    "swap_item": _swap_item,
    "return_item": _return_item,
    "exchange_item": _exchange_item,
    "move_customer": _move_customer,
    "credit": _credit,
    ESCALATE: _escalate,
}


def _record(ledger: Ledger, table: str, name: str) -> Record:
    record = ledger.find(table, name)
    if record is None:
        raise RefusedError(f"no {table[:-1]} {name[:80]}")
    return record


def _in_state(ledger: Ledger, order: str, state: str) -> Record:
    record = _record(ledger, "orders", order)
    if record["status"] != state:
        raise RefusedError(f"order {order} is {record['status']}, not {state}")
    return record


def _owned(ledger: Ledger, order: Record, payment: str) -> None:
    if _record(ledger, "payments", payment)["customer"] != order["customer"]:
        raise RefusedError(f"payment {payment} is not of customer {order['customer']}")


def _item_of(ledger: Ledger, order: Record, item: str) -> Record:
    if item not in order["items"]:
        raise RefusedError(f"the order has no item {item[:80]}")
    return ledger.of("items", item)


def _replace(ledger: Ledger, order: str, record: Record, item: str, new_item: str) -> float:
    """Put `new_item` in the place of `item`, and return what the order now costs."""
    old, new = _item_of(ledger, record, item), _record(ledger, "items", new_item)
    if new["stock"] < 1:
        raise RefusedError(f"item {new_item} is sold out")
    items = list(record["items"])
    items[items.index(item)] = new_item
    paid = euros(record["paid"] - old["price"] + new["price"])
    ledger.change("items", item, stock=old["stock"] + 1)
    ledger.change("items", new_item, stock=new["stock"] - 1)
    ledger.change("orders", order, items=items, paid=paid)
    return paid


def _text(value: str) -> str:
    """`value` on one line."""
    text = " ".join(value.split())
    if not text:
        raise RefusedError("the address is empty")
    return text
