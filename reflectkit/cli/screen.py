"""The terminal: text, progress and tables. Everything that the package prints goes through it.

Progress is shown as bars on a terminal and as plain lines elsewhere, tables so that they fit its
width. Control characters are escaped last, so that printed text cannot control the terminal.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from rich import box
from rich import progress as bars
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table as Grid
from rich.text import Text

from reflectkit.console import Bar, Progress, Report, Table, process_number, visible

LONGEST_CELL = 16
"""Characters; longer cells may be folded."""
LONGEST_NAME = 30
"""Characters; longer names of rows may be folded."""
LINE_EVERY_S = 60.0
"""Seconds between lines of progress where no bar can be drawn, in a log or a pipe."""


def prepare() -> None:
    """Make the standard streams accept any text.

    A stream that was closed at the start becomes the null device.
    """
    # 1. Some shells set COLUMNS to 0 without a terminal, which rich would take for the width
    if not os.environ.get("COLUMNS", "").strip("0"):
        os.environ.pop("COLUMNS", None)

    # 2. The streams
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open until the process ends
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str, file: TextIO | None = None) -> None:
    """Print `text`, without control characters, and a newline to standard output or to `file`."""
    print(visible(text), file=file)


def print_error(text: str, code: int) -> int:
    """Print `text` as one line on standard error; returns `code`."""
    from reflectkit.keys import masked

    process = f" (process {process_number()})" if process_number() else ""
    line = " ".join(masked(text).split())
    with contextlib.suppress(OSError):  # standard error is closed
        say(f"reflectkit{process}: {line}", sys.stderr)
    return code


class Screen(Console):
    """Standard output. Control characters are escaped last, so that printed text cannot control the
    terminal.

    quiet: print nothing. width: number of columns; None asks the terminal.
    """

    def __init__(self, *, quiet: bool = False, width: int | None = None) -> None:
        super().__init__(emoji=False, markup=False, highlight=False, quiet=quiet, width=width)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of `renderable`, with control characters escaped."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=visible(segment.text))

    def say(self, text: str, style: str = "") -> None:
        """Print one or several lines, never cut to the terminal's width."""
        self.print(Text(visible(text), style=style), soft_wrap=True)


class RichProgress(Progress):
    """Shows progress on `console`; use it as a context manager."""

    def __init__(self, console: Screen) -> None:
        self.console = console
        self.bars = bars.Progress(
            bars.SpinnerColumn(),
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=24),
            bars.MofNCompleteColumn(),
            bars.TextColumn("{task.fields[figures]}"),
            bars.TimeElapsedColumn(),
            bars.TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> RichProgress:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    @contextlib.contextmanager
    def bar(self, title: str, total: int, start: int = 0) -> Iterator[Bar]:
        """A progress bar, replaced by one line of text at the end."""
        task = self.bars.add_task(escape(visible(title)), total=total, completed=start, figures="")
        bar = _RichBar(self, task, title, total, start)
        try:
            yield bar
        finally:
            self.bars.remove_task(task)
            bar.tell()

    def news(self, text: str) -> None:
        """Print text to read above the bars."""
        self.console.say(text)

    @property
    def attended(self) -> bool:
        """Whether standard input is a terminal."""
        return sys.stdin.isatty()

    def ask(self, question: str) -> str | None:
        """Read a line of standard input, with the bars hidden. None at its end.

        Undecodable input is an answer that never matches.
        """
        self.bars.stop()
        try:
            return input(visible(question))
        except EOFError:
            self.console.print()  # end the line of the question
            return None
        except UnicodeDecodeError:
            return "\N{REPLACEMENT CHARACTER}"
        finally:
            self.bars.start()


class _RichBar(Bar):
    """One bar of `progress`."""

    def __init__(
        self, progress: RichProgress, task: bars.TaskID, title: str, total: int, start: int
    ) -> None:
        self.progress = progress
        self.task = task
        self.title = title
        self.total = total
        self.step = start
        self.figures = ""
        self.last_line_s = time.monotonic()

    def advance(self, amount: int = 1, **figures: float) -> None:
        # 1. The bar
        self.step += amount
        self.figures = "  ".join(f"{name} {value:.3g}" for name, value in figures.items())
        self.progress.bars.update(self.task, advance=amount, figures=self.figures)

        # 2. Where it cannot be drawn, a line from time to time
        is_due = time.monotonic() - self.last_line_s >= LINE_EVERY_S
        if self.progress.bars.disable and self.step < self.total and is_due:
            self.tell()

    def tell(self) -> None:
        """Print a line of text that says how far it is."""
        self.last_line_s = time.monotonic()
        figures = f"  {self.figures}" if self.figures else ""
        self.progress.news(f"{self.title}: {self.step} of {self.total}{figures}")


def _grid(table: Table, *, fold: bool = True) -> Grid:
    """`table` as rich draws it, with long texts folded. fold: also numbers and other short cells."""
    grid = Grid()
    for index, cells in enumerate(zip(table.columns, *table.rows, strict=True)):
        # 1. The first column has the names of the rows
        is_name = index == 0
        heading, *texts = map(visible, cells)

        # 2. A column of short cells need not be folded; rich would not fold its heading either
        longest = _longest(texts)
        limit = LONGEST_NAME if is_name else LONGEST_CELL
        is_whole = not fold and longest <= limit
        if is_whole:
            lines = textwrap.wrap(heading, max(LONGEST_CELL, longest))
            heading = "\n".join(lines)
        grid.add_column(
            Text(heading),
            justify="left" if is_name else "right",
            overflow="fold",
            no_wrap=is_whole,
        )
    for row in table.rows:
        grid.add_row(*(Text(visible(cell)) for cell in row))
    return grid


def _longest(texts: Iterable[str]) -> int:
    """Columns of the terminal that the longest of `texts` takes."""
    return max(map(cell_len, texts), default=0)


def _least_width(grid: Grid) -> int:
    """The characters that `grid` needs if texts break only between words, and short cells not at
    all.
    """
    gaps = 2 * (len(grid.columns) - 1)
    width = gaps
    for column in grid.columns:
        parts: list[str] = []
        for text in (str(column.header), *map(str, column.cells)):
            parts += text.split("\n") if column.no_wrap else text.split()
        width += _longest(parts)
    return width


def _parts(console: Screen, columns: Sequence[tuple[str, ...]]) -> Iterator[Grid]:
    """A wide table of `columns`, as grids one below the other that fit the console.

    Each has the first column, and the second one where the first has equal names.
    """
    has_equal_names = len(set(columns[0])) < len(columns[0])
    name_columns = 2 if has_equal_names else 1
    names = columns[:name_columns]
    rest = columns[name_columns:]
    while True:
        # 1. As many columns as fit, and one at least
        for count in range(len(rest), -1, -1):
            heading, *rows = zip(*names, *rest[:count], strict=True)
            grid = _grid(Table("", heading, tuple(rows)), fold=count < 2)
            grid.box = box.SIMPLE_HEAD
            grid.padding = (0, 1, 0, 0)
            grid.show_edge = False
            grid.pad_edge = False
            if count < 2 or _least_width(grid) <= console.width:
                break
        yield grid

        # 2. The others come next
        rest = rest[max(1, count) :]
        if not rest:
            return


def show(console: Screen, report: Report) -> None:
    """Print the report's tables, the paths of its outputs, and its closing lines."""
    any_width = console.options.update(width=10_000)
    for table in report.tables:
        console.say(table.title, style="bold")
        grid = _grid(table)
        if console.measure(grid, options=any_width).maximum <= console.width:
            console.print(grid)
        else:
            _show_wide(console, table)
    if report.skipped:
        console.say(f"Already finished in {report.folder}; --force runs it again.")
    for output in report.outputs:
        console.say("→ " + str(output).replace("\n", "\\n"))
    for line in report.closing:
        console.say(line)


def _show_wide(console: Screen, table: Table) -> None:
    """Print a table that does not fit the width."""
    # 1. A single row becomes two columns
    columns = list(zip(table.columns, *table.rows, strict=True))
    if len(table.rows) == 1:
        columns = list(zip(*columns, strict=True))

    # 2. What all rows share is said once, unless only names would remain
    same = []
    for cells in columns[1:]:
        if len(table.rows) > 1 and len(set(cells[1:])) == 1:
            same.append(cells)
    if same and len(same) < len(columns) - 1:
        facts = ", ".join(f"{name} {value}" for name, value, *_ in same)
        console.say(f"in all rows: {facts}")
        columns = [cells for cells in columns if cells not in same]
    console.print(*_parts(console, columns), sep="")
