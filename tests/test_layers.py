"""The direction of the imports, and that the command line opens without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "reflectkit"
BOXED = PACKAGE / "boxed"  # repositories that agents explore
MIDDLE = {"envs", "chat", "agents", "data", "rl"}
MAY_IMPORT = {
    "core": {"core"},
    "models": {"core", "models"},
    "envs": {"core", "envs"},
    "chat": {"core", "chat"},
    "agents": {"core", "models", "chat", "agents"},
    "data": {"core", "data"},
    "rl": {"core", "models", "rl"},
    "stages": {"core", "models", "stages", *MIDDLE},
    "cli": {"core", "envs", "stages", "cli"},
    "integrations": {"core", "models", "stages", "cli", "integrations", *MIDDLE},
}
HEAVY = {"torch", "transformers", "trl", "peft", "datasets"}
SIDEWAYS = {("rl/loop.py", "agents")}
"""The loop is where the players and the learner meet; it is the one sideways import, said in README."""


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_imports_go_down(room: str) -> None:
    wrong = []
    for path in (PACKAGE / room).rglob("*.py"):
        for module in imports(path):
            parts = module.split(".")
            if parts[0] != "reflectkit" or len(parts) < 2 or parts[1] == "version":
                continue
            where = str(path.relative_to(PACKAGE))
            if parts[1] not in MAY_IMPORT[room] and (where, parts[1]) not in SIDEWAYS:
                wrong.append(f"{where} imports {module}")
    assert wrong == []


@pytest.mark.parametrize("room", ["core", "envs", "chat", "data", "cli"])
def test_no_torch_in(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        assert not {module.split(".")[0] for module in imports(path)} & HEAVY, path


def test_every_command_opens_without_torch() -> None:
    code = "import sys; from reflectkit.cli.command import stage_command; from reflectkit.stages import STAGES\n"
    code += f"[stage_command(name) for name in STAGES]; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_file_says_what_it_is() -> None:
    silent = [
        path
        for path in PACKAGE.rglob("*.py")
        if BOXED not in path.parents and ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    ]
    assert silent == []


ENVS = PACKAGE / "envs"


@pytest.mark.parametrize("folder", sorted(path.name for path in ENVS.iterdir() if (path / "__init__.py").is_file()))
def test_an_env_imports_no_other_env(folder: str) -> None:
    others = {path.name for path in ENVS.iterdir() if path.is_dir()} - {folder}
    for path in (ENVS / folder).rglob("*.py"):
        assert not {module.split(".")[2] for module in imports(path) if module.startswith("reflectkit.envs.")} & others
