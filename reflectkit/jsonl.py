"""Reading and writing data files. Read errors name the place in the file, and a write never leaves
half a file.

A write goes to a temporary file in the same folder, which is flushed to disk and renamed over the
target. After a kill or on a full disk, the target holds either the old bytes or the new ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from reflectkit.errors import ConfigError, DataError
from reflectkit.files import missing

TEMPORARY_PREFIX = ".reflectkit-tmp-"
Item = TypeVar("Item", bound=Hashable)


def dumps(value: object) -> str:
    """Compact JSON with keys in insertion order; refuses NaN, which is not valid JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) in one step.

    Raises
    ------
    OSError (full disk, no permission) and DataError (half a surrogate pair, which UTF-8 cannot
    hold); `path` is then unchanged. A killed writer leaves a temporary file, which the next write
    of `path` replaces.
    """
    # Half a surrogate pair is told by its place
    if place := lone_surrogate(text):
        raise DataError(
            path, f"cannot be written: character {place} is half a surrogate pair; fix the source"
        )
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into. It replaces `path` if the context ends without an error, and is removed
    otherwise.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, as a rename does not cross file systems
    temporary = path.with_name(TEMPORARY_PREFIX + path.name)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which replaces `folder` if the context ends without an error;
    else it is removed. Whoever may read new files of this process may read its files.
    """
    # The old folder is moved away first: a folder cannot be replaced in one step
    staging, old = (
        folder.with_name(f"{TEMPORARY_PREFIX}{part}{folder.name}") for part in ("", "old-")
    )
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        yield staging
        share_files(staging)
    except BaseException:  # a full disk must not stay full
        shutil.rmtree(staging, ignore_errors=True)
        raise
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    staging.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def share_files(folder: Path) -> None:
    """Give all files in `folder` the permissions that new files have there.

    safetensors writes files that only their owner may read, so a server that runs as another user
    could not load a checkpoint.
    """
    probe = folder / f"{TEMPORARY_PREFIX}permissions"
    probe.touch()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


def lone_surrogate(text: str) -> int:
    """The 1-based position of the first lone surrogate in `text`, which UTF-8 cannot encode; 0
    without one.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start + 1
    return 0


def write_json(path: Path, value: object) -> None:
    """Replace `path` by `value`, indented by one space, in one step."""
    write_text(path, json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def write_jsonl(path: Path, rows: Iterable[object]) -> int:
    """Replace `path` by one compact JSON value per line, in one step; returns the number of lines."""
    lines = [dumps(row) + "\n" for row in rows]
    write_text(path, "".join(lines))
    return len(lines)


def sweep(folder: Path) -> None:
    """Remove the temporary files that a killed writer left in `folder`."""
    for leftover in folder.glob(TEMPORARY_PREFIX + "*"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


AGAIN = "fix the file, or delete it and run the command that writes it again"


def text_of(path: Path) -> str:
    """The text in `path`, without a byte order mark. Raises DataError if it is missing, unreadable
    or not UTF-8.
    """
    # 1. The bytes
    refuse_device(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise missing(path) from None
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror}); name a file") from None

    # 2. The text, without a byte order mark
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(path, "not UTF-8; save it as UTF-8", line=line) from None


def refuse_device(path: Path) -> None:
    """Raises DataError for a pipe, socket or device: it may never end, or be empty when it is read
    again.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(
            path, "is a pipe or a device, not a file; save what it gives in a file, and name that"
        )


LARGE = re.compile(r"[eE]\+?\d{3}|\d{308}")
"""What the text of a number beyond a float's range has."""


def _refused(name: str) -> None:
    """Raises ValueError: `name` is NaN, Infinity or -Infinity."""
    raise ValueError(f"{name} is no JSON number")


def finite(text: str, fault: str = "{:.20} is beyond the range of numbers") -> float:
    """The number in `text`. Raises ValueError, with `fault` about the text, if no float is that
    large.
    """
    number = float(text)
    if math.isinf(number):
        raise ValueError(fault.format(text))
    return number


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these (key, value) pairs. Raises ValueError if a key is there twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        key = first_repeated(key for key, _ in pairs)
        raise ValueError(f"an object has the key {key!r:.80} twice")
    return value


def first_repeated(items: Iterable[Item]) -> Item | None:
    """The first of `items` that was there before; None if all are different."""
    seen: set[Item] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None


Constant = Callable[[str], Any]
"""What NaN, Infinity and -Infinity stand for, which JSON does not have."""


def _parsed(
    text: str,
    path: Path,
    line: int | None,
    fix: str,
    constant: Constant,
    *,
    unique: bool,
) -> Any:
    # a number beyond a float's range is read as infinity, which is refused where Infinity is
    refuse_large = constant is _refused and LARGE.search(text)
    try:
        return json.loads(
            text,
            parse_constant=constant,
            parse_float=finite if refuse_large else None,
            object_pairs_hook=unique_keys if unique else None,
        )
    except RecursionError:
        raise DataError(path, f"not JSON: it is nested too deep; {fix}", line=line) from None
    except ValueError as error:  # cut off, NaN, or a number of too many digits
        where = getattr(error, "lineno", None) if line is None else line
        raise DataError(
            path, f"not JSON: {getattr(error, 'msg', error)}; {fix}", line=where
        ) from None


def read_json(
    path: Path,
    fix: str = AGAIN,
    constant: Constant = _refused,
    *,
    unique: bool = False,
) -> Any:
    """The JSON value in `path`. Raises DataError if there is none. fix: what to do where it is not
    JSON. unique: an object that has a key twice is refused, too; otherwise the last one counts.
    """
    return _parsed(text_of(path), path, None, fix, constant, unique=unique)


def read_json_list(path: Path) -> list[Any]:
    """The non-empty JSON list in `path`. Raises DataError, also for any other value."""
    value = read_json(path, unique=True)
    if not isinstance(value, list):
        raise DataError(path, f"expected a JSON list of records, found {type(value).__name__}")
    if not value:
        fix = "run the command that writes it on more problems, or split with another --ratio"
        raise DataError(path, f"the list is empty; {fix}")
    return value


def read_jsonl(
    path: Path,
    fix: str = AGAIN,
    constant: Constant = _refused,
    *,
    growing: bool = False,
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line number, object) for each line of `path`; blank lines are skipped.

    fix: as in `read_json`. growing: whether a program may be writing the file, or have been killed
    while it did; a part of a row in the last line is then left out.

    Raises
    ------
    DataError: the file is missing, empty or not UTF-8, or a line (given by number) is not a JSON
    object, or has a key twice.
    """
    # It stays 0 where the file has no line
    number = 0
    for number, line in lines(path, growing=growing):
        try:
            row = _parsed(line, path, number, fix, constant, unique=True)
        except DataError:
            if growing and not line.endswith("\n"):
                return
            raise
        if not isinstance(row, dict):
            raise DataError(
                path, f"expected a JSON object, found {type(row).__name__}", line=number
            )
        yield number, row
    if not number:
        raise DataError(path, f"the file is empty; {fix}")


def lines(path: Path, *, growing: bool = False) -> Iterator[tuple[int, str]]:
    """(line number, text) for each non-blank line of `path`, one in memory at a time. Raises
    DataError as `text_of`; strings may contain U+2028, which is no end of a line here.

    growing: see `read_jsonl`.
    """
    # The error of a missing file, a folder or a device
    if not path.is_file():
        text_of(path)  # raises
    with path.open("rb") as file:
        for number, content in enumerate(file, 1):
            try:
                line = content.decode()
            except UnicodeDecodeError:
                if growing and not content.endswith(b"\n"):
                    return
                raise DataError(path, "not UTF-8; save it as UTF-8", line=number) from None
            if line.strip():
                yield number, line.removeprefix("\ufeff") if number == 1 else line


def salvaged(path: Path, fields: Mapping[str, Any]) -> Iterator[dict[str, Any] | None]:
    """The objects in `path` whose `fields` have these types (as for `isinstance`), line by line;
    None for another line. No rows if the file is missing. For a run's internal files, where a
    damaged line is no reason to stop.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in filter(bytes.strip, file):
            try:
                row = json.loads(line, parse_constant=_refused, parse_float=finite)
            except (ValueError, RecursionError):  # not UTF-8, cut off, infinite, nested too deep
                row = None
            yield (
                row
                if isinstance(row, dict)
                and all(_is(row.get(name), kind) for name, kind in fields.items())
                else None
            )


def _is(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def sha256(path: Path) -> str:
    """Hex digest of the bytes of `path`, read in blocks. Raises DataError for what is no file."""
    refuse_device(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


Row = Mapping[str, Any]


def append(path: Path, rows: Iterable[Row], *, sync: bool = False) -> None:
    """Append `rows`. sync: to the disk, as before a checkpoint that relies on them."""
    with path.open("ab") as file:
        file.writelines(map(json_line, rows))
        if sync:
            file.flush()
            os.fsync(file.fileno())


def end_last_line(path: Path) -> None:
    """Make the file end with a whole line, so that rows can be appended.

    What a kill or a full disk left of a row is removed. A missing file is made.
    """
    with path.open("a+b") as file:
        # 1. The last line that does not end
        file.seek(0)
        end, rest = 0, b""
        for line in file:
            rest = b"" if line.endswith(b"\n") else line
            end += len(line) - len(rest)
        # 2. It is a row without a newline, or a part of one
        try:
            is_row = isinstance(json.loads(rest), dict)
        except (ValueError, RecursionError):
            is_row = False
        if is_row:
            file.write(b"\n")
        else:
            file.truncate(end)


def rewrite(path: Path, rows: Iterable[Row]) -> None:
    """Replace `path` by `rows`."""
    with replacing(path) as file:
        file.writelines(map(json_line, rows))


def rows_until(
    path: Path, step: int, fields: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], int]:
    """(rows, damaged): the rows up to `step` that have these `fields`, see `salvaged`; how many
    lines have not.
    """
    rows_by_line = list(salvaged(path, {"step": int, **fields}))
    return [
        row for row in rows_by_line if row is not None and row["step"] <= step
    ], rows_by_line.count(None)


def json_line(row: Row) -> bytes:
    """A line with `row`. A lone surrogate, which envs and models may produce, is written as a JSON
    escape.
    """
    return dumps(row).encode("utf-8", "backslashreplace") + b"\n"


LOCK = ".lock"
"""The file in a folder that is locked."""
PATIENCE_S = 10.0
"""Seconds to wait for a lock: a killed process takes a moment to end."""


class LockedError(ConfigError):
    """Another process holds the lock."""


def take(file: IO[Any]) -> bool:
    """Lock the open `file` until it is closed; False if another process holds its lock.

    Raises ConfigError where the file system has no locks, such as NFS without its lock service.
    """
    from filelock import lock_descriptor

    try:
        return lock_descriptor(file.fileno(), blocking=False)
    except OSError as error:
        fix = "use a folder on a local disk"
        raise ConfigError(
            f"{file.name}: the file system cannot lock files ({error.strerror}); {fix}"
        ) from None


@contextlib.contextmanager
def locked(folder: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Lock `folder` for this process. Raises LockedError if another process still holds it after
    `patience_s`.
    """
    # The file of the lock may be removed between opening and locking it
    deadline = time.monotonic() + patience_s
    while True:
        with (folder / LOCK).open("w") as file:
            if not take(file):
                if time.monotonic() > deadline:
                    raise LockedError(
                        f"another process is working on {folder}; wait for it or stop it"
                    )
                time.sleep(0.2)
            # Otherwise it was replaced
            elif os.path.samestat(os.fstat(file.fileno()), (folder / LOCK).stat()):
                yield
                return


def is_locked(folder: Path) -> bool:
    """Whether a process on this machine has locked `folder`."""
    try:
        with (folder / LOCK).open("rb") as file:
            return not take(file)
    except FileNotFoundError:
        return False
