"""The wheel and the editable install, built without a network and used from other folders, have what is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def included(folder: Path) -> set[str]:
    """The files in and below `folder`, without what Python compiles."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in files}


def copy_sources(source: Path) -> None:
    """Copy what a package is built from to the folder `source`."""
    shutil.copytree(ROOT / "reflectkit", source / "reflectkit", ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, source)


def build(kind: str, source: Path, site: Path) -> None:
    """Build a wheel of `source` with setuptools' function `kind`, and unpack it in `site`."""
    dist = source.parent / "dist"
    subprocess.run([sys.executable, "-c", BUILD, kind, str(dist)], cwd=source, check=True, capture_output=True)
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as archive:
        archive.extractall(site)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the wheel, which was built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("built")
    copy_sources(folder / "source")
    build("build_wheel", folder / "source", folder / "site")
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


def test_an_editable_install_is_found_next_to_the_clone(tmp_path: Path) -> None:
    # 1. Install a clone, called reflectkit, into an environment without packages of its own
    clone = tmp_path / "reflectkit"
    copy_sources(clone)
    shutil.copytree(ROOT / "benchmarks", clone / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "env")}))
    build("build_editable", clone, site)
    (site / "requirements.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))

    # 2. Use it from the folder that holds the clone and a project with a folder named like one of the clone's
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/mine.py").touch()
    (tmp_path / "script.py").write_text(
        "import reflectkit, benchmarks.mine; print(reflectkit.make, reflectkit.__file__)"
    )
    ways = (["-c", (tmp_path / "script.py").read_text()], ["-m", "script"], ["script.py"])
    for way in ways:
        command = [str(tmp_path / "env/bin/python"), *way]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.rstrip().endswith(str(clone / "reflectkit/__init__.py")), done.stderr
