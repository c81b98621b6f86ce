"""The sources of the published data: how each one's questions are scored, what the reader is told, and how long an
answer may be.

Sources: Mem-α's data (arXiv 2509.25911) and MemoryAgentBench (arXiv 2507.05257), by their column `data_source`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reflectkit.env import ANSWER_TOKENS
from reflectkit.envs.memory.scoring import RUBRIC

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
LONG, WORDS, RUBRIC_WORDS = 2048, 300, 300


@dataclass(frozen=True, slots=True)
class Source:
    """kind: a rule of `scoring.RULES`. split: where a right answer that is one text is cut into parts; "" does not.
    advice, tokens: see `env.Query`.
    """

    kind: str
    split: str = ""
    advice: str = ""
    tokens: int = ANSWER_TOKENS


SOURCES: tuple[tuple[str, Source], ...] = (
    ("booksum", Source("share", ",", SUMMARY, LONG)),
    ("infbench_sum", Source("share", ",", SUMMARY, LONG)),
    ("long_range_understanding", Source("share", ",", SUMMARY, LONG)),
    ("pubmed", Source("label", "", LABELS, WORDS)),
    ("ttl_train", Source("label", "", LABELS, WORDS)),
    ("test_time_learning", Source("label", "", LABELS, WORDS)),
    ("icl_", Source("label", "", LABELS, WORDS)),
    ("nlu", Source("label", "", LABELS, WORDS)),
    ("trec", Source("label", "", LABELS, WORDS)),
    ("squad", Source("substring")),
    ("hotpotqa", Source("substring")),
    ("perltqa", Source("share", ";")),
    ("lme_train", Source(RUBRIC, tokens=RUBRIC_WORDS)),
    ("longmemeval", Source(RUBRIC, tokens=RUBRIC_WORDS)),
    ("eventqa", Source("every", "", EVENTS)),
    ("infbench", Source("rouge", "", BOOK)),
    ("ruler_niah", Source("share")),
    ("ruler", Source("normal")),
    ("accurate_retrieval", Source("normal")),
    ("recsys", Source("recommend", "", FILMS, WORDS)),
    ("detectiveqa", Source("boxed", "", CHOICE, WORDS)),
)
"""Each source by how its name begins; the first that fits."""
OTHER = Source("contain")


def source_of(name: str) -> Source:
    """How questions of source `name` are asked and scored; `contain` for one that is not known.

    >>> source_of("ruler_qa1_197K").kind, source_of("mine").kind
    ('normal', 'contain')
    """
    return next((source for start, source in SOURCES if name.startswith(start)), OTHER)


def answers_of(entry: Mapping[str, Any], source: Source, titles: Mapping[str, str]) -> list[str]:
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


def _flat(value: Any) -> Sequence[str]:
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [text for part in value for text in _flat(part)]
    return [str(value)]
