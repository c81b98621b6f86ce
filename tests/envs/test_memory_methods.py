"""MemAgent and MEM1: what the model is asked, what its answers are as calls, and answers that are none."""

from __future__ import annotations

from typing import Any

import pytest

from reflectkit.envs.memory import mem1, memagent
from reflectkit.envs.memory.env import Memory
from reflectkit.envs.memory.rewriting import METHODS, beginning
from reflectkit.envs.memory.tools import INSERT, UPDATE
from reflectkit.text import count_tokens
from reflectkit.types import Task


class Noted:
    """A reader that keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[list[str]] = []

    def answer(self, queries: Any, memories: Any) -> list[str]:
        self.shown = [list(texts) for texts in memories]
        return ["Oslo" for _ in queries]


def memory_of(chunks: list[str], reader: Any = None) -> Memory:
    questions = [{"question": "Which zebra?", "answer": "Oslo", "kind": "contain"}]
    env = Memory(reader=reader)
    env.reset(Task("t", "memory", "short", "t", {"chunks": chunks, "questions": questions}), 0)
    return env


@pytest.mark.parametrize("name", METHODS)
def test_one_text_is_rewritten_and_read_whole(name: str) -> None:
    reader = Noted()
    env = memory_of(["Anna is in Rome.", "Anna is in Oslo.", "It rains."], reader)
    answers = ["Anna is\nin Rome.", "Anna is in Oslo.", "Anna is in Oslo."]
    actions = []
    for number, text in enumerate(answers):
        system, user = env.method_messages(name)
        assert "zebra" not in system.content + user.content, "the questions are not known yet"
        assert f"\n{'Anna is in Rome.' if number == 1 else env._chunks[number]}\n" in user.content
        assert ("Nothing yet." in user.content) == (number == 0)
        actions.append(env.method_action(name, f"<think>well</think><IS>{text}</IS>" if name == "mem1" else text))
        result = env.step(actions[-1])
    assert [[call.name for call in action.calls] for action in actions] == [[INSERT], [UPDATE], []]
    assert reader.shown == [["Anna is in Oslo."]], "the text has no word of the question, and is shown all the same"
    assert result.info["success"] is True
    assert result.info["figures"]["memory_tokens"] == count_tokens("Anna is in Oslo.")


@pytest.mark.parametrize("name", METHODS)
def test_a_text_over_the_limit_loses_its_end_and_counts_as_refused(name: str) -> None:
    env = memory_of(["x " * 50_000, "b"])
    assert len(env.method_messages(name)[1].content) > 100_000, "a huge chunk is shown whole"
    action = env.method_action(name, "<IS>" + "word " * 5000)
    assert action.errors == ("the text is longer than 1024 tokens; its end is cut off",)
    result = env.step(action)
    assert (env.store.tokens, result.info["refused"], result.info["figures"]["tool_success"]) == (1024, 1, 0.5)


def test_reasoning_whose_start_is_in_the_prompt_is_not_kept() -> None:
    """Also where it has braces, which could be a call in another env."""
    assert memagent.read("Keep {x: 1}?</think>\nThe memory") == "The memory"
    assert mem1.read("So <IS>draft {x}</IS>?</think><IS>final</IS>") == "final"


@pytest.mark.parametrize(
    ("read", "answer", "reason"),
    [
        (memagent.read, "  \n", "an empty memory"),
        (memagent.read, "<memory></memory>", "an empty memory"),
        (memagent.read, "<think>I wonder", "reasoning without an end"),
        (memagent.read, '<tool_call>{"name": "memory_delete"}</tool_call>', "calls of tools"),
        (memagent.read, "<|python_tag|>x()", "calls of tools"),
        (mem1.read, "Anna is in Rome.", "no internal state"),
        (mem1.read, "<IS> </IS>", "an empty internal state"),
        (mem1.read, "", "no internal state"),
    ],
)
def test_an_answer_without_a_text_says_why(read: Any, answer: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(answer)


def test_the_marks_around_a_text_are_left_out() -> None:
    assert memagent.read("<think>so</think>\n<memory>\nAnna.\n</memory>") == "Anna."
    assert mem1.read("Sure: <IS>Anna.</IS> Bye.") == "Anna."
    assert mem1.read("<IS>Anna, who") == "Anna, who", "cut off at the limit"
    assert mem1.read("<think>Anna.</think>") == "Anna.", "as the published model writes it"
    assert mem1.read("<think>Hm, <IS>.</think><IS>Anna.</IS>") == "Anna."


def test_the_beginning_of_a_text_in_tokens() -> None:
    assert beginning("aaaaaa bbbbbb cccccc", 2) == "aaaaaa bbbbbb"
    assert beginning("дом 12", 5) == "до", "a character that is not ASCII counts two"
    assert beginning("", 5) == beginning("anything", 0) == ""
