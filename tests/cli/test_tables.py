"""Tables on terminals of any width: one grid at 80 columns, in which nothing is lost and no figure is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.cli.display import Screen, show
from reflectkit.console import Report, Table
from reflectkit.evals.tables import differences, differences_table, row, table

LONG = "a-policy-with-the-longest-name-of-the-paper"


def lines_of(one: Table, width: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show(Screen(width=width), Report("evaluate", Path(), {}, (), (one,)))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:]), default=0) <= width
    return lines[1:]


def evaluated(names: list[str], levels: tuple[str, ...]) -> tuple[Table, Table]:
    """The two tables of evaluate, for ten problems a level of which every other is solved."""
    episodes = [
        {"task": f"{level}-{n}", "level": level, "name": name, "status": "completed", "success": n % (2 + i) == 0,
         "return": -1.25 * n, "turns": [{"illegal": n % 3 == 0}] * 12, "env": "own", "cluster": str(n)}
        for i, name in enumerate(names) for level in levels for n in range(10)
    ]  # fmt: skip
    rows = [
        row(name, "own", level, [one for one in episodes if (one["name"], one["level"]) == (name, level)])
        for name in names
        for level in levels
    ]
    return table("t", rows), differences_table(differences(episodes), "success")


@pytest.mark.parametrize("names", [["SFT"], ["SFT", "SFT with reflection", "Reflect-RL"], [LONG, LONG + "-2", "x"]])
@pytest.mark.parametrize("levels", [("full",), ("pickup", "dropoff")])
def test_evaluations_are_one_grid_at_80_columns(
    names: list[str], levels: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for one in evaluated(names, levels):
        lines = lines_of(one, 80, capsys)
        assert sum("95 %" in line for line in lines) == bool(one.rows or one.columns)
        text = " ".join(lines)
        for figures in one.rows:
            for cell in figures[1:]:
                assert cell in text, "no figure is cut or folded"
        for heading in one.columns:
            assert all(word in text for word in heading.split())
        if levels == ("full",) and len(one.rows) > 1:
            assert lines[0].startswith("in all rows: level full, tasks 10, clusters 10")


def test_a_wide_terminal_shows_it_whole(capsys: pytest.CaptureFixture[str]) -> None:
    one, _ = evaluated(["SFT", "SFT + RL"], ("full",))
    lines = lines_of(one, 120, capsys)
    assert lines[0].startswith("┏")
    assert lines[1].replace("┃", " ").split() == " ".join(one.columns).split()


@pytest.mark.parametrize("width", [20, 40, 60])
def test_names_are_whole_on_narrow_terminals(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    one, _ = evaluated([LONG, "x"], ("pickup", "dropoff"))
    lines = lines_of(one, width, capsys)
    first = "".join(line.split("│")[1].strip() for line in lines if line.startswith("│"))
    assert LONG in first
    if width >= 40:
        shown = {cell.strip() for line in lines if line.startswith("│") for cell in line.split("│")[1:-1]}
        assert {cell for cells in one.rows for cell in cells[2:]} <= shown


def test_equal_counts_share_a_column_and_equal_figures_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ("policy", "tasks", "episodes", "first figure", "second figure", "a third figure", "and one more")
    rows = (("a" * 30, "30", "30", "1.5", "1.5", "0.1", "0.1"), ("b", "12", "12", "2.5", "2.5", "0.1", "0.1"))
    lines = lines_of(Table("t", columns, rows), 80, capsys)
    cells = next(line for line in lines if "b" in line and "12" in line).replace("│", " ").split()
    assert cells == ["b", "12", "2.5", "2.5", "0.1", "0.1"]


def test_control_characters_and_wide_letters_fit(capsys: pytest.CaptureFixture[str]) -> None:
    one = Table("t", ("a", *("figure" for _ in range(9))), (("漢字" * 20, *("12345678" for _ in range(9))),))
    lines = lines_of(one, 80, capsys)
    assert "".join(lines).count("漢") >= 20
    hostile = Table("t", ("\x1b[2J", "b"), (("x\x07", "\u202e" * 50),))
    assert not set("".join(lines_of(hostile, 40, capsys))) & {"\x1b", "\x07", "\u202e"}
