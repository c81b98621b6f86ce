"""Env memory: what calls do to the memory, what is shown and found, how it is rewarded, and players for comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reflectkit.env import Query
from reflectkit.envs.memory.baselines import METHODS
from reflectkit.envs.memory.env import Memory
from reflectkit.envs.memory.retrieval import Extractive, nearest
from reflectkit.envs.memory.rewards import ConversationFact, ValidFacts, calls_done, compression, content
from reflectkit.envs.memory.store import (
    CORE,
    CORE_TOKENS,
    DELETE,
    EPISODIC,
    INSERT,
    SEMANTIC,
    UPDATE,
    CallOutcome,
    Store,
    apply,
)
from reflectkit.errors import ConfigError
from reflectkit.text import count_tokens
from reflectkit.types import Task, ToolCall, ToolUse


def insert(text: str, kind: str = SEMANTIC) -> ToolCall:
    return ToolCall(INSERT, {"memory_type": kind, "content": text})


def update(text: str, item: str | None, kind: str = SEMANTIC) -> ToolCall:
    return ToolCall(UPDATE, {"memory_type": kind, "new_content": text} | ({"memory_id": item} if item else {}))


def delete(item: str | None, kind: str = SEMANTIC) -> ToolCall:
    return ToolCall(DELETE, {"memory_type": kind} | ({"memory_id": item} if item else {}))


def task_of(chunks: list[str], questions: list[tuple[str, str]], facts: Any = None) -> Task:
    data = {"chunks": chunks, "questions": [{"question": q, "answer": a, "kind": "contain"} for q, a in questions]}
    return Task("t", "memory", "short", "t", data | ({"facts": facts} if facts is not None else {}))


def fact(key: str, text: str, kind: str = SEMANTIC) -> dict[str, str]:
    return {"kind": kind, "key": key, "text": text}


def use(*calls: ToolCall, errors: tuple[str, ...] = ()) -> ToolUse:
    return ToolUse("", calls, errors)


def played(task: Task, act: Any, reader: Any = None) -> Any:
    """The last step's result of `act(env, chunk number)`."""
    env = Memory(reader=reader)
    env.reset(task, 0)
    number = 0
    while not (result := env.step(act(env, number))).terminated:
        number += 1
    return result


class Noted:
    """A reader that keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[list[str]] = []

    def answer(self, queries: Any, memories: Any) -> list[str]:
        self.shown = [list(texts) for texts in memories]
        return ["Oslo" for _ in queries]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (update("new", "e1"), "semantic_memory has no item 'e1'"),
        (insert("word " * 5000), "shorten it"),
        (update("a " * (CORE_TOKENS + 1), None, CORE), f"limit is {CORE_TOKENS}"),
        (ToolCall(DELETE, {"memory_type": SEMANTIC, "memory_id": ["s1"]}), "expected string"),
    ],
)
def test_what_cannot_be_done_changes_nothing_and_is_told(call: ToolCall, said: str) -> None:
    store = Store()
    store.insert(SEMANTIC, "here already", 0)
    store.insert(EPISODIC, "it rained", 0)
    before = (store.core, dict(store.items))
    outcome = apply(store, call, 1)
    assert not outcome.ok
    assert said in outcome.message
    assert "\n" not in outcome.message
    assert len(outcome.message) < 200
    assert (store.core, store.items) == before


def test_changes_by_hand() -> None:
    store = Store()
    assert apply(store, insert("Ünïcödé 🙂 \u202e text"), 0).ok
    assert apply(store, insert("two"), 0).ok
    assert apply(store, update("one", "s1"), 1).removed == "Ünïcödé 🙂 \u202e text"
    assert [item.text for item in store.listed(SEMANTIC)] == ["two", "one"]  # what was changed last is the most recent
    for same in (update("one", "s1"), update("two", "s1")):  # neither success nor failure
        outcome = apply(store, same, 1)
        assert (outcome.ok, outcome.counts) == (False, False)
    assert apply(store, delete("s2"), 2).removed == "two"
    assert apply(store, insert("three"), 2).ok
    assert list(store.items) == ["s1", "s3"]  # an id is never given again
    assert apply(store, update("Its name\nis Tom.", None, CORE), 2).ok
    assert apply(store, update("Its name is Tom.", None, CORE), 2).counts is False
    assert [store.core, *(item.text for item in store.items.values())] == ["Its name is Tom.", "one", "three"]


def test_retrieval_by_meaning_is_by_the_angle_of_the_vectors() -> None:
    """Vectors of two words' counts: "cat" is (1, 0), "dog" (0, 1); "cat dog" lies between them."""

    def embed(texts: Any) -> Any:
        counts = np.array([[text.count("cat"), text.count("dog")] for text in texts])
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)

    texts = ["dog", "cat dog", "cat cat", "cat"]
    assert nearest(embed, texts, "cat", 3) == [2, 3, 1]
    assert nearest(embed, texts, "dog", 9) == [0, 1, 2, 3]
    assert nearest(embed, [], "cat", 3) == nearest(embed, texts, " ", 3) == nearest(embed, texts, "cat", 0) == []
    with pytest.raises(ConfigError, match="--retrieval is bm25 or embedding:MODEL"):
        Memory(retrieval="embedding: ")


def test_the_offline_reader_points_or_does_not_know() -> None:
    reader = Extractive()
    texts = ["Anna's city is Rome", "Anna's pet is a cat. Ben's pet is a dog."]
    assert reader.answer([Query("What is Ben's pet?")], [texts]) == ["Ben's pet is a dog."]
    asked = [Query("What is Clara's job?"), Query("What is Anna's city?")]
    assert reader.answer(asked, [texts, []]) == ["unknown", "unknown"]


def test_rewards_by_hand() -> None:
    ok, no = CallOutcome(insert("a"), True, ""), CallOutcome(insert("a"), False, "")
    duplicate = CallOutcome(insert("a"), False, "", counts=False)
    assert calls_done([ok, ok, no], malformed=1) == 0.5
    assert calls_done([ok, duplicate], 0) == 1.0
    assert calls_done([], 0) == 0.0
    assert compression(25, 100) == 0.75
    assert compression(1000, 10) == -1.0


def test_writing_is_judged_by_the_chunk_and_deleting_by_staleness() -> None:
    rome, job = (
        ConversationFact(SEMANTIC, "Anna's city", "Anna's city is Rome"),
        ConversationFact(SEMANTIC, "Ben's job", "Ben's job is baker"),
    )
    pairs = (("name", "Tom"), ("city", "Oslo"))
    name, city = (ConversationFact(CORE, f"The user's {key}", f"The user's {key} is {value}") for key, value in pairs)
    known = ValidFacts({fact.key: fact for fact in (rome, job, name, city)})
    said = "Ben's job is baker. The user says: my city is Oslo."

    def judged(call: ToolCall, written: str = "", removed: str = "", fresh: bool = False) -> float:
        outcome = CallOutcome(call, True, "", written=written, removed=removed, fresh=fresh)
        return content([outcome], said, [job, city], known)

    assert judged(insert(job.text), job.text) == 1.0
    assert judged(insert(job.text, EPISODIC), job.text) == 0.0  # the wrong kind of memory
    assert judged(insert("Ben's job is pilot"), "Ben's job is pilot") == 0.0  # unfaithful
    assert judged(update(job.text, "s1"), job.text, removed=rome.text) == 0.0  # loses what is valid
    assert judged(update("Ben's job", "s1"), "Ben's job", removed=job.text) == 0.0
    assert judged(update(city.text, None, CORE), city.text, removed=name.text) == 0.0
    both = f"{name.text}. {city.text}."
    assert judged(update(both, None, CORE), both, removed=name.text) == 1.0
    assert judged(delete("s1"), removed="Anna's city is Oslo") == 1.0  # stale
    assert judged(delete("s1"), removed=rome.text) == 0.0  # still valid
    assert judged(delete("s1"), removed="Anna", fresh=True) == 0.0
    assert content([], said, [job], known) == 0.0


def test_rewards_reach_the_steps_and_what_is_shared_comes_last() -> None:
    task = task_of(
        ["Anna's city is Rome.", "Nothing new today.", "Anna's city is Oslo now."],
        [("What is Anna's city?", "Oslo"), ("What is Ben's pet?", "unknown")],
        [[fact("Anna's city", "Anna's city is Rome")], [], [fact("Anna's city", "Anna's city is Oslo")]],
    )
    env = Memory(compression_weight=0.5, content_weight=0.1)
    env.reset(task, 0)
    first = env.step(use(insert("Anna's city is Rome"), errors=("bad call",)))
    assert first.reward == pytest.approx(0.5 + 0.1)
    assert "bad call" in first.observation.text
    assert " s1 Anna's city is Rome" in first.observation.text
    assert env.step(use()).reward == 0.0
    last = env.step(use(update("Anna's city is Oslo", "s1")))
    shared = 1.0 + 0.5 * last.info["figures"]["compression"]
    assert last.info["shared_reward"] == pytest.approx(shared)
    assert last.reward == pytest.approx(1.1 + shared)
    assert last.terminated
    assert last.info["success"] is True


# ------------------------------------------------------------------------------------------ players for comparison


@pytest.mark.parametrize("name", METHODS)
def test_a_method_rewrites_a_text_that_is_read_whole(name: str) -> None:
    reader = Noted()
    chunks = ["Anna is in Rome.", "Anna is in Oslo.", "It rains."]
    answers = ["Anna is\nin Rome.", "Anna is in Oslo.", "Anna is in Oslo."]
    called = []

    def act(env: Memory, at: int) -> ToolUse:
        system, user = env.method_messages(name)
        assert "zebra" not in system.content + user.content, "the questions are not known yet"
        assert f"\n{chunks[at]}\n" in user.content
        assert ("Nothing yet." in user.content) == (at == 0)
        text = answers[at]
        action = env.method_action(name, f"<think>well</think><IS>{text}</IS>" if name == "mem1" else text)
        called.append([call.name for call in action.calls])
        return action

    result = played(task_of(chunks, [("Which zebra?", "Oslo")]), act, reader)
    assert called == [[INSERT], [UPDATE], []]
    assert reader.shown == [["Anna is in Oslo."]], "the text has no word of the question, and is shown all the same"
    assert result.info["success"] is True
    assert result.info["figures"]["memory_tokens"] == count_tokens("Anna is in Oslo.")
