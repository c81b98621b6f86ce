"""Write slime's prompt data: `python -m reflectkit.integrations.slime --env support`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from reflectkit.cli.screen import print_error, say
from reflectkit.data.problems import read_records
from reflectkit.envs import data_folder, env_class
from reflectkit.envs.setup import at_level, check_level
from reflectkit.errors import DataError, ReflectkitError
from reflectkit.jsonl import read_json, write_jsonl
from reflectkit.text import pluralize
from reflectkit.types import Task, to_json

SPLITS = ("train", "validate", "test", "unseen")


def write_prompts(
    env: str, data_dir: Path, out_dir: Path | None = None, level: str = ""
) -> dict[Path, int]:
    """Write a file for each split of the env's problems that is not empty: the files, with the
    number of their rows.

    out_dir: default: `slime`, beside the splits. level: keep its problems only.

    Raises DataError: there are no splits, or no problem of that level. UnknownNameError: no such
    env or level.
    """
    # 1. The files of the split
    kind = env_class(env)
    folder = data_folder(env, data_dir) / kind.taskset.records_folder
    sources = [folder / f"{split}.json" for split in SPLITS]
    if not any(source.exists() for source in sources):
        raise DataError(sources[0], f"does not exist; make it with `reflectkit split --env {env}`")
    if level:
        check_level(env, level)

    # 2. Their problems, as rows
    counts = {}
    for source in sources:
        if source.exists() and read_json(source) != []:
            tasks = [record.task for record in read_records(source, kind.name)]
            tasks = at_level(env, tasks, level, source) if level else tasks
            path = (out_dir or folder / "slime") / f"{source.stem}.jsonl"
            counts[path] = write_jsonl(path, [prompt_row(env, task, source.stem) for task in tasks])
    return counts


def prompt_row(env: str, task: Task, split: str) -> dict[str, Any]:
    """A row of prompt data. The text of the prompt is for slime's logs only."""
    metadata = {
        "env": env,
        "split": split,
        "task": to_json(task),
        "source_name": f"{task.env}/{task.level}",
    }
    return {"prompt": f"{task.env}: {task.id}", "metadata": metadata}


def main() -> None:
    """Write the files and print their paths; exit with 2 and one line where something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m reflectkit.integrations.slime",
        description="Write the problems of an environment as slime's prompt data, a file for each split.",
        epilog="example: python -m reflectkit.integrations.slime --env support --level one",
    )
    parser.add_argument(
        "--env", required=True, help="environment, or your own as package.module:Class"
    )
    parser.add_argument(
        "--data-dir", type=Path, default=Path("data"), help="folder for data (default: data)"
    )
    parser.add_argument(
        "--out-dir", type=Path, help="folder to write (default: slime, beside the splits)"
    )
    parser.add_argument("--level", default="", help="keep the problems of this level only")
    arguments = parser.parse_args()
    try:
        counts = write_prompts(
            arguments.env, arguments.data_dir, arguments.out_dir, arguments.level
        )
    except (ReflectkitError, OSError) as error:
        sys.exit(print_error(str(error), 2))
    for path, count in counts.items():
        say(f"{path}: {pluralize(count, 'task')}")


if __name__ == "__main__":
    main()
