"""Support: talk with a customer of an online shop, and change the shop's records with tools, within
a policy.

Observation
    The conversation: the policy (unless `brief`), what the user said, the agent's calls and
    replies, and the results.
Tools
    15: six look something up, eight change a record, `escalate` hands over. One call or one reply a
    turn.
Reward
    At the end 1 if the records are as they should be and the user was told what they should be
    told; else 0, and `info["figures"]` says why.
Episode end
    The user says goodbye or leaves, or the agent escalates.
Source
    A domain of our own in the manner of tau-bench (arXiv 2406.12045). The user is scripted and
    deterministic, or a chat model.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Annotated, Any, ClassVar

from pydantic import Field

from reflectkit.config import Config, option
from reflectkit.console import Progress, figures_table
from reflectkit.env import Taskset, Teacher, UserTurn, check_task
from reflectkit.envs.conversation import ConversationEnv, ConversationTeacher, UserSettings
from reflectkit.envs.problems import Generated, ProblemGenerator
from reflectkit.envs.support.hearing import agrees, heard, names, numbers, statements
from reflectkit.envs.support.policy import (
    POLICY,
    QUESTIONS,
    RULES,
    UserRequest,
    refuses,
    rules_named,
)
from reflectkit.envs.support.shop import CUSTOMERS, TEN, Ledger, ShopDatabase, shop
from reflectkit.envs.support.tasks import ALL, NAME, ONE, REFUSE, SEVERAL, make_task, source_of
from reflectkit.envs.support.tools import ESCALATE, READING, TOOLS, execute
from reflectkit.envs.support.user import Persona, UserIdentity, instructions
from reflectkit.errors import ConfigError, DataError, refuse
from reflectkit.eventloop import result_of
from reflectkit.seeding import generator
from reflectkit.tools import use_of
from reflectkit.types import Task, ToolCall, ToolSpec, ToolUse, from_json

SCRIPTED = "scripted"
NO_ORACLE = "the oracle of env 'support' reads the scripted user's mind; leave out --user"
FACT_QUESTIONS = {
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
ANSWERS = {"paid": "Order {order} cost {told} euros", "stock": "The {item} in {option} is {told}"}
REPORTS = {
    "cancel": "order {order} is cancelled, and {told} euros are refunded",
    "address": "order {order} will go to {address}",
    "payment": "order {order} will be paid by {payment}",
    "swap": "order {order} now has the {item} in {option} and costs {told} euros",
    "return": "{told} euros are refunded for the {item}",
    "exchange": "you will get the {item} in {option}, and order {order} now costs {told} euros",
    "move": "your address is now {address}",
    "credit": "you will get {told} euros",
}
UNKNOWN = ("The customer is not known yet.", "The customer has not been found.")


class SupportTeacher(ConversationTeacher):
    """The perfect agent of `Support`, with the scripted user, whose mind it reads."""

    @property
    def need(self) -> tuple[str, str]:
        """(what is to be done now, about what): the first thing that is missing."""
        persona, request, conduct = self.env.persona, self.env.persona.current, self.env.conduct
        # 1. Who the user is
        if not persona.identified:
            return "ask", "identity"
        if not conduct.knows_customer:
            return "look up", "customer"
        # 2. What needs no facts
        if request.kind == "danger":
            return "do", ESCALATE
        if request.kind == "extra":
            return "refuse", request.refused
        # 3. The facts, until one shows that a rule forbids it, and the records
        for name in request.facts:
            if name not in persona.revealed:
                return "ask", name
            if name == "order" and persona.revealed[name] not in conduct.orders:
                return "look up", "order"
            if request.rule and RULES[request.rule].shown_by == name:
                return "refuse", request.refused
        if request.kind == "payment" and not conduct.account:
            return "look up", "account"
        if request.product and request.product not in conduct.products:
            return "look up", "product"
        # 4. The answer, the refusal or the change
        if request.kind in ("paid", "stock"):
            return "answer", request.kind
        if request.refused:
            return "refuse", request.refused
        if all(call in conduct.changes for call in request.actions):
            return "report", request.kind
        # A change needs a yes
        return ("do", request.actions[0].name) if persona.confirmed else ("confirm", request.kind)

    def action(self) -> ToolUse:
        """The best action given only the conversation. Raises ConfigError unless the user is
        scripted.
        """
        refuse(self.env.user is not None, NO_ORACLE)
        persona, (step, subject) = self.env.persona, self.need
        request = persona.current
        facts = {**request.facts, **persona.revealed}
        amount = request.told[0][0] if request.told else ""
        # 1. A question, or a call
        if step == "ask":
            return ToolUse(FACT_QUESTIONS[subject])
        if step == "look up":
            name, email = persona.identity.name, persona.identity.email
            by_name = ("find_customer_by_name", {"name": name, "city": persona.identity.city})
            call, arguments = {
                "customer": ("find_customer", {"email": email}) if email else by_name,
                "order": ("get_order", {"order": facts.get("order")}),
                "account": ("get_customer", {"customer": self.env.conduct.customer}),
                "product": ("get_product", {"product": request.product}),
            }[subject]
            return use_of([ToolCall(call, arguments)])
        if step == "do":
            return use_of(request.actions[:1])
        # 2. A reply
        if step == "confirm":
            return ToolUse(f"Shall I {PROPOSALS[request.kind].format(**facts)}, yes or no?")
        if step == "refuse":
            reply = f"I cannot do that: {subject}"
        elif step == "report":
            reply = f"Done: {REPORTS[request.kind].format(**facts, told=amount)}"
        elif request.kind == "stock" and amount.isdigit():
            reply = f"We have {amount} left"
        else:
            reply = ANSWERS[request.kind].format(**facts, told=amount)
        return ToolUse(f"{reply}. Anything else?")

    def mistakes(self) -> list[ToolUse]:
        """Needless actions, which spoil nothing."""
        mistakes = [use_of([ToolCall("list_products", {})]), ToolUse("One moment.")]
        if self.env.conduct.knows_customer:
            call = ToolCall("get_order", {"order": self.env.conduct.customer})
            mistakes.append(use_of([call]))
        return mistakes

    def comment(self, generator: random.Random) -> str:
        """What is known, what the policy says, and what is missing. Raises ConfigError unless the
        user is scripted.
        """
        refuse(self.env.user is not None, NO_ORACLE)
        step, subject = self.need
        persona, conduct = self.env.persona, self.env.conduct
        # 1. Who the user is, and the state of the order
        parts = []
        if conduct.knows_customer:
            parts.append(f"The customer is {conduct.customer}.")
        else:
            parts.append(generator.choice(UNKNOWN))
        order = persona.revealed.get("order", "")
        if order in conduct.orders:
            parts.append(f"{order} is {self.env.ledger.of('orders', order)['status']}.")
        # 2. What the policy says
        if step == "refuse":
            verdict = generator.choice(("Not allowed", "The policy forbids it"))
            parts.append(f"{verdict}: {subject}.")
        elif step in ("confirm", "do", "report"):
            parts.append(generator.choice(("It is allowed.", "The policy allows it.")))
        # 3. What is missing
        missing = {
            "ask": "who the customer is" if subject == "identity" else f"the {subject}",
            "look up": f"the record of the {subject}",
            "confirm": "the user's yes",
            "do": "the change itself" if subject != ESCALATE else "a colleague",
        }.get(step, "only the reply")
        return " ".join([*parts, f"Missing: {missing}."])

    @classmethod
    def check(cls, settings: Any) -> None:
        """Raises ConfigError unless the user is scripted."""
        refuse(settings.user != SCRIPTED, NO_ORACLE)


MOST_NUMBERS = 4
"""Amounts and counts in a reply; a reply with more of them tells none, as a list of all numbers
would.
"""
MOST_COUNTS = 3
"""Likewise of a reply about the stock, where "sold out" is a number as well, as it can only be one
of ten.
"""
MOST_RULES = 2
"""Rules that the refusals of a request may name, for the same reason."""


@dataclass
class Conduct:
    """What the agent has done, call by call.

    customer: who the user is, by id. knows_customer: the agent found them. orders, products: what
    it looked up; products by the name that it used. account: whether it looked up the customer.
    changes: those that it made. hasty: it made one before it had found the customer. unconfirmed:
    it made one without a yes.
    """

    database: ShopDatabase
    customer: str
    knows_customer: bool = False
    orders: set[str] = field(default_factory=set)
    products: set[str] = field(default_factory=set)
    account: bool = False
    changes: list[ToolCall] = field(default_factory=list)
    hasty: bool = False
    unconfirmed: bool = False

    def saw(self, call: ToolCall, agreed: bool) -> bool:
        """A call was carried out. agreed: the user has said yes to it. Returns whether it changed a
        record.
        """
        arguments = call.arguments
        if call.name.startswith("find_customer"):
            # Of several with one name, only the first counts, as the tool refuses to choose
            self.knows_customer |= self.database.customers_with(**arguments)[:1] == [self.customer]
        elif call.name == "get_order":
            self.orders.add(arguments["order"])
        elif call.name == "get_product":
            self.products.add(arguments["product"].strip().lower())
        elif call.name == "get_customer":
            self.account |= arguments["customer"] == self.customer
        elif call.name not in READING:
            self.changes.append(call)
            if call.name != ESCALATE:
                self.hasty |= not self.knows_customer
                self.unconfirmed |= not agreed
                return True
        return False

    def has_looked_up(self, request: UserRequest) -> bool:
        """Whether the agent has read what a refusal of `request`, or its answer, depends on; True
        if neither is due.
        """
        is_rule = request.rule and RULES[request.rule].needs_look_up
        if request.kind not in QUESTIONS and not is_rule:
            return True
        if not request.product:
            return request.facts.get("order") in self.orders
        products = self.database.tables["products"].items()
        ids = {name for name, record in products if record["name"] == request.product}
        return not self.products.isdisjoint({request.product, *ids})


def untold(requests: Sequence[UserRequest], replies: Sequence[Sequence[str]]) -> list[str]:
    """The facts that the user was not told, each by its first wording, and the reasons of refusals.
    replies: what the user heard during each request. Questions tell nothing, nor does a reply with
    more numbers, or refusals with more rules, than there is reason for.
    """
    missing = []
    for request, answers in zip(requests, replies, strict=True):
        # 1. Facts
        claims = [statements(reply) for reply in answers]
        for alternatives in request.told:
            if not any(_tells(request, reply, alternatives) for reply in claims):
                missing.append(alternatives[0])
        # 2. The reason of a refusal
        if request.rule and RULES[request.rule].words:
            reasons = set()
            for reply in answers:
                if refuses(reply):
                    reasons |= rules_named(statements(reply))
            if request.rule not in reasons or len(reasons) > MOST_RULES:
                missing.append(request.refused)
    return missing


def _tells(
    request: UserRequest,
    claims: str,
    alternatives: Sequence[str],
) -> bool:
    """Whether a reply tells a fact in one of its wordings, of which a number may be written in any
    way. Of a question about the stock, the option's name, such as "two slots", is no number.
    """
    if request.kind == "stock":
        claims = claims.replace(request.facts.get("option", "").lower(), " ")
        is_sold_out = any(names(claims, words) for words in RULES["stock"].words)
        counts = numbers(claims) | ({0.0} if is_sold_out else set())
        if len(counts) > MOST_COUNTS:
            return False
    amounts = numbers(claims)
    for alternative in alternatives:
        if not alternative.replace(".", "", 1).isdigit():
            if names(claims, alternative):
                return True
        elif float(alternative) in amounts and len(amounts) <= MOST_NUMBERS:
            return True
    return False


class SupportSettings(UserSettings):
    """The env's settings."""

    user: str = option(
        SCRIPTED, help="Who the agent talks with: scripted, openai:MODEL, azure:… or local:MODEL."
    )
    brief: bool = option(
        False,
        help="Leave out the policy and the tools in the prompt, for a model trained without them.",
    )


@dataclass(frozen=True, slots=True)
class ShopSource:
    """How the database is made again. digest: that of the database that the task was made for."""

    seed: Annotated[int, Field(ge=0)]
    customers: Annotated[int, Field(ge=1, le=100_000)]
    digest: str


@dataclass(frozen=True, slots=True)
class DeskTask:
    """What a task's data hold. customer: who the user is, by id."""

    database: ShopSource
    customer: str
    user: UserIdentity
    requests: Annotated[tuple[UserRequest, ...], Field(min_length=1)]


class Requests(Taskset):
    """The problems of `Support`."""

    content = DeskTask
    problem_generator: ClassVar[str] = "reflectkit.envs.support.env:SupportTasks"

    def example(self, level: str, seed: int) -> Task:
        """A generated task, for users without a file of them."""
        source = source_of(seed % 2**31, CUSTOMERS)
        return make_task(
            seed,
            0,
            SEVERAL if level == ALL else level,
            shop(source["seed"], CUSTOMERS),
            source,
        )

    def at_level(self, task: Task, level: str) -> Task | None:
        """The task itself, if it is of `level` or `level` is "all"."""
        return task if level in (ALL, task.level) else None

    def aspects(self, task: Task) -> Mapping[str, str]:
        """The user's mood."""
        return {"mood": str(task.data.get("user", {}).get("mood", ""))}


class Support(ConversationEnv):
    """A service desk: talk with a customer, call a shop's tools, follow its policy.

    See the module's text for the rules, and `SupportSettings`. user: default: the task's scripted user.
    """

    name: ClassVar[str] = NAME
    taskset: ClassVar[Taskset] = Requests()
    teacher_type: ClassVar[type[Teacher]] = SupportTeacher
    levels: ClassVar[tuple[str, ...]] = (ONE, SEVERAL, REFUSE, ALL)
    horizons: ClassVar[dict[str, int]] = {ONE: 20, SEVERAL: 40, REFUSE: 20, ALL: 40}
    Settings: ClassVar[type[Config]] = SupportSettings
    settings: SupportSettings
    rules: ClassVar[str] = (
        "Goal: do what the user of an online shop wants, as far as the policy allows.\n"
        f"{POLICY}Actions: one tool call, or one reply to the user, in each turn.\n"
        "End: the episode ends when the user says goodbye, or when a colleague takes over.\n"
        "Reward: 1 if the records end up as they should, the user was told what they need to know,"
        " and the rules were followed, else 0."
    )

    def _begin(self, task: Task, seed: int) -> str:
        # 1. The database of the task
        check_task(task, self.name, self.levels[:-1])
        content = from_json(DeskTask, task.data, path=task.id)
        database = shop(content.database.seed, content.database.customers)
        if database.digest != content.database.digest:
            raise DataError(
                task.id,
                (
                    "was made for another database than its seed gives; make the tasks again with"
                    " `gen-task`"
                ),
            )
        if content.customer not in database.tables["customers"]:
            raise DataError(task.id, "is no customer of the database", field="data.customer")
        # 2. The facts that the user can be asked for, and that a proposal or an answer names
        for request in content.requests:
            form = "" if request.rule else (PROPOSALS | ANSWERS).get(request.kind, "")
            fields = {name for _, name, _, _ in Formatter().parse(form) if name} - {"told"}
            excess = request.final.keys() - FACT_QUESTIONS.keys()
            faults = sorted(excess | (fields - request.final.keys()))
            if faults:
                why = (
                    f"a request of kind {request.kind!r} has too many or too few facts:"
                    f" {', '.join(faults)}"
                )
                raise DataError(task.id, why, field="data.requests.facts")
        # 3. The records as they should be at the end
        self._requests = content.requests
        self._expected = Ledger(database)
        """The records after all that is to be done."""
        for request in self._requests:
            for call in request.actions:
                is_possible, message = execute(self._expected, call)
                if not is_possible:
                    why = f"its call {call.name} cannot be done: {message}"
                    raise DataError(task.id, why, field="data.requests")
        # 4. The records as they are, the user, and what the agent does
        self.ledger = Ledger(database)
        self._instructions = instructions(content.user, self._requests)
        self.persona = Persona(content.user, self._requests, generator(seed, "user"))
        self.conduct = Conduct(database, content.customer)
        return "" if self.settings.brief else POLICY

    _tools = TOOLS

    @property
    def _offered(self) -> Sequence[ToolSpec]:
        return () if self.settings.brief else TOOLS

    def _user_turn(self, said: str) -> UserTurn | Awaitable[UserTurn]:
        if self.user is not None:
            return self._asked(self.user, self._instructions)
        return self.persona.answer(said) if said else self.persona.begin()

    def _execute(self, call: ToolCall) -> tuple[str, bool, bool]:
        is_possible, text = execute(self.ledger, call)
        agreed = self.persona.confirmed
        # A user without a script agrees in words
        if self.user is not None:
            words = [message.content for message in self.dialogue if message.role == "user"]
            agreed = agrees(heard(words[-1]))
        if is_possible and self.conduct.saw(call, agreed):
            self.persona.acted = True
        return text, not is_possible, self.ledger.escalated

    def _verdict(self, is_over: bool) -> tuple[float, dict[str, Any]]:
        # 1. What the user heard during each request; without a script, all counts for each
        ledger, expected, conduct = self.ledger, self._expected, self.conduct
        replies = self.persona.replies
        if self.user is not None:
            words = []
            for message in self.dialogue:
                if message.role == "assistant":
                    words.append(heard(message.content))
            replies = [words] * len(self._requests)
        missing_facts = untold(self._requests, replies)
        # 2. The changes that were made, and those that are right
        changes, right = ledger.differences(), expected.differences()
        common = changes.keys() & right.keys()
        lacks_escalation = expected.escalated and not ledger.escalated
        needless_escalation = ledger.escalated and not expected.escalated
        # 3. Each way to fail
        faults = {
            # A record that was to be changed was changed otherwise, or was not, or a colleague was
            # to take over.
            "wrong_change": any(changes[record] != right[record] for record in common),
            "missing_change": bool(right.keys() - changes.keys()) or lacks_escalation,
            # A record was changed that was to stay as it was.
            "forbidden_change": bool(changes.keys() - right.keys()),
            # The user was not told something that they asked for, or why their wish was refused.
            "fact_not_told": bool(missing_facts),
            # It ended without a satisfied user: the user left, the steps ran out, or a needless
            # escalation.
            "gave_up": not is_over or self.persona.has_left or needless_escalation,
            # A record was changed before it was known who the user is, or it never was known.
            "unidentified": conduct.hasty or not (conduct.knows_customer or ledger.escalated),
            # A record was changed without the user's yes.
            "unconfirmed": conduct.unconfirmed,
            # A wish was refused, or a question answered, without a look at the order or the product
            # it depends on.
            "not_looked_up": not all(map(conduct.has_looked_up, self._requests)),
        }
        success = not any(faults.values())
        return float(success), {
            "figures": {name: float(value) for name, value in faults.items()},
            "success": success,
            "changes": ledger.listed(),
            "expected": expected.listed(),
            "untold": missing_facts,
        }

    def _state(self) -> object:
        """What the teacher's next action depends on."""
        persona = self.persona
        # The same need after an action means that it brought nothing
        need = SupportTeacher(self).need
        return need, persona.number, persona.revised, persona.pushes, dict(persona.revealed)

    def _before(self, meaning: object) -> None:
        self._last_state = self._state()

    def _after(self, is_over: bool) -> None:
        self.mark = "mistake" if self._state() == self._last_state and not is_over else "good"


INSTANCES = 400


class SupportTaskSettings(Config):
    """The generator's settings."""

    instances: int | None = option(
        None,
        help=f"Tasks of each level (one, several, refuse); default: {INSTANCES}.",
        ge=1,
    )
    customers: int = option(CUSTOMERS, help="Customers of the generated shop.", ge=20)


class SupportTasks(ProblemGenerator):
    """Tasks with one request, with several, and with one that must be refused."""

    Settings: ClassVar[type[Config]] = SupportTaskSettings
    noun: ClassVar[str] = "tasks"
    settings: SupportTaskSettings

    def generate(self, progress: Progress) -> Generated:
        """`data.json` with all tasks. Raises ConfigError for a task that its own oracle cannot
        solve.
        """
        source = source_of(self.seed, self.settings.customers)
        database = shop(self.seed, self.settings.customers)
        levels, count = (ONE, SEVERAL, REFUSE), self.settings.instances or INSTANCES
        tasks: list[Task] = []
        with progress.bar("Tasks, each solved once", len(levels) * count) as bar:
            for level in levels:
                for number in range(count):
                    # A task that its oracle cannot solve is a fault of ours, and stops the
                    # generation
                    tasks.append(make_task(self.seed, number, level, database, source))
                    prove(tasks[-1])
                    bar.advance()
        figures = {"tasks": len(tasks), "customers": len({task.group for task in tasks})}
        figures |= {level: sum(task.level == level for task in tasks) for level in levels}
        path = self.folder / "data.json"
        return Generated(
            {"data": tasks},
            figures,
            (figures_table(f"Tasks in {path}", "count", figures),),
        )


def prove(task: Task) -> int:
    """The number of steps in which the oracle solves `task` with its scripted user. Raises
    ConfigError if it fails.
    """
    steps = Support.horizons[task.level]
    env = Support(horizon=steps)
    result_of(env.reset(task, 0))
    for number in range(1, steps + 1):
        result = result_of(env.step(env.teacher().action()))
        if result.terminated:
            if not result.info["success"]:
                raise ConfigError(f"internal error: the oracle fails task {task.id}: {result.info}")
            return number
    raise ConfigError(f"internal error: the oracle does not end task {task.id} in {steps} steps")
