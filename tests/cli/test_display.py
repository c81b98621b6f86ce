"""Tables on terminals of any width: no cell is lost, and no control character is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.cli.app import Screen, show
from reflectkit.console import Report, Table

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


def test_a_single_row_that_is_too_wide_becomes_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(Table("a title", TABLE.columns, ROWS[:1]), 50, capsys)
    assert [line.split("  ")[0].strip() for line in lines] == ["policy", "─" * len(lines[1]), *TABLE.columns[1:]]
    assert lines[-1].endswith(ROWS[0][-1])


def test_control_characters_and_wide_letters_fit(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(Table("t", ("a", *("figure",) * 9), (("漢字" * 20, *("12345678",) * 9),)), 80, capsys)
    assert "".join(lines).count("漢") >= 20
    hostile = Table("t", ("\x1b[2J", "b"), (("x\x07", "\u202e" * 50),))
    assert not set("".join(lines_of(hostile, 40, capsys))) & {"\x1b", "\x07", "\u202e"}
