"""The commands: one per stage, in pipeline order, and `list`. A stage's module is imported only
when its command runs.

A stage's config makes its flags, one a field, with the help text of the field; `--config` reads
them from a YAML file. Progress is shown as bars on a terminal and as plain lines elsewhere, tables
so that they fit its width. Errors are printed here, once, as one line. `cli/main.py` lists the exit
codes.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import io
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, get_origin

import typer
from rich import box
from rich import progress as bars
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table as Grid
from rich.text import Text
from typer.core import TyperGroup

from reflectkit.cli.original import ours
from reflectkit.commands import STAGES, config_class, is_own, stage_module
from reflectkit.console import Bar, Progress, Report, Table, process_number, visible
from reflectkit.errors import (
    NO_ROOM,
    ConfigError,
    DataError,
    ReflectkitError,
    UnknownNameError,
    cause_of,
    user_code_line,
)
from reflectkit.version import VERSION

if TYPE_CHECKING:
    from reflectkit.config import Config, Leaf

HELP_FLAGS = {"help_option_names": ["-h", "--help"]}
BAD_PATH = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)
HELP_ALL = "--help-all"
CONFIG_HELP = (
    "YAML file of settings, by the names of these flags; flags on the command line override it."
)
SHORT = 16  # characters; longer cells may be folded
NAMES = 30  # characters; longer names of rows may be folded


class Stages(TyperGroup):
    """The commands by name, and stages of your own by dotted name (`research.pack`). Only the
    called one is built.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command named in `args`, with its flags."""
        args = [args[0], *ours(args[0], args[1:])]
        own = is_own(args[0])
        name, command, rest = (
            (args[0], None, args[1:]) if own else super().resolve_command(ctx, args)
        )
        if name is not None and (own or name in STAGES):
            command = stage_command(name, ["--help-all"] if ctx.resilient_parsing else rest)
        return name, command, rest


app = typer.Typer(
    name="reflectkit",
    cls=Stages,
    help=(
        "Train small language models to act: a reflection model comments, and a policy model"
        " acts and learns by RL."
    ),
    epilog=(
        "Start here:\n\n  $ reflectkit play --env taxi\n\n  $ reflectkit run taxi-tiny\n\n  $"
        " reflectkit sft --help"
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=HELP_FLAGS,
)


def _version(show: bool) -> None:
    if show:
        say(f"reflectkit {VERSION}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Options that come before the command."""
    try:
        os.getcwd()
    except OSError:
        raise ConfigError(
            "the working directory no longer exists; change to another folder"
        ) from None


for _name, _stage in STAGES.items():
    app.command(_name, help=_stage.summary)(lambda: None)


LIST_EXAMPLES = (
    "reflectkit list",
    "reflectkit list --configs",
    (
        'accelerate launch --config_file "$(reflectkit list --configs multi_gpu)" -m reflectkit'
        " rlft --env taxi …"
    ),
)


@app.command(
    "list", epilog="Examples:\n\n" + "\n\n".join(f"  $ {example}" for example in LIST_EXAMPLES)
)
def _list(
    name: Annotated[
        str | None,
        typer.Argument(help="With --configs: show only the path of this one.", show_default=False),
    ] = None,
    configs: Annotated[
        bool,
        typer.Option(
            "--configs", help="List the configs for `accelerate launch` instead, with their paths."
        ),
    ] = False,
) -> None:
    """List environments and recipes."""
    from reflectkit.files import launch_config, launch_configs

    if name is not None and not configs:
        raise ConfigError(
            f"list {name!r}: only --configs takes a name; run `reflectkit list` to see everything"
        )
    if name is not None:
        say(str(launch_config(name)))
        return
    if configs:
        say(
            'configs: accelerate launch --config_file "$(reflectkit list --configs NAME)" -m'
            " reflectkit rlft …"
        )
        for config, about in launch_configs().items():
            say(f"  {config:<12} {about}\n  {'':<12} {launch_config(config)}")
        return
    from reflectkit.envs import env_class, env_names
    from reflectkit.recipe import load_recipe, recipe_names

    say(
        "environments: reflectkit play --env NAME, with its levels and settings in --env NAME"
        " --help"
    )
    for env in env_names():
        try:
            kind = env_class(env)
            about = vars(kind).get("__doc__") or f"levels: {', '.join(kind.levels)}"
        except ReflectkitError as error:  # of another package
            about = str(error)
        say(f"  {env:<20} {about.strip().splitlines()[0]}")
    say("recipes: reflectkit run NAME, with its steps and parameters in run NAME --help")
    for recipe in recipe_names():
        say(f"  {recipe:<20} {load_recipe(recipe).description}")


def stage_command(name: str, arguments: Sequence[str] = ()) -> Any:
    """The command of stage `name`: its module's text is the help, EXAMPLES the epilog.

    arguments: those of the command line, as some bring further flags along (`--algo
    package.module:NAME`). The help shows these flags and the essential ones; `--help-all` shows
    all.
    """
    from reflectkit.config import LAST, leaves, panels

    module, kind = stage_module(name), config_class(name)
    text = inspect.cleandoc(module.__doc__ or "").partition(": ")[2]
    summary = re.sub(r"(?<!\n)\n(?!\n)", " ", text[:1].upper() + text[1:])
    chosen = _choices(kind, arguments)
    told = module.help_lines(chosen) if hasattr(module, "help_lines") else ()
    if isinstance(env := chosen.get("env"), str):
        from reflectkit.envs import env_class

        told = (f"Levels ({env}): {', '.join(env_class(env).levels)}", *told)
    by_panel = panels(leaves(kind, chosen), getattr(module, "MINOR", ()))
    shown = {
        title
        for title, rows in by_panel.items()
        if title is None or any({*row.by} & {*chosen} for row in rows)
    }
    if HELP_ALL in arguments:
        shown = {*by_panel, LAST}
    else:
        # 1: --config
        more = 1 + sum(len(rows) for title, rows in by_panel.items() if title not in shown)
        told = (f"{HELP_ALL} lists {more} more.", *told)
    lines = [*(line.replace("[", "\\[") for line in told), "Examples:"]  # "[" begins rich's markup
    lines += [f"  $ {example}" for example in module.EXAMPLES]
    single = typer.Typer(add_completion=False, context_settings=HELP_FLAGS)
    single.command(name, help=summary, epilog="\n\n".join(lines))(
        _function(name, module, kind, by_panel, shown)
    )
    return typer.main.get_command(single)


def _choices(kind: type[Config], arguments: Sequence[str]) -> dict[str, Any]:
    """The settings in `arguments`, or in their --config file, that decide which flags there are."""
    from reflectkit.config import choosers, flag, leaves

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
    settings |= dict(
        zip((leaf.name for leaf in rows if leaf.is_argument), positional, strict=False)
    )
    settings |= {leaf.name: given[flag(leaf.name)] for leaf in rows if flag(leaf.name) in given}
    settings = kind.implied(settings) | settings
    return {name: value for name, value in settings.items() if name in choosing}


def _function(
    name: str,
    module: Any,
    kind: type[Config],
    by_panel: Mapping[str | None, Sequence[Leaf]],
    shown: Collection[Any],
) -> Callable[..., None]:
    """A function whose signature is the config's leaves, as typer reads it. shown: the panels in
    its help.
    """
    from reflectkit.config import LAST, REQUIRED, alternatives, build, flag, is_path, parsed_type

    parameters = []

    def add(name: str, annotation: Any, default: Any = None) -> None:
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
        )

    for title, leaf in ((title, leaf) for title, rows in by_panel.items() for leaf in rows):
        required = leaf.default is REQUIRED
        (hint,) = alternatives(leaf.hint)
        # paths stay text, as Path("") is the current folder, and choices too, as pydantic's error
        # names the nearest
        is_text = hint is Path or get_origin(hint) is Literal or parsed_type(hint) is not None
        plain: Any = str if is_text else hint
        if get_origin(hint) is tuple:
            plain = list[str]  # a repeated flag
        elif plain is not leaf.hint:
            plain = plain | None
        takes_path = is_path(leaf.hint) or parsed_type(hint) is not None
        metavar = "PATH" if takes_path and plain != list[str] else None
        default = list(map(str, leaf.default)) if isinstance(leaf.default, tuple) else leaf.default
        if leaf.is_argument:
            argument = typer.Argument(help=leaf.help, metavar=metavar)
            add(
                leaf.name,
                Annotated[plain, argument],
                inspect.Parameter.empty if required else default,
            )
            continue
        declared = flag(leaf.name)
        option = typer.Option(
            f"{declared}/--no-{declared[2:]}"
            if leaf.default is True or leaf.hint == bool | None
            else declared,
            help=leaf.help + (" Required." if required else ""),
            metavar=metavar,
            rich_help_panel=title,
            hidden=title not in shown,
        )
        add(
            leaf.name,
            Annotated[plain | None if required else plain, option],
            None if required else default,
        )

    def command(context: typer.Context, config: str | None, help_all: bool, **values: Any) -> None:
        given = {
            key: value
            for key, value in values.items()
            if getattr(context.get_parameter_source(key), "name", "") != "DEFAULT"
        }
        settings = build(kind, (_settings(config) if config else {}) | given, name)
        console = Screen(quiet=process_number() > 0)
        with RichProgress(console) as progress:
            report = run_stage(module, settings, progress)
        show(console, report)
        if report.code:
            raise typer.Exit(report.code)

    help_all = typer.Option(
        HELP_ALL, is_eager=True, callback=_help, help="Show all settings and exit."
    )
    file = typer.Option(
        "--config", metavar="PATH", help=CONFIG_HELP, rich_help_panel=LAST, hidden=LAST not in shown
    )
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


def run_stage(module: Any, settings: Any, progress: Progress) -> Report:
    """The stage's report. A lost connection, an exit, or any other BaseException of the user's code
    is an error here: typer would end the command without a message.
    """
    from reflectkit.config import notes_of, variables
    from reflectkit.keys import hide_environment

    hide_environment()
    try:
        for name, value in variables(settings).items():
            progress.news(f"{name}: {value}")
        for note in notes_of(settings):
            progress.news(note)
        report: Report = module.run(settings, progress)
        return report
    except BaseException as error:
        taken = isinstance(error, BrokenPipeError | EOFError) or not isinstance(
            error, Exception | KeyboardInterrupt
        )
        # The output
        unread = isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError)
        if unread or not taken:
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}").with_traceback(
            error.__traceback__
        ) from None


def _settings(path: str) -> dict[str, Any]:
    """The settings in YAML file `path`. Raises DataError."""
    from reflectkit.config import parse_yaml
    from reflectkit.jsonl import text_of

    value = parse_yaml(text_of(Path(path)), path)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise DataError(path, "expected settings by name, as `env: taxi`")
    return {key.replace("-", "_"): setting for key, setting in value.items()}


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
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        """A progress bar, replaced by one line of text at the end."""
        task = self.bars.add_task(escape(visible(title)), total=total, completed=done, figures="")
        bar = _RichBar(self, task, title, total, done)
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


LINE_EVERY_S = 60.0
"""Where no bar can be drawn, in a log or a pipe, a line of text says so often how far it is."""


class _RichBar(Bar):
    def __init__(
        self, progress: RichProgress, task: bars.TaskID, title: str, total: int, done: int
    ) -> None:
        self.progress, self.task, self.title, self.total = progress, task, title, total
        self.done, self.figures, self.told = done, "", time.monotonic()

    def advance(self, amount: int = 1, **figures: float) -> None:
        self.done += amount
        self.figures = "  ".join(f"{name} {value:.3g}" for name, value in figures.items())
        self.progress.bars.update(self.task, advance=amount, figures=self.figures)
        waited = time.monotonic() - self.told >= LINE_EVERY_S
        if self.progress.bars.disable and self.done < self.total and waited:
            self.tell()

    def tell(self) -> None:
        self.told = time.monotonic()
        self.progress.news(
            f"{self.title}: {self.done} of"
            f" {self.total}{'  ' + self.figures if self.figures else ''}"
        )


def _grid(table: Table, *, fold: bool = True) -> Grid:
    """`table` as rich draws it, with long texts folded. fold: also numbers and other short cells."""
    grid = Grid()
    for index, cells in enumerate(zip(table.columns, *table.rows, strict=True)):
        heading, *texts = map(visible, cells)
        whole = not fold and _longest(texts) <= (SHORT if index else NAMES)
        if whole:  # rich would not fold its heading either
            heading = "\n".join(textwrap.wrap(heading, max(SHORT, _longest(texts))))
        grid.add_column(
            Text(heading), justify="right" if index else "left", overflow="fold", no_wrap=whole
        )
    for row in table.rows:
        grid.add_row(*(Text(visible(cell)) for cell in row))
    return grid


def _longest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _least_width(grid: Grid) -> int:
    """How many characters `grid` needs, so that only texts between words and no short cells are
    broken.
    """
    cells = ([str(column.header), *map(str, column.cells)] for column in grid.columns)
    parts = (
        _longest(
            part
            for cell in texts
            for part in (cell.split("\n") if column.no_wrap else cell.split())
        )
        for column, texts in zip(grid.columns, cells, strict=True)
    )
    return sum(parts) + 2 * len(grid.columns) - 2


def _parts(console: Screen, columns: Sequence[tuple[str, ...]]) -> Iterator[Grid]:
    """A wide table of `columns`, as grids one below the other that fit the console. Each has the
    first column, and the second one where the first does not tell the rows apart.
    """
    first = 1 if len(set(columns[0])) == len(columns[0]) else 2
    names, rest = columns[:first], columns[first:]
    while True:
        for count in range(len(rest), -1, -1):
            heading, *rows = zip(*names, *rest[:count], strict=True)
            grid = _grid(Table("", heading, tuple(rows)), fold=count < 2)
            grid.box, grid.show_edge, grid.pad_edge, grid.padding = (
                box.SIMPLE_HEAD,
                False,
                False,
                (0, 1, 0, 0),
            )
            if count < 2 or _least_width(grid) <= console.width:
                break
        yield grid
        if not (rest := rest[max(1, count) :]):
            return


def show(console: Screen, report: Report) -> None:
    """Print the report's tables, the paths of its outputs, and its closing lines."""
    for table in report.tables:
        console.say(table.title, style="bold")
        grid = _grid(table)
        if (
            console.measure(grid, options=console.options.update(width=10_000)).maximum
            > console.width
        ):
            columns = list(zip(table.columns, *table.rows, strict=True))
            if len(table.rows) == 1:  # becomes one of two columns
                columns = list(zip(*columns, strict=True))
            same = [
                cells for cells in columns[1:] if len(table.rows) > 1 and len(set(cells[1:])) == 1
            ]
            if len(same) == len(columns) - 1:  # names alone would say nothing
                same = []
            if same:
                console.say("in all rows: " + ", ".join(f"{cells[0]} {cells[1]}" for cells in same))
            console.print(
                *_parts(console, [cells for cells in columns if cells not in same]), sep=""
            )
        else:
            console.print(grid)
    if report.skipped:
        console.say(f"Already finished in {report.folder}; --force runs it again.")
    for output in report.outputs:
        console.say("→ " + str(output).replace("\n", "\\n"))
    for line in report.closing:
        console.say(line)


def run(arguments: Sequence[str]) -> int:
    """Run the command line `arguments`; returns the exit code."""
    prepare()
    # It reads the metadata of every installed package
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        outcome = app(args=list(arguments), prog_name="reflectkit", standalone_mode=False)
        sys.stdout.flush()
        if outcome == 130:  # typer's code for Ctrl-C
            raise KeyboardInterrupt
        return outcome if isinstance(outcome, int) else 0
    except BaseException as error:
        # typer and rich end the process when the pipe is closed
        if BrokenPipeError in (
            type(error),
            isinstance(error, SystemExit) and type(error.__context__),
        ):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards what is still in the buffer
            return 141
        if isinstance(error, typer.Abort) or _interrupted(error):
            kept = (
                "finished episodes are kept"
                if arguments[:1] == ["play"]
                else "run the same command again to resume"
            )
            return print_error(f"stopped; {kept}", 130)
        if isinstance(error, SystemExit):  # after a completion
            return int(error.code or 0)
        return _explain(error, with_traceback="--traceback" in arguments)


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


def _explain(error: BaseException, *, with_traceback: bool) -> int:
    """Print `error` as one line; returns the exit code. with_traceback: print its traceback as
    well.
    """
    import traceback

    from reflectkit.keys import masked

    if with_traceback:
        say(masked("".join(traceback.format_exception(error))).rstrip(), sys.stderr)
    number = error.errno if isinstance(error, OSError) else None
    full = next(
        (code for code in NO_ROOM if code == number or os.strerror(code) in str(error)), None
    )
    if isinstance(error, ReflectkitError):
        return print_error(str(error), 2)
    if isinstance(error, typer.TyperException):
        # The help was printed already
        return print_error(_usage(error), 2) if error.format_message().strip() else 2
    if full:
        what = (
            "a file exceeds this shell's limit (`ulimit -f`)"
            if full == errno.EFBIG
            else "the disk is full"
        )
        return print_error(f"{what}; free some space and run the same command again to resume", 2)
    if isinstance(error, OSError) and number in BAD_PATH:
        path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a file"
        return print_error(
            f"{path}: {error.strerror}; choose another location or change its permissions", 2
        )
    if isinstance(error, MemoryError):
        return print_error("out of memory; close other programs or use smaller settings", 2)
    error = cause_of(error)
    summary = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
    if line := user_code_line(error):
        return print_error(f"{line}: {summary} (`reflectkit --traceback …` shows the traceback)", 2)
    return print_error(
        f"{summary} (internal error; `reflectkit --traceback …` shows the traceback)", 1
    )


def _interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C caused `error`: an interrupted import may end in another error."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _usage(error: typer.TyperException) -> str:
    """What is wrong in the command line; of a flag of another choice, or a former one, what to do."""
    context = getattr(error, "ctx", None)
    stage = context.info_name if context else ""
    if type(error).__name__ == "NoSuchOption" and stage in STAGES:
        from reflectkit.config import leaves, unknown_setting

        kind = config_class(stage)
        name = (
            str(getattr(error, "option_name", ""))
            .removeprefix("--")
            .removeprefix("no-")
            .replace("-", "_")
        )
        known = unknown_setting(kind, name, [leaf.name for leaf in leaves(kind)], "")
        if not isinstance(known, UnknownNameError):
            return str(known)
    help_command = f"{context.command_path if context else 'reflectkit'} --help"
    return f"{error.format_message().rstrip('.')} (see `{help_command}`)"
