"""Data files: a reader that says where they are wrong, and a writer that never leaves half a file."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from reflectkit import jsonl
from reflectkit.errors import DataError


def test_round_trip_with_awkward_text(tmp_path: Path) -> None:
    rows = [{"a": "line\nbreak \u2028 \x0b \x85 ü", "b": [1, None]}, {}]
    path = tmp_path / "deep" / "x.jsonl"
    assert jsonl.write_jsonl(path, rows) == 2
    assert [row for _, row in jsonl.read_jsonl(path)] == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe{", "not UTF-8"),
        (b'[{"a": 1}, {"b"', "not JSON"),
        (b"[" * 100_000, "unreadable JSON|not JSON"),
        (b"[NaN]", "not JSON"),
        (b"[-1e999]", "-1e999 is beyond the range"),
        (b"[1" + b"0" * 400 + b".5]", "beyond the range"),
    ],
)
def test_unreadable_json_names_the_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        jsonl.read_json(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "expected a JSON object, found list"),
        ("{", "not JSON"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "an object has the key 'c' twice"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"ok": 1}\n\n' + line + "\n")
    with pytest.raises(DataError, match=message) as caught:
        list(jsonl.read_jsonl(path))
    assert caught.value.line == 3


def test_a_key_may_be_there_twice_only_in_files_of_others(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('[{"id": "a", "id": "b"}]')
    assert jsonl.read_json(path) == [{"id": "b"}]
    with pytest.raises(DataError, match="an object has the key 'id' twice"):
        jsonl.read_json_list(path)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    jsonl.write_json(path, {"old": 1})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        jsonl.write_json(path, {"new": 2})
    assert json.loads(path.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_not_a_number_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        jsonl.write_jsonl(tmp_path / "x.jsonl", [{"loss": float("nan")}])
    assert not (tmp_path / "x.jsonl").exists()


def test_a_pipe_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "checksums.json"
    os.mkfifo(pipe)
    readers = (jsonl.read_json, jsonl.text_of, jsonl.sha256, lambda path: list(jsonl.read_jsonl(path)))
    for read in readers:
        with pytest.raises(DataError, match="is a pipe or a device"):
            read(pipe)


def test_numbers_that_fit_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('[1e300, 123456789e-400, "1e999"]')
    assert jsonl.read_json(tmp_path / "x.json") == [1e300, 0.0, "1e999"]


@pytest.mark.parametrize("rest", [b"", b'{"a": 2', b'{"a": 2}', '{"a": "é'.encode()[:-1]])
def test_rows_are_appended_after_whole_lines(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + rest)
    jsonl.end_last_line(path)
    jsonl.append(path, [{"a": 3}])
    values = [row["a"] for _, row in jsonl.read_jsonl(path)]
    assert values == ([1, 2, 3] if rest.endswith(b"}") else [1, 3])


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such permissions")
def test_a_new_folder_may_be_read_by_whoever_may_read_new_files(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    with jsonl.replacing_folder(folder) as staging:
        private = staging / "model.safetensors"
        private.write_bytes(b"")
        private.chmod(0o600)  # as safetensors does
    new = tmp_path / "new"
    new.touch()
    assert (folder / private.name).stat().st_mode == new.stat().st_mode
    assert [path.name for path in folder.iterdir()] == [private.name]
