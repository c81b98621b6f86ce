"""Comments from the observation alone, in the three envs of `research.observed`."""

from __future__ import annotations

import random
from types import SimpleNamespace

from reflectkit.envs.auto_explore.env import FOUND, TO_TOP
from reflectkit.types import Message, Observation, ToolCall
from research.observed import SeenAutoExploreTeacher, SeenMemoryTeacher, SeenSupportTeacher


def test_memory_compares_the_part_with_the_shown_items():
    seen = (
        "Core memory: empty\nSemantic memory:\n s1 Ida's pet is dog\n s2 Leo's city is Rome\nEpisodic memory: empty\n"
        "Conversation:\nIda's pet is cat. No, sorry, Ida's pet is cat. On Monday, Leo planted a tree. Please forget"
        " Leo's city. The user says: my job is baker. Leo's dish is soup. The bus was late again."
    )
    comment = SeenMemoryTeacher(SimpleNamespace(seen=seen)).comment(random.Random(0))
    assert comment == (
        "The user's job belongs in the core. Ida's pet in s1 has changed. New: Leo's dish. Forget Leo's city in s2."
        " New: Leo planted a tree on Monday."
    )


def told(*messages: Message) -> str:
    env = SimpleNamespace(transcript=SimpleNamespace(messages=list(messages)))
    return SeenSupportTeacher(env).comment(random.Random(0))


def test_the_desk_names_a_rule_once_the_order_is_seen():
    talk = [
        Message("user", "Please cancel my order."),
        Message("assistant", "", (ToolCall("find_customer", {"email": "a@b.c"}),)),
        Message("tool", '{"customer": "c1"}'),
        Message("assistant", "Which order is it?"),
        Message("user", "Order W123."),
    ]
    assert told(talk[0]) == "The customer is not known."
    assert told(*talk) == "The customer is c1. Missing: the record of the order."
    seen = Message("tool", '{"customer": "c1", "status": "shipped"}')
    talk += [Message("assistant", "", (ToolCall("get_order", {"order": "W123"}),)), seen]
    assert told(*talk) == "The customer is c1. The order is shipped. Not allowed: it has shipped."


def explored(output: str, done: str, *commands: str) -> str:
    text = f"Task: Where is the late fee of a loan set?\nFolder: /\nFiles: x\nCommands: {done}\nOutput:{output}"
    observation = Observation((Message("user", text),), commands)
    env = SimpleNamespace(observation=observation, commands=commands)
    return SeenAutoExploreTeacher(env).comment(random.Random(0))


def test_exploring_reads_words_of_names_and_of_the_shown_file():
    names = ("cd ..", "cd loans", "cat fees.py", "cat late_fee.py", "id fees.py")
    assert "late_fee.py" in explored(" none", "none", *names)
    assert "loans" in explored(" none", "cat late_fee.py; cd other", "cd ..", "cd loans", "id fees.py")
    assert explored(" none", "cd loans", "cd ..", "id fees.py").endswith(TO_TOP)
    assert "late" in (said := explored("\n late = 2\n for a loan", "cat fees.py", *names))
    assert said.endswith(tuple(text.format(file="fees.py") for text in FOUND))  # late, loan, and fee in the name
    assert "fees.py" not in explored("\n nothing", "cat fees.py", *names).rpartition(". ")[2]
