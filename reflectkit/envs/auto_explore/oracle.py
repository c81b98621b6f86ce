"""An offline teacher that asks about what a file says about itself.

Docstrings, comments, headings, function and class names, table headers and configuration keys
become questions in a person's words. A question never contains the file's name, applies to only one
file of the repository, and is the same each time.
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
from reflectkit.seeding import generator
from reflectkit.text import keywords, notebook_source, words


def _set(text: str) -> frozenset[str]:
    """The words of `text`."""
    return frozenset(text.split())


VERBS = _set(
    "accept add adjust allow append apply ask assert assign attach attempt begin benchmark bind"
    " block book bring build calculate call cancel cast change charge check choose clean clear"
    " clone close collect combine compare compute configure connect construct convert copy count"
    " create decide declare decode decorate define delete describe detect determine disable"
    " disallow discard dispatch display divide download draw drop dump emit enable encode end"
    " ensure enter escape estimate evaluate execute exit expand export extend extract fetch fill"
    " filter find finish fix flush format generate get give group handle help hide highlight hold"
    " ignore implement import improve include indicate initialize insert install interrupt invoke"
    " join keep limit link list load log look make manage map mark match measure merge modify mount"
    " move normalize notify open order override pad parse pass patch perform pick plan plot prepare"
    " prepend print process produce prompt protect provide put query raise read rebuild receive"
    " record redirect reduce refuse register reject release reload remove render reopen replace"
    " report represent request require reset resolve restart restore resume retrieve return reverse"
    " rewind run sample save scan schedule search select send separate serialize serve set share"
    " shorten show simulate skip sort split start stop store strip subtract suggest sum support"
    " swap take tell test throw toggle track transform translate trigger trim truncate try turn"
    " unpack update upgrade upload use validate verify visit wait walk warn weigh wrap write yield"
)
PAST = {
    "begin": "began", "bind": "bound", "bring": "brought", "build": "built", "choose": "chose", "draw": "drew",
    "find": "found", "get": "got", "give": "gave", "hide": "hid", "hold": "held", "keep": "kept", "make": "made",
    "put": "put", "read": "read", "rebuild": "rebuilt", "reset": "reset", "run": "ran", "send": "sent", "set": "set",
    "show": "showed", "split": "split", "take": "took", "tell": "told", "throw": "threw", "write": "wrote",
}  # fmt: skip
DOUBLED = _set("cancel drop log map plan plot skip stop strip swap trim wrap")
FINITE = _set(
    "are aren't can can't cannot could did do does doesn't don't had has have is isn't may might"
    " must should was were will won't would"
)
NOUN_NEXT = _set("and of or that which who whose")
"""Words that follow a noun: the "sum" of "sum of the prices" is none of the verbs."""
CAUSES = _set(
    "after as at before by during for from if in on once to until when whenever where with"
)
"""Words that follow a participle: "raised if", unlike "requested file"."""
LINKS = _set("as because if since that when where whether which while who whose")
ASKING = _set("how what when where whether which who why")
HALVES = _set("and by for from in of on or to with")
"""Words that a name such as `to_dict` or `proxy_manager_for` has something left out at."""
UNITS = _set(
    "bytes celsius cents cm days degrees eur euros g grams hours kb kg kilos km kwh litres m mb"
    " metres minutes mm months ms pct percent points px seconds tonnes usd watts weeks years"
)

WHOLE = 5  # words of a sentence; a shorter one has no verb, as "Strict timeouts."

CODE, NOTES, TEXT = "code", "notes", "text"
"""Where a sentence is: in code, release notes, or another text."""
WORDINGS: Mapping[tuple[str, str], tuple[str, ...]] = {
    (CODE, "order"): (
        "Where do we {fact}?",
        "Where is the code to {fact}?",
        "Which file has the code to {fact}?",
    ),
    (CODE, "deed"): ("What {fact}?", "Which code {fact}?"),
    (CODE, "past"): ("What is {fact}?", "Which code is {fact}?"),
    (CODE, "sentence"): ("Where in the code does it say that {fact}?",),
    (CODE, "question"): ("Where do we find out {fact}?", "Which code says {fact}?"),
    (CODE, "thing"): ("Where is the code for {fact}?", "Which file has the code for {fact}?"),
    (NOTES, "order"): ("Where is it recorded that we {past}?", "Which file says that we {past}?"),
    (NOTES, "past"): ("Where is it recorded that we {fact}?", "Which file says that we {fact}?"),
    (TEXT, "order"): ("Where does it say to {fact}?", "Which text says to {fact}?"),
    (TEXT, "deed"): ("What {fact}, and where do I read about it?",),
    (TEXT, "sentence"): ("Where does it say that {fact}?", "Which file says that {fact}?"),
    (TEXT, "question"): ("Where does it say {fact}?", "Which text says {fact}?"),
    (TEXT, "thing"): ("Where can I read about {fact}?", "Which file is about {fact}?"),
}
"""By place and shape of what is said; release notes fall back on other texts."""


def tidy(text: str) -> str:
    """`text` on one line, without the marks of Markdown and reStructuredText, and without
    addresses.

    >>> tidy("Returns a :class:`Session <a.Session>`, see [the docs](https://x.org) and {func}`clear` *now*.")
    'Returns a Session, see the docs and clear now'
    """
    # Links of Markdown: [text](address)
    flat = re.sub(r"!?\[([^\[\]]*)\]\([^()]*\)", r"\1", " ".join(text.split()))
    # Roles of Sphinx and MyST: :class:`text`, {func}`text`
    flat = re.sub(r":[a-zA-Z]+(?::[a-zA-Z]+)*:`|\{[a-zA-Z:-]+\}`", "`", flat)
    # Links of reStructuredText: `text <address>`_
    flat = re.sub(r"`~?([^`<>]*?)\s*<[^`<>]*>`_*", r"\1", flat)
    flat = flat.replace("`~", "`").replace("`", "")
    # Emphasis
    flat = re.sub(r"(?<![\w*])\*{1,2}(\w[^*]*)\*{1,2}(?![\w*])", r"\1", flat)
    # Numbers of issues, tags of HTML, addresses
    flat = re.sub(
        r"\s*\((?:pull |issue )?#\d+\)|</?[a-zA-Z][^<>]*>|\s*\(?https?://\S+",
        "",
        flat,
        flags=re.IGNORECASE,
    )
    return flat.strip(" .:;,*#\"'")


def words_of_name(name: str) -> str:
    """The words of an identifier, in lower case. Digits stay with their word.

    >>> words_of_name("kilosPerM2"), words_of_name("late_fee")
    ('kilos per m2', 'late fee')
    """
    parts = re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+", name)
    return " ".join(parts).lower()


def shape_of(text: str, *, release_notes: bool = False) -> str:
    """The grammar of `text`: order ("return a fee"), deed ("returns a fee"), past ("raised if", in
    release notes also "added a fee"), sentence, question or thing.

    >>> [shape_of(text) for text in ("sum up the fees", "sums up the fees", "the sum of the fees", "fees are due")]
    ['order', 'deed', 'thing', 'sentence']
    """
    parts = text.lower().split()
    first, second = [*parts, ""][:2]
    if first in ASKING:
        return "question"
    if first in VERBS and second not in NOUN_NEXT:
        return "order"
    if first in _DEEDS and second not in NOUN_NEXT:
        return "deed"
    if first in _PASTS and (second in CAUSES or release_notes):
        return "past"
    # A finite verb of the main clause makes a sentence
    for word in parts[1:]:
        if word in LINKS:
            break
        if word in FINITE:
            return "sentence"
    return "thing"


def question_text(kind: str, fact: str, place: str, chance: random.Random) -> str:
    """A question that is answered by the file which says `fact`.

    place: what kind of file it is: `CODE`, `NOTES` or `TEXT`. kind: what the fact is: "does" or
    "about" (all or part of a sentence), "says" (a whole sentence), "name" and "class" (of a
    definition), "heading", "columns", "row", "key", "switch" (a key that is on or off).
    """
    wordings: tuple[str, ...]
    past_fact = ""
    # 1. Tables
    if kind == "row":
        fact = " with ".join(fact.split(", ", 1))
        wordings = ("Which table lists {fact}?", "Which table has a line for {fact}?")
    elif kind == "columns":
        wordings = ("Which table lists {fact}?", "Where are {fact} recorded?")
    # 2. Settings: "key of section"
    elif kind in ("key", "switch"):
        head, of, owner = fact.partition(" of ")
        *most, last = head.split()
        if kind == "switch" and head.split()[0] in VERBS:
            return f"Where do we set whether we {head}{f' for the {owner}' if of else ''}?"
        # "timeout seconds" is a timeout in seconds, and its verb that of "timeout"
        noun = last
        if most and last in UNITS:
            head, noun = f"{' '.join(most)} in {last}", most[-1]
        elif " in " in head:
            noun = (most or [last])[-1]
        fact = f"{head} of the {owner}" if of else head
        verb = "are" if is_plural(noun) else "is"
        wordings = (
            f"Where {verb} the {{fact}} set?",
            "Which settings have the {fact}?",
            "Where do we set the {fact}?",
        )
    # 3. Names of functions and classes
    elif kind in ("name", "class"):
        first, *_, last = [*fact.split(), fact.split()[-1]]
        if first in ("is", "has", "can", "should"):
            wordings = ("Where do we find out if it {fact}?",)
        elif first in HALVES or last in HALVES:
            wordings = ('Where is "{fact}" in the code?',)
        elif kind == "class":
            wordings = ("Which file defines the {fact}?", "Where do we define the {fact}?")
        elif first in VERBS:
            wordings = ("Where do we {fact}?", "Where is the code to {fact}?")
        else:
            verb = "are" if is_plural(last) else "is"
            wordings = (
                f"Where {verb} the {{fact}} worked out?",
                "Where is the code for the {fact}?",
            )
    # 4. Sentences and headings, by their grammar
    else:
        if kind == "heading":
            fact, place = _sentence_case(fact), TEXT
        if fact.endswith("?"):
            return f'Where can I read about "{fact}"'
        shape = shape_of(fact, release_notes=place == NOTES)
        if place == TEXT and shape == "past":
            shape = "thing"
        parts = fact.lower().split()
        # A whole sentence of some length has a verb, though VERBS lacks it
        is_whole = kind == "says" and place != CODE
        if shape == "thing" and is_whole and len(parts) >= WHOLE and LINKS.isdisjoint(parts):
            shape = "sentence"
        wordings = WORDINGS.get((place, shape)) or WORDINGS[TEXT, shape]
        first, _, rest = fact.partition(" ")
        past_fact = f"{past(first.lower())} {rest}"
    return chance.choice(wordings).format(fact=fact, past=past_fact)


def _sentence_case(heading: str) -> str:
    """`heading` in lower case if it is in Title Case or capitals; acronyms and names with capitals
    inside stay.
    """
    if heading.isupper():
        return heading.lower()
    parts = heading.split()
    long = [part for part in parts[1:] if len(part) > 3]
    is_title = all(part[:1].isupper() or not part[:1].isalpha() for part in long)
    if long and is_title:
        for index, part in enumerate(parts):
            if re.fullmatch(r"\W*[A-Z][a-z'-]*\W*", part):
                parts[index] = part.lower()
    return " ".join(parts)


def is_plural(word: str) -> bool:
    """Whether `word` looks like a plural."""
    return word.endswith("s") and not word.endswith(("ss", "us", "is", "as"))


def deed(verb: str) -> str:
    """The third person of `verb`: "carries". Nouns get their plural so."""
    if verb.endswith("y") and verb[-2] not in "aeou":
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "sh", "ch", "x", "z")) else "s")


def past(verb: str) -> str:
    """The past of `verb`: "carried"."""
    if verb in PAST:
        return PAST[verb]
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeou":
        return verb[:-1] + "ied"
    return verb + (verb[-1] if verb in DOUBLED else "") + "ed"


_DEEDS = frozenset(map(deed, VERBS))
_PASTS = frozenset(map(past, VERBS)) - VERBS


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
KEYWORDS = _set(
    "if for while switch return else catch foreach using sizeof case do throw new range defer go"
    " select"
)
NOTES_OF = _set("changelog changes history news releases whatsnew")
"""Names of release notes."""
CONTINUED = _set("and but e.g i.e nor note or see so then todo")
"""First words of a sentence that says little without the text before it."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Something that a file says. kind: see `question_text`. text: for the question. answer: what
    the file says.
    """

    kind: str
    text: str
    answer: str


def ask(
    root: str,
    files: Mapping[str, str],
    excerpts: Mapping[str, str],
    per_file: int,
) -> dict[str, list[FileQuestion]]:
    """Up to `per_file` questions for each file of repository `root`, by path, about its excerpt.

    files: path → text. excerpts: path → the part of it to ask about. Facts that occur in
    two files are used for neither. Wording and selection depend only on the repository, the path
    and the text.
    """
    # 1. The facts of all files, by their keywords, and in how many files these occur
    facts: dict[str, dict[tuple[str, ...], Statement]] = {}
    file_counts: Counter[tuple[str, ...]] = Counter()
    for path in sorted(files):
        facts[path] = {_key(fact): fact for fact in _usable_facts(path, files[path])}
        file_counts.update(facts[path].keys())
    questions: dict[str, list[FileQuestion]] = {}
    for path, file_facts in facts.items():
        chance = generator(0, "oracle", root, path)
        # 2. The facts of this file alone that its excerpt has, in a random order
        excerpt_words = set(keywords(excerpts[path]))
        by_kind: dict[str, list[Statement]] = {}
        for key, fact in file_facts.items():
            if file_counts[key] == 1 and excerpt_words.issuperset(key):
                by_kind.setdefault(fact.kind, []).append(fact)
        for group in by_kind.values():
            chance.shuffle(group)
        # 3. One of each kind in turn, for variety
        choices: list[Statement] = []
        while len(choices) < per_file and any(by_kind.values()):
            choices += [group.pop() for group in by_kind.values() if group]
        # 4. The questions, without those that give the file away
        place = NOTES if PurePosixPath(path).stem.lower() in NOTES_OF else TEXT
        place = CODE if kind_of(path) == "code" else place
        questions[path] = []
        for fact in choices[:per_file]:
            question = question_text(fact.kind, fact.text, place, chance)
            if not leaks(question, path):
                about = FileQuestion.about(root, path, question, fact.answer, MODEL)
                questions[path].append(about)
    return questions


def leaks(question: str, path: str) -> bool:
    """Whether `question` quotes the name of file `path`: the name itself, or all of its stem's
    words in a row.

    >>> leaks("Where are late fees set?", "app/late_fees.py")
    True
    >>> leaks("Where are fees for late books set?", "app/late_fees.py")
    False
    """
    name = PurePosixPath(path)
    if name.name.lower() in question.lower():
        return True
    stem = " ".join(words(name.stem))
    return bool(stem) and f" {stem} " in f" {' '.join(words(question))} "


def _key(fact: Statement) -> tuple[str, ...]:
    """Equal for two facts with the same keywords."""
    return tuple(sorted(keywords(fact.text)))


def _usable_facts(path: str, text: str) -> Iterator[Statement]:
    """The facts of one file that have enough distinctive words, are not the rest of something, and
    close what they open.
    """
    stem = set(keywords(" ".join(words(PurePosixPath(path).stem))))
    low, high = WORDS_IN_QUESTION
    for fact in _facts(path, text):
        plain = tidy(fact.text)
        # Enough words, besides those of the file's name
        distinctive = {word for word in keywords(plain) if not word.isdigit()} - stem
        if not low <= len(words(plain)) <= high or len(distinctive) < low:
            continue
        # Not the rest of a sentence, nor a piece of code
        if not plain.isprintable() or "', '" in plain:
            continue
        if plain.split()[0].lower().strip(".,") in CONTINUED:
            continue
        if any(plain.count(left) != plain.count(right) for left, right in ("()", "[]", "{}")):
            continue
        yield Statement(fact.kind, plain, " ".join(fact.answer.split())[:300])


def _facts(path: str, text: str) -> Iterator[Statement]:
    """What a file says about itself, by its type."""
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
    # A text that is cut off is no Python
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield from _code(text, PYTHON_DEFINITION)
        return
    # 1. The module
    docstring = ast.get_docstring(tree)
    if docstring:
        sentence = _sentence(docstring)
        yield Statement("about", _lowered(sentence), sentence)
    # 2. Its public classes and functions
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if node.name.startswith("_"):
            continue
        docstring = ast.get_docstring(node)
        if docstring:
            sentence = _sentence(docstring)
            yield Statement("does", _lowered(sentence), f"{node.name}: {sentence}")
        kind = "class" if isinstance(node, ast.ClassDef) else "name"
        yield Statement(kind, words_of_name(node.name), f"{node.name}, in line {node.lineno}")


def _code(text: str, definitions: re.Pattern[str] = DEFINITION) -> Iterator[Statement]:
    """Comments above definitions, and the definitions' names, in shell scripts and languages with
    braces.
    """
    comment: list[str] = []
    first = True
    for line in text.splitlines():
        # 1. A line of a comment, kept for the code below it
        bare = line.strip()
        if bare.startswith("#!"):
            continue
        is_directive = bare.startswith(("#include", "#define", "#if", "#endif", "#else"))
        if bare.startswith(("//", "/*", "*", "#")) and not is_directive:
            comment.append(re.sub(r"</?\w+>", "", bare).strip("/*#! ").strip())
            continue
        # 2. A line of code: what the comment above it says of the file, of a definition, or of the
        #    line
        definition = definitions.match(line) if len(line) <= LONGEST_LINE else None
        parts = [part for part in comment if part and not part.startswith("@")]
        sentence = _sentence(" ".join(parts))
        if sentence and first and bare:
            yield Statement("about", _lowered(sentence), sentence)
        elif definition and definition["name"] not in KEYWORDS and not bare.endswith(";"):
            if sentence:
                # In Go, a comment begins with the name
                fact = sentence.removeprefix(f"{definition['name']} ")
                yield Statement("does", _lowered(fact), f"{definition['name']}: {sentence}")
            yield Statement("name", words_of_name(definition["name"]), definition["name"])
        elif sentence and bare:
            yield Statement("does", _lowered(sentence), sentence)
        if bare:
            comment, first = [], False


def _headings(text: str) -> Iterator[Statement]:
    """Headings in Markdown (`#`) and reStructuredText (underlined), with the text below them as the
    answer.
    """
    lines = FENCED.sub("", text).splitlines()
    for index, line in enumerate(lines):
        parts = []
        for part in lines[index + 1 : index + 12]:
            if re.search(r"\w", part) and part[0] != "#":
                parts.append(part.strip())
        answer = _sentence(" ".join(parts))
        # 1. A heading of Markdown
        heading = re.match(r"#{1,6}\s+(.+)", line)
        if heading:
            yield Statement("heading", _lowered(heading[1]), answer)
            continue
        # 2. A line above a line of marks that is at least as long
        next_line = lines[index + 1].strip() if index + 1 < len(lines) else ""
        has_marks = re.fullmatch(r"[=\-~^\"'+#*]+", next_line)
        if has_marks and len(next_line) >= len(line.strip()) > 3:
            yield Statement("heading", _lowered(line), answer)
            continue
        # 3. An entry of a list that begins with a term or a sentence
        match = re.match(r"\s*[-*]\s+(\w.{12,90}?)[:.](?:\s|$)", line)
        if match:
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
    reader = csv.reader(io.StringIO(text), delimiter=separator)
    try:
        header, *rows = list(itertools.islice(reader, 40)) or [[]]
    except csv.Error:
        return
    # 1. Up to three columns that are next to each other
    columns = [words_of_name(name) for name in header if words(name)]
    for start in range(max(1, len(columns) - 2)):
        *part, last = columns[start : start + 3] or [""]
        if part:
            fact = f"{', '.join(part)} and {last}"
            yield Statement("columns", fact, f"columns: {', '.join(header)}")
    # 2. The first two cells of a row that have words
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
    """The keys of `value`, each with the key above it if it has only one word; of a list, those of
    the first element.
    """
    if len(above) >= 4:
        return
    if isinstance(value, list) and value:
        yield from _keys(value[0], above)
    for key, inside in value.items() if isinstance(value, dict) else ():
        path = (*above, words_of_name(str(key)))
        if isinstance(inside, dict | list):
            yield from _keys(inside, path)
        elif path[-1]:
            fact = path[-1]
            if len(fact.split()) <= 1 and len(path) > 1:
                fact += f" of {path[-2]}"
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
