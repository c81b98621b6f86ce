"""Reads conversations in the published Mem-α format (parquet): `chunks` and `questions_and_answers`, as JSON text or
lists.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reflectkit.core.errors import DataError
from reflectkit.core.types import Task
from reflectkit.envs.memory.env import level_of
from reflectkit.envs.memory.reader import kind_of

COLUMNS = ("chunks", "questions_and_answers")
ROWS_AT_ONCE = 64


def read_parquet(path: Path) -> Iterator[Task]:
    """A task for each row of `path`; its group is the row, its source the column `data_source` where there is one.

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
                yield _task(path, number, row)
                number += 1
        if number == 0:
            raise DataError(path, "holds no row; give another file")
    except (pyarrow.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(
            path, f"cannot be read as parquet ({str(error).splitlines()[0][:120]}); download it again"
        ) from None


def _task(path: Path, number: int, row: dict[str, Any]) -> Task:
    where = f"{path}, row {number}"
    source = str(row.get("data_source") or "memalpha")
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
        question, answer = entry.get("question"), _answer(entry)
        if isinstance(question, str) and question.strip() and answer:
            questions.append({"question": question, "answer": answer, "kind": kind_of(source, answer)})
    if not chunks or not questions:
        raise DataError(where, "holds no text, or no question with an answer")
    name = f"{source}-{row.get('instance_id', number)}-{number}"
    return Task(name, "memory", level_of(chunks), name, {"chunks": chunks, "questions": questions, "source": source})


def _listed(value: Any, where: str, field: str) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise DataError(where, f"is no JSON ({str(error)[:80]})", field=field) from None
    if not isinstance(value, list):
        raise DataError(where, f"expected a list, found {type(value).__name__}", field=field)
    return value


def _answer(entry: dict[str, Any]) -> str:
    """The answer as text; of several, the first; of several parts, with semicolons."""
    value = entry.get("answer", entry.get("answers", ""))
    if isinstance(value, dict):
        value = value.get("text", "")
    if isinstance(value, list):
        value = value[0] if "answers" in entry and "answer" not in entry and value else "; ".join(map(str, value))
    return str(value).strip() if value is not None else ""
