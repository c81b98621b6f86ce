"""Questions read as a person would ask them, and have the keywords of their fact and no others."""

from __future__ import annotations

import random

import pytest

from reflectkit.envs.auto_explore.filtering import kind_of
from reflectkit.envs.auto_explore.oracle import CODE, NOTES, TEXT, WORDINGS, ask, leaks, tidy, worded
from reflectkit.files import included_repositories
from reflectkit.text import keywords

BOXED = included_repositories()


@pytest.mark.parametrize(
    ("kind", "fact", "place", "questions"),
    [
        ("does", "split a line by width", CODE, {"Where do we split a line by width?"}),
        ("does", "registers an adapter", CODE, {"What registers an adapter?", "Which code registers an adapter?"}),
        ("does", "raised if a file is missing", CODE, {"What is raised if a file is missing?"}),
        ("does", "the sum of the prices", CODE, {"Where is the code for the sum of the prices?"}),
        ("does", "sum of the prices", CODE, {"Where is the code for sum of the prices?"}),
        ("does", "the pump is switched off", CODE, {"Where in the code does it say that the pump is switched off?"}),
        ("does", "how long a loan lasts", CODE, {"Where do we find out how long a loan lasts?"}),
        ("about", "add a late fee", NOTES, {"Where is it recorded that we added a late fee?"}),
        ("about", "dropped support for islands", NOTES, {"Which file says that we dropped support for islands?"}),
        ("about", "close the valve at night", TEXT, {"Where does it say to close the valve at night?"}),
        ("says", "meters send their battery level", TEXT, {"Where does it say that meters send their battery level?"}),
        ("name", "is valid isbn", CODE, {"Where do we find out if it is valid isbn?"}),
        ("name", "late fees", CODE, {"Where are the late fees worked out?"}),
        ("class", "spinner column", CODE, {"Which file defines the spinner column?"}),
        ("heading", "Switching to Entry Points", TEXT, {"Where can I read about switching to entry points?"}),
        ("heading", "May I bring a camera?", TEXT, {'Where can I read about "May I bring a camera?"'}),
        ("key", "wire height cm", TEXT, {"Where is the wire height in cm set?"}),
        ("key", "seats of boats", TEXT, {"Where are the seats of the boats set?"}),
        ("switch", "allow renewals", TEXT, {"Where do we set if we allow renewals?"}),
        ("row", "trade, bakery", TEXT, {"Which table lists trade with bakery?"}),
        ("columns", "minutes, who and room", TEXT, {"Where are minutes, who and room recorded?"}),
    ],
)
def test_a_question_follows_the_grammar_of_its_fact(kind: str, fact: str, place: str, questions: set[str]) -> None:
    assert questions <= {worded(kind, fact, place, random.Random(seed)) for seed in range(20)}


def test_wordings_add_no_keywords() -> None:
    for wordings in WORDINGS.values():
        for wording in wordings:
            assert keywords(wording.format(fact="", past="")) == [], wording


def test_marks_and_addresses_are_removed() -> None:
    assert tidy("Uses :func:`~rich.print`, **not** `print`. See <https://x.org/a>") == "Uses rich.print, not print. See"
    assert tidy("A ``dict``-like [thing](https://x.org) (#12)") == "A dict-like thing"


def test_a_question_is_answered_by_its_file_alone() -> None:
    name = "bookshop"
    files = {
        path.relative_to(BOXED / name).as_posix(): path.read_text("utf-8")
        for path in sorted((BOXED / name).rglob("*"))
        if path.is_file() and kind_of(path.name)
    }
    asked = ask(name, files, files, 10)
    assert asked == ask(name, files, files, 10)
    questions = [question for of_file in asked.values() for question in of_file]
    assert len(questions) > 100
    assert len({tuple(sorted(keywords(one.question))) for one in questions}) == len(questions)
    for one in questions:
        assert set(keywords(one.question)) <= set(keywords(files[one.filename])), one.question
        assert not leaks(one.question, one.filename)
        assert one.question.endswith(("?", '?"'))
        assert "this:" not in one.question


TOML = """
[project]
name = "x"
requires-python = ">=3.11"

[tool.ledger]
retry_limit_seconds = 3
allow_prereleases = true
"""


def test_toml_is_read() -> None:
    (questions,) = ask("r", {"settings.toml": TOML}, {"settings.toml": TOML}, 10).values()
    texts = " ".join(question.question for question in questions)
    assert "retry limit in seconds" in texts
    assert "if we allow prereleases" in texts


def test_broken_toml_gives_no_questions() -> None:
    for text in ("a = [[[[" * 2000, "= = =", "a = 1\na = 2"):
        assert ask("r", {"a.toml": text}, {"a.toml": text}, 10) == {"a.toml": []}


def test_a_cut_python_file_has_its_definitions_only() -> None:
    text = (
        "def late_fee(days):\n    raise ValueError('no such day')\n    call_someone(days)\n\nclass BookShelf:\n  (((\n"
    )
    (questions,) = ask("r", {"a.py": text}, {"a.py": text}, 10).values()
    assert {question.answer for question in questions} == {"late_fee", "BookShelf"}


def test_comments_in_fenced_code_are_no_headings() -> None:
    text = "# Guide for lenders\n\nLend.\n\n```\n# install the program first\n```\n"
    (questions,) = ask("r", {"a.md": text}, {"a.md": text}, 10).values()
    assert [question.question for question in questions if "install" in question.question] == []
