"""Problems of env memory from the published data, and from a folder of texts and conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from reflectkit.cli.main import main
from reflectkit.envs.memory.env import Memory
from reflectkit.envs.memory.problems import chunked, read_parquet, read_text, text_files
from reflectkit.jsonl import read_json
from reflectkit.text import count_tokens

BOOK = "Anna went to Rome.\nShe liked it.\n\nBen stayed in Oslo! Did he like it? Nobody knows."
CHAT = [{"role": "user", "content": "I live in Rome."}, {"speaker": "assistant", "text": "Noted\nthat."}]
ASKED = [{"question": "Where did Anna go?", "answer": ["Rome", "Roma"], "kind": "substring", "note": "dropped"}]


def write(folder: Path, name: str, content: Any, questions: Any = ASKED) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.with_name(f"{path.stem}.questions.json").write_text(json.dumps(questions))
    return path


def test_books_are_cut_between_sentences_and_chats_between_messages(tmp_path: Path) -> None:
    book, chat = write(tmp_path, "book.txt", BOOK), write(tmp_path, "chat.json", CHAT)
    assert text_files(tmp_path) == [book, chat]
    task = read_text(book, 12)
    assert task.data["chunks"] == [
        "Anna went to Rome. She liked it.",
        "Ben stayed in Oslo! Did he like it?",
        "Nobody knows.",
    ]
    assert task.data["questions"] == [
        {"question": ASKED[0]["question"], "answer": ["Rome", "Roma"], "kind": "substring"}
    ]
    assert read_text(chat, 500).data["chunks"] == ["user: I live in Rome.\nassistant: Noted that."]
    assert read_text(chat, 16).level == "short"


@pytest.mark.parametrize("text", ["word " * 500, "x" * 3000, "罗马" * 300, "One. " * 300])
def test_no_chunk_is_too_long_and_nothing_is_lost(text: str) -> None:
    chunks = list(chunked([text], 40, " "))
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
