"""Generates conversations: facts about people that are stated, changed, corrected and forgotten,
events, small talk.

A conversation is a function of its seed. Questions ask for the latest value; the answer about
forgotten facts is "unknown".
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from reflectkit.envs.memory.retrieval import UNKNOWN
from reflectkit.envs.memory.rewards import ConversationFact
from reflectkit.envs.memory.store import CORE, EPISODIC, SEMANTIC
from reflectkit.seeding import generator
from reflectkit.types import Task

PEOPLE = str.split(
    "Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Karin Leo Marta Nils Olga Paul Rosa Simon"
    " Tilda Viktor"
)
VALUES = {
    "city": str.split(
        "Rome Oslo Paris Vienna Lisbon Madrid Dublin Prague Athens Berlin Geneva Krakow"
    ),
    "job": str.split(
        "baker nurse pilot teacher lawyer farmer painter waiter plumber dentist sailor tailor"
    ),
    "pet": str.split("cat dog parrot rabbit hamster turtle goldfish pony canary lizard"),
    "dish": str.split("soup pizza curry salad pancakes risotto noodles stew dumplings lasagna"),
    "sport": str.split("tennis chess rowing hockey boxing cycling sailing archery judo fencing"),
    "color": str.split("red blue green yellow purple orange black white brown silver"),
}
DAYS = str.split("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
EVENTS = (
    "visited the museum", "bought a piano", "painted the fence", "missed the train", "cooked for friends",
    "lost a wallet", "planted a tree", "repaired the roof", "saw a concert", "climbed the tower", "sold the boat",
    "met the mayor",
)  # fmt: skip
SMALL_TALK = (
    "The bus was late again.", "It rained all morning.", "I could not sleep well.", "The coffee is too strong here.",
    "My neighbour is loud today.", "We should talk more often.", "The news was boring.", "Lunch was fine.",
    "I am a bit tired.", "The lift is broken again.", "What a long week!", "The garden looks nice.",
)  # fmt: skip
NEW = (
    "{key} is {value}.",
    "By the way, {key} is {value}.",
    "I heard that {key} is {value}.",
    "Did you know that {key} is {value}?",
)
CHANGED = (
    "{key} is {value} now.",
    "Things have changed: {key} is {value} now.",
    "From today, {key} is {value}.",
)
CORRECTED = (
    "{key} is {wrong}. No, sorry, {key} is {value}.",
    "I thought {key} was {wrong}. Actually, {key} is {value}.",
)
FORGET = ("Please forget {key}.", "Do not remember {key} anymore.")
HAPPENED = ("{person} {event} on {day}.", "On {day}, {person} {event}.")
SHARES = (("new", 5), ("changed", 3), ("corrected", 1), ("forget", 1), ("event", 2), ("self", 1))
USER_FACTS = {"name": PEOPLE, "job": VALUES["job"], "city": VALUES["city"]}
PEOPLE_EACH = 4
MOST_QUESTIONS = 8
SHORT, LONG = (4, 10), 40


def conversation(number: int, chunks: int, level: str, seed: int) -> Task:
    """Conversation `number` of `chunks` chunks. Same arguments, same conversation."""
    chance = generator(seed, "conversation", level, number)
    world = _World(chance)
    texts, facts = [], []
    for _ in range(chunks):
        # 1. One or two facts
        sentences, chunk_facts = [], []
        for _ in range(chance.choice((1, 2, 2))):
            sentence, fact = world.happens()
            if fact is not None:
                sentences.append(sentence)
                chunk_facts.append(asdict(fact))
        # 2. Small talk at random places
        for _ in range(chance.choice((0, 1, 1))):
            sentences.insert(chance.randrange(len(sentences) + 1), chance.choice(SMALL_TALK))
        texts.append(" ".join(sentences) or chance.choice(SMALL_TALK))
        facts.append(chunk_facts)
    data: dict[str, Any] = {
        "chunks": texts,
        "questions": world.questions(),
        "facts": facts,
        "source": "generated",
    }
    name = f"memory-{level}-{seed}-{number}"
    return Task(name, "memory", level, name, data)


class _World:
    """The facts of the conversation so far."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.people = chance.sample(PEOPLE, PEOPLE_EACH)
        self.values: dict[str, tuple[str, str]] = {}  # key → (attribute, value)
        self.forgotten: list[str] = []
        self.events: dict[tuple[str, str], str] = {}
        self.user_facts: dict[str, str] = {}

    def happens(self) -> tuple[str, ConversationFact | None]:
        """A sentence and its fact; None if that kind of fact is exhausted."""
        chance = self.chance
        kinds, shares = zip(*SHARES, strict=True)
        kind = chance.choices(kinds, shares)[0]
        # 1. An event, one for each person and day
        if kind == "event":
            person, day = chance.choice(self.people), chance.choice(DAYS)
            if (person, day) in self.events:
                return "", None
            event = self.events[person, day] = chance.choice(EVENTS)
            text = f"{person} {event} on {day}"
            sentence = chance.choice(HAPPENED).format(person=person, event=event, day=day)
            return sentence, ConversationFact(EPISODIC, text, text)
        # 2. Something about the user
        if kind == "self":
            unset = [name for name in USER_FACTS if name not in self.user_facts]
            if not unset:
                return "", None
            name = chance.choice(unset)
            value = self.user_facts[name] = chance.choice(USER_FACTS[name])
            key = f"The user's {name}"
            fact = ConversationFact(CORE, key, f"{key} is {value}")
            return f"The user says: my {name} is {value}.", fact
        # 3. A fact about a person: one that is there is changed or forgotten, or a new one is stated
        unused = [(f"{person}'s {name}", name) for person in self.people for name in VALUES]
        unused = [(key, name) for key, name in unused if key not in self.values]
        wordings: Sequence[str] = CHANGED
        if (kind in ("changed", "forget") and self.values) or not unused:
            key = chance.choice(list(self.values))
            name, old = self.values[key]
            if kind == "forget":
                del self.values[key]
                self.forgotten.append(key)
                return chance.choice(FORGET).format(key=key), ConversationFact(SEMANTIC, key, "")
            value, wrong = chance.choice([other for other in VALUES[name] if other != old]), ""
        else:
            key, name = chance.choice(unused)
            value, wrong = chance.sample(VALUES[name], 2)
            wordings = CORRECTED if kind == "corrected" else NEW
        self.values[key] = (name, value)
        text = chance.choice(wordings).format(key=key, value=value, wrong=wrong)
        return text[0].upper() + text[1:], ConversationFact(SEMANTIC, key, f"{key} is {value}")

    def questions(self) -> list[dict[str, Any]]:
        """Up to eight questions about facts that are valid at the end or were to be forgotten."""
        # 1. About what is valid
        questions = []
        for key, (name, value) in self.values.items():
            questions.append(_question(f"What is {key}?", value, VALUES[name]))
        for (person, day), event in self.events.items():
            questions.append(_question(f"What did {person} do on {day}?", event, EVENTS))
        for name, value in self.user_facts.items():
            questions.append(_question(f"What is the user's {name}?", value, USER_FACTS[name]))
        # 2. About what is forgotten, two at most
        unknown = []
        for key in dict.fromkeys(self.forgotten):
            if key not in self.values:
                values = VALUES[key.rpartition(" ")[2]]
                unknown.append(_question(f"What is {key}?", UNKNOWN, values))
        self.chance.shuffle(questions)
        questions = [*unknown[:2], *questions][:MOST_QUESTIONS]
        if not questions:
            questions = [_question(f"What is {self.people[0]}'s city?", UNKNOWN, VALUES["city"])]
        return questions


def _question(
    question: str,
    answer: str,
    values: Sequence[str],
) -> dict[str, Any]:
    """values: all possible answers; a reply must contain none but the correct one."""
    wrong = [value for value in values if value != answer]
    return {"question": question, "answer": answer, "kind": "contain", "wrong": wrong}
