"""The wheel, built without a network and used in an empty folder, has what its commands need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def included(folder: Path) -> set[str]:
    """The files in and below `folder`, without what Python compiles."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in files}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the wheel, which was built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    shutil.copytree(ROOT / "reflectkit", source / "reflectkit", ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, source)
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=source, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


COMMANDS = [["list"], ["list", "--configs", "fsdp2"], ["filter-repo"]]
CODE = f"""
import reflectkit
from reflectkit.cli.main import main

print(reflectkit.__file__)
for command in {COMMANDS}:
    assert main(command) == 0
"""


def test_the_wheel_has_every_included_file_and_filters_repositories(site: Path, tmp_path: Path) -> None:
    for name in ("boxed", "configs", "recipes", "data"):
        assert included(site / "reflectkit" / name) == included(ROOT / "reflectkit" / name)
    env = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "400"}
    done = subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    place, *told = done.stdout.splitlines()
    assert place.startswith(str(site)), "not this checkout"
    assert any("auto-explore-tiny" in line for line in told)
    (config,) = [line for line in told if line.startswith(str(site))]
    assert Path(config).is_file()
    data = tmp_path / "data/auto_explore"
    names = {path.name for path in (ROOT / "reflectkit/boxed/repos").iterdir()}
    assert {path.name for path in (data / "repos_filtered").iterdir()} == names
    assert not list(data.rglob("__pycache__"))
