"""Builds problems from a folder of raw texts: books, papers and conversations, cut into chunks, with their questions.

`NAME.txt`, `.md` or `.rst` is a text. `NAME.json` is a conversation: a list of messages with `role` (or `speaker`) and
`content` (or `text`). Next to each lies `NAME.questions.json`: a list of objects with `question` and `answer`, and
optionally `kind` (see `scoring.RULES`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from reflectkit.envs.memory.content import level_of
from reflectkit.envs.memory.reader import SENTENCES
from reflectkit.envs.memory.scoring import as_question
from reflectkit.errors import DataError
from reflectkit.jsonl import file_text, read_json
from reflectkit.text import count_tokens
from reflectkit.types import Task

TEXTS = (".txt", ".md", ".rst")
QUESTIONS = ".questions.json"


def text_files(folder: Path) -> list[Path]:
    """The texts and conversations in `folder`, sorted by name. Raises DataError if there are none."""
    if not folder.is_dir():
        raise DataError(folder, "no such folder; give one with texts, and NAME.questions.json beside each")
    files = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file()
        and (path.suffix.lower() in TEXTS or (path.suffix == ".json" and not path.name.endswith(QUESTIONS)))
    ]
    if not files:
        raise DataError(folder, f"holds no text ({', '.join(TEXTS)}) and no conversation (.json)")
    return files


def read_text(path: Path, chunk_tokens: int) -> Task:
    """The problem of one file; its chunks have at most about `chunk_tokens` tokens. Raises DataError."""
    pieces = list(_messages(path) if path.suffix == ".json" else _sentences(path))
    chunks = list(chunked(pieces, chunk_tokens, "\n" if path.suffix == ".json" else " "))
    if not chunks:
        raise DataError(path, "holds no text; give another file")
    data = {"chunks": chunks, "questions": _questions(path.with_name(path.stem + QUESTIONS)), "source": path.stem}
    return Task(path.name, "memory", level_of(chunks), path.name, data)


def chunked(pieces: Iterable[str], most: int, between: str) -> Iterator[str]:
    """`pieces` joined with `between` into chunks of at most about `most` tokens, in order. A piece is cut only if it is
    longer than that, at a space.

    >>> list(chunked(["One two.", "Three four.", "Five six."], 6, " "))
    ['One two. Three four.', 'Five six.']
    """
    held: list[str] = []
    room = most
    for piece in (part for whole in pieces for part in _short(whole, most)):
        tokens = count_tokens(piece)
        if held and tokens > room:
            yield between.join(held)
            held, room = [], most
        held.append(piece)
        room -= tokens
    if held:
        yield between.join(held)


def _short(piece: str, most: int) -> Iterator[str]:
    while count_tokens(piece) > most and len(piece) > 1:
        middle = len(piece) * most // (count_tokens(piece) + 1) or 1
        cut = piece.rfind(" ", 1, middle + 1)
        head, piece = piece[: cut if cut > 0 else middle].strip(), piece[cut if cut > 0 else middle :].strip()
        if head:
            yield head
    if piece:
        yield piece


def _sentences(path: Path) -> Iterator[str]:
    try:
        text = file_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(path, f"cannot be read as UTF-8 text ({str(error)[:80]})") from None
    for sentence in SENTENCES.split(text):
        if sentence.strip():
            yield " ".join(sentence.split())


def _messages(path: Path) -> Iterator[str]:
    value = read_json(path)
    if not isinstance(value, list):
        raise DataError(path, "expected a list of messages")
    for number, message in enumerate(value):
        fields: dict[str, Any] = message if isinstance(message, dict) else {}
        speaker, text = fields.get("role", fields.get("speaker")), fields.get("content", fields.get("text"))
        if not isinstance(speaker, str) or not isinstance(text, str):
            raise DataError(path, f"message {number} needs the texts 'role' and 'content'")
        if text.strip():
            yield f"{speaker}: {' '.join(text.split())}"


def _questions(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise DataError(path, "no such file; write what is asked about the text: a list of question and answer")
    value = read_json(path)
    if not isinstance(value, list) or not value:
        raise DataError(path, "expected a list of questions that is not empty")
    for number, question in enumerate(value):
        try:
            as_question(question)
        except ValueError as error:
            raise DataError(path, f"question {number}: {error}") from None
    return [{name: one[name] for name in ("question", "answer", "kind", "wrong") if name in one} for one in value]
