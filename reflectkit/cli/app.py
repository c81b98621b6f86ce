"""The commands: one per stage, in pipeline order, and `list`. A stage's module is imported only when
its command runs.

A stage's config makes its flags, one a field, with the help text of the field; `--config` reads them
from a YAML file.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_origin

import typer
from typer.core import TyperGroup

from reflectkit.cli.arguments import HELP_ALL, choices_in, read_settings, with_our_flags
from reflectkit.cli.failures import exit_code
from reflectkit.cli.screen import RichProgress, Screen, prepare, say, show
from reflectkit.commands import STAGES, config_class, is_own, stage_module
from reflectkit.console import Progress, Report, process_number
from reflectkit.errors import ConfigError, ReflectkitError
from reflectkit.version import VERSION

if TYPE_CHECKING:
    from reflectkit.config import Config, Leaf

FEW_EXAMPLES = 3
"""How many examples --help shows; --help-all shows all."""
HELP_FLAGS = {"help_option_names": ["-h", "--help"]}
CONFIG_HELP = (
    "YAML file of settings, by the names of these flags; flags on the command line override it."
)


class Stages(TyperGroup):
    """The commands by name, and stages of your own by dotted name (`research.pack`). Only the
    called one is built.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command named in `args`, with its flags."""
        name, *arguments = args
        if not is_own(name) and name not in STAGES:
            return super().resolve_command(ctx, args)
        arguments = with_our_flags(config_class(name), arguments)
        # A completion may be of any flag
        is_completion = ctx.resilient_parsing
        return name, stage_command(name, [HELP_ALL] if is_completion else arguments), arguments


app = typer.Typer(
    name="reflectkit",
    cls=Stages,
    help="Train small language models to act and to decide, by reward, in your own environment.",
    epilog=(
        "Start here:\n\n  $ reflectkit play --env taxi\n\n  $ reflectkit new maze\n\n"
        "  $ reflectkit run taxi-tiny --fast"
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

    # 1. The flags, by the headings of the help
    module, kind = stage_module(name), config_class(name)
    choices = choices_in(kind, arguments)
    by_panel = panels(leaves(kind, choices), getattr(module, "MINOR", ()))
    visible_panels = {*by_panel, LAST}
    if HELP_ALL not in arguments:
        visible_panels = {
            title for title, rows in by_panel.items() if title is None or _is_brought(rows, choices)
        }

    # 2. The lines below them
    lines = list(module.help_lines(choices)) if hasattr(module, "help_lines") else []
    if isinstance(env := choices.get("env"), str):
        from reflectkit.envs import env_class

        lines.insert(0, f"Levels ({env}): {', '.join(env_class(env).levels)}")
    if HELP_ALL not in arguments:
        more = sum(len(rows) for title, rows in by_panel.items() if title not in visible_panels)
        with_config = more + 1
        lines.insert(0, f"{HELP_ALL} lists {with_config} more.")
    lines = [line.replace("[", "\\[") for line in lines]  # "[" begins rich's markup
    examples = module.EXAMPLES if HELP_ALL in arguments else module.EXAMPLES[:FEW_EXAMPLES]
    lines += ["Examples:", *(f"  $ {example}" for example in examples)]

    # 3. The command
    text = inspect.cleandoc(module.__doc__ or "").partition(": ")[2]
    summary = re.sub(r"(?<!\n)\n(?!\n)", " ", text[:1].upper() + text[1:])
    single = typer.Typer(add_completion=False, context_settings=HELP_FLAGS)
    function = _function(name, module, kind, by_panel, visible_panels)
    single.command(name, help=summary, epilog="\n\n".join(lines))(function)
    return typer.main.get_command(single)


def _is_brought(rows: Sequence[Leaf], choices: Collection[str]) -> bool:
    """Whether one of the `choices` brings some of these settings."""
    return any({*row.by} & {*choices} for row in rows)


def _function(
    name: str,
    module: Any,
    kind: type[Config],
    by_panel: Mapping[str | None, Sequence[Leaf]],
    visible_panels: Collection[str | None],
) -> Callable[..., None]:
    """A function whose signature is the config's leaves, as typer reads it.

    visible_panels: those in its help.
    """
    from reflectkit.config import LAST, build

    def command(context: typer.Context, config: str | None, help_all: bool, **values: Any) -> None:
        # 1. The settings: flags override those of the file
        settings = read_settings(config) if config else {}
        for key, value in values.items():
            source = context.get_parameter_source(key)
            if getattr(source, "name", "") != "DEFAULT":
                settings[key] = value
        checked = build(kind, settings, name)

        # 2. The run
        console = Screen(quiet=process_number() > 0)
        with RichProgress(console) as progress:
            report = run_stage(module, checked, progress)
        show(console, report)
        if report.code:
            raise typer.Exit(report.code)

    parameters = []
    for title, rows in by_panel.items():
        for leaf in rows:
            parameters.append(_parameter(leaf, title, hidden=title not in visible_panels))
    help_all = typer.Option(
        HELP_ALL, is_eager=True, callback=_help, help="Show all settings and exit."
    )
    file = typer.Option(
        "--config",
        metavar="PATH",
        help=CONFIG_HELP,
        rich_help_panel=LAST,
        hidden=LAST not in visible_panels,
    )
    parameters += [
        _keyword("help_all", Annotated[bool, help_all], default=False),
        _keyword("config", Annotated[str | None, file], default=None),
        _keyword("context", typer.Context, default=None),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__name__ = name.replace("-", "_")
    return command


def _parameter(leaf: Leaf, title: str | None, *, hidden: bool) -> inspect.Parameter:
    """A setting as a parameter of a function that typer reads. title: its heading in the help."""
    from reflectkit.config import REQUIRED, alternatives, flag, is_path, parsed_type

    # 1. Its type. Paths stay text, as Path("") is the current folder, and choices too, as
    # pydantic's error names the nearest
    is_required = leaf.default is REQUIRED
    (hint,) = alternatives(leaf.hint)
    is_parsed = parsed_type(hint) is not None
    is_list = get_origin(hint) is tuple
    kind: Any = hint
    if hint is Path or get_origin(hint) is Literal or is_parsed:
        kind = str
    if is_list:
        kind = list[str]  # a repeated flag
    elif hint is not leaf.hint or kind is not hint:
        kind = kind | None
    takes_path = is_path(leaf.hint) or parsed_type(hint) is not None
    metavar = "PATH" if takes_path and not is_list else None

    # 2. Its default
    default = leaf.default
    if isinstance(default, tuple):
        default = list(map(str, default))

    # 3. An argument or a flag
    if leaf.is_argument:
        argument = typer.Argument(help=leaf.help, metavar=metavar)
        default = inspect.Parameter.empty if is_required else default
        return _keyword(leaf.name, Annotated[kind, argument], default)
    name = flag(leaf.name)
    has_negation = leaf.default is True or leaf.hint == bool | None
    option = typer.Option(
        f"{name}/--no-{name[2:]}" if has_negation else name,
        help=leaf.help + (" Required." if is_required else ""),
        metavar=metavar,
        rich_help_panel=title,
        hidden=hidden,
    )
    if is_required:
        kind, default = kind | None, None  # `build` says what is missing
    return _keyword(leaf.name, Annotated[kind, option], default)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _help(context: typer.Context, is_requested: bool) -> None:
    """Print the help; rich prints it where the text is made."""
    if is_requested:
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
        is_usual = isinstance(error, Exception | KeyboardInterrupt)
        is_lost = isinstance(error, BrokenPipeError | EOFError)
        # An exit because nobody reads the output any more
        is_unread = isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError)
        if is_unread or (is_usual and not is_lost):
            raise
        what = f"{type(error).__name__}: {error}"
        raise RuntimeError(what).with_traceback(error.__traceback__) from None


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
        return exit_code(error, arguments)
