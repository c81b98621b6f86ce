"""A command line from a stage's config: one flag a field, its help text from the field; or a YAML file of settings.

Shows progress bars on a terminal, plain lines elsewhere, and tables that fit its width.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import typer
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.segment import Segment
from rich.table import Table as Grid
from rich.text import Text

from reflectkit.commands import config_class, stage_module
from reflectkit.config import (
    LAST,
    REQUIRED,
    Config,
    Leaf,
    alternatives,
    build,
    choosers,
    flag,
    is_path,
    leaves,
    panels,
    parse_yaml,
    variables,
)
from reflectkit.console import Bar, Progress, Report, Table, process_number, visible
from reflectkit.errors import DataError
from reflectkit.jsonl import text_of

HELP_ALL = "--help-all"
CONFIG_HELP = "YAML file of settings, by the names of these flags; flags on the command line override it."
SHORT = 16  # characters; longer cells may be folded


def stage_command(name: str, arguments: Sequence[str] = ()) -> Any:
    """The command of stage `name`: its module's text is the help, EXAMPLES the epilog.

    arguments: those of the command line, as some bring further flags along (`--algo package.module:NAME`). The help
    shows these flags and the essential ones; `--help-all` shows all.
    """
    module, kind = stage_module(name), config_class(name)
    text = inspect.cleandoc(module.__doc__ or "").partition(": ")[2]
    summary = re.sub(r"(?<!\n)\n(?!\n)", " ", text[:1].upper() + text[1:])
    chosen = _choices(kind, arguments)
    told = module.help_lines(chosen) if hasattr(module, "help_lines") else ()
    if isinstance(env := chosen.get("env"), str):
        from reflectkit.envs import env_class

        told = (f"Levels of {env}: {', '.join(env_class(env).levels)}", *told)
    by_panel = panels(leaves(kind, chosen))
    shown = {title for title, rows in by_panel.items() if title is None or any({*row.by} & {*chosen} for row in rows)}
    if HELP_ALL in arguments:
        shown = {*by_panel, LAST}
    else:
        more = 1 + sum(len(rows) for title, rows in by_panel.items() if title not in shown)  # 1: --config
        told = (f"{HELP_ALL} lists {more} more.", *told)
    lines = [*(line.replace("[", "\\[") for line in told), "Examples:"]  # "[" begins rich's markup
    lines += [f"  $ {example}" for example in module.EXAMPLES]
    single = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
    single.command(name, help=summary, epilog="\n\n".join(lines))(_function(name, module, kind, by_panel, shown))
    return typer.main.get_command(single)


def _choices(kind: type[Config], arguments: Sequence[str]) -> dict[str, Any]:
    """The settings in `arguments`, or in their --config file, that decide which flags there are."""
    choosing, rows = choosers(kind), leaves(kind)
    switches = {"--help", "-h", HELP_ALL} | {flag(leaf.name) for leaf in rows if leaf.hint is bool}
    given: dict[str, str] = {}
    positional: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        written, equals, value = argument.partition("=")
        if not argument.startswith("-"):
            positional.append(argument)
        elif written not in switches and not written.startswith("--no-"):
            given[written] = value if equals else next(rest, "")
    settings = _settings(given["--config"]) if choosing and given.get("--config") else {}
    settings |= dict(zip((leaf.name for leaf in rows if leaf.is_argument), positional, strict=False))
    settings |= {name: given[flag(name)] for name in choosing if flag(name) in given}
    return {name: value for name, value in settings.items() if name in choosing}


def _function(
    name: str, module: Any, kind: type[Config], by_panel: Mapping[str | None, Sequence[Leaf]], shown: Collection[Any]
) -> Callable[..., None]:
    """A function whose signature is the config's leaves, as typer reads it. shown: the panels in its help."""
    parameters = []

    def add(name: str, annotation: Any, default: Any = None) -> None:
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )

    for title, leaf in ((title, leaf) for title, rows in by_panel.items() for leaf in rows):
        required = leaf.default is REQUIRED
        (hint,) = alternatives(leaf.hint)
        # paths stay text, as Path("") is the current folder, and choices too, as pydantic's error names the nearest
        plain: Any = str if hint is Path or get_origin(hint) is Literal else hint
        if get_origin(hint) is tuple:
            plain = list[str]  # a repeated flag
        elif plain is not leaf.hint:
            plain = plain | None
        metavar = "PATH" if is_path(leaf.hint) and plain != list[str] else None
        default = list(map(str, leaf.default)) if isinstance(leaf.default, tuple) else leaf.default
        if leaf.is_argument:
            argument = typer.Argument(help=leaf.help, metavar=metavar)
            add(leaf.name, Annotated[plain, argument], inspect.Parameter.empty if required else default)
            continue
        declared = flag(leaf.name)
        option = typer.Option(
            f"{declared}/--no-{declared[2:]}" if leaf.default is True or leaf.hint == bool | None else declared,
            help=leaf.help + (" Required." if required else ""),
            metavar=metavar,
            rich_help_panel=title,
            hidden=title not in shown,
        )
        add(leaf.name, Annotated[plain | None if required else plain, option], None if required else default)

    def command(context: typer.Context, config: str | None, help_all: bool, **values: Any) -> None:
        given = {
            key: value
            for key, value in values.items()
            if getattr(context.get_parameter_source(key), "name", "") != "DEFAULT"
        }
        settings = build(kind, (_settings(config) if config else {}) | given, name)
        console = Screen(quiet=process_number() > 0)
        with RichProgress(console) as progress:
            report = _run(module, settings, progress)
        show(console, report)
        if report.code:
            raise typer.Exit(report.code)

    help_all = typer.Option(HELP_ALL, is_eager=True, callback=_help, help="Show all settings and exit.")
    file = typer.Option("--config", metavar="PATH", help=CONFIG_HELP, rich_help_panel=LAST, hidden=LAST not in shown)
    add("help_all", Annotated[bool, help_all], default=False)
    add("config", Annotated[str | None, file])
    add("context", typer.Context)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__name__ = name.replace("-", "_")
    return command


def _help(context: typer.Context, asked: bool) -> None:
    """Print the help, if it is `asked` for; rich prints it where the text is made."""
    if asked:
        context.get_help()
        context.exit()


def _run(module: Any, settings: Any, progress: Progress) -> Report:
    """The stage's report. A lost connection, an exit, or any other BaseException of the user's code is an error here:
    typer would end the command without a message.
    """
    try:
        for name, value in variables(settings).items():
            progress.news(f"{name}: {value}")
        report: Report = module.run(settings, progress)
        return report
    except BaseException as error:
        taken = isinstance(error, BrokenPipeError | EOFError) or not isinstance(error, Exception | KeyboardInterrupt)
        unread = isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError)  # the output
        if unread or not taken:
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__) from None


def _settings(path: str) -> dict[str, Any]:
    """The settings in YAML file `path`. Raises DataError."""
    value = parse_yaml(text_of(Path(path)), path)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise DataError(path, "expected settings by name, as `env: taxi`")
    return {key.replace("-", "_"): setting for key, setting in value.items()}


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


class RichProgress(Progress):
    """Shows progress on `console`; use it as a context manager."""

    def __init__(self, console: Screen) -> None:
        self.console = console
        self.bars = Bars(
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

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    @contextlib.contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        """A progress bar, replaced by one line of text at the end."""
        bar = _RichBar(self.bars, self.bars.add_task(escape(visible(title)), total=total, completed=done, figures=""))
        try:
            yield bar
        finally:
            self.bars.remove_task(bar.task)
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
    def __init__(self, bars: Bars, task: TaskID) -> None:
        self.bars, self.task, self.moved, self.figures = bars, task, 0, ""

    def advance(self, amount: int = 1, **figures: float) -> None:
        self.moved += amount
        self.figures = "  ".join(f"{name} {value:.3g}" for name, value in figures.items())
        self.bars.update(self.task, advance=amount, figures=self.figures)


def _grid(table: Table, *, fold: bool = True) -> Grid:
    """`table` as rich draws it, with long texts folded. fold: also numbers and other short cells."""
    grid = Grid()
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
                grid = _grid(Table(table.title, heading, tuple(rows)), fold=fold)
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
