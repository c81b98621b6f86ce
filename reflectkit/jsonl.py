"""Reading and writing data files. Read errors name the place in the file, and a write never leaves half a file.

A write goes to a temporary file in the same folder, which is flushed to disk and renamed over the target. After a kill
or on a full disk, the target holds either the old bytes or the new ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from reflectkit.errors import ConfigError, DataError, ReflectkitError

TEMPORARY_PREFIX = ".reflectkit-tmp-"
FULL_DISK_BYTES = 4 * 2**20


def dumps(value: object) -> str:
    """Compact JSON with keys in insertion order; refuses NaN, which is not valid JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) in one step.

    Raises
    ------
    OSError (full disk, no permission) and DataError (half a surrogate pair, which UTF-8 cannot hold); `path` is then
    unchanged. A killed writer leaves a temporary file, which the next write of `path` replaces.
    """
    if place := lone_surrogate(text):
        raise DataError(path, f"cannot be written: character {place} is half a surrogate pair; fix the source")
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into. It replaces `path` if the context ends without an error, and is removed otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
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


def opened(path: Path) -> BufferedReader:
    """The regular file `path`, open for reading. Raises OSError, and DataError for a pipe or a device, from which
    reading might never end.
    """
    return open(path, "rb", opener=_at_once)


def refuse_pipe(path: Path) -> None:
    """Raises DataError if `path`, which is about to be written, is a pipe or a device, and OSError."""
    if path.exists():
        opened(path).close()


def file_text(path: Path) -> str:
    """The text (UTF-8) in the regular file `path`. Raises as `opened`, and UnicodeDecodeError."""
    with open(path, encoding="utf-8", opener=_at_once) as file:
        return file.read()


def _at_once(name: str, flags: int) -> int:
    number = os.open(name, flags | getattr(os, "O_NONBLOCK", 0))  # opening a pipe waits for whoever writes into it
    mode = os.fstat(number).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # of a folder, `open` says so
        return number
    os.close(number)
    raise DataError(name, "is a pipe or a device, expected a file; write it to one first")


def lone_surrogate(text: str) -> int:
    """The 1-based position of the first lone surrogate in `text`, which UTF-8 cannot encode; 0 without one."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start + 1
    return 0


def disk_full(folder: Path) -> bool:
    """Whether the disk of `folder` has almost no space left."""
    return shutil.disk_usage(folder).free < FULL_DISK_BYTES


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


AGAIN = "fix the file, or run the command that writes it again"
EMPTY = "the file is empty; run the command that writes it again"


def read_json(path: Path, fix: str = AGAIN) -> Any:
    """The JSON value in `path`. fix: what to do where it is not JSON.

    Raises DataError if it is missing, empty, not UTF-8, truncated or not JSON.
    """
    text = _read_text(path)
    if not text.strip():
        raise DataError(path, EMPTY)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        cut = " (the file looks cut off)" if error.pos >= len(text.rstrip()) - 1 else ""
        raise DataError(path, f"not JSON: {error.msg}{cut}; {fix}", line=error.lineno) from None
    except (RecursionError, ValueError) as error:  # nested too deep, or a number of too many digits
        raise DataError(path, f"unreadable JSON: {error}; {fix}") from None


def read_json_list(path: Path) -> list[Any]:
    """The non-empty JSON list in `path`. Raises DataError, also for any other value."""
    value = read_json(path)
    if not isinstance(value, list):
        raise DataError(path, f"expected a JSON list of records, found {type(value).__name__}")
    if not value:
        fix = "run the command that writes it on more problems, or split with another --ratio"
        raise DataError(path, f"the list is empty; {fix}")
    return value


def read_jsonl(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line number, object) for each line of `path`; blank lines are skipped.

    Raises
    ------
    DataError: the file is missing, empty or not UTF-8, or a line (given by number) is not a JSON object.
    """
    empty = True
    # not splitlines(): strings may contain U+2028
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (RecursionError, ValueError) as error:
            raise DataError(path, f"not JSON: {getattr(error, 'msg', error)}; {AGAIN}", line=number) from None
        if not isinstance(row, dict):
            raise DataError(path, f"expected a JSON object, found {type(row).__name__}", line=number)
        empty = False
        yield number, row
    if empty:
        raise DataError(path, EMPTY)


def _read_text(path: Path) -> str:
    with _explained(path):
        return file_text(path)


@contextlib.contextmanager
def _explained(path: Path, line: int | None = None) -> Iterator[None]:
    """Raises DataError if `path` is missing, a folder, or not UTF-8 (in `line`)."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(path, "no such file; run the command that writes it, or name another file") from None
    except IsADirectoryError:
        raise DataError(path, "is a folder, expected a file") from None
    except UnicodeDecodeError as error:
        raise DataError(path, f"not UTF-8 (byte {error.start}); save it as UTF-8", line=line) from None


def rows_so_far(path: Path) -> list[Mapping[str, Any]]:
    """The objects in `path`; none if it is missing or empty. Raises DataError; see `read_jsonl`."""
    return [row for _, row in read_jsonl(path)] if path.is_file() and path.stat().st_size else []


def salvage(path: Path, fields: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """(rows, damaged): the objects in `path` whose `fields` have these types (as for `isinstance`), and the number of
    other lines. No rows if the file is missing.

    For a run's internal files, where a damaged line is no reason to stop.
    """
    rows = list(salvaged(path, fields))
    intact = [row for row in rows if row is not None]
    return intact, len(rows) - len(intact)


def salvaged(path: Path, fields: Mapping[str, Any]) -> Iterator[dict[str, Any] | None]:
    """As `salvage`, line by line: each row, or None for a damaged line; one in memory at a time."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
            except (ValueError, RecursionError):  # not UTF-8, cut off, NaN, nested too deep
                row = None
            intact = isinstance(row, dict) and all(_is(row.get(name), kind) for name, kind in fields.items())
            yield row if intact else None


def _is(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def lines(path: Path, longest: int) -> Iterator[tuple[int, str]]:
    """(line number, text) for each non-blank line of `path`, one in memory at a time. longest: maximum bytes of a line.

    Raises
    ------
    DataError: the file is missing or a folder, or a line (given by number) is not UTF-8 or longer than `longest`.
    """
    with _explained(path), opened(path) as file:
        number = 0
        while line := file.readline(longest + 1):
            number += 1
            if len(line) > longest:
                fault = f"the line has over {longest:,} bytes; is this a JSON Lines file?"
                raise DataError(path, fault, line=number)
            with _explained(path, number):
                text = line.decode("utf-8")
            if text.strip():
                yield number, text


def sha256(path: Path) -> str:
    """Hex digest of the bytes of `path`, read in blocks."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


Row = Mapping[str, Any]


def append(path: Path, rows: Iterable[Row], *, sync: bool = False) -> None:
    """Append `rows`, each with its `step`. sync: to the disk, as before a checkpoint that relies on them."""
    for file, text in _with_digests(path, rows):
        with file.open("ab") as stream:
            stream.write(text)
            if sync:
                stream.flush()
                os.fsync(stream.fileno())


def rewrite(path: Path, rows: Iterable[Row]) -> None:
    """Replace `path` by `rows`, each with its `step`."""
    for file, text in _with_digests(path, rows):
        with replacing(file) as stream:
            stream.write(text)


def _with_digests(path: Path, rows: Iterable[Row]) -> list[tuple[Path, bytes]]:
    """(file, bytes) of the digests of `rows`, and of `rows` themselves."""
    rows = list(rows)
    digests = "".join(f"{row['step']} {_digest(row)}\n" for row in rows)
    return [(_digests(path), digests.encode()), (path, b"".join(map(_line, rows)))]


def intact(path: Path, step: int, fields: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int, int]:
    """(rows, damaged, missing): the rows up to `step` as they were written, in order; how many other lines there are,
    apart from those of later steps; and how many were written, but are not there. fields: see `salvage`.

    Where an earlier version wrote no digests, all rows with these fields are taken for intact.
    """
    rows, damaged = salvage(path, {"step": int, **fields})
    rows = [row for row in rows if row["step"] <= step]
    if not _digests(path).is_file():
        return rows, damaged, 0
    found = {_digest(row): row for row in rows}
    written = [line.split() for line in _digests(path).read_text("utf-8", "replace").splitlines()]
    expected = [line[1] for line in written if len(line) == 2 and line[0].isdecimal() and int(line[0]) <= step]
    kept = [found[digest] for digest in expected if digest in found]
    return kept, damaged + len(rows) - len(kept), len(expected) - len(kept)


def _digests(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")


def _line(row: Row) -> bytes:
    """A lone surrogate, which envs and models may produce, is written as a JSON escape."""
    return dumps(row).encode("utf-8", "backslashreplace") + b"\n"


def _digest(row: Row) -> str:
    return hashlib.sha256(_line(row)).hexdigest()


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
        raise ConfigError(f"{file.name}: the file system cannot lock files ({error.strerror}); {fix}") from None


@contextlib.contextmanager
def locked(folder: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Lock `folder` for this process. Raises LockedError if another process still holds it after `patience_s`."""
    refuse_pipe(folder / LOCK)
    deadline = time.monotonic() + patience_s
    while True:
        with (folder / LOCK).open("w") as file:
            if not take(file):
                if time.monotonic() > deadline:
                    raise LockedError(f"another process is working on {folder}; wait for it or stop it")
                time.sleep(0.2)
            elif os.path.samestat(os.fstat(file.fileno()), (folder / LOCK).stat()):  # otherwise it was replaced
                yield
                return


def is_locked(folder: Path) -> bool:
    """Whether a process on this machine has locked `folder`; True if that is unknown."""
    try:
        with opened(folder / LOCK) as file:
            return not take(file)
    except FileNotFoundError:
        return False
    except (OSError, ReflectkitError):
        return True
