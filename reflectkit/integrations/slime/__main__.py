"""Write slime's prompt data: `python -m reflectkit.integrations.slime --env support`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reflectkit.cli import explain
from reflectkit.errors import ReflectkitError
from reflectkit.integrations.slime.prompts import write_prompts
from reflectkit.text import pluralize


def main() -> None:
    """Write the files and print their paths; exit with 2 and one line where something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m reflectkit.integrations.slime",
        description="Write the problems of an environment as slime's prompt data, a file for each split.",
        epilog="example: python -m reflectkit.integrations.slime --env support --level one",
    )
    parser.add_argument("--env", required=True, help="environment, or your own as package.module:Class")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder for data (default: data)")
    parser.add_argument("--out-dir", type=Path, help="folder to write (default: slime, beside the splits)")
    parser.add_argument("--level", default="", help="keep the problems of this level only")
    arguments = parser.parse_args()
    try:
        written = write_prompts(arguments.env, arguments.data_dir, arguments.out_dir, arguments.level)
    except (ReflectkitError, OSError) as error:
        sys.exit(explain.print_error(str(error), 2))
    for path, count in written.items():
        explain.say(f"{path}: {pluralize(count, 'task')}")


if __name__ == "__main__":
    main()
