"""Reads a command line before click parses it: the one place that does, for two reasons.

`--env NAME`, `--algo NAME` and their like bring flags of their own, and click must know all flags
before it parses, wherever on the line they are. And command lines of the original toolkit work as
they are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectkit.errors import DataError
from reflectkit.foreign_names import translated

if TYPE_CHECKING:
    from reflectkit.config import Config

HELP_ALL = "--help-all"
SWITCHES = {"--help", "-h", HELP_ALL}
"""Flags of every command that take no value."""


def with_our_flags(kind: type[Config], arguments: Sequence[str]) -> list[str]:
    """`arguments` of a command with the settings `kind`, in which the original's flags are ours."""
    from reflectkit.config import leaves

    if not any(argument.startswith("--") and "_" in argument for argument in arguments):
        return list(arguments)
    return translated(arguments, {leaf.name for leaf in leaves(kind)}, _levels)


def _levels(env: str) -> Sequence[str]:
    from reflectkit.envs import env_class

    return env_class(env).levels


def choices_in(kind: type[Config], arguments: Sequence[str]) -> dict[str, Any]:
    """The settings in `arguments`, or in their --config file, that decide which flags there are."""
    from reflectkit.config import choosers, flag, leaves

    # 1. Values by flag, and the arguments without a flag
    deciding, rows = choosers(kind), leaves(kind)
    switches = SWITCHES | {flag(leaf.name) for leaf in rows if leaf.hint is bool}
    values: dict[str, str] = {}
    positional: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if not argument.startswith("-"):
            positional.append(argument)
        elif name not in switches and not name.startswith("--no-"):
            values[name] = value if equals else next(rest, "")

    # 2. Settings by name: of the file, the arguments and the flags, the last of which counts
    file = values.get("--config")
    settings = read_settings(file) if deciding and file else {}
    names = (leaf.name for leaf in rows if leaf.is_argument)
    settings |= dict(zip(names, positional, strict=False))
    for leaf in rows:
        if flag(leaf.name) in values:
            settings[leaf.name] = values[flag(leaf.name)]
    settings = kind.implied(settings) | settings
    return {name: value for name, value in settings.items() if name in deciding}


def read_settings(path: str) -> dict[str, Any]:
    """The settings in YAML file `path`. Raises DataError."""
    from reflectkit.config import parse_yaml
    from reflectkit.jsonl import text_of

    value = parse_yaml(text_of(Path(path)), path)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise DataError(path, "expected settings by name, as `env: taxi`")
    return {key.replace("-", "_"): setting for key, setting in value.items()}
