"""Questions read as a person would ask them, and have the keywords of their fact and no others."""

from __future__ import annotations

import random

import pytest

from reflectkit.envs.auto_explore.filtering import kind_of
from reflectkit.envs.auto_explore.oracle import CODE, NOTES, TEXT, ask, leaks, worded
from reflectkit.files import included_repositories
from reflectkit.text import keywords

BOXED = included_repositories()


@pytest.mark.parametrize(
    ("kind", "fact", "place", "questions"),
    [
        ("does", "split a line by width", CODE, {"Where do we split a line by width?"}),
        ("does", "registers an adapter", CODE, {"What registers an adapter?", "Which code registers an adapter?"}),
        ("does", "raised if a file is missing", CODE, {"What is raised if a file is missing?"}),
        ("about", "add a late fee", NOTES, {"Where is it recorded that we added a late fee?"}),
        ("about", "dropped support for islands", NOTES, {"Which file says that we dropped support for islands?"}),
        ("says", "meters send their battery level", TEXT, {"Where does it say that meters send their battery level?"}),
        ("name", "is valid isbn", CODE, {"Where do we find out if it is valid isbn?"}),
        ("heading", "May I bring a camera?", TEXT, {'Where can I read about "May I bring a camera?"'}),
        ("key", "wire height cm", TEXT, {"Where is the wire height in cm set?"}),
        ("switch", "allow renewals", TEXT, {"Where do we set whether we allow renewals?"}),
    ],
)
def test_a_question_follows_the_grammar_of_its_fact(kind: str, fact: str, place: str, questions: set[str]) -> None:
    assert questions <= {worded(kind, fact, place, random.Random(seed)) for seed in range(20)}


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
