"""Env memory: its calls, what is shown and found, rewards, scores of answers by hand, problems, and other players."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from reflectkit.agents.scripted import Oracle
from reflectkit.cli.main import main
from reflectkit.env import Claim, Context, Query
from reflectkit.envs.memory.baselines import METHODS
from reflectkit.envs.memory.env import Memory
from reflectkit.envs.memory.generate import conversation
from reflectkit.envs.memory.problems import answers_of, chunks_of, read_parquet, read_text, source_of, text_files
from reflectkit.envs.memory.retrieval import Extractive, nearest, related
from reflectkit.envs.memory.rewards import ConversationFact, ValidFacts, calls_done, compression, content
from reflectkit.envs.memory.scoring import MemoryQuestion, score, scores
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
    insertion,
)
from reflectkit.errors import ConfigError
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import read_json
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.text import count_tokens
from reflectkit.tools import use_of
from reflectkit.types import Decision, Task, ToolCall, ToolUse


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
    apply(store, insertion(SEMANTIC, "here already"), 0)
    apply(store, insertion(EPISODIC, "it rained"), 0)
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


def test_retrieval_by_words_leaves_jax_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = ModuleType("jax.lax")
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.lax", jax)  # without the functions that would take memory of a GPU
    for name in [name for name in sys.modules if name.partition(".")[0] == "bm25s"]:
        monkeypatch.delitem(sys.modules, name)
    assert related(["a red cat", "a dog", "the cat and a cat"], "Which cat?", 3) == [2, 0]
    assert sys.modules["jax"] is jax


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
    assert result.info["memory"]["tokens"] == count_tokens("Anna is in Oslo.")


TITLES = {"1": "Heat", "2": "Toy Story", "3": "Alien", "4": "Aliens", "5": "Jaws", "6": "Up", "7": "Big"}

# source, right answer as published, answer, score. Each score follows from the rule of its source in Mem-α's code.
CASES = [
    ("squad", "1912", "In 1912.", 1.0),
    ("squad", "Rome", "It was ROME, then.", 1.0),
    ("squad", "Rome", "Oslo", 0.0),
    ("squad", {"text": "Rome"}, "rome", 1.0),
    ("squad", ["Rome", "Roma"], "roma", 1.0),  # a list is of alternatives
    ("squad", "Rome", "<think>Rome? No.</think>Oslo", 0.0),  # reasoning is no answer
    ("squad", "Rome", "<think>It may be Rome", 0.0),  # nor is reasoning without an end
    ("hotpotqa", "yes", "Yes, both are.", 1.0),
    ("hotpotqa", "the Danube", "Danube", 0.0),  # contained as it stands, article and all
    ("booksum", "whale, ship, Ahab", "Ahab hunts a white whale.", 2 / 3),
    ("booksum", ["whale", "ship"], "a ship", 1 / 2),
    ("infbench_sum_eng_shots2", ["a, b", "ship"], "a, b", 1 / 2),  # a list is not cut again
    ("pubmed-rct", "3", r"It reports results: \boxed{3}", 1.0),
    ("pubmed-rct", "3", "3", 1.0),
    ("pubmed-rct", "3", '"3"', 1.0),
    ("pubmed-rct", "3", "It is 3", 0.0),  # not a number alone
    ("pubmed-rct", "3", r"\boxed{label 3}", 0.0),
    ("pubmed-rct", 3, r"\boxed{13}", 0.0),
    ("ttl_train", "12", r"\boxed{ 12 }", 1.0),
    ("icl_banking77_5900shot_balance", ["28"], r"label: \boxed{28}", 1.0),
    ("icl_trec_fine_6400shot_balance", ["28"], "label: 28", 0.0),
    ("perltqa", "Anna", "It was anna.", 1.0),
    ("perltqa", "tea; milk;", "Tea", 1 / 2),
    ("lme_train", "The user prefers short flights", "Short flights, as you prefer them.", 3 / 4),  # user not named
    ("longmemeval_s*", ["GPS"], "Your GPS broke.", 1.0),
    ("eventqa_full", ["He left the inn.", "rain"], "he left the inn. Rain fell.", 1.0),
    ("eventqa_full", ["He left the inn.", "rain"], "He left the inn.", 0.0),  # all or nothing
    ("ruler_niah_multi", ["one", "two"], "Two of them", 1 / 2),
    ("ruler_qa1_197K", ["the Normans", "Norman"], "It was the Norman's.", 1.0),  # no punctuation or articles
    ("ruler_qa1_197K", ["1912"], "In 1912.", 1.0),
    ("ruler_qa2_421K", ["Rome"], "Oslo", 0.0),
    ("ruler_qa2_421K", ["A"], "Oslo", 0.0),  # an article alone is nothing when normalised, and is not in everything
    ("detectiveqa", ["B"], r"The butler: \boxed{B}", 1.0),
    ("detectiveqa", ["B"], "B", 1.0),
    ("detectiveqa", ["B"], r"\boxed{A or B}", 0.0),
    ("recsys_redial_full", ["1", "3"], "You may like:\n1. Heat (1995)\n2. Alein", 1.0),  # the nearest title
    ("recsys_redial_full", ["1", "3"], "Heat, Jaws", 1 / 2),
    ("recsys_redial_full", ["7"], "1. Heat\n2. Jaws\n3. Up\n4. Alien\n5. Aliens\n6. Big", 0.0),  # the sixth
    ("mine", "Rome", "Rome", 1.0),
    ("mine", "Rome", "Romeo", 0.0),  # whole words, where the source is not known
]


def question_of(source: str, right: Any) -> MemoryQuestion:
    kind = source_of(source)
    return MemoryQuestion(
        "?", tuple(answers_of({"answer": right}, kind, TITLES)), kind.kind, titles=tuple(TITLES.values())
    )


@pytest.mark.parametrize(("source", "right", "answer", "expected"), CASES)
def test_scores_of_each_source_by_hand(source: str, right: Any, answer: str, expected: float) -> None:
    assert score(question_of(source, right), answer) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "right", "answer", "expected"),
    [
        ("contain", "Rome", "It is ROME.", 1.0),
        ("contain", "Rome", "Romeo", 0.0),
        ("contain", "(a+", "what (a+ is", 1.0),
        ("exact", "3", "3.", 1.0),
        ("exact", "3", "it is 3", 0.0),
        ("keywords", "cat; dog", "a dog and a bird", 0.5),
    ],
)
def test_scores_of_our_own_rules_by_hand(kind: str, right: str, answer: str, expected: float) -> None:
    assert score(MemoryQuestion("?", (right,), kind), answer) == expected
    assert score(MemoryQuestion("?", (right,), kind, wrong=(answer,)), answer) == 0.0


class Says:
    """A judge who says yes where the answer holds the rubric's first word."""

    def __init__(self) -> None:
        self.asked: list[Claim] = []

    async def verdicts(self, claims: Any) -> list[bool]:
        self.asked += claims
        return [claim.rubric.split()[0] in claim.answer for claim in claims]


def test_a_judge_is_asked_about_rubrics_alone() -> None:
    judge = Says()
    rubrics = [("lme_train", "short flights"), ("squad", "Rome"), ("lme_train", "tea")]
    questions = [question_of(source, right) for source, right in rubrics]
    answers = ["short ones", "in Rome", "<think>tea</think>coffee"]
    assert run_sync(scores(questions, answers, judge)) == [1.0, 1.0, 0.0]
    asked = [(claim.rubric, claim.answer) for claim in judge.asked]
    assert asked == [("short flights", "short ones"), ("tea", "coffee")]
    assert scores(questions[1:2], answers[1:2], judge) == [1.0]  # without a rubric, nothing is awaited


BOOK = "Anna went to Rome.\nShe liked it.\n\nBen stayed in Oslo! Did he like it? Nobody knows."
CHAT = [{"role": "user", "content": "I live in Rome."}, {"speaker": "assistant", "text": "Noted\nthat."}]
ASKED = [{"question": "Where did Anna go?", "answer": ["Rome", "Roma"], "kind": "substring", "note": "dropped"}]


def write(folder: Path, name: str, content: Any, questions: Any = ASKED) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.with_name(f"{path.stem}.questions.json").write_text(json.dumps(questions))
    return path


def test_an_episode_that_ends_early_is_no_perfect_compression() -> None:
    """A figure that an episode does not report counts 0, so none may be best at 0, as the length of a memory is."""

    class Leaving:
        async def decide(self, observation: Any, context: Context) -> Decision:
            return Decision(use_of(()), truncation_reason="left" if context.turns else None)

    task = conversation(0, 4, "short", 0)
    early, whole = (rollout([Episode(task, 0)], Memory, agent)[0].figures for agent in (Leaving(), Oracle()))
    assert whole.keys() - early.keys() == {"accuracy", "compression"}
    assert whole["compression"] > 0.5


def test_books_are_cut_between_sentences_and_chats_between_messages(tmp_path: Path) -> None:
    book, chat = write(tmp_path, "book.txt", BOOK), write(tmp_path, "chat.json", CHAT)
    assert text_files(tmp_path) == [book, chat]
    task = read_text(book, 12)
    assert task.data["chunks"] == [
        "Anna went to Rome.\nShe liked it.",
        "Ben stayed in Oslo! Did he like it?",
        "Nobody knows.",
    ]
    assert task.data["questions"] == [
        {"question": ASKED[0]["question"], "answer": ["Rome", "Roma"], "kind": "substring"}
    ]
    assert read_text(chat, 500).data["chunks"] == ["user: I live in Rome.\nassistant:\n Noted\n that."]
    assert read_text(chat, 16).level == "short"


@pytest.mark.parametrize("text", ["word " * 500, "x" * 3000, "罗马" * 300, "One. " * 300])
def test_no_chunk_is_too_long_and_nothing_is_lost(text: str) -> None:
    chunks = list(chunks_of([text], 40))
    assert max(map(count_tokens, chunks)) <= 40
    assert "".join("".join(chunks).split()) == "".join(text.split())


def test_from_a_folder_to_an_evaluation(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    write(tmp_path / "texts", "book.md", BOOK, [{"question": "Who went to Rome?", "answer": "Anna"}])
    assert main(["gen-task", "--env", "memory", "--text", "texts", "--chunk-tokens", "16"]) == 0
    (record,) = read_json(tmp_path / "data" / "memory" / "data.json")
    assert record["id"] == "book.md"
    playing = ["evaluate", "--env", "memory", "--level", "short", "--task-file", "data/memory/data.json"]
    assert main([*playing, "--policy", "keep-everything"]) == 0
    (path,) = tmp_path.glob("results/*_evaluate/eval.json")
    assert read_json(path)["rows"][0]["success"] == 1.0


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def published(source: str, asked: list[dict[str, Any]], chunks: int = 1) -> dict[str, Any]:
    texts = [f"text {number}" for number in range(chunks)]
    return {"data_source": source, "chunks": json.dumps(texts), "questions_and_answers": json.dumps(asked)}


def test_published_rows_carry_rule_advice_and_length(tmp_path: Path) -> None:
    several = [{"question": "Who?", "answer": "Anna"}, {"question": "", "answer": "x"}, {"question": "?", "answer": ""}]
    rows = [
        published("squad", several),
        published("icl_nlu_8296shot_balance", [{"question": "Which?", "answers": ["3"]}], chunks=12),
        published("booksum", [{"question": "Sum it up.", "answer": "whale,ship, "}]),
        published("ruler_qa1_197K", [{"question": "Where?", "answer": [["Rome"], ["Roma"]]}]),
    ]
    squad, icl, book, ruler = read_parquet(table(tmp_path / "a.parquet", rows), {})
    assert squad.data["questions"] == [{"question": "Who?", "answer": "Anna", "kind": "substring"}]
    assert "query" not in squad.data
    assert (squad.level, icl.level) == ("short", "long")
    assert icl.data["questions"] == [{"question": "Which?", "answer": "3", "kind": "label"}]
    assert "\\boxed" in icl.data["query"]["advice"]
    assert (book.data["questions"][0]["answer"], book.data["query"]["tokens"]) == (["whale", "ship"], 2048)
    assert ruler.data["questions"][0]["answer"] == ["Rome", "Roma"]
    for task in (squad, icl, book, ruler):
        Memory().reset(task, 0)
