"""Writes two modules from the flags: the types of the settings that Python functions take, and the names of all flags.

python docs/python_keywords.py
"""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from reflectkit.commands import STAGES, config_class
from reflectkit.config import Leaf, choices, is_path, leaves, parsed_type
from reflectkit.integrations.call import PLAYERS
from reflectkit.jsonl import write_text

COMMANDS = ("rlft", "sft", "evaluate", "gen-trajectory", "split", "gen-sft")
PACKAGE = Path(__file__).parents[1] / "reflectkit"
PLACE = PACKAGE / "integrations" / "keywords.py"
NAMES_PLACE = PACKAGE / "flag_names.py"
HEAD = '''"""The settings of `reflectkit.rlft` and its like, for editors; from docs/python_keywords.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

if TYPE_CHECKING:
    from reflectkit.integrations.call import Result

Player: TypeAlias = "str | Path | Result"
'''
NAMES_HEAD = '''"""The names of the settings of all commands, which an environment's arguments cannot have; from
docs/python_keywords.py.
"""

from __future__ import annotations

'''


def module() -> str:
    """The text of the module with the types."""
    return "\n\n".join([HEAD, *map(keywords, COMMANDS)])


def names_module() -> str:
    """The text of the module with the names of all flags."""
    names = sorted({name for command in STAGES for name in settings(command)})
    lines = [f"        {json.dumps(name)},\n" for name in names]
    return f"{NAMES_HEAD}FLAG_NAMES = frozenset(\n    {{\n{''.join(lines)}    }}\n)\n"


def keywords(command: str) -> str:
    """The class with a command's settings."""
    rows = settings(command)
    fields = [f"    {name}: {annotation(leaf)}" for name, leaf in rows.items() if name != "env"]
    title = "".join(part.capitalize() for part in command.split("-"))
    head = [f"class {title}Settings(TypedDict, total=False):", f'    """Of `{command}`."""', ""]
    return "\n".join([*head, *fields, ""])


def settings(command: str) -> dict[str, Leaf]:
    """A command's settings by name, those of its own algorithms included."""
    kind = config_class(command)
    rows = {leaf.name: leaf for leaf in leaves(kind)}
    for owner, others in choices(kind).items():
        if not owner.startswith("env "):
            rows |= {leaf.name: leaf for leaf in others if leaf.name not in rows}
    return rows


def annotation(leaf: Leaf) -> str:
    """The type of a setting, as code."""
    if leaf.name in PLAYERS:
        several = get_origin(leaf.hint) is tuple
        return "Player | Sequence[Player] | Mapping[str, Player]" if several else "Player"
    return code(leaf.hint)


def code(hint: Any) -> str:
    """A type as code: a path may be a text, and a tuple any sequence."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(code(part) for part in parts))
    if hint is NoneType:
        return "None"
    if origin is Literal:
        return f"Literal[{', '.join(map(json.dumps, parts))}]"
    if origin is tuple:
        return f"Sequence[{code(parts[0])}]"
    if is_path(hint) or parsed_type(hint) is not None:
        return "str | Path"
    return hint.__name__ if hint in (bool, int, float, str) else "Any"


if __name__ == "__main__":
    for place, text in ((PLACE, module()), (NAMES_PLACE, names_module())):
        write_text(place, text)
        print(place)
