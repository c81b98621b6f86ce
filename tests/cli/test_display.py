"""Tables on terminals of any width: every cell is there, and says whose it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.cli.display import Screen, show
from reflectkit.console import Report, Table

COLUMNS = ("policy", "level", *(f"figure {number}" for number in range(10)))
ROWS = tuple(
    (name, level, *(f"{name[0]}{level}.{n}" for n in range(10))) for name in ("ours", "theirs") for level in "12"
)


def shown(table: Table, width: int, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    show(Screen(width=width), Report("evaluate", Path(), {}, (), (table,)))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_cell_stands_beside_what_tells_its_row(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    bands = shown(Table("t", COLUMNS, ROWS), width, capsys)
    assert {tuple(line[:2]) for line in bands} == {row[:2] for row in ROWS}
    for row in ROWS:
        assert [cell for line in bands if line[:2] == [*row[:2]] for cell in line[2:]] == [*row[2:]]
    assert len(bands) == len(ROWS) * {40: 5, 80: 2, 200: 1}[width]


def test_a_title_is_one_line_however_narrow_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    title = "SFT in results/13_sft/checkpoint-700"
    show(Screen(width=80), Report("sft", Path(), {}, (), (Table(title, ("a",), (("1",),)),)))
    assert capsys.readouterr().out.splitlines()[0] == title


def test_what_fits_nowhere_is_folded(capsys: pytest.CaptureFixture[str]) -> None:
    told = shown(Table("t", ("what", "where"), (("a", "x" * 90),)), 40, capsys)
    assert "".join(line[1] for line in told) == "x" * 90


def test_a_table_may_have_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(Table("t", COLUMNS, ()), 80, capsys) == []
