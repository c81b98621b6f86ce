"""filter-repo: each rule, archives that try to get out or to fill the disk, and files that change while they
are read.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from reflectkit.commands import filter_repo
from reflectkit.console import Quiet, Report
from reflectkit.errors import DataError
from tests.sft_runs import Interrupting

GOOD = b"enough characters to be kept\n"


def run(folder: Path, progress: Quiet | None = None, **more: Any) -> Report:
    places = {"repo_dir": folder / "in", "data_dir": folder / "data", "results_dir": folder / "results"}
    return filter_repo.run(filter_repo.FilterRepoConfig.from_flat(**places | more), progress or Quiet())


def kept(folder: Path) -> set[str]:
    target = folder / "data" / "auto_explore" / "repos_filtered"
    return {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}


def put(path: Path, content: bytes = GOOD) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_contents_are_judged_and_the_report_says_why(tmp_path: Path) -> None:
    source = tmp_path / "in" / "shop"
    put(source / "good.py")
    put(source / "short.py", b"123456789")
    put(source / "ten.py", b"1234567890")
    put(source / "empty.py", b"")
    put(source / "latin.txt", "naïve café ".encode("latin-1") * 9)
    put(source / "cut.txt", GOOD + "é".encode()[:1])
    put(source / "foreign.md", "слово и дело ".encode() * 9)
    put(source / "mostly.md", b"nine of ten are ASCII " + "é".encode())
    put(source / "deep" / "er" / "data.csv")
    put(source / "only_bad" / "bad.txt", b"\xff\xfe\x00")
    put(source / "big.csv", b"a,b\n" * 400_000)
    put(source / "tests" / "test.py")
    put(source / "split.txt", b"x" * 65_535 + "é".encode() + b"y" * 70_000)  # a character across two pieces
    report = run(tmp_path, max_file_mb=1)
    names = ("good.py", "ten.py", "mostly.md", "deep/er/data.csv", "split.txt")
    assert kept(tmp_path) == {f"shop/{name}" for name in names}
    assert not (tmp_path / "data/auto_explore/repos_filtered/shop/only_bad").exists()
    assert report.figures["dropped"] == {
        "folder: says little (licence, build, tests, examples)": 1,
        "not UTF-8": 3,
        "too large": 1,
        "under 10 characters": 2,
        "under 90% ASCII": 1,
    }


def test_links_and_special_files_are_dropped(tmp_path: Path) -> None:
    put(tmp_path / "secret.txt", b"a secret outside of it")
    source = tmp_path / "in" / "shop"
    put(source / "good.py")
    os.symlink(tmp_path / "secret.txt", source / "link.txt")
    os.symlink(tmp_path, source / "out")
    os.symlink(source, source / "loop")
    os.mkfifo(source / "pipe.txt")
    os.symlink(tmp_path, tmp_path / "in" / "repo_link")
    assert run(tmp_path).figures["dropped"] == {"link or special file": 4}
    assert kept(tmp_path) == {"shop/good.py"}


Links = dict[str, tuple[bytes, str]]


def zip_of(folder: Path, name: str, members: dict[str, bytes], links: Links | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        for member, (_, target) in (links or {}).items():
            entry = zipfile.ZipInfo(member)
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, target)
    return path


def tar_of(folder: Path, name: str, members: dict[str, bytes], links: Links | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members.items():
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        for member, (kind, target) in (links or {}).items():
            entry = tarfile.TarInfo(member)
            entry.type, entry.linkname = kind, target
            archive.addfile(entry)
    return path


both = pytest.mark.parametrize("make", [zip_of, tar_of])
HOSTILE = dict.fromkeys(
    ("../up.txt", "/abs.txt", "a/../../up.txt", "C:/drive.txt", "..\\up.txt", "C:\\a.txt", "./../up.txt"), GOOD
)


@both
def test_archives_are_repositories_and_their_one_folder_is_the_root(tmp_path: Path, make: Any) -> None:
    names = ("shop-1.0/app/fees.py", "shop-1.0/README.md", "shop-1.0/LICENSE")
    make(tmp_path / "in", "shop-1.0", dict.fromkeys(names, GOOD))
    make(tmp_path / "in", "flat", {"one/a.py": GOOD, "two/b.py": GOOD})
    run(tmp_path)
    assert kept(tmp_path) == {"shop-1.0/app/fees.py", "shop-1.0/README.md", "flat/one/a.py", "flat/two/b.py"}
    next((tmp_path / "in").glob("flat*")).unlink()
    progress = Interrupting()
    run(tmp_path, progress)
    assert "repos_filtered/flat; delete what is not wanted" in progress.lines[0]


@both
def test_nothing_gets_out_of_an_archive_and_links_are_dropped(tmp_path: Path, make: Any) -> None:
    links = {"link.txt": (tarfile.SYMTYPE, "/etc/passwd"), "hard.txt": (tarfile.LNKTYPE, "good.py")}
    make(tmp_path / "in", "evil", {**HOSTILE, "good.py": GOOD}, links)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    report = run(tmp_path)
    assert kept(tmp_path) == {"evil/good.py"}
    made = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    allowed = (tmp_path / "data" / "auto_explore" / "repos_filtered", tmp_path / "results")
    assert all(path.is_relative_to(allowed[0]) or path.is_relative_to(allowed[1]) for path in made)
    assert report.figures["dropped"] == {"path that leaves the archive": len(HOSTILE), "link or special file": 2}


SHOP = {"shop/app/fees.py": GOOD, "shop/README.md": GOOD}
WINDOWS = {"shop\\": b""} | {name.replace("/", "\\"): content for name, content in SHOP.items()}
FORKS = {f"__MACOSX/{Path(name).parent}/._{Path(name).name}": b"\0\5\x16\7" for name in SHOP}


@pytest.mark.parametrize(
    "members", [WINDOWS, SHOP | FORKS | {"__MACOSX/._shop": b"\0\5", ".DS_Store": b"\0", "shop/.DS_Store": b"\0"}]
)
def test_archives_of_windows_and_of_the_finder_hold_what_was_put_in(tmp_path: Path, members: dict[str, bytes]) -> None:
    zip_of(tmp_path / "in", "shop", members)
    assert run(tmp_path).figures["dropped"] == {}
    assert kept(tmp_path) == {"shop/app/fees.py", "shop/README.md"}


def test_a_tar_of_macos_holds_what_was_put_in(tmp_path: Path) -> None:
    tar_of(tmp_path / "in", "shop", {"._shop": b"\0\5", "./shop/app/._fees.py": b"\0\5"} | SHOP)
    assert run(tmp_path).figures["dropped"] == {}
    assert kept(tmp_path) == {"shop/app/fees.py", "shop/README.md"}


def folder_of(folder: Path, name: str, members: dict[str, bytes]) -> None:
    for member, content in members.items():
        put(folder / name / member, content)


@pytest.mark.parametrize("make", [zip_of, tar_of, folder_of])
def test_it_says_what_share_of_a_repository_was_kept_and_why_not_the_rest(tmp_path: Path, make: Any) -> None:
    """A picture and a hidden folder are no text of the repository; a dropped folder's files are."""
    members = {"small/__init__.py": b"x" * 700, "small/tests/test_it.py": b"x" * 100, "README.md": b"x" * 200}
    make(tmp_path / "in", "small", members | {"logo.png": b"x" * 999, ".venv/lib/a.py": b"x" * 999})
    progress = Interrupting()
    report = run(tmp_path, progress)
    figures = report.figures["by_repository"]["small"]
    assert (figures["bytes"], figures["share"]) == (200, 0.2)
    reasons = {"hidden or private name": 700, "folder: says little (licence, build, tests, examples)": 100}
    assert figures["dropped_bytes"] == reasons
    (warning,) = (line for line in progress.lines if line.startswith("warning: "))
    assert "small: none of its code was kept, e.g. not small/" in warning
    assert report.tables[0].rows == (("small", "1", "4", "0.2", "20%", "hidden or private name"),)


def test_a_repository_of_which_nothing_is_left_says_why(tmp_path: Path) -> None:
    put(tmp_path / "in" / "one" / "one" / "__init__.py")
    with pytest.raises(DataError, match=r"one: no files are left; .* hidden or private name \(1, e\.g\. one/__init__"):
        run(tmp_path)


def test_bombs_are_refused_whole_and_the_others_are_kept(tmp_path: Path) -> None:
    zeros = b"0" * (40 << 20)
    zip_of(tmp_path / "in", "bomb", {f"{n}.txt": zeros[: 4 << 20] for n in range(12)})
    tar_of(tmp_path / "in", "tarbomb", {"huge.txt": zeros, "b.txt": GOOD})
    put(tmp_path / "in" / "fine" / "a.py")
    report = run(tmp_path, max_file_mb=100)
    assert kept(tmp_path) == {"fine/a.py"}
    assert set(report.figures["left_out"]) == {"bomb", "tarbomb"}
    assert all("decompression bomb" in why for why in report.figures["left_out"].values())
