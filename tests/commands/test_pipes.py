"""A pipe where a file should be is one line, and nothing waits for whoever might write into it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from reflectkit.chat.journal import open_journal
from reflectkit.errors import DataError
from reflectkit.jsonl import is_locked, locked, sha256
from tests.alarm import alarm
from tests.command_lines import error_of

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


@pytest.mark.parametrize(
    "command",
    [["gen-sft", "--env", "taxi", "--task-file", "pipe.json"], ["run", "./pipe.yaml"], ["plot", "--runs", "a=run"]],
    ids=lambda command: command[0],
)
def test_of_a_pipe_nothing_is_read(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    for name in ("pipe.json", "pipe.jsonl", "pipe.yaml", "run/metrics.jsonl"):
        os.mkfifo(name)
    with alarm(30):
        error_of(command, capsys)


def test_journals_and_locks_are_files(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "journal.jsonl")
    for write in (False, True):
        with alarm(30), pytest.raises(DataError, match="is a pipe or a device"), open_journal(pipe, write=write):
            pass
    with alarm(30), pytest.raises(DataError, match="is a pipe or a device"):
        sha256(pipe)
    pipe.rename(tmp_path / ".lock")
    with alarm(30), pytest.raises(DataError, match="is a pipe or a device"), locked(tmp_path):
        pass
    with alarm(30):
        assert is_locked(tmp_path)


def test_a_model_folder_with_pipes_is_one_line(
    checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        folder = Path(shutil.copytree(checkpoints["policy"], tmp_path / name))
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with alarm(60):
            error_of(["play", "--env", "corridor", "--auto", "--policy", f"a={folder}", "--device", "cpu"], capsys)
