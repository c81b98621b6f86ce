"""Terminal output: progress bars on a terminal, plain lines elsewhere, and tables that fit its width."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from types import TracebackType

from rich import box
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
from reflectkit.console import Progress as Receiver
from reflectkit.console import Table as Rows
from reflectkit.text import visible

SHORT = 16  # characters; longer cells may be folded


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

    def say(self, text: str, style: str = "") -> None:
        """Print one or several lines, never cut to the terminal's width."""
        self.print(Text(visible(text), style=style), soft_wrap=True)


class RichProgress(Receiver):
    """Shows progress on `console`; use it as a context manager."""

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
        """Print text to read above the bars."""
        self.console.say(text)

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


class _RichBar(Bar):
    def __init__(self, progress: RichProgress, task: TaskID) -> None:
        self.progress, self.task, self.moved, self.figures = progress, task, 0, ""

    def advance(self, amount: int = 1, **figures: float) -> None:
        self.moved += amount
        self.figures = "  ".join(f"{name} {value:.3g}" for name, value in figures.items())
        self.progress.bars.update(self.task, advance=amount, figures=self.figures)


def _grid(table: Rows, *, fold: bool = True) -> Table:
    """`table` as rich draws it, with long texts folded. fold: also numbers and other short cells."""
    grid = Table()
    for index, cells in enumerate(zip(table.columns, *table.rows, strict=True)):
        heading, *texts = map(visible, cells)
        short = not fold and index > 0 and max(map(len, texts), default=0) <= SHORT
        grid.add_column(Text(heading), justify="right" if index else "left", overflow="fold", no_wrap=short)
    for row in table.rows:
        grid.add_row(*(Text(visible(cell)) for cell in row))
    return grid


def show(console: Screen, report: Report) -> None:
    """Print the report's tables, the paths of its outputs, and its closing lines."""
    for table in report.tables:
        console.say(table.title, style="bold")
        grid, unlimited = _grid(table), console.options.update(width=10_000)
        if console.measure(grid, options=unlimited).maximum > console.width:
            columns = list(zip(table.columns, *table.rows, strict=True))
            same = [cells for cells in columns[1:] if len(table.rows) > 1 and len(set(cells[1:])) == 1]
            if same:
                console.say("in all rows: " + ", ".join(f"{cells[0]} {cells[1]}" for cells in same))
            heading, *rows = zip(*(cells for cells in columns if cells not in same), strict=True)
            for fold in (False, True):
                grid = _grid(Rows(table.title, heading, tuple(rows)), fold=fold)
                grid.box, grid.show_edge, grid.pad_edge, grid.padding = box.SIMPLE_HEAD, False, False, (0, 1, 0, 0)
                if console.measure(grid, options=unlimited).minimum <= console.width:
                    break
        console.print(grid)
    if report.skipped:
        console.say(f"Already finished in {report.folder}; --force runs it again.")
    for output in report.outputs:
        console.say("→ " + str(output).replace("\n", "\\n"))
    for line in report.closing:
        console.say(line)
