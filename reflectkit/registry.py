"""Look-up by name. A table holds objects, or "module:attribute" strings that are imported on first
use.

Other packages add names with entry points, which are read only if a name is not in the table.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import importlib.util
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from reflectkit.errors import (
    DataError,
    UnknownNameError,
    is_user_code,
    unknown_name,
    user_code_line,
)
from reflectkit.files import OwnFolder, missing

IMPORT_FOLDERS: dict[str, str] = {}
"""The working folder that a user's module changed to while it was imported, by its `__name__`."""


def resolve(
    kind: str,
    name: str,
    table: Mapping[str, Any],
    group: str = "",
    fits: Callable[[type], bool] = lambda _: True,
) -> Any:
    """The object called `name`: from `table`, at "package.module:Attribute" or
    "folder/file.py:Attribute" (a file alone: its only class that `fits`), or from the entry points
    of `group` of an installed package.

    Raises
    ------
    UnknownNameError: not found; the message suggests the nearest name, or says why a module cannot
    be imported.
    """
    # 1. A name of ours, whose module is imported now
    if name in table:
        target = table[name]
        if not isinstance(target, str):
            return target
        module_name, _, attribute = target.partition(":")
        return getattr(importlib.import_module(module_name), attribute)

    # 2. A name that another package has registered
    if ":" not in name and not name.endswith(".py"):
        entry_points = plugins(group)
        if name in entry_points:
            point: Any = entry_points[name]
            return _imported(kind, name, point.load, point)
        module_name, _, attribute = name.rpartition(".")
        form = "file.py:NAME"
        if module_name and attribute.isidentifier():
            form = f"{module_name}:{attribute}"
        raise unknown_name(kind, name, [*table, *entry_points], hint=f"(your own: {form})")

    # 3. A class of the user's own; a file alone means its only class
    module_name = module_of(name)
    module = _imported(kind, name, lambda: _module_at(module_name))
    if name == module_name:
        return _only_class(kind, name, module, fits)
    attribute = name[len(module_name) + 1 :]
    if not hasattr(module, attribute):
        public_names = [key for key in vars(module) if key[0] != "_"]
        closest = difflib.get_close_matches(attribute, public_names, n=1, cutoff=0.5)
        advice = "write a name that it defines"
        if closest:
            advice = f"did you mean '{module_name}:{closest[0]}'?"
        where = module.__file__ or module_name
        raise UnknownNameError(
            f"cannot import {kind} {name!r}: {where} defines no '{attribute}'; {advice}"
        )
    return getattr(module, attribute)


def _only_class(
    kind: str,
    name: str,
    module: ModuleType,
    fits: Callable[[type], bool],
) -> Any:
    """The only class of the file `name` that fits. Raises UnknownNameError."""
    candidates = []
    for value in vars(module).values():
        is_defined_here = getattr(value, "__module__", "") == module.__name__
        is_class = is_defined_here and isinstance(value, type)
        if is_class and value not in candidates and fits(value):
            candidates.append(value)
    if not candidates:
        raise UnknownNameError(f"{name} is a file; name the {kind} that it defines, {name}:NAME")
    if len(candidates) > 1:
        names = ", ".join(value.__name__ for value in candidates)
        raise UnknownNameError(
            f"{name} defines several ({names}); write {name}:{candidates[0].__name__}, or another"
        )
    return candidates[0]


def module_of(name: str) -> str:
    """The module or file of something called `name`; "" for what is in no file of the user's.

    >>> module_of("algo.py"), module_of("run:1/algo.py:Mine"), module_of("package.algo:Mine"), module_of("grpo")
    ('algo.py', 'run:1/algo.py', 'package.algo', '')
    """
    return name if name.endswith(".py") else name.rpartition(":")[0]


def import_module(kind: str, name: str) -> Any:
    """The module at `name`, dotted or a file's path. Raises UnknownNameError."""
    return _imported(kind, name, lambda: _module_at(name))


def _imported(kind: str, name: str, load: Callable[[], Any], point: Any = None) -> Any:
    """What `load` imports. Raises UnknownNameError: someone else's module may fail in any way while
    it is imported.
    """
    try:
        return load()
    # Ctrl-C is for the command
    except KeyboardInterrupt:
        raise
    except DataError as error:
        raise UnknownNameError(f"{kind} {error}") from None
    except BaseException as error:
        # 1. Why it failed, with the place in the user's own code
        missing_name = error.name if isinstance(error, ModuleNotFoundError) else None
        module_name = name.rpartition(":")[0] or name
        if missing_name and f"{module_name}.".startswith(f"{missing_name}."):
            file = f"folder/{module_name.split('.')[-1]}.py:NAME"
            reason = f"no module named '{missing_name}'; install it, or give the file: {file}"
        else:
            place = "" if point else user_code_line(error)
            reason = " ".join(
                f"{f'{place}: ' if place else ''}{type(error).__name__}: {error}".split()
            )

        # 2. Whose it is, and what to do
        package = "a package"
        with contextlib.suppress(UnicodeDecodeError):  # damaged metadata
            package = point.dist.name if point else ""
        of, fix = (
            (f" of {package} ({point.value})", "; fix or remove that package")
            if point
            else ("", "")
        )
        raise UnknownNameError(f"cannot import {kind} {name!r}{of}: {reason}{fix}") from None


def _module_at(name: str) -> Any:
    """The module at `name`: dotted, also of the working directory, or a file's path."""
    # A dotted name, perhaps of a module in the working directory
    if not name.endswith(".py"):
        package = name.partition(".")[0]
        if Path(f"{package}.py").is_file() or Path(package).is_dir():
            _search_also(Path.cwd())
        with OwnFolder() as own:
            module = importlib.import_module(name)
        if own.folder is not None:
            IMPORT_FOLDERS[name] = own.folder
        return module
    # A file, whose own folder may have modules that it imports
    path, key = Path(name).absolute(), module_key(name)
    if key not in sys.modules:
        if not path.is_file():
            raise missing(Path(name))
        _search_also(path.parent)
        spec: Any = importlib.util.spec_from_file_location(key, path)
        sys.modules[key] = importlib.util.module_from_spec(spec)
        try:
            with OwnFolder() as own:
                spec.loader.exec_module(sys.modules[key])
        # A module that failed must not be found half-made
        except BaseException:
            del sys.modules[key]
            raise
        if own.folder is not None:
            IMPORT_FOLDERS[key] = own.folder
    return sys.modules[key]


def _search_also(folder: Path) -> None:
    """Let Python look for modules in `folder`, after all other places."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def module_key(name: str) -> str:
    """The name in `sys.modules` of the module at `name`, which may be a file's path: one that hides
    no other module.
    """
    path = Path(name).absolute()
    return f"{path.stem}_{zlib.crc32(str(path).encode()):08x}" if name.endswith(".py") else name


def code_files(modules: Iterable[str]) -> list[Path]:
    """The user's own files among the imported `modules` (names, or paths of files), and those that
    they import from their own folder or package, also within functions. Files in the working
    directory are relative to it.
    """
    starts = []
    # Only what was imported has a file to read
    for module in map(module_key, modules):
        if file := getattr(sys.modules.get(module), "__file__", None):
            path = Path(file).absolute()
            starts += [(module, path), *modules_in([_root(module, path)], [module])]
    return imported_files(starts)


def imported_files(starts: Iterable[tuple[str, Path]], roots: Sequence[Path] = ()) -> list[Path]:
    """The user's own files among `starts`, modules as (name, file), and those that they import,
    also within functions: from the folder of the outermost package of each, and from the folders
    `roots`.
    """
    pending = list(starts)
    files: set[Path] = set()
    # Each file once, and then what it imports
    while pending:
        name, path = pending.pop()
        if path not in files and path.is_file() and is_user_code(str(path)):
            files.add(path)
            pending += modules_in([_root(name, path), *roots], _imports_of(name, path))
    return [from_here(path) for path in sorted(files)]


def from_here(path: Path) -> Path:
    """`path` relative to the working directory, if it is in it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _root(name: str, path: Path) -> Path:
    """The folder from which module `name` with the file `path` is imported."""
    place = path.parent if path.name == "__init__.py" else path
    return place.parents[name.count(".")]


def modules_in(roots: Iterable[Path], imported: Iterable[str]) -> list[tuple[str, Path]]:
    """The (name, file) of those of the `imported` modules, and of the packages that they are in,
    that are in one of the folders `roots`.
    """
    parts = [module.split(".") for module in imported]
    names = dict.fromkeys(
        tuple(part[:depth]) for part in parts for depth in range(1, len(part) + 1)
    )
    files = [
        (".".join(part), file)
        for root in roots
        for part in names
        for file in (
            root.joinpath(*part, "__init__.py"),
            root.joinpath(*part[:-1], f"{part[-1]}.py"),
        )
    ]
    return [(module, file) for module, file in files if file.is_file()]


def _imports_of(name: str, path: Path) -> list[str]:
    """The names that the code in `path`, the file of module `name`, imports; some may be no
    modules.
    """
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    try:
        return imports_in(path.read_bytes(), package)
    except PermissionError:  # its digest tells that
        return []


def imports_in(code: bytes | str, package: str = "") -> list[str]:
    """The names that Python `code` of a module in `package` imports; some may be no modules."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError):  # it was not imported yet, or could not be
        return []
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            base = [*above, *(node.module or "").split(".")] if node.module else above
            names += [".".join(base), *(".".join([*base, alias.name]) for alias in node.names)]
    return [name for name in names if name]


def plugins(group: str) -> dict[str, metadata.EntryPoint]:
    """The entry points of `group` by name, as installed packages declare them; nothing is imported.
    Of two with one name it is the first on Python's path. A package whose list is damaged offers
    nothing.
    """
    entry_points: dict[str, metadata.EntryPoint] = {}
    for package in metadata.distributions() if group else ():
        with contextlib.suppress(Exception):  # not UTF-8, or not in the format
            for point in package.entry_points.select(group=group):
                entry_points.setdefault(point.name, point)
    return entry_points
