"""A command line from a stage's config: one flag a field, its help text from the field; or a YAML file of settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import typer

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
from reflectkit.console import process_number
from reflectkit.errors import DataError
from reflectkit.jsonl import text_of

HELP_ALL = "--help-all"
CONFIG_HELP = "YAML file of settings, by the names of these flags; flags on the command line override it."


def stage_command(name: str, arguments: Sequence[str] = ()) -> Any:
    """The command of stage `name`: its module's text is the help, EXAMPLES the epilog.

    arguments: those of the command line, as some bring further flags along (`--algo package.module:NAME`). The help
    shows these flags and the essential ones; `--help-all` shows all.
    """
    module, kind = stage_module(name), config_class(name)
    text = inspect.cleandoc(module.__doc__ or "").partition(": ")[2]
    summary = re.sub(r"(?<!\n)\n(?!\n)", " ", text[:1].upper() + text[1:])
    examples = [f"  $ {example}" for example in module.EXAMPLES]
    chosen = _choices(kind, arguments)
    told = module.help_lines(chosen) if hasattr(module, "help_lines") else ()
    if isinstance(env := chosen.get("env"), str):
        from reflectkit.envs import env_class

        told = (f"Levels of {env}: {', '.join(env_class(env).levels)}", *told)
    by_panel = panels(leaves(kind, chosen))
    shown = {title for title, rows in by_panel.items() if title is None or any({*row.by} & {*chosen} for row in rows)}
    if HELP_ALL in arguments:
        shown = {*by_panel}
    else:
        more = 1 + sum(len(rows) for title, rows in by_panel.items() if title not in shown)  # 1: --config
        told = (f"{HELP_ALL} lists {more} more.", *told)
    lines = [*(re.sub(r"(?=\[)", r"\\", line) for line in told), "Examples:", *examples]  # "[" begins rich's markup
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
    settings = _settings(Path(given["--config"])) if choosing and given.get("--config") else {}
    settings |= dict(zip((leaf.name for leaf in rows if leaf.is_argument), positional, strict=False))
    settings |= {name: given[flag(name)] for name in choosing if flag(name) in given}
    return {name: value for name, value in settings.items() if name in choosing}


def _function(
    name: str, module: Any, kind: type[Config], by_panel: Mapping[str | None, Sequence[Leaf]], shown: Collection[Any]
) -> Callable[..., None]:
    """A function whose signature is the config's leaves, as typer reads it. shown: the panels in its help."""
    parameters = []
    for title, leaf in ((title, leaf) for title, rows in by_panel.items() for leaf in rows):
        required = leaf.default is REQUIRED
        plain = _plain(leaf.hint)
        metavar = "PATH" if is_path(leaf.hint) and plain != list[str] else None
        if leaf.is_argument:
            argument = typer.Argument(help=leaf.help, metavar=metavar)
            annotation: Any = Annotated[plain, argument]
        else:
            declared = flag(leaf.name)
            both = leaf.default is True or leaf.hint == bool | None
            annotation = Annotated[
                plain | None if required else plain,
                typer.Option(
                    f"{declared}/--no-{declared[2:]}" if both else declared,
                    help=leaf.help + (" Required." if required else ""),
                    metavar=metavar,
                    rich_help_panel=title,
                    hidden=title not in shown,
                ),
            ]
        default: Any = inspect.Parameter.empty if leaf.is_argument and required else None
        if not required:
            default = list(map(str, leaf.default)) if isinstance(leaf.default, tuple) else leaf.default
        parameters.append(
            inspect.Parameter(leaf.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )

    def command(context: typer.Context, config: Path | None, help_all: bool, **values: Any) -> None:
        from reflectkit.cli.display import RichProgress, Screen, show

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

    config_option = typer.Option("--config", help=CONFIG_HELP, rich_help_panel=LAST, hidden=LAST not in shown)
    file = Annotated[Path | None, config_option]
    every = Annotated[bool, typer.Option(HELP_ALL, is_eager=True, callback=_help, help="Show all settings and exit.")]
    parameters.append(inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=every))
    parameters.append(inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=file))
    parameters.append(inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__name__ = name.replace("-", "_")
    return command


def _help(context: typer.Context, asked: bool) -> None:
    """Print the help, if it is `asked` for; rich prints it where the text is made."""
    if asked:
        context.get_help()
        context.exit()


def _run(module: Any, settings: Any, progress: Any) -> Any:
    """The stage's report. A lost connection, an exit, or any other BaseException of the user's code is an error here:
    typer would end the command without a message.
    """
    try:
        for name, value in variables(settings).items():
            progress.news(f"{name}: {value}")
        return module.run(settings, progress)
    except BaseException as error:
        taken = isinstance(error, BrokenPipeError | EOFError) or not isinstance(error, Exception | KeyboardInterrupt)
        unread = isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError)  # the output
        if unread or not taken:
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__) from None


def _settings(path: Path) -> dict[str, Any]:
    """The settings in YAML file `path`. Raises DataError."""
    value = parse_yaml(text_of(path), path)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise DataError(path, "expected settings by name, as `env: taxi`")
    return {key.replace("-", "_"): setting for key, setting in value.items()}


def _plain(hint: Any) -> Any:
    """The type that typer gets: a tuple is a repeated flag. Paths stay text, as `Path("")` is the current folder, and
    choices too, as pydantic's error names the nearest.
    """
    (kind,) = alternatives(hint)
    if get_origin(kind) is tuple:
        return list[str]
    plain = str if kind is Path or get_origin(kind) is Literal else kind
    return plain if kind is hint else plain | None
