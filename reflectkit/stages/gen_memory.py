"""gen-task for env `memory`: conversations with questions, generated from a seed or read from the published
Mem-α data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from reflectkit.core.console import Progress
from reflectkit.core.errors import DataError
from reflectkit.core.jsonl import write_json
from reflectkit.core.runs import Report, figures_table, open_run, write_permission
from reflectkit.core.seeding import generator
from reflectkit.core.types import Task
from reflectkit.data.trajectories import Record, record_to_json
from reflectkit.envs.memory.generate import LONG, SHORT, conversation
from reflectkit.envs.memory.published import read_parquet
from reflectkit.stages.common import EnvConfig


def gen_memory(config: EnvConfig, short: int, long: int, sources: Sequence[Path], progress: Progress) -> Report:
    """Write `data.json`: `short` conversations of 4 to 10 chunks and `long` of 40, or those of parquet files `sources`.

    Raises DataError.
    """
    write_permission(config.folder)
    with open_run("gen-task", config, list(sources)) as current:
        if current.done:
            return current.done
        path = config.folder / "data.json"
        with progress.bar("Conversations", len(sources) or short + long) as bar:
            tasks: list[Task] = []
            if sources:
                for source in sources:
                    tasks += read_parquet(source)
                    bar.advance()
            else:
                for task in _generated(short, long, config.seed):
                    tasks.append(task)
                    bar.advance()
        if len({task.id for task in tasks}) < len(tasks):
            raise DataError(
                path, "two rows have the same data_source, instance_id and number; convert the files one by one"
            )
        write_json(path, [record_to_json(Record(task, ())) for task in tasks])
        figures = {
            "conversations": len(tasks),
            "short": sum(task.level == "short" for task in tasks),
            "long": sum(task.level == "long" for task in tasks),
            "chunks": sum(len(task.data["chunks"]) for task in tasks),
            "questions": sum(len(task.data["questions"]) for task in tasks),
        }
        current.tables.append(figures_table(f"Conversations in {path}", "count", figures))
        return current.finish(figures, [path])


def _generated(short: int, long: int, seed: int) -> Iterator[Task]:
    for number in range(short):
        chunks = generator(seed, "length", number).randint(*SHORT)
        yield conversation(number, chunks, "short", seed)
    for number in range(long):
        yield conversation(number, LONG, "long", seed)
