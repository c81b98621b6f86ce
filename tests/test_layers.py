"""The direction of the imports, and that the command line opens without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "reflectkit"
NOUNS = {"config", "console", "env", "errors", "eventloop", "files", "flag_names", "foreign_names", "jsonl", "keys"}
NOUNS |= {"prompts", "registry", "seeding", "text", "tools", "types"}
LIBRARY = NOUNS | {
    "agents",
    "chat",
    "data",
    "decisions",
    "envs",
    "evals",
    "models",
    "rollouts",
    "runs",
    "sampling",
    "train",
}
MAY_IMPORT = {
    **dict.fromkeys(NOUNS, NOUNS),
    "rollouts": NOUNS,
    "runs": NOUNS,
    "decisions": NOUNS,
    "chat": NOUNS | {"decisions", "runs"},
    "models": NOUNS | {"chat", "runs"},
    "sampling": NOUNS | {"agents", "data", "models", "rollouts", "runs"},
    "envs": NOUNS | {"chat", "decisions", "models", "rollouts", "runs"},
    **dict.fromkeys(("agents", "data"), LIBRARY - {"evals", "train"}),
    **dict.fromkeys(("evals", "train"), LIBRARY),
    "recipe": LIBRARY | {"commands"},
    "commands": LIBRARY | {"recipe"},
    "cli": NOUNS | {"commands", "envs", "models", "recipe", "runs"},
    "integrations": LIBRARY | {"commands", "cli"},
}
HEAVY = {"torch", "transformers", "trl", "peft", "datasets"}
SERVERS = {"starlette", "uvicorn", "openai"}


@cache
def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


def files_of(room: str) -> list[Path]:
    return [*(PACKAGE / room).rglob("*.py"), *PACKAGE.glob(f"{room}.py")]


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_imports_go_down(room: str) -> None:
    wrong = []
    for path in files_of(room):
        for module in imports(path):
            parts = module.split(".")
            if parts[0] == "reflectkit" and len(parts) > 1 and parts[1] not in MAY_IMPORT[room] | {room, "version"}:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {module}")
    assert files_of(room)
    assert wrong == []


@pytest.mark.parametrize("room", [*sorted(NOUNS), "envs", "chat", "data", "cli", "commands"])
def test_no_torch_in(room: str) -> None:
    for path in files_of(room):
        assert not {module.split(".")[0] for module in imports(path)} & HEAVY, path


def test_every_command_opens_without_torch() -> None:
    code = "import sys; from reflectkit.cli.app import stage_command; from reflectkit.commands import STAGES\n"
    code += f"[stage_command(name) for name in STAGES]; print(sorted({HEAVY | SERVERS!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


ENVS = PACKAGE / "envs"


@pytest.mark.parametrize("folder", sorted(path.name for path in ENVS.iterdir() if (path / "__init__.py").is_file()))
def test_an_env_imports_no_other_env(folder: str) -> None:
    others = {path.name for path in ENVS.iterdir() if path.is_dir()} - {folder}
    for path in (ENVS / folder).rglob("*.py"):
        assert not {module.split(".")[2] for module in imports(path) if module.startswith("reflectkit.envs.")} & others


def test_the_package_offers_its_names_lazily() -> None:
    """`import reflectkit` loads nothing, its names load no torch, and `__getattr__` and TYPE_CHECKING agree."""
    code = (
        "import sys; import reflectkit; modules = {name for name in sys.modules if name.startswith('reflectkit')};"
        "assert modules == {'reflectkit', 'reflectkit.version'}, modules;"
        f"[getattr(reflectkit, name) for name in reflectkit.__all__]; print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    import reflectkit.rollouts.episode

    assert callable(reflectkit.rollout)  # the function has the name of a package
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    typed = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imported = [node for node in typed.body if isinstance(node, ast.ImportFrom)]
    assert {name.name: node.module for node in imported for name in node.names} == reflectkit._PLACES
    assert set(reflectkit._PLACES) == set(reflectkit.__all__) - {"__version__"}
