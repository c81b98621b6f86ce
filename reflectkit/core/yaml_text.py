"""YAML text as plain Python values; recipes, `--config` files and `--set` use it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from reflectkit.core.errors import DataError

_DEEPEST, _MOST_PARTS = 50, 100_000
_TOO_DEEP = f"not settings: nested more than {_DEEPEST} deep, or of more than {_MOST_PARTS:,} parts"


def parse_yaml(text: str, where: Path | str) -> Any:
    """The value of YAML `text`. Raises DataError, naming `where`; a key given twice is an error too, as in YAML 1.2."""
    import yaml

    try:
        loader = _loader()(text)
        node = loader.get_single_node()
        if repeated := _repeated_key(node):
            raise DataError(where, f"the key {repeated.value!r:.60} is given twice", line=repeated.start_mark.line + 1)
        value = loader.construct_document(node) if node else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise DataError(
            where, f"not YAML: {getattr(error, 'problem', error)}", line=mark.line + 1 if mark else None
        ) from None
    except ValueError as error:  # such as a date of a 13th month
        raise DataError(where, f"not YAML: {error}") from None
    except RecursionError:
        raise DataError(where, _TOO_DEEP) from None
    parts: list[tuple[Any, int]] = [(value, 1)]  # with their depth; aliases can make a short text endless
    for number, (part, depth) in enumerate(parts):
        if depth > _DEEPEST or number > _MOST_PARTS:
            raise DataError(where, _TOO_DEEP)
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        parts += [(element, depth + 1) for element in inner]
    return value


@cache
def _loader() -> Any:
    """The class that reads YAML, where 1e-4 is a number as in YAML 1.2."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Its own table of how numbers look."""

    number = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    return Loader


def _repeated_key(root: Any) -> Any:
    """The node of a key that is given twice in one mapping of the YAML node `root`; None if there is none."""
    import yaml

    nodes, seen = [root], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            nodes += [part for pair in node.value for part in pair]
            keys = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if (key.tag, key.value) in keys:
                    return key
                keys.add((key.tag, key.value))
    return None
