"""One folder nested deeper than Python may call itself, and repositories that cannot be read, beside others that are
fine.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reflectkit.commands import filter_repo, gen_task, view
from reflectkit.console import Quiet
from reflectkit.runs.run import digest

# folders inside each other: more than the calls that Python is allowed here, and longer paths than the system takes
DEEP = 420
NAME = "deep_down"
TEXT = (Path(__file__).parents[2] / "data/auto_explore/repos/ferry_line/fare/price.go").read_text()


@pytest.fixture
def repos(tmp_path: Path) -> Iterator[Path]:
    """Three repositories, of which one holds the deep folder."""
    folder = tmp_path / "repos"
    for name in ("first", "second", "third"):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name}.go").write_text(TEXT)
    inner = os.open(folder / "second", os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir(NAME, dir_fd=inner)
        outer, inner = inner, os.open(NAME, os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + DEEP - 120)
    yield folder
    sys.setrecursionlimit(limit)


def test_a_deep_folder_stops_neither_filter_repo_nor_gen_task(repos: Path, tmp_path: Path) -> None:
    shared = {"data_dir": tmp_path / "data", "results_dir": tmp_path / "results"}
    filtered = filter_repo.run(filter_repo.FilterRepoConfig.from_flat(repo_dir=repos, **shared), Quiet())
    assert filtered.figures["kept"] == 3
    assert filtered.figures["dropped"] == {"folder: nested too deep": 1}
    asked = gen_task.run(gen_task.GenTaskConfig.from_flat(repos_dir=repos, min_tokens=1, **shared), Quiet())
    assert asked.figures["files"] == 3
    (repos / "second" / "episodes.jsonl").touch()
    assert view.episode_files([repos]) == [repos / "second" / "episodes.jsonl"]


def test_what_may_not_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    for name in ("open/a.py", "shut/a.py", "half/a.py", "half/b.py", "half/shut/c.py", "packed.zip"):
        (tmp_path / "repos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "repos" / name).write_text(TEXT)
    for name in ("shut", "half/b.py", "half/shut", "packed.zip"):
        (tmp_path / "repos" / name).chmod(0)
    if os.access(tmp_path / "repos" / "shut", os.R_OK):
        pytest.skip("root may read everything")
    shared = {"data_dir": tmp_path / "data", "results_dir": tmp_path / "results"}
    report = filter_repo.run(filter_repo.FilterRepoConfig.from_flat(repo_dir=tmp_path / "repos", **shared), Quiet())
    for name in ("shut", "half/shut"):
        (tmp_path / "repos" / name).chmod(0o755)  # so that it can be removed
    assert set(report.figures["by_repository"]) == {"open", "half"}
    assert set(report.figures["left_out"]) == {"shut", "packed"}
    assert digest(tmp_path / "repos" / "half")
