"""Writes a Markdown page per command from the source of `--help`: `python docs/command_pages.py docs/commands`."""

from __future__ import annotations

import importlib
import inspect
import shlex
import sys
from pathlib import Path

from reflectkit.cli.app import CONFIG_HELP
from reflectkit.commands import STAGES, config_class
from reflectkit.config import LAST, REQUIRED, Leaf, choices, leaves, panels
from reflectkit.jsonl import write_text


def page(name: str) -> str:
    """The page of command `name`."""
    module = importlib.import_module(STAGES[name].module)
    text = inspect.cleandoc(module.__doc__ or "").partition(": ")[2]
    kind = config_class(name)
    brought = choices(kind)
    rows_of = panels((leaf for leaf in leaves(kind) if leaf.panel not in brought), getattr(module, "MINOR", ()))
    owners: dict[tuple[str, ...], list[str]] = {}  # by their rows, as some have the same
    for owner, rows in brought.items():
        owners.setdefault(tuple(map(_row, rows)), []).append(owner)
    tables = {title: list(map(_row, part)) for title, part in rows_of.items()}
    tables |= {" or ".join(names): list(rows) for rows, names in owners.items()}
    tables[LAST] = [*tables.pop(LAST, []), f"| `--config` |  | {CONFIG_HELP} |"]
    lines = [
        f"# {name}",
        "",
        text[:1].upper() + text[1:],
        "",
        "```",
        *module.EXAMPLES,
        "```",
        "",
        "Settings can also be read from a YAML file, by these names without the dashes: `--config settings.yaml`.",
        *(_as_file(module.EXAMPLES[0]) if any("--config" in example for example in module.EXAMPLES) else ()),
    ]
    for title, lines_of in tables.items():
        lines += [
            "",
            *([f"## {title[:1].upper()}{title[1:]}", ""] if title else []),
            "| flag | default | description |",
            "|---|---|---|",
            *lines_of,
        ]
    return "\n".join(lines) + "\n"


def write_pages(folder: Path) -> list[Path]:
    """Write every command's page into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in STAGES:
        path = folder / f"{name}.md"
        write_text(path, page(name))
        written.append(path)
    return written


def _as_file(example: str) -> list[str]:
    """The settings of a command line, in which each flag has a value, as that file."""
    words = shlex.split(example)[2:]
    lines = [f"{name[2:].replace('-', '_')}: {value}" for name, value in zip(words[::2], words[1::2], strict=True)]
    return ["", "The first example as such a file:", "", "```yaml", *lines, "```"]


def _row(leaf: Leaf) -> str:
    label = leaf.shown if leaf.is_argument else f"`{leaf.shown}`"
    if leaf.default is REQUIRED:
        default = "required"
    elif leaf.default is None or leaf.default in ("", ()):
        default = ""
    else:
        default = f"`{leaf.default}`"
    text = leaf.help.replace("|", "\\|").replace("<", "&lt;")
    return f"| {label} | {default} | {text} |"


if __name__ == "__main__":
    print(f"{len(write_pages(Path(sys.argv[1])))} pages in {sys.argv[1]}")
