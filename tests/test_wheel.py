"""The wheel, built without a network and used in an empty folder, has what its commands need, and the sdist what its
tests and pages need.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2])"


def included(folder: Path) -> set[str]:
    """The files in and below `folder`, without what Python compiles."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    source.mkdir()
    for path in ROOT.iterdir():
        if path.name in ("reflectkit", "tests", "docs", "benchmarks"):
            shutil.copytree(path, source / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.is_file() and not path.name.startswith("."):
            shutil.copy(path, source)
    for readme in ("data/README.md", "results/README.md"):
        (source / readme).parent.mkdir()
        shutil.copy(ROOT / readme, source / readme)
    for kind in ("wheel", "sdist"):
        subprocess.run([sys.executable, "-c", BUILD, kind, str(folder)], cwd=source, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    """A folder of installed packages that has the wheel, with its Python files compiled as pip does."""
    site = built / "site"
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(site)], check=False, capture_output=True)
    assert list((site / "reflectkit/boxed").rglob("__pycache__"))
    return site


def run(site: Path, folder: Path, *arguments: str) -> str:
    """What the installed reflectkit prints to `arguments` in `folder`. It must not import from this checkout."""
    code = (
        "import sys; from reflectkit.cli.main import main; code = main(sys.argv[1:]);"
        "files = [module.__file__ or '' for name, module in sys.modules.items() if name.split('.')[0] == 'reflectkit'];"
        f"assert files and all(file.startswith({str(site)!r}) for file in files), files; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site), "COLUMNS": "400"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_explores_repositories_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    assert "auto-explore-tiny" in run(installed, tmp_path, "list")
    run(installed, tmp_path, "filter-repo")
    data = tmp_path / "data/auto_explore"
    names = {path.name for path in (ROOT / "reflectkit/boxed/repos").iterdir()}
    assert {path.name for path in (data / "repos_filtered").iterdir()} == names
    assert not list(data.rglob("__pycache__"))
    run(installed, tmp_path, "gen-task", "--teacher", "oracle")
    assert {path.stem for path in (data / "tasks").glob("*.json")} >= names
    for path in (installed / "reflectkit/boxed").rglob("*.pyc"):
        path.unlink()
    run(installed, tmp_path, "filter-repo")
    runs = sorted(path.name for path in (tmp_path / "results").iterdir() if path.is_dir())
    assert runs == ["1_filter-repo", "2_gen-task"]  # what Python compiles is no change of the input


def test_ones_own_repositories_come_first(installed: Path, tmp_path: Path) -> None:
    mine = tmp_path / "data/auto_explore/repos/mine"
    mine.mkdir(parents=True)
    (mine / "notes.md").write_text("The key is under the third pot.\n")
    run(installed, tmp_path, "filter-repo", "--repo-dir", "data/auto_explore/repos")
    assert [path.name for path in (tmp_path / "data/auto_explore/repos_filtered").iterdir()] == ["mine"]


def test_the_wheel_lists_launch_configs_that_exist(installed: Path, tmp_path: Path) -> None:
    paths = [
        line.strip() for line in run(installed, tmp_path, "list", "--configs").splitlines() if line.endswith(".yaml")
    ]
    assert [Path(path).stem for path in paths] == ["fsdp2", "multi_gpu", "multi_node", "zero2", "zero3"]
    for path in paths:
        assert path.startswith(str(installed))
        assert "distributed_type" in yaml.safe_load(Path(path).read_text("utf-8"))
        assert run(installed, tmp_path, "list", "--configs", Path(path).stem) == f"{path}\n"


def test_the_wheel_has_every_included_file(installed: Path) -> None:
    for name in ("boxed", "configs", "recipes", "data"):
        assert included(installed / "reflectkit" / name) == included(ROOT / "reflectkit" / name)


def test_the_description_has_no_link_that_leads_nowhere_on_a_package_index(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = archive.read(name).decode()
    assert "\nDescription-Content-Type: text/markdown\n" in metadata
    assert "\n# reflectkit\n" in metadata
    assert "](docs/" not in metadata


def test_the_sdist_has_tests_pages_and_included_files(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames() if not name.endswith("/")}
    for name in ("reflectkit", "tests", "docs", "benchmarks"):
        assert {f"{name}/{path}" for path in included(ROOT / name)} <= files
    assert {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"} <= files
    assert {"Makefile", "constraints.txt", "environment.yml", "mkdocs.yml", "pyproject.toml", "setup.py"} <= files


def test_the_old_paths_of_a_checkout_lead_to_the_included_files() -> None:
    assert (ROOT / "configs").resolve() == ROOT / "reflectkit/configs"
    assert (ROOT / "data/auto_explore/repos").resolve() == ROOT / "reflectkit/boxed/repos"
