"""The problems of env `memory`: conversations with questions, generated from a seed, read from the
published data, or made of a folder of texts.

In such a folder, `NAME.txt`, `.md` or `.rst` is a text, and `NAME.json` is a conversation: a list
of messages with `role` (or `speaker`) and `content` (or `text`). Next to each lies
`NAME.questions.json`: a list of objects with `question` and `answer`, and optionally `kind` (see
`scoring.RULES`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from reflectkit.config import Config, Rule, option
from reflectkit.console import Progress, figures_table
from reflectkit.env import ANSWER_TOKENS
from reflectkit.envs.memory.env import level_of
from reflectkit.envs.memory.generate import LONG, SHORT, conversation
from reflectkit.envs.memory.retrieval import SENTENCES
from reflectkit.envs.memory.scoring import RUBRIC, MemoryQuestion
from reflectkit.envs.problems import Generated, ProblemGenerator
from reflectkit.errors import DataError
from reflectkit.jsonl import read_json, read_json_list, text_of
from reflectkit.seeding import generator
from reflectkit.text import count_tokens, headed
from reflectkit.types import Task, from_json

SUMMARY = (
    "The notes, above all the first, sum up a book that the user has read. Write what the user"
    " asks for from them."
)
LABELS = (
    "The notes say what each label means, with examples. Classify what the user gives you by them."
    " Labels are numbers; end with the label alone in \\boxed{}."
)
BOOK = (
    "The notes are about a book. Answer the question about it as briefly as you can, with the"
    " answer alone."
)
EVENTS = (
    "Answer with the text of one of the events that the question offers, alone and word for word."
)
CHOICE = "Choose one of the options, and end with its letter alone in \\boxed{}."
FILMS = (
    "Recommend ten titles that suit the conversation, as a numbered list with the best first, and"
    " nothing else."
)
ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class DataSource:
    """kind: a rule of `scoring.RULES`. advice, tokens: see `env.Query`. split: where a right answer
    that is one text is cut into parts; "" does not.
    """

    kind: str
    advice: str = ""
    tokens: int = ANSWER_TOKENS
    split: str = ""


SOURCES: Mapping[tuple[str, ...], DataSource] = {
    ("booksum", "infbench_sum", "long_range_understanding"): (
        DataSource("share", SUMMARY, 2048, ",")
    ),
    ("pubmed", "ttl_train", "test_time_learning", "icl_", "nlu", "trec"): (
        DataSource("label", LABELS, 300)
    ),
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
    for beginnings, source in SOURCES.items():
        if name.startswith(beginnings):
            return source
    return OTHER


def answers_of(
    entry: Mapping[str, Any],
    source: DataSource,
    titles: Mapping[str, str],
) -> list[str]:
    """The right answers of a published question, none of them empty: alternatives, or the parts of
    one.

    titles: the title of each id, for recommendations, whose answers are ids. Raises KeyError for an
    id without a title.
    """
    value = entry.get("answer", entry.get("answers"))
    if isinstance(value, Mapping):  # SQuAD's {"text": …}
        value = value.get("text")
    values = [str(part) for part in _flat(value) if part is not None]
    if source.split and len(values) == 1:
        values = values[0].split(source.split)
    texts = [value.strip() for value in values if value.strip()]
    return [titles[text] for text in texts] if source.kind == "recommend" else texts


def _flat(value: Any) -> Iterator[Any]:
    """The values in nested lists, in order."""
    for part in value if isinstance(value, list | tuple) else ():
        yield from _flat(part)
    if not isinstance(value, list | tuple):
        yield value


def read_titles(path: Path) -> dict[str, str]:
    """The title of each id in a file of ids by name, such as the `entity2id.json` of
    MemoryAgentBench.

    A name may be an address: "<http://…/Heat_(1995_film)>" is "Heat". Raises DataError.
    """
    titles = {}
    for name, number in dict(read_json(path)).items():
        last = re.sub(r"[_>-]", " ", name.rpartition("/")[2])
        words = re.sub(r"\([^()]*\)", "", last).split()
        titles[str(number)] = " ".join(words) or name
    return titles


def read_parquet(path: Path, titles: Mapping[str, str]) -> Iterator[Task]:
    """A task for each row of `path`; its group is the row, its source the column `data_source`
    where there is one.

    titles: of the ids that questions about recommendations are answered with.

    Raises DataError: no such file, no parquet, a column is missing, or a row (by its number, from
    0) holds something else.
    """
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(ROWS_AT_ONCE):
            for row in batch.to_pylist():
                yield _task(f"{path}, row {number}", number, row, titles)
                number += 1
    except (pyarrow.ArrowException, OSError) as error:
        # pyarrow's messages go on with details of its own
        reason = str(error).splitlines()[0][:120]
        raise DataError(path, f"cannot be read as parquet ({reason}); download it again") from None


def _task(
    where: str,
    number: int,
    row: dict[str, Any],
    titles: Mapping[str, str],
) -> Task:
    """where: the row's place, for errors."""
    # 1. The chunks
    name = str(row.get("data_source") or "memalpha")
    source = source_of(name)
    chunks = [chunk.strip() for chunk in _listed(row, "chunks", str, where) if chunk.strip()]
    # 2. The questions that have an answer
    questions = []
    for entry in _listed(row, "questions_and_answers", dict, where):
        try:
            answers = answers_of(entry, source, titles)
        except KeyError as error:
            raise DataError(
                where, f"the id {error} has no title; give the file of ids as --titles"
            ) from None
        # Questions without an answer cannot be scored
        question = entry.get("question")
        if isinstance(question, str) and question.strip() and answers:
            answer = answers[0] if len(answers) == 1 else answers
            questions.append({"question": question, "answer": answer, "kind": source.kind})
    if not chunks or not questions:
        raise DataError(where, "holds no text, or no question with an answer")
    # 3. What the task holds
    data: dict[str, Any] = {"chunks": chunks, "questions": questions, "source": name}
    if source.advice or source.tokens != ANSWER_TOKENS:
        data["query"] = {"advice": source.advice, "tokens": source.tokens}
    if source.kind == "recommend":
        data["titles"] = list(dict.fromkeys(titles.values()))
    identity = f"{name}-{row.get('instance_id', number)}-{number}"
    return Task(identity, "memory", level_of(chunks), identity, data)


def _listed(
    row: dict[str, Any],
    field: str,
    kind: type,
    where: str,
) -> list[Any]:
    """The column `field`, a list of `kind` or its JSON text."""
    value = row.get(field)
    with contextlib.suppress(ValueError):
        # The published files have lists as JSON texts
        value = json.loads(value) if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(entry, kind) for entry in value):
        expected = "texts" if kind is str else "questions with answers"
        raise DataError(where, f"expected a list of {expected}, found {value!r:.60}", field=field)
    return value


CONVERSATIONS = 400
TEXTS = (".txt", ".md", ".rst")
QUESTIONS = ".questions.json"


class ConversationSettings(Config):
    """The generator's settings."""

    instances: int | None = option(
        None,
        help=f"Conversations of 4 to 10 chunks to generate; default: {CONVERSATIONS}.",
        ge=0,
    )
    long_instances: int = option(300, help="Conversations of 40 chunks to generate.", ge=0)
    parquet: tuple[Path, ...] = option(
        (), help="Files in the Mem-α format to read instead (repeat the flag)."
    )
    text: Path | None = option(
        None,
        help=(
            "Folder of texts and conversations to cut into chunks instead, each with"
            " NAME.questions.json."
        ),
    )
    chunk_tokens: int = option(2048, help="Approximate most tokens of a chunk of --text.", ge=16)
    titles: Path | None = option(
        None, help="JSON file of ids by title, for questions about recommendations."
    )

    @override
    def contradictions(self) -> Iterator[Rule]:
        two = "--parquet and --text are two sources; give one of them"
        yield self.parquet and self.text, two
        is_generated = not self.parquet and not self.text
        none = "--instances and --long-instances are both 0; generate at least one conversation"
        yield is_generated and self.number + self.long_instances == 0, none

    @property
    def number(self) -> int:
        """Number of short conversations to generate."""
        return CONVERSATIONS if self.instances is None else self.instances


class MemoryProblems(ProblemGenerator):
    """Short conversations of 4 to 10 chunks and long ones of 40, or those of parquet files or
    texts.
    """

    Settings: ClassVar[type[Config]] = ConversationSettings
    noun: ClassVar[str] = "conversations"
    settings: ConversationSettings

    def inputs(self) -> list[Path]:
        """The parquet files, the titles and the folder of texts."""
        paths = (*self.settings.parquet, self.settings.titles, self.settings.text)
        return [path for path in paths if path is not None]

    def generate(self, progress: Progress) -> Generated:
        """`data.json` with all conversations. Raises DataError."""
        settings, path = self.settings, self.folder / "data.json"
        texts = text_files(settings.text) if settings.text else []
        titles = read_titles(settings.titles) if settings.titles else {}
        levels = [("short", number) for number in range(settings.number)]
        levels += [("long", number) for number in range(settings.long_instances)]
        # 1. From texts, from parquet files, or from a seed
        tasks: list[Task] = []
        sources = texts or settings.parquet or levels
        with progress.bar("Conversations", len(sources)) as bar:
            for source in sources:
                if isinstance(source, tuple):
                    level, number = source
                    chunks = LONG
                    if level == "short":
                        chunks = generator(self.seed, "length", number).randint(*SHORT)
                    tasks.append(conversation(number, chunks, level, self.seed))
                elif texts:
                    tasks.append(read_text(source, settings.chunk_tokens))
                else:
                    tasks += read_parquet(source, titles)
                bar.advance()
        # An id tells problems apart in splits and results
        if len({task.id for task in tasks}) < len(tasks):
            raise DataError(
                path,
                (
                    "two rows have the same data_source, instance_id and number; convert the"
                    " files one by one"
                ),
            )
        # 2. How many there are
        figures = {"conversations": len(tasks)}
        for level in ("short", "long"):
            figures[level] = sum(task.level == level for task in tasks)
        for part in ("chunks", "questions"):
            figures[part] = sum(len(task.data[part]) for task in tasks)
        return Generated(
            {"data": tasks},
            figures,
            (figures_table(f"Conversations in {path}", "count", figures),),
        )


def text_files(folder: Path) -> list[Path]:
    """The texts and conversations in `folder`, sorted by name. Raises DataError if there are none."""
    files = []
    for path in sorted(folder.glob("*")):
        is_conversation = path.suffix == ".json" and not path.name.endswith(QUESTIONS)
        if is_conversation or path.suffix.lower() in TEXTS:
            files.append(path)
    if not files:
        raise DataError(folder, f"holds no text ({', '.join(TEXTS)}) and no conversation (.json)")
    return files


def read_text(path: Path, chunk_tokens: int) -> Task:
    """The problem of one file; its chunks have at most about `chunk_tokens` tokens. Raises
    DataError.
    """
    pieces = _messages(path) if path.suffix == ".json" else _sentences(text_of(path))
    chunks = list(chunks_of(pieces, chunk_tokens))
    if not chunks:
        raise DataError(path, "holds no text; give another file")
    questions_path = path.with_name(path.stem + QUESTIONS)
    questions = []
    for number, question in enumerate(read_json_list(questions_path)):
        from_json(MemoryQuestion, question, path=f"{questions_path}, question {number}")
        fields = ("question", "answer", "kind", "wrong")
        questions.append({name: question[name] for name in fields if name in question})
    data = {"chunks": chunks, "questions": questions, "source": path.stem}
    return Task(path.name, "memory", level_of(chunks), path.name, data)


def chunks_of(pieces: Iterable[str], most: int) -> Iterator[str]:
    """`pieces` joined into chunks of at most about `most` tokens, in order, without the white space
    around a chunk. A piece is cut only if it is longer than that, at a space.

    >>> list(chunks_of(["One two. ", "Three four.\\n", "Five six."], 7))
    ['One two. Three four.', 'Five six.']
    """
    chunk: list[str] = []
    room = most
    for whole in pieces:
        for piece in _short(whole, most):
            tokens = count_tokens(piece)
            if chunk and tokens > room:
                yield "".join(chunk).strip()
                chunk, room = [], most
            chunk.append(piece)
            room -= tokens
    if chunk:
        yield "".join(chunk).strip()


def _short(piece: str, most: int) -> Iterator[str]:
    """`piece`, in parts if it has more than `most` tokens."""
    while count_tokens(piece) > most and len(piece) > 1:
        # About where the tokens end, at a space if there is one before
        middle = len(piece) * most // (count_tokens(piece) + 1) or 1
        space = piece.rfind(" ", 1, middle + 1)
        cut = space if space > 0 else middle
        head, piece = piece[:cut], piece[cut:]
        if head.strip():
            yield head
    if piece.strip():
        yield piece


def _sentences(text: str) -> Iterator[str]:
    """The sentences, each with the white space after it."""
    # A sentence keeps the white space after it, so that chunks join as they were
    ends = [match.end() for match in SENTENCES.finditer(text)]
    for start, end in itertools.pairwise([0, *ends, len(text)]):
        yield text[start:end]


def _messages(path: Path) -> Iterator[str]:
    for number, message in enumerate(read_json_list(path)):
        fields: dict[str, Any] = message if isinstance(message, dict) else {}
        speaker = fields.get("role", fields.get("speaker"))
        text = fields.get("content", fields.get("text"))
        if not isinstance(speaker, str) or not isinstance(text, str):
            raise DataError(path, f"message {number} needs the texts 'role' and 'content'")
        if text.strip():
            yield headed(f"{speaker}:", text) + "\n"
