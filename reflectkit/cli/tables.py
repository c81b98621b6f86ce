"""Tables that fit the terminal: one grid, as long as its figures have room.

A table that is too wide is first condensed: what is the same in all rows goes above it, and equal counts share a
column. Then its lines are left out, its headings wrapped, and its long cells folded. Only then is it cut into bands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from reflectkit.console import Table as Rows
from reflectkit.text import visible

NAME_SHARE = 0.4  # of the terminal's width, which the first column gets at most in a table of several bands
LONG = 16  # characters; longer cells may be folded
NARROWEST = 12  # characters of a folded column
WORD = re.compile(r"[\w+-]+")  # a name or a whole number


@dataclass(frozen=True)
class Style:
    """How a grid is drawn. box: its lines; None for those of the headings alone. between, edge: columns that it takes
    for each column of the table, and in all.
    """

    box: box.Box | None
    between: int
    edge: int


BOXED, OPEN = Style(box.HEAVY_HEAD, 3, 1), Style(None, 2, -2)


def laid_out(table: Rows, width: int) -> Iterator[Table | str]:
    """The parts of `table` for a terminal of `width` columns: grids, and lines of text."""
    for style, rows, wrap in _attempts(table):
        widths = _widths(rows, width - style.edge, style.between, wrap=wrap)
        if widths is not None:
            if rows is not table and (above := _same_everywhere(table)):
                yield f"in all rows: {', '.join(above)}"
            yield _grid(rows, range(len(rows.columns)), style, widths)
            return
    name_width = max(NARROWEST, int(NAME_SHARE * width))
    for columns in _bands(table, width, name_width):
        yield _grid(table, columns, BOXED, None, name_width)


def _attempts(table: Rows) -> Iterator[tuple[Style, Rows, bool]]:
    """(style, table, whether headings are wrapped and long cells folded), the best first."""
    condensed = _condensed(table)
    yield BOXED, table, False
    yield BOXED, condensed, False
    if len(table.columns) == 2:  # such as what and where
        yield BOXED, table, True
    yield OPEN, condensed, True


def _widths(table: Rows, room: int, between: int, *, wrap: bool) -> list[int] | None:
    """The width of each column; None if they do not fit into `room`."""
    widths, least = [], []
    for heading, *cells in zip(table.columns, *table.rows, strict=True):
        inside = max((cell_len(visible(cell)) for cell in cells), default=0)
        word = max(map(cell_len, visible(heading).split()), default=0)
        widths.append(max(inside, word if wrap else cell_len(visible(heading))))
        least.append(max(NARROWEST, word) if wrap and inside > LONG else widths[-1])
    room -= between * len(widths)
    if sum(least) > room:
        return None
    for index in sorted(range(len(widths)), key=lambda one: -widths[one]):  # the longest gives way first
        widths[index] = max(least[index], widths[index] - max(0, sum(widths) - room))
    return widths


def _condensed(table: Rows) -> Rows:
    """`table` without the columns that are the same in all rows, and with equal counts in one column."""
    kept: list[tuple[str, tuple[str, ...]]] = []
    for number, (heading, cells) in enumerate(_columns(table)):
        if number and _is_constant(cells):
            continue
        if number > 1 and kept[-1][1] == cells and all(cell.isdecimal() for cell in cells):
            kept[-1] = (f"{kept[-1][0]}, {heading}", cells)
        else:
            kept.append((heading, cells))
    rows = zip(*(cells for _, cells in kept), strict=True)
    return Rows(table.title, tuple(heading for heading, _ in kept), tuple(rows))


def _same_everywhere(table: Rows) -> list[str]:
    """The columns that `_condensed` leaves out, each with its cell."""
    return [f"{heading} {cells[0]}" for heading, cells in _columns(table)[1:] if _is_constant(cells)]


def _columns(table: Rows) -> list[tuple[str, tuple[str, ...]]]:
    return [(heading, tuple(row[index] for row in table.rows)) for index, heading in enumerate(table.columns)]


def _is_constant(cells: Sequence[str]) -> bool:
    return len(cells) > 1 and len(set(cells)) == 1 and WORD.fullmatch(cells[0]) is not None


def _grid(
    table: Rows, columns: Sequence[int], style: Style, widths: Sequence[int] | None, name_width: int | None = None
) -> Table:
    """The `columns` of `table`; rich finds the widths that are not given."""
    if style.box is None:
        grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    else:
        grid = Table(box=style.box)
    for index in columns:
        heading, width = Text(visible(table.columns[index])), widths[index] if widths else None
        justify: Literal["left", "right"] = "right" if index else "left"
        most = None if index else name_width
        grid.add_column(heading, justify=justify, overflow="fold", width=width, max_width=most)
    for row in table.rows:
        grid.add_row(*(Text(visible(row[index])) for index in columns))
    return grid


def _bands(table: Rows, width: int, name_width: int) -> list[list[int]]:
    """The columns in bands that fit into `width`. Each band starts with the columns that tell the rows apart."""
    widths = [
        3 + max(cell_len(visible(cell)) for cell in cells) for cells in zip(table.columns, *table.rows, strict=True)
    ]
    widths[0] = min(widths[0], 3 + name_width)
    count = len(table.columns)
    keys = next((n for n in range(1, count) if len({row[:n] for row in table.rows}) == len(table.rows)), 1)
    bands = [list(range(keys))]
    for index in range(keys, count):
        if len(bands[-1]) > keys and 1 + sum(widths[one] for one in (*bands[-1], index)) > width:
            bands.append(list(range(keys)))
        bands[-1].append(index)
    return bands
