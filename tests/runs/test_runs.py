"""Runs: when they are finished, where they go, how they are found again; sealed folders; locks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from reflectkit.config import Config, build, option
from reflectkit.errors import CheckpointError, ConfigError, DataError
from reflectkit.jsonl import is_locked, locked, read_json, write_json
from reflectkit.runs import run as runs
from reflectkit.runs.run import CHECKSUMS, RunConfig, digest, refuse_damage, seal, verify


class Example(Config):
    size: int = option(3, help="A size.")
    max_steps: int = option(9, help="Steps.")
    run: RunConfig = RunConfig()


def make(
    results: Path, *inputs: Path, stage: str = "sft", again: bool = False, ended: bool = True, **values: Any
) -> runs.Report:
    """A run of `stage` that writes a checkpoint; not `ended`, it is left without a report, as by a kill."""
    settings = build(Example, {"results_dir": results, **values}, "example")
    with runs.open_run(stage, settings, inputs, again=again) as run:
        if run.done:
            return run.done
        (run.folder / "checkpoint-3").mkdir(exist_ok=True)
        (run.folder / "checkpoint-3" / "weights").write_text(f"{settings.size}")
        if not ended:
            return runs.Report(stage, run.folder, {})
        return run.finish({}, [run.folder / "checkpoint-3"])


def test_a_name_is_the_runs_folder_and_the_same_command_resumes_and_skips(tmp_path: Path) -> None:
    left = make(tmp_path, name="taxi/policy", ended=False)
    assert left.folder == tmp_path / "taxi" / "policy"
    assert json.loads((left.folder / "config.json").read_text())["name"] == "taxi/policy"
    resumed = make(tmp_path, name="taxi/policy")
    assert (resumed.folder, resumed.skipped) == (left.folder, False)
    assert make(tmp_path, name="taxi/policy").skipped
    assert [path.name for path in tmp_path.iterdir()] == ["taxi"]


def test_other_settings_are_refused_with_what_differs_and_what_to_do(tmp_path: Path) -> None:
    source = tmp_path / "rows"
    source.write_text("1")
    made = make(tmp_path, source, name="a")
    with pytest.raises(
        ConfigError, match=r"--size 3 there, 4 here.*use --force to replace it or --keep .* a\.2, or choose another"
    ):
        make(tmp_path, source, name="a", size=4)
    source.write_text("2")
    with pytest.raises(ConfigError, match=f"{source} was different"):
        make(tmp_path, source, name="a")
    with pytest.raises(ConfigError, match="is a run of sft; choose another name"):
        make(tmp_path, name="a", stage="rlft", force=True)
    assert (made.folder / "checkpoint-3" / "weights").read_text() == "3"


def test_force_replaces_what_has_the_name_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    made = make(tmp_path, name="a")
    (made.folder / "older").write_text("")
    replaced = make(tmp_path, name="a", size=4, force=True)
    assert sorted(path.name for path in replaced.folder.iterdir()) == [
        ".lock",
        "checkpoint-3",
        "config.json",
        "report.json",
    ]
    assert (replaced.folder / "checkpoint-3" / "weights").read_text() == "4"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_force_removes_neither_its_own_input_nor_what_is_no_run(tmp_path: Path) -> None:
    made = make(tmp_path, name="a")
    with pytest.raises(ConfigError, match=r"would remove .*checkpoint-3, which this run reads"):
        make(tmp_path, made.folder / "checkpoint-3", name="a", size=4, force=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("dear")
    with pytest.raises(ConfigError, match="already exists and is not a run"):
        make(tmp_path, name="mine", force=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="already exists and is not a run"):
        make(tmp_path, name="file", force=True)
    with pytest.raises(ConfigError, match=r"cannot write to .*file"):
        make(tmp_path, name="file/x")
    with pytest.raises(ConfigError, match="a is a run; choose a name outside it"):
        make(tmp_path, name="a/b", force=True)
    assert (made.folder / "report.json").is_file()
    assert (tmp_path / "mine" / "notes.txt").read_text() == "dear"


def test_keep_puts_a_run_beside_the_other_and_finds_each_again(tmp_path: Path) -> None:
    folders = [make(tmp_path, name="r/rl", keep=True, size=size).folder.name for size in (3, 4, 5)]
    assert folders == ["rl", "rl.2", "rl.3"]
    for size, folder in zip((5, 3, 4), ("rl.3", "rl", "rl.2"), strict=True):
        again = make(tmp_path, name="r/rl", keep=True, size=size)
        assert (again.folder.name, again.skipped) == (folder, True)
    forced = make(tmp_path, name="r/rl", keep=True, size=4, force=True)
    assert (forced.folder.name, forced.skipped) == ("rl.2", False)
    assert make(tmp_path, name="r/rl", keep=True, size=6, force=True).folder.name == "rl.4"
    assert make(tmp_path, name="r/rl", keep=True, stage="evaluate").folder.name == "rl.5"
    assert (tmp_path / "r" / "rl" / "checkpoint-3" / "weights").read_text() == "3"


def trained(results: Path, steps: int, made: int | None = None, **values: Any) -> tuple[str, bool, tuple[int, ...]]:
    """(name of the folder, whether nothing was left to do, earlier numbers of steps) of a run of `steps` steps, which
    ends after `made` of them; 0: as by a kill.
    """
    settings = build(Example, {"results_dir": results, "max_steps": steps, **values}, "example")
    with runs.open_run("rlft", settings, limits=("max_steps",)) as run:
        if run.done is None:
            (run.folder / "checkpoint").write_text("1")
            if made != 0:
                run.finish({"steps": made or steps})
        return run.folder.name, run.done is not None, run.earlier_steps


def test_a_changed_input_is_named_before_a_limit(tmp_path: Path) -> None:
    source = tmp_path / "input"
    settings = [
        build(Example, {"results_dir": tmp_path, "max_steps": steps, "name": "a"}, "example") for steps in (2, 3)
    ]
    source.write_text("1")
    with runs.open_run("rlft", settings[0], [source], limits=("max_steps",)) as run:
        run.finish({"steps": 2})
    source.write_text("2")
    with (
        pytest.raises(ConfigError, match=f"{source} was different"),
        runs.open_run("rlft", settings[1], [source], limits=("max_steps",)),
    ):
        pass


@pytest.mark.parametrize("figures", [None, [], {}, {"steps": "2"}, {"steps": 5}])
def test_a_report_that_was_changed_counts_as_none(tmp_path: Path, figures: object) -> None:
    trained(tmp_path, 2, name="a")
    report = tmp_path / "a/report.json"
    whole = report.read_bytes()
    write_json(report, read_json(report) | {"figures": figures})
    assert trained(tmp_path, 2, name="a") == ("a", False, ())
    assert report.read_bytes() == whole
    write_json(report, read_json(report) | {"figures": figures})
    with pytest.raises(ConfigError, match="--max-steps 2 there, 1 here"):
        trained(tmp_path, 1, name="a")


@pytest.mark.parametrize("name", ["", "a"])
def test_a_run_with_more_steps_is_continued_and_one_with_fewer_is_there(tmp_path: Path, name: str) -> None:
    folder = name or "1_rlft"
    assert trained(tmp_path, 60, name=name) == (folder, False, ())
    assert trained(tmp_path, 20, name=name) == (folder, True, ())
    assert trained(tmp_path, 90, made=0, name=name) == (folder, False, (60,))
    assert trained(tmp_path, 90, made=0, name=name) == (folder, False, (60,))  # resumed
    assert trained(tmp_path, 120, made=80, name=name) == (folder, False, (60, 90))
    assert trained(tmp_path, 120, name=name) == (folder, True, (60, 90))  # it ended early, by its own rule
    assert trained(tmp_path, 80, name=name) == (folder, True, (60, 90))
    assert trained(tmp_path, 120, name="other" if name else "", size=4)[0] == ("other" if name else "2_rlft")


def test_an_unfinished_longer_run_is_no_shorter_one(tmp_path: Path) -> None:
    trained(tmp_path, 120, made=0, name="a")
    with pytest.raises(ConfigError, match="--max-steps 120 there, 60 here"):
        trained(tmp_path, 60, name="a")
    assert trained(tmp_path, 60) == ("1_rlft", False, ())
    assert trained(tmp_path, 60, name="a", keep=True) == ("a.2", False, ())
    assert trained(tmp_path, 70, name="a", keep=True) == ("a.3", False, ())  # recipes train anew


def test_a_command_without_a_name_finds_named_runs(tmp_path: Path) -> None:
    named = make(tmp_path, name="taxi-tiny/plain")
    found = make(tmp_path)
    assert (found.folder, found.skipped) == (named.folder, True)
    assert make(tmp_path, size=4).folder.name == "1_sft"


def test_a_failed_run_gives_its_number_and_its_name_back(tmp_path: Path) -> None:
    folders: list[Path] = []

    def failing(error: type[BaseException], made: str, values: dict[str, Any]) -> None:
        settings = build(Example, {"results_dir": tmp_path, **values}, "example")
        with runs.open_run("sft", settings) as run:
            folders.append(run.folder)
            if made:
                (run.folder / made).write_text("{}")
            raise error

    def fail(error: type[BaseException], made: str = "", **values: Any) -> Path:
        with pytest.raises(error):
            failing(error, made, values)
        return folders[-1]

    for error in (ConfigError, RuntimeError, KeyboardInterrupt):
        assert fail(error).name == "1_sft"
        assert fail(error, ".reflectkit-tmp-half").name == "1_sft"
        assert fail(error, name="r/policy") == tmp_path / "r" / "policy"
    assert not list(tmp_path.glob("*_sft"))
    kept = fail(RuntimeError, "metrics.jsonl")
    assert kept.is_dir(), "what a run has made is kept"
    assert fail(RuntimeError, size=4).name == "2_sft"
    assert make(tmp_path).folder == kept
    assert make(tmp_path, name="r/policy", size=5).folder == tmp_path / "r" / "policy"


def test_runs_that_start_at_once_get_numbers_of_their_own(tmp_path: Path) -> None:
    folders: list[Path] = []
    starts = [
        threading.Thread(target=lambda size=size: folders.append(make(tmp_path, size=size).folder)) for size in range(8)
    ]
    for thread in starts:
        thread.start()
    for thread in starts:
        thread.join()
    assert len(set(folders)) == 8  # who looks at a lock holds it for a moment, so a number may be left out
    sizes = sorted(runs.read_record(folder)["settings"]["size"] for folder in folders)
    assert sizes == list(range(8))


def test_a_finished_run_is_recognised_by_its_record_until_a_file_changes(tmp_path: Path) -> None:
    source = tmp_path / "rows"
    source.write_text("1")
    made = make(tmp_path / "results", source, name="a")

    def recognised(**values: Any) -> runs.Report | None:
        settings = {"results_dir": tmp_path / "results", "name": "a", **values}
        return runs.finished_as("sft", build(Example, settings, "example"))

    report = recognised()
    assert report is not None
    assert (report.folder, report.skipped) == (made.folder, True)
    assert [recognised(size=4), recognised(force=True), recognised(name="b"), recognised(name="")] == [None] * 4
    source.write_text("2")
    assert recognised() is None, "an input changed"
    source.write_text("1")
    (made.folder / "checkpoint-3" / "weights").write_text("other")
    assert recognised() is None, "an output changed"
    source.unlink()
    assert recognised() is None


def test_a_copy_of_a_finished_run_is_checked_in_its_own_folder(tmp_path: Path) -> None:
    source = tmp_path / "rows"
    source.write_text("1")
    made = make(tmp_path / "results", source, name="a")
    copied = tmp_path / "results" / "b"
    shutil.copytree(made.folder, copied)

    def recognised() -> runs.Report | None:
        settings = {"results_dir": tmp_path / "results", "name": "b"}
        return runs.finished_as("sft", build(Example, settings, "example"))

    report = recognised()
    assert report is not None
    assert all(path.is_relative_to(copied) for path in report.outputs)
    (copied / "checkpoint-3" / "weights").write_text("other")
    assert recognised() is None
    assert (made.folder / "checkpoint-3" / "weights").read_text() != "other"


def config(tmp_path: Path, **values: object) -> Example:
    return build(Example, {"results_dir": tmp_path / "results", **values}, "example")


def finish(settings: Example, inputs: list[Path], output: Path) -> runs.Report:
    with runs.open_run("example", settings, inputs) as run:
        if run.done:
            return run.done
        output.write_text("made")
        run.tables.append(runs.Table("t", ("a",), (("1",),)))
        return run.finish({"count": 1}, [output])


@pytest.mark.parametrize("content", ["{", "[]", None])
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


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint-1"
    (folder / "deep").mkdir(parents=True)
    for name in ("a.json", "b.bin", "deep/c.json"):
        (folder / name).write_bytes(name.encode() * 3)
    seal(folder)
    return folder


def test_an_unchanged_folder_passes_and_a_resealed_one(sealed: Path) -> None:
    verify(sealed)
    (sealed / "a.json").write_bytes(b"other")
    seal(sealed)
    verify(sealed)


@pytest.mark.parametrize("name", ["deep/c.json", CHECKSUMS])
def test_every_flipped_bit_is_noticed(sealed: Path, name: str) -> None:
    path = sealed / name
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CheckpointError) as caught:
            verify(sealed)
        assert str(sealed) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_is_loaded_may_have_more_or_fewer_files_but_no_changed_one(sealed: Path) -> None:
    (sealed / "note.txt").write_text("mine")
    (sealed / "a.json").unlink()
    refuse_damage(sealed)
    refuse_damage(sealed / "deep")
    (sealed / "deep" / "c.json").write_bytes(b"other")
    for folder in (sealed, sealed / "deep"):
        with pytest.raises(CheckpointError, match=r"c\.json is damaged: .*; train it again"):
            refuse_damage(folder)


@pytest.mark.parametrize("recorded", ["[]", "{}", "", "null"])
def test_checksums_of_nothing_are_damaged(sealed: Path, recorded: str) -> None:
    (sealed / CHECKSUMS).write_text(recorded, encoding="utf-8")
    for check in (verify, refuse_damage):
        with pytest.raises(CheckpointError, match=rf"no readable {CHECKSUMS}"):
            check(sealed)


@pytest.mark.parametrize("name", ["deep/c.json", "deep/new.json"])
def test_a_missing_file_and_a_new_one_are_noticed(sealed: Path, name: str) -> None:
    path = sealed / name
    if path.exists():
        path.unlink()
    else:
        path.write_text("{}")
    with pytest.raises(CheckpointError, match=f"{path} is (missing|not listed)"):
        verify(sealed)


def test_a_digest_changes_with_any_file_and_its_name(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = digest(sealed)
    (sealed / "b.bin").rename(sealed / "c.bin")
    renamed = digest(sealed)
    (sealed / "c.bin").write_bytes(b"other")
    assert len({first, renamed, digest(sealed)}) == 3
    # A large file is not read: its size and its time stand for it
    monkeypatch.setattr(runs, "HASHED_WHOLE", 4)
    large = sealed / "c.bin"
    os.utime(large, ns=(0, 10**9))
    before = digest(large)
    large.write_bytes(b"OTHER")
    os.utime(large, ns=(0, 2 * 10**9))
    assert digest(large) != before


HOLD = """
import sys, pathlib
from reflectkit.jsonl import locked
with locked(pathlib.Path(sys.argv[1])):
    print(1, flush=True)
    input()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """A process that holds the lock of `folder` until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    return process


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with holder(tmp_path) as process:
        assert is_locked(tmp_path)
        with pytest.raises(ConfigError, match="another process is working on"), locked(tmp_path, patience_s=0):
            raise AssertionError
        process.send_signal(signal.SIGKILL)
    assert not is_locked(tmp_path)
    with locked(tmp_path, patience_s=0):
        assert is_locked(tmp_path)


def test_a_lock_is_of_the_folder_that_is_there_now(tmp_path: Path) -> None:
    """The holder's folder is renamed away and another put in its place: who waited holds the new one."""
    run, aside = tmp_path / "run", tmp_path / "aside"
    run.mkdir()
    entered, leave = threading.Event(), threading.Event()

    def wait() -> None:
        with locked(run, patience_s=60):
            entered.set()
            leave.wait(60)

    with holder(run) as process:
        waiter = threading.Thread(target=wait)
        waiter.start()
        run.rename(aside)
        run.mkdir()
        assert entered.wait(60)
        assert is_locked(run)
        leave.set()
        waiter.join()
        assert not is_locked(run)
        assert is_locked(aside)
        process.kill()


def test_a_damaged_checkpoint_is_told_with_the_one_to_use_instead(tmp_path: Path) -> None:
    for step in (3, 9, 12):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "weights").write_text(str(step))
        seal(folder)
    (folder / "weights").write_text("cut")
    with pytest.raises(CheckpointError, match=r"is damaged: .*; use .*checkpoint-9, train it again, or delete"):
        refuse_damage(folder)
    # One that is damaged, too, is not advised
    (tmp_path / "checkpoint-9" / "weights").write_text("cut")
    with pytest.raises(CheckpointError, match=r"; use .*checkpoint-3, train"):
        refuse_damage(folder)
    (tmp_path / "checkpoint-3" / "weights").unlink()
    with pytest.raises(CheckpointError, match=r"; train it again"):
        refuse_damage(folder)
