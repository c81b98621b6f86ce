"""The scripted user: asks for one thing after the other, tells each fact only when asked, and acts by its mood.

It understands an agent by key words: what is asked for, a proposal to confirm, a refusal, something done. It is
deterministic: the same words get the same answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reflectkit.core.users import UserTurn
from reflectkit.envs.support.requests import QUESTIONS, Request

TERSE, CHATTY, WAVERING, PUSHY = "terse", "chatty", "wavering", "pushy"
MOODS = (TERSE, CHATTY, WAVERING, PUSHY)
PUSHES = 2
"""How often a pushy user insists."""
PATIENCE = 4
"""Unhelpful answers after which the user leaves."""

SENTENCE = re.compile(r"[^.!?\n]*[.!?\n]?")
ORDER_ID = re.compile(r"\bw\d{3,6}\b")
REQUESTING = re.compile(r"\?|\bplease\b|\btell me\b|\bgive me\b|\bi need\b|\bmay i\b|\bcould you\b")
ASKS = {
    "email": re.compile(r"\be-?mail\b"),
    "name": re.compile(r"\b(your|full) name\b|\bname and (city|town)\b|\bwho are you\b"),
    "order": re.compile(r"\border('s)? (number|id)\b|\b(which|what) order\b|\bnumber of (the|your) order\b"),
    "reason": re.compile(r"\breason\b|\bwhy\b"),
    "address": re.compile(r"\b(new|which|what|right|correct|full) (\w+ )?address\b|\bwhere (should|shall|do)\b"),
    "item": re.compile(
        r"\b(which|what) (\w+ )?(item|product|article|thing)s?\b|\bwhat (would you like|do you want) to\b"
    ),
    "option": re.compile(
        r"\b(which|what) (\w+ )?(option|colou?r|size|version|variant)\b|\b(which|what)\b.*\binstead\b"
    ),
    "payment": re.compile(
        r"\b(which|what) (\w+ )?(payment|card)\b|\bhow (do|would) you (\w+ )*pay\b|\brefund(ed)? to\b"
    ),
}
CONFIRM = re.compile(
    r"\byes or no\b|\(yes\b|\bconfirm\b|\bshall i\b|\bshould i\b|\bdo you want me to\b|\bwould you like me to\b"
    r"|\bis (that|this) (ok|okay|right|correct)\b|\bgo ahead\b|\bproceed\b|\bdo you agree\b"
)
ELSE = re.compile(r"\b(any|some)thing else\b|\bfurther help\b|\belse i can\b")
REFUSAL = re.compile(
    r"\bcan ?not\b|\bcan't\b|\bunable\b|\bnot (possible|allowed|able|eligible|permitted)\b|\bunfortunately\b|\bsorry\b"
    r"|\bpolicy\b|\brules?\b|\bnot entitled\b|\bno exceptions?\b"
)
DONE = re.compile(
    r"\bdone\b|\b(has|have) been\b|\bis now\b|\bi have\b|\bi've\b|\bsuccessful"
    r"|\b(is|was|are) (cancell?ed|changed|swapped|returned|exchanged|credited|refunded|updated)\b"
)
ANSWER = re.compile(r"\d|\bsold out\b|\bin stock\b|\bavailable\b|\bnone\b")
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

    revealed: the facts of the current request that the user has told, by name, and "identity". asked, current: which
    request it is about. outcome: how the conversation ended: "satisfied" or "left", and "" before.
    """

    def __init__(self, identity: Identity, requests: Sequence[Request], mood: str, chance: random.Random) -> None:
        self.identity, self.requests, self.mood, self.chance = identity, requests, mood, chance
        self.number = 0
        self.identified = False
        self.revealed: dict[str, str] = {}
        self.confirmed = False
        self.revised = False
        self.pushes = 0
        self.outcome = ""
        self._unhelpful = 0

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
        said = said.lower()
        asked = list(self._asked(said))
        if asked:
            return self._tell(asked)
        refused = REFUSAL.search(said) is not None and bool(self.current.refused)
        if CONFIRM.search(said) and not ELSE.search(said) and not refused:
            return self._confirm(said)
        if refused and self.mood == PUSHY and self.pushes < PUSHES:
            self.pushes += 1
            return UserTurn(self.chance.choice(PUSHING))
        answered = self.current.kind in QUESTIONS and ANSWER.search(said)
        if answered or any(pattern.search(said) for pattern in (ELSE, REFUSAL, DONE)):
            return self._next()
        return self._complain()

    def _asked(self, said: str) -> Iterator[str]:
        """The facts that the agent asks for."""
        sentences = [one for one in SENTENCE.findall(said) if REQUESTING.search(one) and not ELSE.search(one)]
        for name, pattern in ASKS.items():
            if any(
                pattern.search(one) and not (CONFIRM.search(one) and self._proposes(name, one)) for one in sentences
            ):
                yield name

    def _proposes(self, name: str, sentence: str) -> bool:
        """Whether a sentence that asks for a confirmation is about a change, and not about a fact not told yet."""
        if name == "order":
            return ORDER_ID.search(sentence) is not None
        return name not in ("email", "name") and (name in self.revealed or name not in self.current.facts)

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
        if not new:
            self._unhelpful += 1
            if self._unhelpful >= PATIENCE:
                return self._leave()
        return UserTurn(self._dressed(" ".join(dict.fromkeys(parts)) or "I do not know."))

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

    def _confirm(self, said: str) -> UserTurn:
        order = self.current.facts.get("order", "")
        named = ORDER_ID.findall(said)
        if order and named and order.lower() not in named:
            self.revealed["order"] = order
            return UserTurn(f"No, I mean order {order}.")
        if self.current.revised and not self.revised:
            self.revised = True
            ((name, value), *_) = self.current.revised.items()
            self.revealed[name] = value
            return UserTurn(f"Wait, I have changed my mind. {self._fact(name, value)}")
        self.confirmed = True
        return UserTurn("Yes." if self.mood == TERSE else self._dressed("Yes, please."))

    def _next(self) -> UserTurn:
        """The next request, or the end."""
        self.number += 1
        self.revealed, self.confirmed, self.revised, self.pushes, self._unhelpful = {}, False, False, 0, 0
        if self.number >= len(self.requests):
            self.outcome = "satisfied"
            return UserTurn("Bye." if self.mood == TERSE else "Thank you, goodbye.", over=True)
        return UserTurn(self._dressed(self.current.say))

    def _complain(self) -> UserTurn:
        self._unhelpful += 1
        if self._unhelpful >= PATIENCE:
            return self._leave()
        return UserTurn(f"I do not understand. {self.current.say}")

    def _leave(self) -> UserTurn:
        self.outcome = "left"
        return UserTurn("This does not help me. Goodbye.", over=True)

    def _dressed(self, text: str) -> str:
        """`text` with small talk, if the user is chatty."""
        return f"{text} {self.chance.choice(SMALL_TALK)}" if self.mood == CHATTY else text
