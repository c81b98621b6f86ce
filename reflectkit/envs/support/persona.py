"""The scripted user: asks for one thing after the other, tells each fact only when asked, and acts by its mood.

It understands an agent by key words (`hearing.py`): what is asked for, a proposal to confirm, a refusal, something
done. It agrees once the agent knows who it is and all the facts, and takes a thing for done when the records were
changed or the agent claims it in so many words. It is deterministic: the same words get the same answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reflectkit.env import UserTurn
from reflectkit.envs.support.hearing import (
    ASKS,
    CLAIM,
    CONFIRM,
    DONE,
    ELSE,
    GONE,
    ORDER_ID,
    PRICE,
    REQUESTING,
    heard,
    names,
    numbers,
    sentences,
    statements,
)
from reflectkit.envs.support.requests import CHANGES, DANGER, PAID, QUESTIONS, Request
from reflectkit.envs.support.rules import PAYMENT as PAYMENT_RULE
from reflectkit.envs.support.rules import refuses

TERSE, CHATTY, WAVERING, PUSHY = "terse", "chatty", "wavering", "pushy"
MOODS = (TERSE, CHATTY, WAVERING, PUSHY)
SATISFIED, LEFT = "satisfied", "left"  # how a conversation ends
PUSHES = 2
"""How often a pushy user insists."""
PATIENCE = 4
"""Unhelpful answers after which the user leaves."""

PUSHING = (
    "I have been a customer for years. Make an exception.",
    "Your colleague did it for me last time. Just do it.",
    "That is not good enough. Do it anyway.",
)
SMALL_TALK = (
    "What a day.",
    "It is raining here again.",
    "My neighbour recommended your shop.",
    "I hope you are well.",
    "My last order was fine, by the way.",
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the user is. email: empty where they do not remember it."""

    name: str
    city: str
    email: str


class Persona:
    """One user in one conversation.

    revealed: the facts of the current request that the agent was told, by name. number, current: which request it is
    about. acted: whether the records were changed since it began, which the caller says. replies: what the user `heard`
    during each request. outcome: how the conversation ended, and "" before.
    """

    def __init__(self, identity: Identity, requests: Sequence[Request], mood: str, chance: random.Random) -> None:
        self.identity, self.requests, self.mood, self.chance = identity, requests, mood, chance
        self.identified = False
        self.outcome = ""
        self.replies: list[list[str]] = [[] for _ in requests]
        self._turn_to(0)

    def _turn_to(self, number: int) -> None:
        self.number = number
        said = self.current.say.lower()
        self.revealed = {name: fact for name, fact in self.current.facts.items() if names(said, fact.lower())}
        self.confirmed = self.revised = self.acted = False
        self.pushes = self._unhelpful = 0

    @property
    def current(self) -> Request:
        """The request that the user wants now."""
        return self.requests[min(self.number, len(self.requests) - 1)]

    def begin(self) -> UserTurn:
        """The first words."""
        greeting = {TERSE: "", CHATTY: "Hello there! ", WAVERING: "Hello. ", PUSHY: "Listen. "}[self.mood]
        return UserTurn(self._dressed(f"{greeting}{self.current.say}"))

    def answer(self, said: str) -> UserTurn:
        """The answer to what the agent said."""
        said = heard(said)
        self.replies[min(self.number, len(self.requests) - 1)].append(said)
        wanting = [one for one in sentences(said) if REQUESTING.search(one) and not ELSE.search(one)]
        if asked := list(self._asked(wanting)):
            return self._tell(asked)
        stated = statements(said)
        if self.current.kind != DANGER and refuses(said):
            return self._refused()
        goes_on = ELSE.search(said) is not None
        if self._is_answered(stated) or (self.acted and (goes_on or DONE.search(stated))):
            return self._next()
        if any(CONFIRM.search(one) for one in wanting):
            return self._confirm(said)
        if CLAIM.search(stated) and self.current.kind in CHANGES:
            return self._next()  # the user believes it
        return self._unhelped(f"I do not understand. {self.current.say}" if "?" in said else "All right.")

    def _asked(self, wanting: Sequence[str]) -> Iterator[str]:
        """The facts that the agent asks for in these sentences."""
        for name, pattern in ASKS.items():
            if any(pattern.search(one) and not (CONFIRM.search(one) and self._proposes(name, one)) for one in wanting):
                yield name

    def _proposes(self, name: str, sentence: str) -> bool:
        """Whether a sentence that asks for a confirmation is about a change, and not about a fact not told yet."""
        if name == "order":
            return ORDER_ID.search(sentence) is not None
        if name in ("email", "name"):
            return False
        fact = self.current.facts.get(name)
        return fact is None or name in self.revealed or names(sentence, fact.lower())

    def _is_answered(self, stated: str) -> bool:
        """Whether the user's question is answered, as far as they can tell."""
        if self.current.kind == PAID:
            return bool(numbers(stated)) and PRICE.search(stated) is not None
        return self.current.kind in QUESTIONS and bool(numbers(stated) or GONE.search(stated))

    def _tell(self, asked: Sequence[str]) -> UserTurn:
        """What the user knows of it. Facts that were told before, and unknown ones, try their patience."""
        facts = self.current.final if self.revised else self.current.facts
        parts, new = [], False
        for name in asked:
            if name in ("email", "name"):
                new |= not self.identified
                self.identified = True
                parts.append(self._identity(name))
            elif name in facts:
                new |= name not in self.revealed
                self.revealed[name] = facts[name]
                parts.append(self._fact(name, facts[name]))
        words = self._dressed(" ".join(dict.fromkeys(parts)) or "I do not know.")
        return UserTurn(words) if new else self._unhelped(words)

    def _identity(self, name: str) -> str:
        if name == "email" and self.identity.email:
            return self.identity.email if self.mood == TERSE else f"It is {self.identity.email}"
        known = f"{self.identity.name}, {self.identity.city}"
        return known if self.mood == TERSE else f"I am {self.identity.name} from {self.identity.city}."

    def _fact(self, name: str, value: str) -> str:
        if self.mood == TERSE:
            return value
        templates = {
            "order": "Order {}.",
            "reason": "It was {}." if value.startswith("ordered") else "It is {}.",
            "address": "To {}.",
            "item": "The {}.",
            "option": "In {}, please.",
            "payment": "The {}.",
        }
        return templates[name].format(value)

    def _refused(self) -> UserTurn:
        """Who pushes insists; the others accept it."""
        if self.mood == PUSHY and self.pushes < PUSHES:
            self.pushes += 1
            return UserTurn(self.chance.choice(PUSHING))
        return self._next()

    def _confirm(self, said: str) -> UserTurn:
        """The answer to a proposal."""
        facts = self.current.final if self.revised else self.current.facts
        order, named = facts.get("order", ""), ORDER_ID.findall(said)
        if order and named and order.lower() not in named:
            self.revealed["order"] = order
            return UserTurn(f"No, I mean order {order}.")
        if not self.identified:
            return self._unhelped("You have not asked who I am.")
        self.revealed |= {name: fact for name, fact in facts.items() if names(said, fact.lower())}
        if missing := [name for name in facts if name not in self.revealed]:
            return self._tell(missing)
        wish = facts.get("payment", "")
        if self.current.rule == PAYMENT_RULE and not names(said, wish.lower()):
            return self._unhelped(f"No, to the {wish}.")
        if self.current.revised and not self.revised:
            self.revised = True
            ((name, value), *_) = self.current.revised.items()
            self.revealed[name] = value
            return UserTurn(f"Wait, I have changed my mind. {self._fact(name, value)}")
        self.confirmed = True
        return UserTurn("Yes." if self.mood == TERSE else self._dressed("Yes, please."))

    def _next(self) -> UserTurn:
        """The next request, or the end."""
        self._turn_to(self.number + 1)
        if self.number >= len(self.requests):
            self.outcome = SATISFIED
            return UserTurn("Bye." if self.mood == TERSE else "Thank you, goodbye.", over=True)
        return UserTurn(self._dressed(self.current.say))

    def _unhelped(self, words: str) -> UserTurn:
        """`words`, or the end of the user's patience."""
        self._unhelpful += 1
        return self._leave() if self._unhelpful >= PATIENCE else UserTurn(words)

    def _leave(self) -> UserTurn:
        self.outcome = LEFT
        return UserTurn("This does not help me. Goodbye.", over=True)

    def _dressed(self, text: str) -> str:
        """`text` with small talk, if the user is chatty."""
        return f"{text} {self.chance.choice(SMALL_TALK)}" if self.mood == CHATTY else text
