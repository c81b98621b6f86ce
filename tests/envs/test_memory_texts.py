"""Problems of env memory from a folder of texts and conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.envs.memory.texts import chunked, read_text, text_files
from reflectkit.errors import DataError
from reflectkit.jsonl import read_json
from reflectkit.text import count_tokens
from tests.command_lines import error_of

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


def test_from_a_folder_to_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    write(tmp_path / "texts", "book.md", BOOK, [{"question": "Who went to Rome?", "answer": "Anna"}])
    assert main(["gen-task", "--env", "memory", "--text", "texts", "--chunk-tokens", "16"]) == 0
    (record,) = read_json(tmp_path / "data" / "memory" / "data.json")
    assert record["id"] == "book.md"
    playing = ["evaluate", "--env", "memory", "--level", "short", "--task-file", "data/memory/data.json"]
    assert main([*playing, "--policy", "keep-everything"]) == 0
    (path,) = tmp_path.glob("results/*_evaluate/eval.json")
    assert read_json(path)["rows"][0]["success"] == 1.0
    both = ["gen-task", "--env", "memory", "--text", "texts", "--parquet", "x.parquet"]
    assert "give one of them" in error_of(both, capsys)


@pytest.mark.parametrize(
    ("name", "content", "questions", "said"),
    [
        ("a.txt", " \n", ASKED, "holds no text"),
        ("a.txt", "Text.", [], "expected a list of questions"),
        ("a.txt", "Text.", [{"question": "?"}], "question 0: a question's answer"),
        ("a.json", {"role": "user"}, ASKED, "expected a list of messages"),
        ("a.json", [{"role": "user"}], ASKED, "message 0 needs"),
    ],
)
def test_broken_files_are_told(tmp_path: Path, name: str, content: Any, questions: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_text(write(tmp_path, name, content, questions), 100)


def test_missing_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no text"):
        text_files(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        text_files(tmp_path / "none")
    (tmp_path / "a.txt").write_text("Text.")
    with pytest.raises(DataError, match="write what is asked"):
        read_text(tmp_path / "a.txt", 100)
