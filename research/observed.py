"""Envs with comments that are computed from what the player has seen, and from nothing else.

The envs' own teachers know the task: what the user wants, every fact of the conversation, the file that answers. These
read the text of the observation by rule, and may be wrong. Actions, rewards and problems are those of the envs:
`--env research.observed:ObservedMemory`, `ObservedSupport` and `ObservedAutoExplore`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, ClassVar, Literal

from reflectkit.env import Teacher
from reflectkit.envs.auto_explore.env import (
    RIGHT_FILE,
    TO_FILE,
    TO_FOLDER,
    TO_TOP,
    TOPIC,
    WORDS_IN_COMMENT,
    WRONG_FILE,
    AutoExplore,
    AutoExploreTeacher,
    places_of_words,
    question_words,
)
from reflectkit.envs.auto_explore.repository import UP
from reflectkit.envs.memory.env import Memory, MemoryTeacher
from reflectkit.envs.support.env import Support, SupportTeacher
from reflectkit.envs.support.policy import RULES, RuleName
from reflectkit.envs.support.shop import LATE_DAYS, PENDING, REASONS, RETURN_DAYS
from reflectkit.text import stem, words
from reflectkit.types import Message, Observation

ITEM = re.compile(r"^ (\S+) (.+)$", re.MULTILINE)
STATED = re.compile(r"([A-Z]\w+'s \w+) (?:is|was) (\w+)")
FORGOTTEN = re.compile(r"(?:forget|remember) ([A-Z]\w+'s \w+)")
EVENT = re.compile(r"(?:On (?P<first>\w+day), )?(?P<who>[A-Z]\w+) (?P<what>[a-z][\w ]+?)(?: on (?P<last>\w+day))?\.")
OWN = re.compile(r"The user says: my (\w+) is (\w+)")


class SeenMemoryTeacher(MemoryTeacher):
    """Comments on the part of the conversation and the items that are shown."""

    def comment(self, generator: random.Random) -> str:
        """Which items a sentence is about, and whether it is new to them."""
        memory, _, part = self.env.seen.rpartition("\nConversation:\n")
        items = ITEM.findall(memory)
        said = [(key, f"{key} is {value}") for key, value in STATED.findall(part)]
        said += [(key, "") for key in FORGOTTEN.findall(part)]
        said += [(event, event) for event in _events(part)]
        comments = [
            f"{newer} replaces {older}."
            for number, (older, text) in enumerate(items)
            for newer, other in items[number + 1 :]
            if " is " in text and text.partition(" is ")[0] == other.partition(" is ")[0]
        ]
        comments += [f"The user's {name} belongs in the core." for name, _ in OWN.findall(part)]
        for key, text in dict(said).items():  # the last word on each
            held = [(name, other) for name, other in items if other.startswith(key)]
            if not text:
                comments.append(f"Forget {key} in {held[-1][0]}." if held else f"Forget {key}.")
            elif not held:
                comments.append(f"New: {key}.")
            elif held[-1][1] != text:
                comments.append(f"{key} in {held[-1][0]} has changed.")
        return " ".join(comments) or "Nothing to keep."


def _events(part: str) -> Iterator[str]:
    for found in EVENT.finditer(part):
        if day := found["first"] or found["last"]:
            yield f"{found['who']} {found['what']} on {day}"


class ObservedMemory(Memory):
    """Memory, with comments on what is seen alone."""

    name: ClassVar[str] = "memory"
    teacher_type: ClassVar[type[Teacher]] = SeenMemoryTeacher

    def _observe(self) -> Observation:
        observation = super()._observe()
        self.seen = observation.messages[-1].content
        return observation


WISHES = {
    "cancel": r"cancel",
    "address": r"another address|send my order",
    "payment": r"pay for an order",
    "swap": r"wrong option|another option",
    "return": r"return something|something back",
    "exchange": r"exchange something",
    "move": r"have moved|own address",
    "credit": r"came late|was late",
    "paid": r"did I pay|the price of",
    "stock": r"how many",
    "extra": r"give me 20 euros|voucher",
    "danger": r"caught fire|my hand",
}
"""The words with which each wish begins; see `reflectkit.envs.support.policy.SAYS`."""
CHANGES_PENDING = ("cancel", "address", "payment", "swap")
ORDER = re.compile(r"\bW\d+\b")


class SeenSupportTeacher(SupportTeacher):
    """Comments on the messages of the conversation."""

    def comment(self, generator: random.Random) -> str:
        """Who the customer is, the order that was looked up, and the rule that forbids the wish, if one does."""
        messages = self.env.messages
        wish, since = _wish(messages)
        customer = next((str(found["customer"]) for name, found in _results(messages) if name[:4] == "find"), "")
        parts = [f"The customer is {customer}." if customer else "The customer is not known."]
        said = " ".join(message.content for message in messages[since:] if message.role == "user")
        looked_up = dict(_results(messages[since:]))
        order = looked_up.get("get_order", {})
        if order:
            parts.append(f"The order is {order['status']}.")
        rule = _forbids(wish, said, customer, order, looked_up.get("get_product", {}))
        if rule:
            parts.append(f"Not allowed: {RULES[rule].why}.")
        elif wish == "danger" and customer:
            parts.append("Missing: a colleague.")
        elif customer and not order and ORDER.search(said):
            parts.append("Missing: the record of the order.")
        elif customer and re.search(r"\bYes\b", messages[-1].content):
            parts.append("The user agrees.")
        return " ".join(parts)


def _wish(messages: list[Message]) -> tuple[str, int]:
    """(the wish that the user told last, the number of the message that told it)."""
    for number, message in reversed(list(enumerate(messages))):
        if message.role == "user":
            for wish, pattern in WISHES.items():
                if re.search(pattern, message.content, re.IGNORECASE):
                    return wish, number
    return "", 0


def _results(messages: list[Message]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The name of each call that could be carried out, and its result."""
    for before, message in pairwise(messages):
        if before.calls and message.content.startswith("{"):
            yield before.calls[0].name, json.loads(message.content)


def _forbids(
    wish: str, said: str, customer: str, order: Mapping[str, Any], product: Mapping[str, str]
) -> RuleName | Literal[""]:
    """The rule that forbids the wish, by what has been seen of it; "" if none does yet."""
    if wish == "extra":
        return "goodwill"
    options = [offer.partition(", ")[0] for offer in product.values() if offer.endswith("sold out")]
    if wish in ("swap", "exchange") and any(re.search(rf"\b{re.escape(option)}\b", said) for option in options):
        return "stock"
    if not order:
        return ""
    if order["customer"] != customer:
        return "owner"
    if wish in CHANGES_PENDING and order["status"] != PENDING:
        return "shipped"
    if wish in ("return", "exchange") and order.get("days_since_delivery", 0) > RETURN_DAYS:
        return "late"
    if wish == "credit" and order.get("late_days", 0) < LATE_DAYS:
        return "credit"
    if wish == "return" and re.search(r"going to my|my other|to the \w+ card", said):
        return "payment"
    told = re.search(r"\b(?:It is|It was) (.+?)\.", said[said.rfind("W") :]) if wish == "cancel" else None
    return "reason" if told and told[1] not in REASONS else ""


class ObservedSupport(Support):
    """The service desk, with comments on what is seen alone."""

    name: ClassVar[str] = "support"
    teacher_type: ClassVar[type[Teacher]] = SeenSupportTeacher


ENOUGH = 2 / 3
"""Share of the question's words that a file must have to answer it."""


class SeenAutoExploreTeacher(AutoExploreTeacher):
    """Comments on the prompt of a step: the names that are listed and the file that is shown."""

    def comment(self, generator: random.Random) -> str:
        """Which of the question's words the shown file has, and which of the listed names has most of them."""
        prompt, _, output = self.env.prompt().partition("\nOutput:")
        fields = dict(line.split(": ", 1) for line in prompt.splitlines())
        asked, done = question_words(fields["Task"]), fields["Commands"].split("; ")

        def found(text: str) -> int:
            has = {stem(word) for word in words(text)}
            return sum(stem(word.lower()) in has for word in asked)

        verb, _, file = done[-1].partition(" ")
        if verb == "cat":
            places = places_of_words(output)
            noted = [(word, places.get(stem(word.lower()))) for word in asked[:WORDS_IN_COMMENT]]
            parts = [", ".join(f'{word} in "{place}"' if place else f"no {word}" for word, place in noted) + "."]
            if found(f"{file} {output}") >= ENOUGH * len(asked):
                return " ".join([*parts, generator.choice(RIGHT_FILE).format(file=file)])
            parts.append(generator.choice(WRONG_FILE).format(file=file))
        else:
            parts = [generator.choice(TOPIC).format(words=", ".join(asked[:WORDS_IN_COMMENT]) or "something")]
        commands = self.env.commands
        new = [name for name in commands if name[:4] == "cat " or (name[:3] == "cd " and name not in (UP, *done))]
        if not new and UP in commands:
            return " ".join([*parts, generator.choice(TO_TOP)])
        best = max(new or commands, key=lambda name: (found(name), name[:4] == "cat "))
        to = TO_FOLDER if best[:3] == "cd " else TO_FILE
        return " ".join([*parts, generator.choice(to).format(name=best.partition(" ")[2])])


class ObservedAutoExplore(AutoExplore):
    """AutoExplore, with comments on what is seen alone."""

    name: ClassVar[str] = "auto_explore"
    teacher_type: ClassVar[type[Teacher]] = SeenAutoExploreTeacher

    def _observe(self) -> Observation:
        self.observation = super()._observe()
        return self.observation
