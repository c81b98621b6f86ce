"""The problems of env `memory`: conversations with questions, generated from a seed or read from the published
Mem-α data.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Self

from pydantic import model_validator

from reflectkit.config import Config, option
from reflectkit.console import Progress, figures_table
from reflectkit.envs.memory.generate import LONG, SHORT, conversation
from reflectkit.envs.memory.published import read_parquet, read_titles
from reflectkit.envs.memory.texts import read_text, text_files
from reflectkit.envs.problems import Generated, ProblemGenerator
from reflectkit.errors import ConfigError, DataError
from reflectkit.seeding import generator
from reflectkit.types import Task

CONVERSATIONS = 400


class ConversationSettings(Config):
    """The generator's settings."""

    instances: int | None = option(
        None, help=f"Conversations of 4 to 10 chunks to generate; default: {CONVERSATIONS}.", ge=0
    )
    long_instances: int = option(300, help="Conversations of 40 chunks to generate.", ge=0)
    parquet: tuple[Path, ...] = option((), help="Files in the Mem-α format to read instead (repeat the flag).")
    text: Path | None = option(
        None, help="Folder of texts and conversations to cut into chunks instead, each with NAME.questions.json."
    )
    chunk_tokens: int = option(2048, help="Approximate most tokens of a chunk of --text.", ge=16)
    titles: Path | None = option(None, help="JSON file of ids by title, for questions about recommendations.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.parquet and self.text:
            raise ConfigError("--parquet and --text are two sources; give one of them")
        if not self.parquet and not self.text and self.number + self.long_instances == 0:
            raise ConfigError("--instances and --long-instances are both 0; generate at least one conversation")
        return self

    @property
    def number(self) -> int:
        """Number of short conversations to generate."""
        return CONVERSATIONS if self.instances is None else self.instances


class Conversations(ProblemGenerator):
    """Short conversations of 4 to 10 chunks and long ones of 40, or those of parquet files or texts."""

    Settings: ClassVar[type[Config]] = ConversationSettings
    noun: ClassVar[str] = "conversations"
    settings: ConversationSettings

    def inputs(self) -> list[Path]:
        """The parquet files, the titles and the folder of texts."""
        given = (*self.settings.parquet, self.settings.titles, self.settings.text)
        return [path for path in given if path is not None]

    def generate(self, progress: Progress) -> Generated:
        """`data.json` with all conversations. Raises DataError."""
        sources, path = self.settings.parquet, self.folder / "data.json"
        texts = text_files(self.settings.text) if self.settings.text else []
        total = len(sources) + len(texts) or self.settings.number + self.settings.long_instances
        with progress.bar("Conversations", total) as bar:
            tasks: list[Task] = []
            for text in texts:
                tasks.append(read_text(text, self.settings.chunk_tokens))
                bar.advance()
            if sources:
                titles = read_titles(self.settings.titles) if self.settings.titles else {}
                for source in sources:
                    tasks += read_parquet(source, titles)
                    bar.advance()
            elif not texts:
                for task in self._generated():
                    tasks.append(task)
                    bar.advance()
        if len({task.id for task in tasks}) < len(tasks):
            raise DataError(
                path, "two rows have the same data_source, instance_id and number; convert the files one by one"
            )
        figures = {
            "conversations": len(tasks),
            "short": sum(task.level == "short" for task in tasks),
            "long": sum(task.level == "long" for task in tasks),
            "chunks": sum(len(task.data["chunks"]) for task in tasks),
            "questions": sum(len(task.data["questions"]) for task in tasks),
        }
        return Generated({"data": tasks}, figures, (figures_table(f"Conversations in {path}", "count", figures),))

    def _generated(self) -> Iterator[Task]:
        for number in range(self.settings.number):
            chunks = generator(self.seed, "length", number).randint(*SHORT)
            yield conversation(number, chunks, "short", self.seed)
        for number in range(self.settings.long_instances):
            yield conversation(number, LONG, "long", self.seed)
