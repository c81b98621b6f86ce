"""What a task of env `memory` holds, checked: the chunks, the questions as they are scored and as the reader gets them,
and the facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reflectkit.env import ANSWER_TOKENS, Query
from reflectkit.envs.memory.facts import Fact, as_facts
from reflectkit.envs.memory.scoring import Question, as_questions
from reflectkit.errors import DataError
from reflectkit.text import pluralize
from reflectkit.types import Task

LONGEST_SHORT = 10  # chunks of a short conversation
MOST_ANSWER_TOKENS = 32_768


@dataclass(frozen=True, slots=True)
class Content:
    """chunks: in order. questions, queries: one of each per question. facts: of each chunk; None if not known."""

    chunks: list[str]
    questions: list[Question]
    queries: list[Query]
    facts: list[list[Fact]] | None


def read(task: Task) -> Content:
    """The content of `task`. Raises DataError, and ConfigError where a package is missing to score the answers."""
    chunks = _list(task, "chunks")
    if not all(isinstance(chunk, str) and chunk.strip() for chunk in chunks):
        raise DataError(task.id, "expected texts that are not empty", field="data.chunks")
    if task.level != level_of(chunks):
        raise DataError(
            task.id, f"has {pluralize(len(chunks), 'chunk')}, and is said to be {task.level}", field="level"
        )
    _list(task, "questions")
    try:
        questions = as_questions(task.data)
        facts = as_facts(task.data.get("facts"), len(chunks))
        return Content(chunks, questions, _queries(task.data.get("query", {}), questions), facts)
    except ValueError as error:
        raise DataError(task.id, str(error), field="data") from None


def level_of(chunks: Sequence[str]) -> str:
    """The level of a conversation with these chunks."""
    return "short" if len(chunks) <= LONGEST_SHORT else "long"


def _queries(value: Any, questions: Sequence[Question]) -> list[Query]:
    """The questions as the reader gets them. Raises ValueError."""
    given = value if isinstance(value, dict) else {"advice": None}
    advice, tokens = given.get("advice", ""), given.get("tokens", ANSWER_TOKENS)
    if not isinstance(advice, str) or not isinstance(tokens, int) or not 0 < tokens <= MOST_ANSWER_TOKENS:
        raise ValueError(f"'query' has a text 'advice' and 'tokens', 1 to {MOST_ANSWER_TOKENS}")
    return [Query(question.question, advice, tokens) for question in questions]


def _list(task: Task, field: str) -> list[Any]:
    value = task.data.get(field)
    if not isinstance(value, list) or not value:
        raise DataError(task.id, f"expected a list that is not empty, found {value!r:.60}", field=f"data.{field}")
    return value
