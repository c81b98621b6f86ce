"""The command line as a process meets it: what it imports, where it prints, and what may be wrong around it."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import reflectkit
from reflectkit.cli.main import main
from reflectkit.cli.screen import Screen, show
from reflectkit.console import Report, Table

PACKAGE = Path(reflectkit.__file__).parent
RUN = (sys.executable, "-m", "reflectkit")
ROOT = {"PYTHONPATH": str(PACKAGE.parent)}


def started(*arguments: str, env: Mapping[str, str] = {}, **more: Any) -> subprocess.CompletedProcess[bytes]:
    """`reflectkit` with `arguments` in a process of its own."""
    settings: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "capture_output": True,
        "env": os.environ | ROOT | env,
    } | more
    return subprocess.run([*RUN, *arguments], timeout=120, **settings)


def test_help_imports_no_stage() -> None:
    code = "import sys; from reflectkit.cli.main import main; main(['--help']); print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    own = {name for name in loaded if name.startswith("reflectkit.")}
    assert own <= {
        *("reflectkit.version", "reflectkit.console", "reflectkit.errors", "reflectkit.commands"),
        *("reflectkit.cli", "reflectkit.cli.main", "reflectkit.cli.app", "reflectkit.cli.arguments"),
        *("reflectkit.cli.failures", "reflectkit.cli.screen", "reflectkit.foreign_names"),
    }
    assert not loaded & {"gymnasium", "numpy", "yaml", "pydantic", "asyncio", "multiprocessing", "torch"}
    assert all(f" {name} " in done.stdout for name in ("play", "gen-trajectory", "list"))


def test_only_one_place_prints() -> None:
    """Everything else goes through it, and so is cleaned. `main` prints a fixed text."""
    printing = set()
    for path in PACKAGE.rglob("*.py"):
        if PACKAGE / "boxed" in path.parents:
            continue
        text = path.read_text("utf-8")
        if not any(word in text for word in ("print", "Console", "echo")):
            continue
        for node in ast.walk(ast.parse(text)):
            called = node.func if isinstance(node, ast.Call) else None
            if getattr(called, "id", "") in ("print", "Console") or getattr(called, "attr", "") in (
                "print_exc",
                "echo",
            ):
                printing.add(path.relative_to(PACKAGE).as_posix())
    assert printing == {"cli/main.py", "cli/screen.py"}


HOSTILE = "a\x1b]0;title\x07\x1b[2Jb\u202ec\nreflectkit: done"


def test_a_path_and_a_traceback_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / HOSTILE
    flags = ["--env", "corridor", "--policy", "oracle", "--auto", "--data-dir", str(tmp_path), "--results-dir"]
    assert main(["play", *flags, str(folder)]) == 0
    told = capsys.readouterr().out
    assert "→ " in told
    assert "title" in told
    assert "\nreflectkit: done" not in told
    assert main(["--traceback", "gen-sft", "--env", "corridor", "--data-dir", str(folder)]) == 2
    told += capsys.readouterr().err
    assert "Traceback" in told
    assert not set(told) & {"\x1b", "\x07", "\u202e"}


def test_neither_an_error_nor_a_traceback_shows_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key := "sk-very-secret-key-0123456789")
    text = "from reflectkit.envs.corridor import Corridor\n\nclass Telling(Corridor):\n    def step(self, action):\n"
    raising = f"        try:\n            raise KeyError('{key}')\n        except KeyError as error:\n"
    (tmp_path / "telling_keys.py").write_text(f"{text}{raising}            raise ValueError('{key[:20]}') from error\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["--traceback", "play", "--env", "telling_keys:Telling", "--policy", "oracle", "--auto"]) == 2
    told = capsys.readouterr()
    assert "KeyError" in told.err
    assert key[:8] not in told.out + told.err


def test_a_closed_pipe_ends_it_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    done = started("sft", "--help", capture_output=False, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_device_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = started("list", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [
        "reflectkit: the disk is full; free some space and run the same command again to resume"
    ]


SWALLOWED = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    raise ImportError('half a module')
"""


def test_ctrl_c_while_modules_are_imported(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text(SWALLOWED)
    done = started("list", env={"PYTHONPATH": f"{tmp_path}:{PACKAGE.parent}"})
    assert done.returncode == 130
    assert done.stderr.decode().startswith("reflectkit: stopped")
    assert done.stderr.decode().count("\n") == 1


TOLD = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nraise {}"


def test_a_cluster_stops_it_as_ctrl_c_does(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text(TOLD.format("ImportError('half a module')"))
    env = {"PYTHONPATH": f"{tmp_path}:{PACKAGE.parent}"}
    done = started("list", env=env)
    assert (done.returncode, done.stderr.decode()) == (
        143,
        "reflectkit: stopped; run the same command again to resume\n",
    )
    assert started("list", env=env | {"RANK": "0"}).returncode == -signal.SIGTERM  # of torchrun: at once
    served = (
        "import os, signal, time\ntry:\n    os.kill(os.getpid(), 15)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n"
    )
    (tmp_path / "yaml.py").write_text(served + "    raise SystemExit(0)")  # as `serve` ends
    assert started("list", env=env).returncode == 143
    (tmp_path / "yaml.py").write_text(TOLD.format("SystemExit(7)"))
    ignoring = ["sh", "-c", 'trap "" TERM; exec "$@"', "sh", *RUN, "list"]  # as nohup does
    assert subprocess.run(ignoring, env=os.environ | ROOT | env, timeout=120).returncode == 7


ROWS = tuple(
    (name, "full", "100", f"{index}.25", f"{index} to {index + 9} %")
    for index, name in enumerate(("SFT", "SFT with reflection", "a-policy-with-the-longest-name-of-the-paper"))
)
TABLE = Table("a title", ("policy", "level", "tasks", "success rate of all", "95 % interval"), ROWS)


def lines_of(table: Table, width: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show(Screen(width=width), Report("evaluate", Path(), {}, (), (table,)))
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == table.title
    assert max(map(len, lines), default=0) <= width
    return lines


@pytest.mark.parametrize("width", [40, 60, 200])
def test_no_cell_is_lost(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(TABLE, width, capsys)
    assert sum(line.count("%") for line in lines) == 4  # a figure that would be cut is folded
    if width >= 60:
        shown = " ".join(lines)
        assert all(cell in shown for row in ROWS for cell in row[3:])


def test_no_number_is_broken_where_columns_that_are_alike_leave_room(capsys: pytest.CaptureFixture[str]) -> None:
    alike = ("12.3 to 45.6 %", "cuda:0", "1,234,567", "2.34e-05")
    names = ("step", "name of the arm", "success", "return", "95 % interval", "device", "tokens", "learning rate")
    rows = [(f"update {step}", "with a reflector", f"{step / 8:.3f}", f"{step / 3:.5f}", *alike) for step in range(4)]
    show(Screen(width=80), Report("evaluate", Path(), {}, (), (Table("t", names, tuple(rows)),)))
    out = capsys.readouterr().out
    assert all(cell in out for row in rows for cell in row)
    assert out.count("1,234,567") == 1


def test_a_wide_table_is_split_and_each_part_names_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(name, *(f"{10 * index + step} (1 to 99)" for step in range(8))) for index, name in enumerate("abc")]
    lines = lines_of(Table("t", ("policy", *(f"pass@{step}" for step in range(8))), tuple(rows)), 60, capsys)
    parts = "\n".join(lines).split("policy")[1:]
    assert len(parts) > 1
    assert all(name in part for part in parts for name in "abc")
    assert all(cell in "\n".join(lines) for row in rows for cell in row)


def test_a_single_row_that_is_too_wide_becomes_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(Table("a title", TABLE.columns, ROWS[:1]), 50, capsys)
    assert [line.split("  ")[0].strip() for line in lines] == ["policy", "─" * len(lines[1]), *TABLE.columns[1:]]
    assert lines[-1].endswith(ROWS[0][-1])


def test_control_characters_and_wide_letters_fit(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(Table("t", ("a", *("figure",) * 9), (("漢字" * 20, *("12345678",) * 9),)), 80, capsys)
    assert "".join(lines).count("漢") >= 20
    hostile = Table("t", ("\x1b[2J", "b"), (("x\x07", "\u202e" * 50),))
    assert not set("".join(lines_of(hostile, 40, capsys))) & {"\x1b", "\x07", "\u202e"}


def test_a_shell_without_columns_sees_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    assert main(["evaluate", "--help"]) == 0
    assert "--policy" in capsys.readouterr().out


def test_columns_that_are_all_alike_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    figures = ("0 %", "0 % to 4 %", "a long figure " * 5)
    rows = tuple((name, *figures) for name in ("before training", "after 60 updates"))
    lines = "\n".join(lines_of(Table("a title", ("player", "success", "interval", "more"), rows), 60, capsys))
    assert lines.count("0 % to 4 %") == 2


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("play taxi", "--env taxi"),
        ("rlft maze.py:Maze --model tiny", "--env maze.py:Maze"),
        ("rlft --env taxi tiny", "--model tiny"),
        ("serve results/maze", "--policy results/maze"),
        ("plot results/maze", "--runs results/maze"),
        ("play --env taxi corridor", "in quotes"),
        ("evaluate --env taxi --policy", "see `reflectkit evaluate --help`"),
    ],
)
def test_a_value_without_its_flag_is_told_the_flag(line: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert flag in capsys.readouterr().err
