"""An offline teacher that asks about what a file says about itself.

Docstrings, comments, headings, function and class names, table headers and configuration keys become questions
(see `wording`). A question never contains the file's name, applies to only one file of the repository, and is the
same each time.
"""

from __future__ import annotations

import ast
import csv
import io
import itertools
import json
import random
import re
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from reflectkit.envs.auto_explore.filtering import DATA, SETTINGS, kind_of
from reflectkit.envs.auto_explore.questions import FileQuestion
from reflectkit.envs.auto_explore.wording import CODE, NOTES, TEXT, spelled, tidy, word_set, worded
from reflectkit.seeding import generator
from reflectkit.text import keywords, notebook_source, words

MODEL = "oracle"
WORDS_IN_QUESTION = (2, 24)
LONGEST_LINE = 300  # maximum characters of a line that may be a definition
MOST_YAML = 1 << 18  # characters; larger YAML files are not parsed
SENTENCE = re.compile(r"(.+?[.!?:])(?:\s|$)", re.DOTALL)
DEFINITION = re.compile(
    r"^\s*(?:(?:public|private|protected|internal|static|final|const|inline|virtual|override|async|export|unsigned|func)\s+)*"
    r"(?:[\w<>\[\],*&:]+\s+)*?(?:\*|&)?(?P<name>[A-Za-z_]\w*)\s*\(",
)
FENCED = re.compile(r"^ {0,3}(```|~~~).*?^ {0,3}\1[^\n]*$", re.MULTILINE | re.DOTALL)
"""Code in Markdown, whose comments are no headings."""
PYTHON_DEFINITION = re.compile(r"^\s*(?:async\s+)?(?:def|class)\s+(?P<name>[A-Za-z]\w*)")
KEYWORDS = word_set(
    "if for while switch return else catch foreach using sizeof case do throw new range defer go select"
)
NOTES_OF = frozenset({"changelog", "changes", "history", "news", "releases", "whatsnew"})
"""Names of release notes."""
CONTINUED = frozenset({"and", "but", "e.g", "i.e", "nor", "note", "or", "see", "so", "then", "todo"})
"""First words of a sentence that says little without the text before it."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Something that a file says. kind: see `worded`. text: for the question. answer: what the file says."""

    kind: str
    text: str
    answer: str


def ask(
    root: str, files: Mapping[str, str], excerpts: Mapping[str, str], per_file: int
) -> dict[str, list[FileQuestion]]:
    """Up to `per_file` questions for each file of repository `root`, by path, about its excerpt.

    files: path → text. excerpts: path → the part of it to ask about. Facts that occur in
    two files are used for neither. Wording and selection depend only on the repository, the path
    and the text.
    """
    facts = {path: list(_usable_facts(path, files[path])) for path in sorted(files)}
    holders = Counter(key for in_file in facts.values() for key in {_key(fact) for fact in in_file})
    questions: dict[str, list[FileQuestion]] = {}
    for path, in_file in facts.items():
        chance = generator(0, "oracle", root, path)
        excerpt_words = set(keywords(excerpts[path]))
        own = {
            _key(fact): fact for fact in in_file if holders[_key(fact)] == 1 and excerpt_words.issuperset(_key(fact))
        }
        questions[path] = [
            FileQuestion.about(root, path, text, fact.answer, MODEL)
            for fact in _varied(list(own.values()), per_file, chance)
            if not leaks(text := worded(fact.kind, fact.text, _place(path), chance), path)
        ]
    return questions


def leaks(question: str, path: str) -> bool:
    """Whether `question` quotes the name of file `path`: the name itself, or all of its stem's words in a row.

    >>> leaks("Where are late fees set?", "app/late_fees.py")
    True
    >>> leaks("Where are fees for late books set?", "app/late_fees.py")
    False
    """
    name = PurePosixPath(path)
    stem = " ".join(words(name.stem))
    return name.name.lower() in question.lower() or (bool(stem) and f" {stem} " in f" {' '.join(words(question))} ")


def _key(fact: Statement) -> tuple[str, ...]:
    return tuple(sorted(keywords(fact.text)))


def _varied(facts: list[Statement], count: int, chance: random.Random) -> list[Statement]:
    """At most `count` of `facts`, spread over as many kinds as possible."""
    by_kind: dict[str, list[Statement]] = {}
    for fact in facts:
        by_kind.setdefault(fact.kind, []).append(fact)
    for same in by_kind.values():
        chance.shuffle(same)
    chosen: list[Statement] = []
    while len(chosen) < count and any(by_kind.values()):
        chosen += [same.pop() for same in by_kind.values() if same]
    return chosen[:count]


def _usable_facts(path: str, text: str) -> Iterator[Statement]:
    """The facts of one file that have enough distinctive words."""
    stem = set(keywords(" ".join(words(PurePosixPath(path).stem))))
    low, high = WORDS_IN_QUESTION
    for fact in _facts(path, text):
        plain = Statement(fact.kind, tidy(fact.text), " ".join(fact.answer.split())[:300])
        distinctive = {word for word in keywords(plain.text) if not word.isdigit()} - stem
        long_enough = low <= len(words(plain.text)) <= high and len(distinctive) >= low
        if long_enough and plain.text.isprintable() and _reads_alone(plain.text):
            yield plain


def _reads_alone(text: str) -> bool:
    """Whether `text` is not the rest of something, and closes what it opens."""
    first = text.split()[0].lower().strip(".,")
    return (
        first not in CONTINUED
        and "', '" not in text
        and all(text.count(a) == text.count(b) for a, b in ("()", "[]", "{}"))
    )


def _place(path: str) -> str:
    """What kind of text the sentences of file `path` stand in; see `worded`."""
    if kind_of(path) == "code":
        return CODE
    return NOTES if PurePosixPath(path).stem.lower() in NOTES_OF else TEXT


def _facts(path: str, text: str) -> Iterator[Statement]:
    suffix = PurePosixPath(path).suffix.lower()
    if suffix == ".ipynb":
        source = notebook_source(text)
        yield from _headings(source)
        yield from _code(source)
    elif suffix == ".py":
        yield from _python(text)
    elif suffix in SETTINGS:
        yield from _settings(text, suffix)
    elif suffix in DATA:
        yield from _table(text, "\t" if suffix == ".tsv" else ",")
    elif kind_of(path) == "text":
        headings = list(_headings(text))
        yield from headings or _paragraphs(text)
    else:
        yield from _code(text)


def _python(text: str) -> Iterator[Statement]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escape sequences in the file
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # such as that of a text that is cut
        yield from _code(text, PYTHON_DEFINITION)
        return
    if documented := ast.get_docstring(tree):
        yield Statement("about", _lowered(_sentence(documented)), _sentence(documented))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            documented = ast.get_docstring(node)
            if documented:
                yield Statement("does", _lowered(_sentence(documented)), f"{node.name}: {_sentence(documented)}")
            kind = "class" if isinstance(node, ast.ClassDef) else "name"
            yield Statement(kind, spelled(node.name), f"{node.name}, in line {node.lineno}")


def _code(text: str, definitions: re.Pattern[str] = DEFINITION) -> Iterator[Statement]:
    """Comments above definitions, and the definitions' names, in shell scripts and languages with braces."""
    comment: list[str] = []
    first = True
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("#!"):
            continue
        if bare.startswith(("//", "/*", "*", "#")) and not bare.startswith(
            ("#include", "#define", "#if", "#endif", "#else")
        ):
            comment.append(re.sub(r"</?\w+>", "", bare).strip("/*#! ").strip())
            continue
        definition = definitions.match(line) if len(line) <= LONGEST_LINE else None
        sentence = _sentence(" ".join(part for part in comment if part and not part.startswith("@")))
        if sentence and first and bare:
            yield Statement("about", _lowered(sentence), sentence)
        elif definition and definition["name"] not in KEYWORDS and not bare.endswith(";"):
            if sentence:
                without = sentence.removeprefix(f"{definition['name']} ")  # as comments in Go begin
                yield Statement("does", _lowered(without), f"{definition['name']}: {sentence}")
            yield Statement("name", spelled(definition["name"]), definition["name"])
        elif sentence and bare:
            yield Statement("does", _lowered(sentence), sentence)
        if bare:
            comment, first = [], False


def _headings(text: str) -> Iterator[Statement]:
    """Headings in Markdown (`#`) and reStructuredText (underlined), with the text below them as the answer."""
    lines = FENCED.sub("", text).splitlines()
    for index, line in enumerate(lines):
        following = lines[index + 1].strip() if index + 1 < len(lines) else ""
        below = " ".join(
            part.strip() for part in lines[index + 1 : index + 12] if re.search(r"\w", part) and part[0] != "#"
        )
        if marked := re.match(r"#{1,6}\s+(.+)", line):
            yield Statement("heading", _lowered(marked[1]), _sentence(below))
        elif line.strip() and len(following) >= len(line.strip()) > 3 and re.fullmatch(r"[=\-~^\"'+#*]+", following):
            yield Statement("heading", _lowered(line), _sentence(below))
        elif match := re.match(r"\s*[-*]\s+(\w.{12,90}?)[:.](?:\s|$)", line):
            entry = line.strip(" -*")
            yield Statement(_kind_said(entry, match[1]), _lowered(match[1]), entry)


def _paragraphs(text: str) -> Iterator[Statement]:
    """The first sentence of each paragraph."""
    for paragraph in re.split(r"\n\s*\n", text)[:50]:
        sentence = _sentence(paragraph)
        yield Statement(_kind_said(paragraph, sentence), _lowered(sentence), sentence)


def _kind_said(text: str, beginning: str) -> str:
    """ "says" if `beginning`, with which `text` begins, is a whole sentence there; else "about"."""
    return "says" if " ".join(text.split())[len(beginning) :].startswith(".") else "about"


def _table(text: str, separator: str) -> Iterator[Statement]:
    try:
        header, *rows = list(itertools.islice(csv.reader(io.StringIO(text), delimiter=separator), 40)) or [[]]
    except csv.Error:
        return
    columns = [spelled(name) for name in header if words(name)]
    chosen = [columns[start : start + 3] for start in range(max(1, len(columns) - 2))]
    for part in chosen:
        if len(part) >= 2:
            yield Statement("columns", f"{', '.join(part[:-1])} and {part[-1]}", f"columns: {', '.join(header)}")
    for row in rows:
        cells = [cell.strip() for cell in row if re.search(r"[A-Za-z]{4}", cell) and len(cell) < 40]
        if len(row) == len(header) and cells:
            yield Statement("row", ", ".join(cells[:2]).replace("_", " "), separator.join(row))


def _settings(text: str, suffix: str) -> Iterator[Statement]:
    try:
        if suffix == ".json":
            value = json.loads(text)
        elif suffix == ".toml":
            value = tomllib.loads(text)
        else:
            value = yaml.load(text, Loader=yaml.BaseLoader) if len(text) < MOST_YAML else None
    except (ValueError, yaml.YAMLError, RecursionError):
        return
    yield from _keys(value, ())


def _keys(value: Any, above: tuple[str, ...]) -> Iterator[Statement]:
    if isinstance(value, list) and value and len(above) < 4:
        yield from _keys(value[0], above)
    if not isinstance(value, dict) or len(above) >= 4:
        return
    for key, inside in value.items():
        path = (*above, spelled(str(key)))
        if isinstance(inside, dict | list):
            yield from _keys(inside, path)
        elif path[-1]:
            fact = path[-1] if len(path[-1].split()) > 1 or len(path) < 2 else f"{path[-1]} of {path[-2]}"
            kind = "switch" if str(inside).lower() in ("true", "false") else "key"
            yield Statement(kind, fact, f"{key}: {inside}"[:200])


def _sentence(text: str) -> str:
    """The first sentence, on one line."""
    flat = " ".join(text.split())
    match = SENTENCE.match(flat)
    return (match[1] if match else flat).rstrip(" .:")


def _lowered(text: str) -> str:
    """`text` with its first letter in lower case, unless it begins with an abbreviation."""
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text
