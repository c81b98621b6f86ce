"""Terminal output: progress bars on a terminal, plain lines elsewhere, and tables that fit its width."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from reflectkit.console import Bar, Report
from reflectkit.console import Table as Rows
from reflectkit.text import visible

NAME = re.compile(r"[\w+-]+")
LONG = 16  # characters; longer cells may be folded
START = re.compile(r"\s*(?:\w{1,3}  )?")
"""What stands before the text of a line: white space, and the number of a choice."""


class Screen(Console):
    """Standard output. Control characters are escaped last, so that printed text cannot control the terminal.

    quiet: print nothing. width: number of columns; None asks the terminal.
    """

    def __init__(self, *, quiet: bool = False, width: int | None = None) -> None:
        super().__init__(emoji=False, markup=False, highlight=False, quiet=quiet, width=width)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of `renderable`, with control characters escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    @property
    def columns(self) -> int | None:
        """The width of the terminal; None where the output is not read at one, unless COLUMNS is set."""
        return self.width if self.is_terminal or os.environ.get("COLUMNS", "").isdecimal() else None

    def read(self, text: str, indent: int | None = None) -> None:
        """Print text to read, with lines that are too long for the terminal wrapped at words.

        indent: of the continuations; by default that of the line, or of the text behind its number.
        """
        for line in visible(text).split("\n"):
            self.say("\n".join(self._wrapped(line, len(START.match(line)[0]) if indent is None else indent)))  # type: ignore[index]

    def _wrapped(self, line: str, indent: int) -> Iterable[str]:
        """The parts of `line`."""
        if self.columns is None or cell_len(line) <= self.columns:
            return [line]
        indent = min(indent, self.columns // 2)
        parts = Text(line[indent:]).wrap(self, self.columns - indent)
        return [line[:indent] + parts[0].plain.rstrip(), *(" " * indent + part.plain.rstrip() for part in parts[1:])]

    def say(self, text: str, style: str = "") -> None:
        """Print one or several lines, never cut to the terminal's width."""
        self.print(Text(visible(text), style=style), soft_wrap=True)


class RichProgress:
    """Implements `console.Progress` on `console`; use it as a context manager."""

    def __init__(self, console: Screen) -> None:
        self.console = console
        self.bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> RichProgress:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    @contextlib.contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        """A progress bar, replaced by one line of text at the end."""
        task = self.bars.add_task(escape(visible(title)), total=total, completed=done, figures="")
        bar = _RichBar(self, task)
        try:
            yield bar
        finally:
            self.bars.remove_task(task)
            self.news(f"{title}: {done + bar.moved} of {total}{'  ' + bar.figures if bar.figures else ''}")

    def news(self, text: str) -> None:
        """Print one line above the bars."""
        self.console.say(text)

    def show(self, text: str) -> None:
        """Print text to read above the bars, wrapped at words."""
        self.console.read(text)

    @property
    def attended(self) -> bool:
        """Whether standard input is a terminal."""
        return sys.stdin.isatty()

    def ask(self, question: str) -> str | None:
        """Read a line of standard input with the bars hidden. Undecodable input is an answer that never matches."""
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


class _RichBar:
    def __init__(self, progress: RichProgress, task: TaskID) -> None:
        self.progress, self.task, self.moved, self.figures = progress, task, 0, ""

    def advance(self, amount: int = 1, **figures: float) -> None:
        self.moved += amount
        self.figures = "  ".join(f"{name} {value:.3g}" for name, value in figures.items())
        self.progress.bars.update(self.task, advance=amount, figures=self.figures)


def show(console: Screen, report: Report) -> None:
    """Print the report's tables, the paths of its outputs, and its closing lines."""
    for table in report.tables:
        console.say(table.title, style="bold")
        grid, unlimited = _grid(table), console.options.update(width=10_000)
        if console.measure(grid, options=unlimited).maximum > console.width:
            if len(table.rows) > 1:
                table = _without_constants(table, console)
            grid = _grid(table, narrow=True)
            if console.measure(grid, options=unlimited).minimum > console.width:
                grid = _grid(table)
        console.print(grid)
    if report.skipped:
        console.say(f"Already finished in {_one_line(report.folder)}; --force runs it again.")
    for output in report.outputs:
        console.say(f"→ {_one_line(output)}")
    for line in report.closing:
        console.say(line)


def _without_constants(table: Rows, console: Screen) -> Rows:
    """`table` without the columns that hold one number or name in all rows, which are printed above it."""
    columns = list(zip(table.columns, *table.rows, strict=True))
    constant = [cells for cells in columns[1:] if len(set(cells[1:])) == 1 and NAME.fullmatch(cells[1])]
    if constant:
        console.say("in all rows: " + ", ".join(f"{cells[0]} {cells[1]}" for cells in constant))
    heading, *rows = zip(*(cells for cells in columns if cells not in constant), strict=True)
    return Rows(table.title, heading, tuple(rows))


def _grid(table: Rows, *, narrow: bool = False) -> Table:
    """`table` as rich draws it, with long cells folded. narrow: without lines, and with headings of several lines."""
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)) if narrow else Table()
    for index, heading in enumerate(map(visible, table.columns)):
        justify: Literal["left", "right"] = "right" if index else "left"
        if not narrow:
            grid.add_column(Text(heading), justify=justify, overflow="fold")
            continue
        width = max((cell_len(visible(row[index])) for row in table.rows), default=0)
        is_short = index > 0 and width <= LONG
        width = max([min(width, LONG), *map(cell_len, heading.split())])
        stacked = Text("\n".join(textwrap.wrap(heading, width)))
        grid.add_column(stacked, justify=justify, overflow="fold", no_wrap=is_short, min_width=width)
    for row in table.rows:
        grid.add_row(*(Text(visible(cell)) for cell in row))
    return grid


def _one_line(path: Path) -> str:
    """`path` with newlines escaped, so that it stays on one line."""
    return str(path).replace("\n", "\\n")
