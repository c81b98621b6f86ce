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

SHORT = 16
"""Characters; longer cells may be folded."""
NAMES = 30
"""Characters; longer names of rows may be folded."""
LINE_EVERY_S = 60.0
"""Where no bar can be drawn, in a log or a pipe, a line of text says so often how far it is."""


def prepare() -> None:
    """Make the standard streams accept any text. A stream that was closed at the start becomes the
    null device. Some shells set COLUMNS to 0 where no terminal is, which rich would take for the
    width.
    """
    if not os.environ.get("COLUMNS", "").strip("0"):
        os.environ.pop("COLUMNS", None)
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
    with contextlib.suppress(OSError):  # standard error is closed
        say(f"reflectkit{process}: {' '.join(masked(text).split())}", sys.stderr)
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
            yield segment if segment.control else segment._replace(text=visible(segment.text))

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
        """Read a line of standard input with the bars hidden. Undecodable input is an answer that
        never matches.
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
    def __init__(
        self, progress: RichProgress, task: bars.TaskID, title: str, total: int, start: int
    ) -> None:
        self.progress, self.task, self.title, self.total = progress, task, title, total
        self.step, self.figures, self.last_line_s = start, "", time.monotonic()

    def advance(self, amount: int = 1, **figures: float) -> None:
        self.step += amount
        self.figures = "  ".join(f"{name} {value:.3g}" for name, value in figures.items())
        self.progress.bars.update(self.task, advance=amount, figures=self.figures)
        is_due = time.monotonic() - self.last_line_s >= LINE_EVERY_S
        if self.progress.bars.disable and self.step < self.total and is_due:
            self.tell()

    def tell(self) -> None:
        self.last_line_s = time.monotonic()
        figures = f"  {self.figures}" if self.figures else ""
        self.progress.news(f"{self.title}: {self.step} of {self.total}{figures}")


def _grid(table: Table, *, fold: bool = True) -> Grid:
    """`table` as rich draws it, with long texts folded. fold: also numbers and other short cells."""
    grid = Grid()
    for index, cells in enumerate(zip(table.columns, *table.rows, strict=True)):
        heading, *texts = map(visible, cells)
        limit = SHORT if index else NAMES
        is_whole = not fold and _longest(texts) <= limit
        if is_whole:  # rich would not fold its heading either
            heading = "\n".join(textwrap.wrap(heading, max(SHORT, _longest(texts))))
        grid.add_column(
            Text(heading),
            justify="right" if index else "left",
            overflow="fold",
            no_wrap=is_whole,
        )
    for row in table.rows:
        grid.add_row(*(Text(visible(cell)) for cell in row))
    return grid


def _longest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _least_width(grid: Grid) -> int:
    """How many characters `grid` needs, for texts to be broken only between words, and short cells
    not at all.
    """
    width = 2 * len(grid.columns) - 2
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
    name_columns = 1 if len(set(columns[0])) == len(columns[0]) else 2
    names, rest = columns[:name_columns], columns[name_columns:]
    while True:
        # As many columns as fit, and one at least
        for count in range(len(rest), -1, -1):
            heading, *rows = zip(*names, *rest[:count], strict=True)
            grid = _grid(Table("", heading, tuple(rows)), fold=count < 2)
            grid.box, grid.padding = box.SIMPLE_HEAD, (0, 1, 0, 0)
            grid.show_edge = grid.pad_edge = False
            if count < 2 or _least_width(grid) <= console.width:
                break
        yield grid
        rest = rest[max(1, count) :]
        if not rest:
            return


def show(console: Screen, report: Report) -> None:
    """Print the report's tables, the paths of its outputs, and its closing lines."""
    for table in report.tables:
        console.say(table.title, style="bold")
        grid = _grid(table)
        wide = console.options.update(width=10_000)
        if console.measure(grid, options=wide).maximum <= console.width:
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
        console.say("in all rows: " + ", ".join(f"{name} {value}" for name, value, *_ in same))
        columns = [cells for cells in columns if cells not in same]
    console.print(*_parts(console, columns), sep="")
