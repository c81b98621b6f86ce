"""Writes a Markdown page per command from the source of `--help`: `python -m reflectkit.cli.pages docs/commands`."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

from reflectkit.cli.command import order
from reflectkit.commands import STAGES, config_class
from reflectkit.config import REQUIRED, Leaf, choices, heading, leaves
from reflectkit.jsonl import write_text
from reflectkit.runs.run import RunConfig


def page(name: str) -> str:
    """The page of command `name`."""
    module = importlib.import_module(STAGES[name])
    text = inspect.cleandoc(module.__doc__ or "").partition(": ")[2]
    rows_of: dict[str | None, list[str]] = {}
    kind = config_class(name)
    brought = choices(kind)
    own = [leaf for leaf in leaves(kind) if leaf.panel not in brought]
    for leaf in sorted(own, key=lambda leaf: (leaf.panel is not None, order(leaf))):
        rows_of.setdefault(leaf.panel, []).append(_row(leaf))
    rows_of |= {owner: list(map(_row, rows)) for owner, rows in brought.items()}
    rows_of[heading(RunConfig)] = rows_of.pop(heading(RunConfig))  # comes last
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
    ]
    for title, rows in rows_of.items():
        lines += [
            "",
            *([f"## {title[:1].upper()}{title[1:]}", ""] if title else []),
            "| flag | default | description |",
            "|---|---|---|",
            *rows,
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
