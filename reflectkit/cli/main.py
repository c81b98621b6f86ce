"""`reflectkit`: one command a stage, in pipeline order. Errors are printed here, once: one line and exit code 2.

Exit codes: 0 done, 1 our own failure, 2 something that the user can mend, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from reflectkit import __version__
from reflectkit.cli.command import add_stage, process_number, stage_flags
from reflectkit.core.errors import ReflectkitError
from reflectkit.core.text import visible
from reflectkit.envs import ENVS, env_class
from reflectkit.stages import STAGES
from reflectkit.stages.run import load_recipe, recipe_names

FULL_DISK_BYTES = 4 * 2**20
STOPPED = "stopped; the same command goes on from here"
LEFT_PLAY = "stopped; the episodes that were played to their end are kept"

app = typer.Typer(
    name="reflectkit",
    help="Train small language models to act: a frozen reflection model comments, a policy model acts, and learns by RL.",
    epilog="Start here:\n\n  $ reflectkit play --env taxi\n\n  $ reflectkit run taxi-tiny\n\n  $ reflectkit sft --help",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"reflectkit {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")] = False,
) -> None:
    """Options that stand before the command."""


for _name in STAGES:
    add_stage(app, _name)


@app.command("list", epilog="Examples:\n\n  $ reflectkit list")
def _list() -> None:
    """What there is: environments with their levels, and recipes with their ablations."""
    print("environments")
    for name in ENVS:
        print(f"  {name:<20} levels: {', '.join(env_class(name).levels)}")
    print("recipes")
    for name in recipe_names():
        recipe = load_recipe(name)
        print(f"  {name:<20} {recipe.description}")
        if recipe.ablations:
            print(f"  {'':<20} --ablate {','.join(recipe.ablations)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    stopped = LEFT_PLAY if given[:1] == ["play"] else STOPPED
    try:
        outcome = app(args=given, standalone_mode=False)
        code = outcome if isinstance(outcome, int) else 0
        return _say(stopped, code) if code == 130 else code  # typer's own code for Ctrl-C
    except typer.Exit as leaving:
        return leaving.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _say(stopped, 130)
    except Exception as error:
        if "--traceback" in given:
            traceback.print_exc()
        return _explain(error)


def _explain(error: Exception) -> int:
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "reflectkit"
        if not error.format_message().strip():  # no command at all: the help is on the screen already
            return 2
        return _say(f"{error.format_message().rstrip('.')} (see `{command} --help`{_elsewhere(error)})", 2)
    if isinstance(error, ReflectkitError):
        return _say(str(error), 2)
    full = shutil.disk_usage(os.getcwd()).free < FULL_DISK_BYTES
    if full or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)) or "No space left" in str(error):
        return _say("the disk is full; free some space and run the same command again, it goes on", 2)
    if isinstance(error, OSError) and error.errno in (
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.ENAMETOOLONG,
    ):
        return _say(f"{error.filename or 'a file'}: {error.strerror}; choose another place, or change its permissions", 2)
    what = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
    if place := _in_code_of_theirs(error):
        return _say(f"{place}: {what} (`reflectkit --traceback …` shows how it came there)", 2)
    return _say(f"{what} (a failure of reflectkit's own; `reflectkit --traceback …` shows where)", 1)


def _in_code_of_theirs(error: Exception) -> str:
    """The line of an environment of the user's own that `error` came out of; empty where there is none."""
    ours = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<")
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if not file.startswith(ours) and not {"site-packages", "dist-packages"} & set(Path(file).parts):
            return f"{file}, line {line}"
    return ""


def _elsewhere(error: Exception) -> str:
    """Which one command has the flag that this one lacks."""
    missing = getattr(error, "option_name", None) if type(error).__name__ == "NoSuchOption" else None
    having = [name for name, flags in stage_flags().items() if missing in flags]
    return f"; `reflectkit {having[0]}` has it" if len(having) == 1 else ""


def _say(text: str, code: int) -> int:
    who = f" (process {process_number()})" if process_number() else ""
    print(f"reflectkit{who}: {visible(' '.join(text.split()))}", file=sys.stderr)
    return code


def entry() -> None:
    """The console script."""
    sys.exit(main())
