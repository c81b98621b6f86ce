"""The wheel, built without a network and used in an empty folder, has what its commands need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2])"


def included(folder: Path) -> set[str]:
    """The files in and below `folder`, without what Python compiles."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in files}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built from a copy of the sources, and `site` with the wheel's files."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    for name in ("reflectkit", "tests", "docs", "benchmarks"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*ROOT.iterdir(), ROOT / "data/README.md", ROOT / "results/README.md"]:
        if path.is_file() and not path.name.startswith("."):
            target = source / path.relative_to(ROOT)
            target.parent.mkdir(exist_ok=True)
            shutil.copy(path, target)
    for kind in ("wheel", "sdist"):
        subprocess.run([sys.executable, "-c", BUILD, kind, str(folder)], cwd=source, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        archive.extractall(folder / "site")
    return folder


def run(built: Path, folder: Path, *arguments: str) -> str:
    """What the installed reflectkit prints to `arguments` in `folder`. It must not import from this checkout."""
    site = str(built / "site")
    code = (
        "import sys; from reflectkit.cli.main import main; code = main(sys.argv[1:]);"
        f"assert sys.modules['reflectkit'].__file__.startswith({site!r}); sys.exit(code)"
    )
    command, env = [sys.executable, "-c", code, *arguments], {**os.environ, "PYTHONPATH": site, "COLUMNS": "400"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_every_included_file_and_filters_repositories(built: Path, tmp_path: Path) -> None:
    for name in ("boxed", "configs", "recipes", "data"):
        assert included(built / "site/reflectkit" / name) == included(ROOT / "reflectkit" / name)
    assert "auto-explore-tiny" in run(built, tmp_path, "list")
    config = run(built, tmp_path, "list", "--configs", "fsdp2").strip()
    assert config.startswith(str(built / "site"))
    assert Path(config).is_file()
    run(built, tmp_path, "filter-repo")
    data = tmp_path / "data/auto_explore"
    names = {path.name for path in (ROOT / "reflectkit/boxed/repos").iterdir()}
    assert {path.name for path in (data / "repos_filtered").iterdir()} == names
    assert not list(data.rglob("__pycache__"))


def test_the_sdist_has_tests_pages_and_included_files(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("reflectkit", "tests", "docs", "benchmarks"):
        assert {f"{name}/{path}" for path in included(ROOT / name)} <= files
    assert {"LICENSE", "README.md", "Makefile", "constraints.txt", "pyproject.toml", "setup.py"} <= files
