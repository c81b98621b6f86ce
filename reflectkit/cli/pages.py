"""Writes a Markdown page per command from the source of `--help`: `python -m reflectkit.cli.pages docs/commands`."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from reflectkit.cli.command import order, panel
from reflectkit.core.config import NoSettings, StageConfig, flag
from reflectkit.core.jsonl import write_text
from reflectkit.envs import ENVS, env_class
from reflectkit.stages import STAGES
from reflectkit.stages.recipes.recipe import recipe_names


def page(name: str) -> str:
    """The page of command `name`."""
    module = importlib.import_module(STAGES[name])
    text = inspect.cleandoc(module.__doc__ or "").partition(": ")[2]
    rows_of: dict[str | None, list[str]] = {}
    kind = module.Config
    for item in sorted(dataclasses.fields(kind), key=order):
        rows_of.setdefault(panel(kind, item.name), []).append(_row(item))
    for env in ENVS if "env" in kind.choosers() else ():
        for item in dataclasses.fields(kind.own_settings(env_class(env)) or NoSettings):
            rows_of.setdefault(f"Environment {env}", []).append(_row(item))
    for recipe in recipe_names() if name == "run" else ():
        chosen = kind.chosen({"recipe": recipe})
        for item in dataclasses.fields(chosen)[len(dataclasses.fields(kind)) :]:
            rows_of.setdefault(f"Recipe {recipe}", []).append(_row(item))
    rows_of[StageConfig.PANEL] = rows_of.pop(StageConfig.PANEL)  # comes last
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
    for heading, rows in rows_of.items():
        lines += [
            "",
            *([f"## {heading}", ""] if heading else []),
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


def _row(item: Any) -> str:
    label = item.name.upper() if item.metadata.get("argument") else f"`{flag(item.name)}`"
    if item.default is dataclasses.MISSING:
        default = "required"
    elif item.default is None or item.default in ("", ()):
        default = ""
    else:
        default = f"`{item.default}`"
    text = item.metadata["help"].replace("|", "\\|").replace("<", "&lt;")
    return f"| {label} | {default} | {text} |"


if __name__ == "__main__":
    print(f"{len(write_pages(Path(sys.argv[1])))} pages in {sys.argv[1]}")
