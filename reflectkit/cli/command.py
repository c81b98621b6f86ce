"""A command line from a stage's config: one flag a field, its help text from the field; or a YAML file of settings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from reflectkit.cli.screen import process_number
from reflectkit.core.config import StageConfig, flag, from_mapping, is_path, parse_yaml
from reflectkit.core.errors import DataError
from reflectkit.core.jsonl import file_text
from reflectkit.stages import STAGES, config_class, stage_module

ASIDE = {"help", "config"}
"""Flags that are no settings."""


def stage_command(name: str, arguments: Sequence[str] = ()) -> Any:
    """The command of stage `name`: its module's text is the help, EXAMPLES the epilog.

    arguments: those of the command line, as some bring further flags along (`--algo package.module:NAME`).
    """
    module = stage_module(name)
    text = inspect.cleandoc(module.__doc__ or "").partition(": ")[2]
    summary = re.sub(r"(?<!\n)\n(?!\n)", " ", text[:1].upper() + text[1:])
    examples = [f"  $ {example}" for example in module.EXAMPLES]
    told = module.Config.help_lines(_choices(module.Config, arguments))
    lines = [*(re.sub(r"(?=\[)", r"\\", line) for line in told), "Examples:", *examples]  # "[" begins rich's markup
    single = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
    single.command(name, help=summary, epilog="\n\n".join(lines))(_function(name, module, arguments))
    return typer.main.get_command(single)


def stage_flags(*, every_env: bool = False) -> dict[str, set[str]]:
    """The flags of each command. every_env: with the own settings of all envs."""
    kinds = {name: config_class(name).chosen({}) for name in STAGES}
    return {
        name: {flag(item.name) for item in dataclasses.fields(kind) if not item.metadata.get("argument")}
        | {flag(other) for other in (kind.elsewhere() if every_env else ())}
        for name, kind in kinds.items()
    }


def _choices(kind: type[StageConfig], arguments: Sequence[str]) -> dict[str, Any]:
    """The settings in `arguments`, or in their --config file, that decide which flags there are."""
    given: dict[str, str] = {}
    if positional := [item.name for item in dataclasses.fields(kind) if item.metadata.get("argument")]:
        given |= dict(zip(positional, _positional(kind, arguments), strict=False))
    for position, argument in enumerate(arguments):
        written, equals, value = argument.partition("=")
        for name in ("config", *kind.choosers()):
            if written == flag(name) and (equals or position + 1 < len(arguments)):
                given[name] = value if equals else arguments[position + 1]
    settings = _settings(Path(given.pop("config"))) if kind.choosers() and "config" in given else {}
    return {name: value for name, value in (settings | given).items() if name in kind.choosers()}


def _positional(kind: type[StageConfig], arguments: Sequence[str]) -> list[str]:
    """The arguments that are neither flags nor values of flags."""
    hints = get_type_hints(kind)
    alone = {"--help", "-h"} | {flag(name) for name, hint in hints.items() if hint is bool}
    values: list[str] = []
    before = ""
    for argument in arguments:
        of_flag = (
            before.startswith("-") and "=" not in before and before not in alone and not before.startswith("--no-")
        )
        if not argument.startswith("-") and not of_flag:
            values.append(argument)
        before = argument
    return values


def _refuse_foreign(kind: type[StageConfig], arguments: Sequence[str]) -> None:
    """Raises ConfigError for a flag that the command has with another env only."""
    own = {item.name for item in dataclasses.fields(kind)}
    for argument in arguments:
        name = argument.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_")
        if argument.startswith("--") and name not in own | ASIDE and (refusal := kind.refusal(name)):
            raise refusal


def _function(name: str, module: Any, arguments: Sequence[str]) -> Callable[..., None]:
    """A function whose signature is the config's fields, as typer reads it."""
    chosen = module.Config.chosen(_choices(module.Config, arguments))
    _refuse_foreign(chosen, arguments)
    hints = get_type_hints(chosen)
    parameters = []
    for item in sorted(dataclasses.fields(chosen), key=order):
        required = item.default is dataclasses.MISSING
        kind = _plain(hints[item.name])
        metavar = "PATH" if is_path(hints[item.name]) and kind != list[str] else None
        if item.metadata.get("argument"):
            argument = typer.Argument(help=item.metadata["help"], metavar=metavar)
            annotation: Any = Annotated[kind, argument]
        else:
            declared = flag(item.name)
            both = item.default is True or hints[item.name] == bool | None
            names = [f"{declared}/--no-{declared[2:]}" if both else declared]
            text = item.metadata["help"] + (" Required." if required else "")
            annotation = Annotated[
                kind | None if required else kind,
                typer.Option(
                    *names,
                    help=text,
                    metavar=metavar,
                    rich_help_panel=panel(chosen, item.name),
                ),
            ]
        default: Any = inspect.Parameter.empty if item.metadata.get("argument") and required else None
        if not required:
            default = list(item.default) if isinstance(item.default, tuple) else item.default
        parameters.append(
            inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )

    def command(context: typer.Context, config: Path | None, **values: Any) -> None:
        from reflectkit.cli.display import RichProgress, Screen, show

        given = {
            key: value
            for key, value in values.items()
            if getattr(context.get_parameter_source(key), "name", "") != "DEFAULT"
        }
        settings = from_mapping(module.Config, (_settings(config) if config else {}) | given, name)
        console = Screen(quiet=process_number() > 0)
        with RichProgress(console) as progress:
            report = _run(module, settings, progress)
        show(console, report)
        if report.code:
            raise typer.Exit(report.code)

    text = "YAML file of settings, by the names of these flags; flags on the command line override it."
    file = Annotated[Path | None, typer.Option("--config", help=text, rich_help_panel=StageConfig.PANEL)]
    parameters.append(inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=file))
    parameters.append(inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__name__ = name.replace("-", "_")
    return command


def _run(module: Any, settings: Any, progress: Any) -> Any:
    """The stage's report. What typer would take for a wish to leave is an error: a lost connection, and code that
    exits or raises what is no Exception.
    """
    try:
        for name, value in settings.environment.items():
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
    try:
        value = parse_yaml(file_text(path), path)
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror}); give a YAML file of settings") from None
    except UnicodeDecodeError:
        raise DataError(path, "not UTF-8; save it as UTF-8") from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise DataError(path, "expected settings by name, as `env: taxi`")
    return {key.replace("-", "_"): setting for key, setting in value.items()}


def order(item: Any) -> int:
    """Required settings first, the ones that every stage has last."""
    return 2 if item.name in inspect.get_annotations(StageConfig) else 0 if item.default is dataclasses.MISSING else 1


def panel(config: type[StageConfig], name: str) -> str | None:
    """The heading of the class that setting `name` is from; None for the command's own."""
    owner = next(kind for kind in config.__mro__ if name in inspect.get_annotations(kind))
    return owner.__dict__.get("PANEL")


def _plain(hint: Any) -> Any:
    """The type that typer gets: a tuple of text is a repeated flag. Paths stay text, as `Path("")` is the current
    folder.
    """
    if get_origin(hint) is tuple:
        return list[str]
    if is_path(hint):
        return str if hint is Path else str | None
    return hint
