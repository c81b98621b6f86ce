"""Paraphrased questions: synonyms in their form, one file for each question, and fewer found by their words alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from reflectkit.core.text import keywords
from reflectkit.data.oracle import ask
from reflectkit.data.overlap import found_by_words
from reflectkit.data.paraphrase import meaning, reworded, synonyms
from reflectkit.data.questions import Question
from reflectkit.data.repos import kind_of

BOXED = Path(__file__).parents[2] / "reflectkit" / "boxed" / "repos"


@pytest.mark.parametrize(
    ("text", "verb_first", "expected"),
    [
        ("removes the late fee", True, {"deletes the overdue charge", "strips the overdue dues"}),
        ("the late fee removes nothing", False, {"the overdue charge removes nothing"}),  # a verb inside is left alone
        ("copies of a big boat", False, {"copies of a large vessel"}),
        ("Boat prices", False, {"Boat costs", "Boat tariffs"}),  # names stay
        ("an empty tank", False, {"a vacant reservoir"}),
        ("compute it", True, {"work out it"}),
    ],
)
def test_synonyms_have_the_form_of_the_word(text: str, verb_first: bool, expected: set[str]) -> None:
    made = {synonyms(text, random.Random(seed), verb_first=verb_first) for seed in range(60)}
    assert expected <= made


def test_the_same_meaning_in_other_words_is_the_same_fact() -> None:
    assert meaning("the late fee of a boat") == meaning("overdue charges for the ship")
    assert meaning("the late fee") != meaning("the late visit")


@pytest.mark.parametrize("kind", ["does", "about", "name", "class", "heading", "key", "switch", "columns", "row"])
def test_every_kind_of_fact_becomes_a_question(kind: str) -> None:
    for fact in ("return the late fee", "late fee", "the fee is due", "returns a fee", "why it is late"):
        for seed in range(8):
            question = reworded(kind, fact, random.Random(seed))
            assert question.endswith("?")
            assert "{" not in question


def test_a_paraphrased_question_is_hard_to_find_by_its_words() -> None:
    """Over three repositories: the plain wording leads to its file more often, by a tenth of all questions at least."""
    found, asked = {False: 0, True: 0}, {False: 0, True: 0}
    for name in ("bookshop", "greenhouse", "water_utility"):
        files = {
            path.relative_to(BOXED / name).as_posix(): path.read_text("utf-8")
            for path in sorted((BOXED / name).rglob("*"))
            if path.is_file() and kind_of(path.name)
        }
        for paraphrase in (False, True):
            questions = [
                one for of_file in ask(name, files, files, 3, paraphrase=paraphrase).values() for one in of_file
            ]
            asked[paraphrase] += len(questions)
            found[paraphrase] += found_by_words(questions, files)
            if paraphrase:
                assert len({meaning(one.question) for one in questions}) == len(questions)
    assert asked[True] > 0.9 * asked[False]
    assert found[False] / asked[False] > found[True] / asked[True] + 0.1


def test_what_is_found_by_words() -> None:
    files = {"a.md": "The late fee is ten cents.", "b.md": "Lending a book.", "c.md": "The late guest."}

    def question(text: str, path: str) -> Question:
        return Question(text, path, "r")

    asked = [question("Which late fee?", "a.md"), question("Which late fee?", "c.md"), question("Who?", "b.md")]
    assert found_by_words(asked, files) == 1
    assert found_by_words([question("late", "a.md")], {"a.md": "late", "b.md": "late"}) == 0, "a tie is not found"
    assert keywords("Who?") == []
