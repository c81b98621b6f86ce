"""tau_bench for tests: a small package with its interface and contents of our own, or the real one if it is there.

It is there if it is installed, or if TAU_BENCH_DIR names a checkout of github.com/sierra-research/tau-bench.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from reflectkit.env import UserTurn
from reflectkit.envs.tau import package
from reflectkit.seeding import generator
from reflectkit.types import Message

CHECKOUT = os.environ.get("TAU_BENCH_DIR", "")
THERE = bool(CHECKOUT and Path(CHECKOUT, "tau_bench").is_dir()) or find_spec("tau_bench") is not None

FILES = {
    "__init__.py": "",
    "envs/user.py": "from litellm import completion\n",
    "envs/base.py": """
def to_hashable(item):
    if isinstance(item, dict):
        return tuple((key, to_hashable(item[key])) for key in sorted(item))
    return tuple(map(to_hashable, item)) if isinstance(item, list) else item
""",
    "envs/__init__.py": '''
"""A flower shop and a ferry line."""
import json
from types import SimpleNamespace
import tau_bench.envs.user


class Tool:
    properties = {}
    @classmethod
    def get_info(cls):
        parameters = {"type": "object", "properties": cls.properties, "required": list(cls.properties)}
        function = {"name": cls.name, "description": cls.__doc__, "parameters": parameters}
        return {"type": "function", "function": function}


class FindUser(Tool):
    """Finds a user by name."""
    name, properties = "find_user", {"name": {"type": "string"}}
    @staticmethod
    def invoke(data, name):
        return next((key for key, user in data["users"].items() if user["name"] == name), "Error: user not found")


class CancelOrder(Tool):
    """Cancels an order."""
    name = "cancel_order"
    properties = {"order_id": {"type": "string"}, "reason": {"type": "string", "enum": ["late", "mistake"]}}
    @staticmethod
    def invoke(data, order_id, reason):
        order = data["orders"][order_id]
        order.update(status="cancelled", reason=reason)
        return json.dumps(order)


class SetPrice(Tool):
    """Sets a price."""
    name, properties = "set_price", {"order_id": {"type": "string"}, "price": {"type": "number"}}
    @staticmethod
    def invoke(data, order_id, price):
        data["orders"][order_id]["price"] = price
        return "x" * 1_000_000


class Calculate(Tool):
    """Calculates."""
    name, properties = "calculate", {"expression": {"type": "string"}}
    @staticmethod
    def invoke(data, expression):
        return str(float(eval(expression, {"__builtins__": None}, {})))


class Transfer(Tool):
    """Transfers the user to a person."""
    name, properties = "transfer_to_human_agents", {"summary": {"type": "string"}}
    @staticmethod
    def invoke(data, summary):
        return "Transfer successful"


def task(user, instruction, actions, outputs=()):
    called = [SimpleNamespace(name=name, kwargs=arguments) for name, arguments in actions]
    return SimpleNamespace(user_id=user, instruction=instruction, actions=called, outputs=list(outputs))


def cancel(number, reason="late"):
    return ("cancel_order", {"order_id": f"{number}", "reason": reason})


ANN = ("find_user", {"name": "Ann"})
AWAY = ("transfer_to_human_agents", {"summary": "no tool for it"})
TASKS = {
    "retail": {
        "train": [task("ann", "You are Ann. Cancel order 1, it is late.", [ANN, cancel(1)]),
                  task("bob", "You are Bob. Cancel orders 2 and 3, a mistake.", [cancel(2, "mistake"), cancel(3)]),
                  task("bob", "You are Bob. Ask for the price of 3.", [], ["1999", "roses"])],
        "dev": [task("ann", "You are Ann. Cancel order 1.", [cancel(1)])],
        "test": [task("ann", "You are Ann. Cancel order 4.", [ANN, cancel(4)], ["5"]),
                 task("bob", "You are Bob. Order 9 does not exist; cancel it.", [cancel(9)])],
    },
    "airline": {
        "test": [task("ann", "You are Ann. Cancel 1.", [cancel(1)]), task("bob", "A person!", [AWAY])],
    },
}


def load():
    orders = {f"{number}": {"status": "pending", "price": 10, "items": [number]} for number in range(1, 6)}
    return {"orders": orders, "users": {"ann": {"name": "Ann"}, "bob": {"name": "Bob"}}}


def get_env(env_name, user_strategy, user_model, task_split, user_provider=None, task_index=None):
    if task_split not in TASKS[env_name]:
        raise ValueError(f"Unknown task split: {task_split}")
    tools = [FindUser, CancelOrder, SetPrice, Calculate, Transfer]
    return SimpleNamespace(
        wiki=f"Policy of the {env_name} domain: be kind.", data=load(), tasks=TASKS[env_name][task_split],
        tools_info=[tool.get_info() for tool in tools], tools_map={tool.name: tool for tool in tools},
        terminate_tools=["transfer_to_human_agents"],
    )
''',
}


def write_package(folder: Path) -> Path:
    """The small package, in `folder`."""
    for name, text in FILES.items():
        path = folder / "tau_bench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@contextmanager
def installed(folder: Path | str) -> Iterator[None]:
    """The package in `folder` is the one that is imported, as long as the context lasts; "": whichever is installed."""
    hidden = _forget()
    sys.path[:0] = [str(folder)] if folder else []
    try:
        yield
    finally:
        if folder:
            sys.path.remove(str(folder))
        _forget()
        sys.modules.update(hidden)


def _forget() -> dict[str, object]:
    for memo in (package.domain, package.problems, package.expected):
        memo.cache_clear()
    names = [name for name in sys.modules if name.partition(".")[0] == "tau_bench"]
    return {name: sys.modules.pop(name) for name in names}


class Talker:
    """A user who says a line that the seed draws, and ends the conversation when all is done or after a few lines."""

    def say(self, instructions: str, conversation: Sequence[Message], seed: int) -> UserTurn:
        if not conversation:
            return UserTurn(f"Hello! {instructions}")
        over = "done" in conversation[-1].content or len(conversation) > 12
        return UserTurn(generator(seed).choice(("Yes, please.", "What do you mean?", "I am waiting.")), over)
