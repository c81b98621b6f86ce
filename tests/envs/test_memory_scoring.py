"""Scores of env memory's answers: by hand for every source of the published data, and against the authors' scorer.

MEM_ALPHA=CHECKOUT compares with the code of Mem-α (wangyu-ustc/Mem-alpha; its scorer needs rouge-score, nltk, tiktoken,
editdistance and python-dotenv).
"""

from __future__ import annotations

from typing import Any

import pytest

from reflectkit.env import Claim
from reflectkit.envs.memory.problems import answers_of, source_of
from reflectkit.envs.memory.scoring import Question, score, scores
from reflectkit.eventloop import run_sync

TITLES = {"1": "Heat", "2": "Toy Story", "3": "Alien", "4": "Aliens", "5": "Jaws", "6": "Up", "7": "Big"}

# source, right answer as published, answer, score. Each score follows from the rule of its source in Mem-α's code.
CASES = [
    ("squad", "1912", "In 1912.", 1.0),
    ("squad", "Rome", "It was ROME, then.", 1.0),
    ("squad", "Rome", "Oslo", 0.0),
    ("squad", {"text": "Rome"}, "rome", 1.0),
    ("squad", ["Rome", "Roma"], "roma", 1.0),  # a list is of alternatives
    ("squad", "Rome", "<think>Rome? No.</think>Oslo", 0.0),  # reasoning is no answer
    ("squad", "Rome", "<think>It may be Rome", 0.0),  # nor is reasoning without an end
    ("hotpotqa", "yes", "Yes, both are.", 1.0),
    ("hotpotqa", "the Danube", "Danube", 0.0),  # contained as it stands, article and all
    ("booksum", "whale, ship, Ahab", "Ahab hunts a white whale.", 2 / 3),
    ("booksum", ["whale", "ship"], "a ship", 1 / 2),
    ("infbench_sum_eng_shots2", ["a, b", "ship"], "a, b", 1 / 2),  # a list is not cut again
    ("pubmed-rct", "3", r"It reports results: \boxed{3}", 1.0),
    ("pubmed-rct", "3", "3", 1.0),
    ("pubmed-rct", "3", '"3"', 1.0),
    ("pubmed-rct", "3", "It is 3", 0.0),  # not a number alone
    ("pubmed-rct", "3", r"\boxed{label 3}", 0.0),
    ("pubmed-rct", 3, r"\boxed{13}", 0.0),
    ("ttl_train", "12", r"\boxed{ 12 }", 1.0),
    ("icl_banking77_5900shot_balance", ["28"], r"label: \boxed{28}", 1.0),
    ("icl_trec_fine_6400shot_balance", ["28"], "label: 28", 0.0),
    ("perltqa", "Anna", "It was anna.", 1.0),
    ("perltqa", "tea; milk;", "Tea", 1 / 2),
    ("lme_train", "The user prefers short flights", "Short flights, as you prefer them.", 3 / 4),  # user not named
    ("longmemeval_s*", ["GPS"], "Your GPS broke.", 1.0),
    ("eventqa_full", ["He left the inn.", "rain"], "he left the inn. Rain fell.", 1.0),
    ("eventqa_full", ["He left the inn.", "rain"], "He left the inn.", 0.0),  # all or nothing
    ("ruler_niah_multi", ["one", "two"], "Two of them", 1 / 2),
    ("ruler_qa1_197K", ["the Normans", "Norman"], "It was the Norman's.", 1.0),  # no punctuation or articles
    ("ruler_qa1_197K", ["1912"], "In 1912.", 1.0),
    ("ruler_qa2_421K", ["Rome"], "Oslo", 0.0),
    ("ruler_qa2_421K", ["A"], "Oslo", 0.0),  # an article alone is nothing when normalised, and is not in everything
    ("detectiveqa", ["B"], r"The butler: \boxed{B}", 1.0),
    ("detectiveqa", ["B"], "B", 1.0),
    ("detectiveqa", ["B"], r"\boxed{A or B}", 0.0),
    ("recsys_redial_full", ["1", "3"], "You may like:\n1. Heat (1995)\n2. Alein", 1.0),  # the nearest title
    ("recsys_redial_full", ["1", "3"], "Heat, Jaws", 1 / 2),
    ("recsys_redial_full", ["7"], "1. Heat\n2. Jaws\n3. Up\n4. Alien\n5. Aliens\n6. Big", 0.0),  # the sixth
    ("mine", "Rome", "Rome", 1.0),
    ("mine", "Rome", "Romeo", 0.0),  # whole words, where the source is not known
]


def question_of(source: str, right: Any) -> Question:
    kind = source_of(source)
    return Question("?", tuple(answers_of({"answer": right}, kind, TITLES)), kind.kind, titles=tuple(TITLES.values()))


@pytest.mark.parametrize(("source", "right", "answer", "expected"), CASES)
def test_scores_of_each_source_by_hand(source: str, right: Any, answer: str, expected: float) -> None:
    assert score(question_of(source, right), answer) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "right", "answer", "expected"),
    [
        ("contain", "Rome", "It is ROME.", 1.0),
        ("contain", "Rome", "Romeo", 0.0),
        ("contain", "(a+", "what (a+ is", 1.0),
        ("exact", "3", "3.", 1.0),
        ("exact", "3", "it is 3", 0.0),
        ("keywords", "cat; dog", "a dog and a bird", 0.5),
    ],
)
def test_scores_of_our_own_rules_by_hand(kind: str, right: str, answer: str, expected: float) -> None:
    assert score(Question("?", (right,), kind), answer) == expected
    assert score(Question("?", (right,), kind, wrong=(answer,)), answer) == 0.0


class Says:
    """A judge who says yes where the answer holds the rubric's first word."""

    def __init__(self) -> None:
        self.asked: list[Claim] = []

    async def verdicts(self, claims: Any) -> list[bool]:
        self.asked += claims
        return [claim.rubric.split()[0] in claim.answer for claim in claims]


def test_a_judge_is_asked_about_rubrics_alone() -> None:
    judge = Says()
    rubrics = [("lme_train", "short flights"), ("squad", "Rome"), ("lme_train", "tea")]
    questions = [question_of(source, right) for source, right in rubrics]
    answers = ["short ones", "in Rome", "<think>tea</think>coffee"]
    assert run_sync(scores(questions, answers, judge)) == [1.0, 1.0, 0.0]
    asked = [(claim.rubric, claim.answer) for claim in judge.asked]
    assert asked == [("short flights", "short ones"), ("tea", "coffee")]
    assert scores(questions[1:2], answers[1:2], judge) == [1.0]  # without a rubric, nothing is awaited
