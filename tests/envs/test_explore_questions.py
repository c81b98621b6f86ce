"""Questions read as a person would ask them, and have the keywords of their fact and no others."""

from __future__ import annotations

from reflectkit.envs.auto_explore.filtering import kind_of
from reflectkit.envs.auto_explore.oracle import ask, leaks
from reflectkit.files import included_repositories
from reflectkit.text import keywords

BOXED = included_repositories()


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
