"""Reads the published data of Mem-α (arXiv 2509.25911) and MemoryAgentBench (arXiv 2507.05257): parquet files with
`chunks` and `questions_and_answers`, as JSON text or lists. Their column `data_source` says how questions are scored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectkit.env import ANSWER_TOKENS
from reflectkit.envs.memory.env import level_of
from reflectkit.envs.memory.scoring import RUBRIC
from reflectkit.errors import DataError
from reflectkit.jsonl import read_json
from reflectkit.types import Task

SUMMARY = (
    "The notes, above all the first, sum up a book that the user has read. Write what the user asks for from them."
)
LABELS = (
    "The notes say what each label means, with examples. Classify what the user gives you by them. Labels are numbers;"
    " end with the label alone in \\boxed{}."
)
BOOK = "The notes are about a book. Answer the question about it as briefly as you can, with the answer alone."
EVENTS = "Answer with the text of one of the events that the question offers, alone and word for word."
CHOICE = "Choose one of the options, and end with its letter alone in \\boxed{}."
FILMS = "Recommend ten titles that suit the conversation, as a numbered list with the best first, and nothing else."
COLUMNS = ("chunks", "questions_and_answers")
ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class DataSource:
    """kind: a rule of `scoring.RULES`. advice, tokens: see `env.Query`. split: where a right answer that is one text is
    cut into parts; "" does not.
    """

    kind: str
    advice: str = ""
    tokens: int = ANSWER_TOKENS
    split: str = ""


SOURCES: Mapping[tuple[str, ...], DataSource] = {
    ("booksum", "infbench_sum", "long_range_understanding"): DataSource("share", SUMMARY, 2048, ","),
    ("pubmed", "ttl_train", "test_time_learning", "icl_", "nlu", "trec"): DataSource("label", LABELS, 300),
    ("squad", "hotpotqa"): DataSource("substring"),
    ("perltqa",): DataSource("share", split=";"),
    ("lme_train", "longmemeval"): DataSource(RUBRIC, tokens=300),
    ("eventqa",): DataSource("every", EVENTS),
    ("infbench",): DataSource("rouge", BOOK),
    ("ruler_niah",): DataSource("share"),
    ("ruler", "accurate_retrieval"): DataSource("normal"),
    ("recsys",): DataSource("recommend", FILMS, 300),
    ("detectiveqa",): DataSource("boxed", CHOICE, 300),
}
"""Each source by how its name may begin; the first that fits."""
OTHER = DataSource("contain")


def source_of(name: str) -> DataSource:
    """How questions of source `name` are asked and scored; `contain` for one that is not known.

    >>> source_of("ruler_qa1_197K").kind, source_of("mine").kind
    ('normal', 'contain')
    """
    return next((source for starts, source in SOURCES.items() if name.startswith(starts)), OTHER)


def answers_of(entry: Mapping[str, Any], source: DataSource, titles: Mapping[str, str]) -> list[str]:
    """The right answers of a published question, none of them empty: alternatives, or the parts of one.

    titles: the title of each id, for recommendations, whose answers are ids. Raises KeyError for an id without a title.
    """
    value = entry.get("answer", entry.get("answers"))
    if isinstance(value, Mapping):  # SQuAD's {"text": …}
        value = value.get("text")
    values = list(_flat(value))
    if source.split and len(values) == 1:
        values = values[0].split(source.split)
    texts = [text for text in (value.strip() for value in values) if text]
    return [titles[text] for text in texts] if source.kind == "recommend" and titles else texts


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _flat(part)
    elif value is not None:
        yield str(value)


def read_titles(path: Path) -> dict[str, str]:
    """The title of each id in a file of ids by name, such as the `entity2id.json` of MemoryAgentBench.

    A name may be an address: "<http://…/Heat_(1995_film)>" is "Heat". Raises DataError.
    """
    ids = read_json(path)
    if not isinstance(ids, dict) or not ids:
        raise DataError(path, "expected an object of ids by title")
    return {str(number): _title(name) for name, number in ids.items()}


def _title(name: str) -> str:
    words = re.sub(r"\([^()]*\)", "", re.sub(r"[_>-]", " ", name.rpartition("/")[2])).split()
    return " ".join(words) or name


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
        names = file.schema_arrow.names
        if lacking := [name for name in COLUMNS if name not in names]:
            raise DataError(path, f"has no column {' and '.join(lacking)}, but {', '.join(names)[:200]}")
        wanted = [name for name in (*COLUMNS, "data_source", "instance_id") if name in names]
        number = 0
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=wanted):
            for row in batch.to_pylist():
                yield _task(f"{path}, row {number}", number, row, titles)
                number += 1
        if number == 0:
            raise DataError(path, "holds no row; give another file")
    except (pyarrow.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0][:120]
        raise DataError(path, f"cannot be read as parquet ({reason}); download it again") from None


def _task(where: str, number: int, row: dict[str, Any], titles: Mapping[str, str]) -> Task:
    """where: the row's place, for errors."""
    name = str(row.get("data_source") or "memalpha")
    source = source_of(name)
    chunks = [chunk.strip() for chunk in _listed(row, "chunks", str, where) if chunk.strip()]
    questions = []
    for entry in _listed(row, "questions_and_answers", dict, where):
        try:
            answers = answers_of(entry, source, titles)
        except KeyError as error:
            raise DataError(where, f"the id {error} has no title; give --titles the file that belongs to it") from None
        if source.kind == "recommend" and not titles and all(answer.isdecimal() for answer in answers):
            raise DataError(where, "recommendations are ids; give their titles, e.g. --titles entity2id.json")
        question = entry.get("question")
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


def _listed(row: dict[str, Any], field: str, kind: type, where: str) -> list[Any]:
    """The column `field`, a list of `kind` or its JSON text."""
    value = row[field]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise DataError(where, f"is no JSON ({str(error)[:80]})", field=field) from None
    if not isinstance(value, list) or not all(isinstance(entry, kind) for entry in value):
        expected = "texts" if kind is str else "questions with answers"
        raise DataError(where, f"expected a list of {expected}, found {value!r:.60}", field=field)
    return value
