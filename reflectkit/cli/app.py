"""The commands: one per stage, in pipeline order, and `list`. A stage's module is imported only when its command runs.

Errors are printed here, once, as one line. `cli/main.py` lists the exit codes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from reflectkit.cli.explain import explain, interrupted, prepare, print_error, say
from reflectkit.commands import STAGES, is_own, summary
from reflectkit.errors import ConfigError, ReflectkitError
from reflectkit.version import VERSION

STOPPED = "stopped; run the same command again to resume"
STOPPED_PLAY = "stopped; finished episodes are kept"
NAME_WIDTH = 20  # of names in lists
HELP_FLAGS = {"help_option_names": ["-h", "--help"]}


class Stages(TyperGroup):
    """The commands by name, and stages of your own by dotted name (`research.pack`). Only the called one is built."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command named in `args`, with its flags."""
        args = [args[0], *map(_of_the_original, args[1:])]
        own = is_own(args[0])
        name, command, rest = (args[0], None, args[1:]) if own else super().resolve_command(ctx, args)
        if name is not None and (own or name in STAGES):
            from reflectkit.cli.command import stage_command

            command = stage_command(name, ["--help-all"] if ctx.resilient_parsing else rest)
        return name, command, rest


def _of_the_original(argument: str) -> str:
    """`argument` with the flag of the original toolkit's code as ours: `--task_file` is `--task-file`."""
    flag, equals, value = argument.partition("=")
    if not flag.startswith("--") or "_" not in flag:
        return argument
    flag = {"--load_dir": "--policy", "--reflect_load_dir": "--reflector"}.get(flag, flag.replace("_", "-"))
    return f"{flag}{equals}{value}"


app = typer.Typer(
    name="reflectkit",
    cls=Stages,
    help="Train small language models to act: a reflection model comments, and a policy model acts and learns by RL.",
    epilog="Start here:\n\n  $ reflectkit play --env taxi\n\n  $ reflectkit run taxi-tiny\n\n  $ reflectkit sft --help",
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
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the traceback of an error.")] = False,
) -> None:
    """Options that come before the command."""
    try:
        os.getcwd()
    except OSError:
        raise ConfigError("the working directory no longer exists; change to another folder") from None


for _name in STAGES:
    app.command(_name, help=summary(_name))(lambda: None)


LIST_EXAMPLES = (
    "reflectkit list",
    "reflectkit list --configs",
    'accelerate launch --config_file "$(reflectkit list --configs multi_gpu)" -m reflectkit rlft --env taxi …',
)


@app.command("list", epilog="Examples:\n\n" + "\n\n".join(f"  $ {example}" for example in LIST_EXAMPLES))
def _list(
    name: Annotated[
        str | None, typer.Argument(help="With --configs: show only the path of this one.", show_default=False)
    ] = None,
    configs: Annotated[
        bool, typer.Option("--configs", help="List the configs for `accelerate launch` instead, with their paths.")
    ] = False,
) -> None:
    """List environments and recipes."""
    if configs:
        from reflectkit.files import launch_config, launch_configs

        if name is not None:
            say(str(launch_config(name)))
            return
        say('configs: accelerate launch --config_file "$(reflectkit list --configs NAME)" -m reflectkit rlft …')
        for config, about in launch_configs().items():
            say(f"  {config:<12} {about}\n  {'':<12} {launch_config(config)}")
        return
    if name is not None:
        raise ConfigError(f"list {name!r}: only --configs takes a name; run `reflectkit list` to see everything")
    from reflectkit.cli.display import Screen
    from reflectkit.envs import env_class, env_names
    from reflectkit.recipe import load_recipe, recipe_names

    console = Screen()

    def show(name: str, text: str) -> None:
        console.read(f"  {name:<{NAME_WIDTH}} {text}", indent=NAME_WIDTH + 3)

    console.say("environments: reflectkit play --env NAME, with its levels and settings in --env NAME --help")
    for env in env_names():
        try:
            kind = env_class(env)
            about = vars(kind).get("__doc__") or f"levels: {', '.join(kind.levels)}"
            show(env, about.strip().splitlines()[0])
        except ReflectkitError as error:  # of another package
            show(env, str(error))
    console.say("recipes: reflectkit run NAME, with its steps and parameters in run NAME --help")
    for recipe_name in recipe_names():
        show(recipe_name, load_recipe(recipe_name).description)


def run(arguments: Sequence[str]) -> int:
    """Run the command line `arguments`; returns the exit code."""
    prepare()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it reads the metadata of every installed package
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _closed_pipe()
    except OSError as error:  # from the device behind standard output
        return explain(error)


def _run(arguments: Sequence[str]) -> int:
    message = STOPPED_PLAY if arguments[:1] == ["play"] else STOPPED
    try:
        outcome = app(args=list(arguments), prog_name="reflectkit", standalone_mode=False)
        code = outcome if isinstance(outcome, int) else 0
        return print_error(message, code) if code == 130 else code  # typer's own code for Ctrl-C
    except (KeyboardInterrupt, typer.Abort):
        return print_error(message, 130)
    except SystemExit as leaving:  # from typer after a completion, or from typer or rich on a closed pipe
        return _closed_pipe() if isinstance(leaving.__context__, BrokenPipeError) else int(leaving.code or 0)
    except Exception as error:
        if interrupted(error):
            return print_error(message, 130)
        return explain(error, with_traceback="--traceback" in arguments)


def _closed_pipe() -> int:
    """Standard output is a closed pipe, as with `| head -1`: exit quietly, as other programs do."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards what is still in the buffer
    return 141
