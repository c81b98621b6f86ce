"""Files: a reader that says where they are wrong, a writer that never leaves half of one, and runs that are found
again.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reflectkit import jsonl
from reflectkit.config import Config, build, option
from reflectkit.errors import ConfigError, DataError, UnknownNameError
from reflectkit.runs import run as runs
from reflectkit.runs.folders import RunConfig
from reflectkit.types import Task, from_json


def test_round_trip_with_awkward_text(tmp_path: Path) -> None:
    rows = [{"a": "line\nbreak \u2028 \x0b \x85 ü", "b": [1, None]}, {}]
    path = tmp_path / "deep" / "x.jsonl"
    assert jsonl.write_jsonl(path, rows) == 2
    assert [row for _, row in jsonl.read_jsonl(path)] == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "empty"),
        (b"  \n\n", "empty"),
        (b"\xff\xfe{", "not UTF-8"),
        (b'[{"a": 1}, {"b"', "not JSON"),
        (b"{]", "not JSON"),
        (b"[" * 100_000, "unreadable JSON|not JSON"),
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


def test_a_cut_off_file_is_said_to_be_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    jsonl.write_json(path, [{"id": "a"}, {"id": "b"}])
    path.write_text(path.read_text()[:-8])
    with pytest.raises(DataError, match="cut off"):
        jsonl.read_json(path)


@pytest.mark.parametrize(
    ("line", "message"), [("[1]", "expected a JSON object, found list"), ("{", "not JSON"), ("nul", "not JSON")]
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"ok": 1}\n\n' + line + "\n")
    with pytest.raises(DataError, match=message) as caught:
        list(jsonl.read_jsonl(path))
    assert caught.value.line == 3


def test_a_wrong_field_is_named() -> None:
    good = {"id": "a", "env": "taxi", "level": "full", "group": "g", "data": {}}
    assert from_json(Task, good).id == "a"
    with pytest.raises(DataError, match=r"x\.json:4: field 'level'"):
        from_json(Task, good | {"level": 3}, path="x.json", line=4)
    with pytest.raises(DataError, match="field 'data'"):
        from_json(Task, {key: value for key, value in good.items() if key != "data"})
    with pytest.raises(DataError, match="expected a JSON object, found list"):
        from_json(Task, [])


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


class Example(Config):
    size: int = option(3, help="A size.")
    rate: float = option(0.5, help="A rate.")
    run: RunConfig = RunConfig()


def config(tmp_path: Path, **values: object) -> Example:
    return build(Example, {"results_dir": tmp_path / "results", **values}, "example")


def finish(settings: Example, inputs: list[Path], output: Path) -> runs.Report:
    with runs.open_run("example", settings, inputs) as run:
        if run.done:
            return run.done
        output.write_text("made")
        run.tables.append(runs.Table("t", ("a",), (("1",),)))
        return run.finish({"count": 1}, [output])


def test_a_finished_run_is_skipped_until_something_changes(tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("1")
    first = finish(config(tmp_path), [source], output)
    assert (first.skipped, first.folder.name) == (False, "1_example")
    again = finish(config(tmp_path), [source], output)
    assert (again.skipped, again.folder, again.figures, again.tables) == (
        True,
        first.folder,
        {"count": 1},
        first.tables,
    )
    assert finish(config(tmp_path, size=4), [source], output).folder.name == "2_example"
    assert finish(config(tmp_path, force=True), [source], output).folder.name == "3_example"
    source.write_text("2")
    assert finish(config(tmp_path), [source], output).folder.name == "4_example"


def test_a_run_whose_output_was_changed_or_lost_is_done_again(tmp_path: Path) -> None:
    output = tmp_path / "out"
    finish(config(tmp_path), [], output)
    output.write_text("spoiled")
    assert not finish(config(tmp_path), [], output).skipped
    output.unlink()
    assert not finish(config(tmp_path), [], output).skipped
    assert finish(config(tmp_path), [], output).skipped


@pytest.mark.parametrize("content", ["", "{", "[]", '{"outputs": 3}', '{"outputs": {}}'])
def test_a_broken_report_never_counts_as_finished(tmp_path: Path, content: str) -> None:
    report = finish(config(tmp_path), [], tmp_path / "out")
    (report.folder / "report.json").write_text(content)
    assert not finish(config(tmp_path), [], tmp_path / "out").skipped


@pytest.mark.parametrize("content", ["", "{", "[]", '{"outputs": 3}', None])
def test_a_damaged_config_is_an_error_and_no_second_run(tmp_path: Path, content: str | None) -> None:
    """None: a changed digit, which leaves valid JSON of other settings."""
    report = finish(config(tmp_path), [], tmp_path / "out")
    path = report.folder / "config.json"
    whole = path.read_text()
    path.write_text(whole.replace('"size": 3', '"size": 4') if content is None else content)
    with pytest.raises(DataError, match=r"1_example/config\.json: is damaged.*restore it.*remove .*--force") as caught:
        finish(config(tmp_path), [], tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert finish(config(tmp_path, force=True), [], tmp_path / "out").folder.name == "2_example"
    path.write_text(whole)
    assert finish(config(tmp_path), [], tmp_path / "out").skipped


def test_config_is_written_first_and_says_what_made_it(tmp_path: Path) -> None:
    with runs.open_run("example", config(tmp_path)) as run:
        recorded = json.loads((run.folder / "config.json").read_text())
        assert not (run.folder / "report.json").exists()
    assert recorded["settings"]["size"] == 3
    assert recorded["versions"]["torch"]
    assert set(recorded) == {"stage", "settings", "inputs", "name", "seed", "versions", "commit", "sha256"}


def test_a_run_is_held_by_one_process(tmp_path: Path) -> None:
    with runs.open_run("example", config(tmp_path)) as run:
        code = f"import pathlib, reflectkit.runs.run as r\nwith r.locked(pathlib.Path({str(run.folder)!r}), 0.1): pass"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "another process is working on" in done.stderr
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0


def test_results_that_cannot_be_written_are_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file, not a folder")
    with pytest.raises(ConfigError, match="--results-dir"):
        finish(config(tmp_path), [], tmp_path / "out")


def test_missing_inputs_are_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        finish(config(tmp_path), [tmp_path / "nowhere"], tmp_path / "out")


def test_settings_are_checked_by_name_and_type() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'size'"):
        build(Example, {"sise": 1}, "example")
    with pytest.raises(ConfigError, match="--size"):
        build(Example, {"size": "many"}, "example")
    with pytest.raises(ConfigError, match="--seed must be greater than or equal to 0"):
        build(Example, {"seed": -1}, "example")
    for value in ("inf", "nan"):
        with pytest.raises(ConfigError, match="--rate must be a finite number"):
            build(Example, {"rate": float(value)}, "example")
