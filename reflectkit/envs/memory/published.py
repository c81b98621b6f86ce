"""Reads conversations in the published format of Mem-α and MemoryAgentBench (parquet): `chunks` and
`questions_and_answers`, as JSON text or lists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reflectkit.env import ANSWER_TOKENS
from reflectkit.envs.memory.content import level_of
from reflectkit.envs.memory.sources import Source, answers_of, source_of
from reflectkit.errors import DataError
from reflectkit.jsonl import read_json
from reflectkit.types import Task

COLUMNS = ("chunks", "questions_and_answers")
ROWS_AT_ONCE = 64


def read_titles(path: Path) -> dict[str, str]:
    """The title of each id in a file of ids by name, such as the `entity2id.json` of MemoryAgentBench.

    A name may be an address: "<http://…/Heat_(1995_film)>" is "Heat". Raises DataError.
    """
    ids = read_json(path)
    if not isinstance(ids, dict) or not ids:
        raise DataError(path, "expected an object of ids by title")
    return {str(number): _title(name) for name, number in ids.items()}


def read_parquet(path: Path, titles: Mapping[str, str]) -> Iterator[Task]:
    """A task for each row of `path`; its group is the row, its source the column `data_source` where there is one.

    titles: of the ids that questions about recommendations are answered with.

    Raises
    ------
    DataError: no such file, no parquet, a column is missing, or a row (by its number, from 0) holds something else.
    """
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        raise DataError(path, "no such file; give a .parquet file of the Mem-α data")
    try:
        file = pyarrow.parquet.ParquetFile(path)
        if lacking := [name for name in COLUMNS if name not in file.schema_arrow.names]:
            raise DataError(
                path, f"has no column {' and '.join(lacking)}, but {', '.join(file.schema_arrow.names)[:200]}"
            )
        wanted = [name for name in (*COLUMNS, "data_source", "instance_id") if name in file.schema_arrow.names]
        number = 0
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=wanted):
            for row in batch.to_pylist():
                yield _task(path, number, row, titles)
                number += 1
        if number == 0:
            raise DataError(path, "holds no row; give another file")
    except (pyarrow.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(
            path, f"cannot be read as parquet ({str(error).splitlines()[0][:120]}); download it again"
        ) from None


def _task(path: Path, number: int, row: dict[str, Any], titles: Mapping[str, str]) -> Task:
    where = f"{path}, row {number}"
    name = str(row.get("data_source") or "memalpha")
    source = source_of(name)
    listed = _listed(row["chunks"], where, "chunks")
    if not all(isinstance(chunk, str) for chunk in listed):
        raise DataError(where, "expected texts", field="chunks")
    chunks = [chunk.strip() for chunk in listed if chunk.strip()]
    questions = []
    for entry in _listed(row["questions_and_answers"], where, "questions_and_answers"):
        if not isinstance(entry, dict):
            raise DataError(
                where, f"expected questions with answers, found {entry!r:.60}", field="questions_and_answers"
            )
        question, answers = entry.get("question"), _answers(entry, source, titles, where)
        if isinstance(question, str) and question.strip() and answers:
            answer = answers[0] if len(answers) == 1 else answers
            questions.append({"question": question, "answer": answer, "kind": source.kind})
    if not chunks or not questions:
        raise DataError(where, "holds no text, or no question with an answer")
    data: dict[str, Any] = {"chunks": chunks, "questions": questions, "source": name}
    if source.advice or source.tokens != ANSWER_TOKENS:
        data["query"] = {"advice": source.advice, "tokens": source.tokens}
    if source.kind == "recommend" and titles:
        data["titles"] = list(dict.fromkeys(titles.values()))
    identity = f"{name}-{row.get('instance_id', number)}-{number}"
    return Task(identity, "memory", level_of(chunks), identity, data)


def _listed(value: Any, where: str, field: str) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise DataError(where, f"is no JSON ({str(error)[:80]})", field=field) from None
    if not isinstance(value, list):
        raise DataError(where, f"expected a list, found {type(value).__name__}", field=field)
    return value


def _answers(entry: dict[str, Any], source: Source, titles: Mapping[str, str], where: str) -> list[str]:
    try:
        answers = answers_of(entry, source, titles)
    except KeyError as error:
        raise DataError(where, f"the id {error} has no title; give --titles the file that belongs to it") from None
    if source.kind == "recommend" and not titles and all(answer.isdecimal() for answer in answers):
        raise DataError(where, "recommendations are ids; give their titles, e.g. --titles entity2id.json")
    return answers


def _title(name: str) -> str:
    return " ".join(re.sub(r"\([^()]*\)", "", re.sub(r"[_>-]", " ", name.rpartition("/")[2])).split()) or name
