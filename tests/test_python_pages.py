"""docs/acting.md and docs/python.md: their Python runs as it stands; `import reflectkit` is light and typed."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import reflectkit
from reflectkit.jsonl import read_json, write_json
from tests.examples import run_page
from tests.test_layers import HEAVY

DOCS = Path(__file__).parents[1] / "docs"
ACTIONS = {"south", "north", "east", "west", "pickup", "dropoff"}


@pytest.fixture
def results(checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models that the pages name, untrained."""
    for role, name in (("policy", "reflect-rl/checkpoint-36"), ("reflection", "reflector/checkpoint-700")):
        shutil.copytree(checkpoints[role], tmp_path / "results" / "taxi-tiny" / name)
        facts = tmp_path / "results" / "taxi-tiny" / name / "reflectkit.json"
        write_json(facts, read_json(facts) | {"env": "taxi"})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_acting_runs(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page(DOCS / "acting.md")
    names["agent"].close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[0] in ACTIONS
    assert lines[2] in ("True", "False")
    assert set(lines[3:13]) <= ACTIONS
    assert [line.split()[0] for line in lines[13:23]] == [task.id for task in names["tasks"]]
    served = lines[23:]
    assert served == lines[3:13] * 10, "the server answers as the batch does"


def test_python_runs(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page(DOCS / "python.md")
    assert len(capsys.readouterr().out.splitlines()) == 2 * len(names["tasks"])


def test_the_page_names_exactly_what_the_package_offers() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", (DOCS / "python.md").read_text("utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(reflectkit.__all__) - {"__version__"}
    assert set(reflectkit.__all__) <= set(dir(reflectkit))
    for name in reflectkit.__all__:
        assert getattr(reflectkit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'load_agents'"):
        _ = reflectkit.load_agents


def test_the_import_loads_nothing_and_the_names_no_torch() -> None:
    code = (
        "import sys; import reflectkit; modules = {name for name in sys.modules if name.startswith('reflectkit')};"
        "assert modules == {'reflectkit', 'reflectkit.version'}, modules;"
        f"[getattr(reflectkit, name) for name in reflectkit.__all__]; print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_type_checker_sees_what_is_imported_on_first_use() -> None:
    """`__getattr__` and the imports under TYPE_CHECKING name the same modules."""
    tree = ast.parse(Path(reflectkit.__file__).read_text("utf-8"))
    typed = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in typed.body if isinstance(node, ast.ImportFrom)]
    assert {name.name: node.module for node in imports for name in node.names} == reflectkit._PLACES
    assert set(reflectkit._PLACES) == set(reflectkit.__all__) - {"__version__"}
