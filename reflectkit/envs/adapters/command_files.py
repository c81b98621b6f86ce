"""The user's files that a command line runs: those that it names, and what these import or run
themselves.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from reflectkit.errors import is_user_code
from reflectkit.registry import from_here, imported_files, imports_in, modules_in

PYTHON = re.compile(r"python[\d.]*(?:\.exe)?")
SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
PYTHON_RUNS = re.compile(r"-[bBdEhiIOPqsSuvx]*(?P<flag>[mc])(?P<text>.*)", re.DOTALL)
"""Python's options with a module or code to run, perhaps with others before it: -um NAME."""
SHELL_RUNS = re.compile(r"-[a-zA-Z]*c")
OPTION_WITH_VALUE = ("-X", "-W")
SHELL_FOLDER = re.compile(r".*[$`][^/]*/")
"""The beginning of a word in a script up to a folder that only the shell knows: "$HERE/",
"$(dirname $0)/".
"""
LARGEST_SCRIPT = 1 << 20
"""Bytes of a script that are looked through."""
LOOKS_ELSEWHERE = {
    ("importlib", "import_module"),
    ("sys", "path"),
    ("runpy", "run_path"),
    ("runpy", "run_module"),
}
"""Attributes with which Python code imports what import statements do not tell."""


class CommandFiles:
    """The files of a command with these words, which runs in the working directory.

    python_path: where the program's Python also looks for modules. files: absolute. opaque: what
    the command runs whose own files cannot be known, as people call it.
    """

    def __init__(
        self,
        words: Sequence[str],
        python_path: Sequence[Path] = (),
    ) -> None:
        here = Path.cwd()
        self.opaque: list[str] = []
        self._user_files: list[Path] = []
        self._modules: list[tuple[str, Path]] = []
        self._roots = [*python_path]
        self._runs_python = False
        # 1. What the command itself names
        self._read(words, [here])
        if not self._runs_python:
            self.opaque.append(
                str(from_here(self._user_files[0])) if self._user_files else words[0]
            )
        # 2. The code that scripts of a shell name
        # The list grows meanwhile, by scripts that scripts run
        for script in filter(_is_shell_script, self._user_files):
            text = script.read_text(encoding="utf-8", errors="replace")
            self._read(_words(text), [here, script.parent], code=True)
        # 3. What Python imports
        imported = [here / path for path in imported_files(self._modules, self._roots)]
        self.opaque += [str(from_here(path)) for path in imported if _looks_elsewhere(path)]
        self.files = sorted({*self._user_files, *imported})

    def _read(
        self,
        words: Sequence[str],
        folders: Sequence[Path],
        *,
        code: bool = False,
    ) -> None:
        """Note the files that `words` name, relative to one of the `folders`. code: only those that
        can be run.
        """
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if PYTHON.fullmatch(Path(word).name):
                self._run_python(rest, folders)
            elif Path(word).name in SHELLS:
                self._run_shell(rest, folders)
            else:
                # A file, perhaps as --option=FILE
                for name in dict.fromkeys([word, word.rpartition("=")[2]]):
                    self._name(name, folders, code=code)

    def _run_python(self, rest: list[str], folders: Sequence[Path]) -> None:
        """Note what Python runs with the arguments `rest`, from which its own are taken."""
        self._runs_python = True
        while rest and rest[0].startswith("-"):
            option = rest.pop(0)
            if option in OPTION_WITH_VALUE:
                rest[:1] = []
                continue
            runs = PYTHON_RUNS.fullmatch(option)
            if not runs:
                continue
            # 1. Code or a module, in the option's word or in the next
            text = runs["text"] or " ".join(rest[:1])
            if not runs["text"]:
                rest[:1] = []
            self._roots += folders
            names = imports_in(text) if runs["flag"] == "c" else [text, f"{text}.__main__"]
            modules = modules_in(self._roots, names)
            self._modules += modules
            if runs["flag"] == "m" and not modules:
                self.opaque.append(text)
            return
        # 2. A script, or a folder with one
        script = rest.pop(0) if rest else "python"
        names_file = [self._name(name, folders) for name in (script, f"{script}/__main__.py")]
        if not any(names_file):
            self.opaque.append(script)

    def _run_shell(self, rest: list[str], folders: Sequence[Path]) -> None:
        """Note what a shell runs with the arguments `rest`."""
        while rest and rest[0].startswith("-"):
            if SHELL_RUNS.fullmatch(rest.pop(0)) and rest:
                self._read(_words(rest.pop(0)), folders, code=True)
                return

    def _name(
        self,
        word: str,
        folders: Sequence[Path],
        *,
        code: bool = False,
    ) -> bool:
        """Note the file that `word` names. Returns whether it names one."""
        name, names_file = SHELL_FOLDER.sub("", word), False
        if not name:
            return False
        for folder in folders:
            path = Path(os.path.abspath(folder / name))
            if not path.is_file() or _is_installed(path):
                continue
            names_file = True
            if path in self._user_files:
                continue
            is_python = path.suffix == ".py" or b"python" in _first_line(path)
            if is_python:
                self._runs_python = True
                self._modules.append(("__main__", path))
                self._roots.append(path.parent)
            if is_python or not code or os.access(path, os.X_OK) or _is_shell_script(path):
                self._user_files.append(path)
        return names_file


def _words(script: str) -> list[str]:
    """The words of a script, as far as a shell's rules tell them apart."""
    words = []
    for line in script.splitlines():
        try:
            words += shlex.split(line, comments=True)
        except ValueError:  # a quotation over several lines
            words += re.findall(r"[^\s\"']+", line)
    return list(filter(None, (word.strip("();|&<>`") for word in words)))


def _is_shell_script(path: Path) -> bool:
    """Whether `path` is a text that another interpreter than Python runs."""
    first = _first_line(path)
    runs = path.suffix in (".sh", ".bash") or (bool(first) and b"python" not in first)
    return runs and os.access(path, os.R_OK) and path.stat().st_size <= LARGEST_SCRIPT


def _first_line(path: Path) -> bytes:
    """The line that names the interpreter of a script; empty if there is none."""
    with contextlib.suppress(PermissionError), path.open("rb") as file:
        return file.readline(200) if file.read(2) == b"#!" else b""
    return b""


def _is_installed(path: Path) -> bool:
    """Whether `path` is a program of the system or of a package, and none of the user's files."""
    on_path = shutil.which(path.name)
    return not is_user_code(str(path)) or (on_path is not None and os.path.samefile(on_path, path))


def _looks_elsewhere(path: Path) -> bool:
    """Whether the Python code in `path` imports what import statements do not tell."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError, PermissionError):
        return False
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    places = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            places.add((node.value.id, node.attr))
    return bool(names & {"__import__", "import_module"} or places & LOOKS_ELSEWHERE)
