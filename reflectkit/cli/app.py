"""The commands: one per stage, in pipeline order, and `list`. A stage's module is imported only when its command runs.

Errors are printed here, once, as one line. `cli/main.py` lists the exit codes.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from reflectkit.commands import STAGES, is_own, summary
from reflectkit.console import process_number, visible
from reflectkit.errors import NO_ROOM, ConfigError, ReflectkitError, UnknownNameError, user_code_line
from reflectkit.version import VERSION

HELP_FLAGS = {"help_option_names": ["-h", "--help"]}
BAD_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)


class Stages(TyperGroup):
    """The commands by name, and stages of your own by dotted name (`research.pack`). Only the called one is built."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command named in `args`, with its flags."""
        args = [args[0], *(mapped for arg in args[1:] for mapped in _of_the_original(args[0], arg))]
        own = is_own(args[0])
        name, command, rest = (args[0], None, args[1:]) if own else super().resolve_command(ctx, args)
        if name is not None and (own or name in STAGES):
            from reflectkit.cli.command import stage_command

            command = stage_command(name, ["--help-all"] if ctx.resilient_parsing else rest)
        return name, command, rest


def _of_the_original(command: str, argument: str) -> list[str]:
    """`argument` with the flag of the original toolkit's code as ours: `--task_file` is `--task-file`, and
    `--shuffle_action=True` is `--shuffle-action`.
    """
    flag, equals, value = argument.partition("=")
    if not flag.startswith("--") or "_" not in flag:
        return [argument]
    loaded = "--model" if command == "sft" else "--policy"
    flag = {"--load_dir": loaded, "--reflect_load_dir": "--reflector"}.get(flag, flag.replace("_", "-"))
    if value in ("True", "False"):
        return [flag] if value == "True" else []
    return [f"{flag}{equals}{value}"]


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
    from reflectkit.files import launch_config, launch_configs

    if name is not None and not configs:
        raise ConfigError(f"list {name!r}: only --configs takes a name; run `reflectkit list` to see everything")
    if name is not None:
        say(str(launch_config(name)))
        return
    if configs:
        say('configs: accelerate launch --config_file "$(reflectkit list --configs NAME)" -m reflectkit rlft …')
        for config, about in launch_configs().items():
            say(f"  {config:<12} {about}\n  {'':<12} {launch_config(config)}")
        return
    from reflectkit.envs import env_class, env_names
    from reflectkit.recipe import load_recipe, recipe_names

    say("environments: reflectkit play --env NAME, with its levels and settings in --env NAME --help")
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


def run(arguments: Sequence[str]) -> int:
    """Run the command line `arguments`; returns the exit code."""
    prepare()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it reads the metadata of every installed package
    try:
        outcome = app(args=list(arguments), prog_name="reflectkit", standalone_mode=False)
        sys.stdout.flush()
        if outcome == 130:  # typer's code for Ctrl-C
            raise KeyboardInterrupt
        return outcome if isinstance(outcome, int) else 0
    except BaseException as error:
        # typer and rich end the process when the pipe is closed
        if BrokenPipeError in (type(error), isinstance(error, SystemExit) and type(error.__context__)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards what is still in the buffer
            return 141
        if isinstance(error, typer.Abort) or _interrupted(error):
            kept = "finished episodes are kept" if arguments[:1] == ["play"] else "run the same command again to resume"
            return print_error(f"stopped; {kept}", 130)
        if isinstance(error, SystemExit):  # after a completion
            return int(error.code or 0)
        return _explain(error, with_traceback="--traceback" in arguments)


def prepare() -> None:
    """Make the standard streams accept any text. A stream that was closed at the start becomes the null device."""
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
    """Print `error` as one line; returns the exit code. with_traceback: print its traceback as well."""
    import traceback

    from reflectkit.keys import masked

    if with_traceback:
        say(masked("".join(traceback.format_exception(error))).rstrip(), sys.stderr)
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, ReflectkitError):
        return print_error(str(error), 2)
    if isinstance(error, typer.TyperException):
        return print_error(_usage(error), 2) if error.format_message().strip() else 2  # the help was printed already
    if number in NO_ROOM or "No space left" in str(error):
        what = "a file exceeds this shell's limit (`ulimit -f`)" if number == errno.EFBIG else "the disk is full"
        return print_error(f"{what}; free some space and run the same command again to resume", 2)
    if isinstance(error, OSError) and number in BAD_PATH:
        path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a file"
        return print_error(f"{path}: {error.strerror}; choose another location or change its permissions", 2)
    if isinstance(error, MemoryError):
        return print_error("out of memory; close other programs or use smaller settings", 2)
    summary = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
    if line := user_code_line(error):
        return print_error(f"{line}: {summary} (`reflectkit --traceback …` shows the traceback)", 2)
    return print_error(f"{summary} (internal error; `reflectkit --traceback …` shows the traceback)", 1)


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
        from reflectkit.commands import config_class
        from reflectkit.config import leaves, unknown_setting

        kind = config_class(stage)
        name = str(getattr(error, "option_name", "")).removeprefix("--").removeprefix("no-").replace("-", "_")
        known = unknown_setting(kind, name, [leaf.name for leaf in leaves(kind)], "")
        if not isinstance(known, UnknownNameError):
            return str(known)
    help_command = f"{context.command_path if context else 'reflectkit'} --help"
    return f"{error.format_message().rstrip('.')} (see `{help_command}`)"
