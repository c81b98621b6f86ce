"""Guesses come from the text after the most similar prompt, otherwise from any other."""

from __future__ import annotations

from reflectkit.models import drafts
from reflectkit.models.drafts import Drafts


def test_a_text_is_guessed_as_the_one_after_the_most_similar_prompt() -> None:
    known = Drafts()
    known.remember([1, 2, 3, 4, 5], [10, 11, 12, 0])
    known.remember([1, 2, 3, 9, 9], [10, 20, 21, 0])
    assert known.guide([1, 2, 3, 4, 7]).guess([], 9) == [10, 11, 12, 0]
    assert known.guide([1, 2, 3, 9, 7, 7]).guess([10], 2) == [20, 21]
    assert known.guide([1, 2]).guess([], 1) == [10]


def test_after_a_surprise_it_goes_on_where_the_same_tokens_came_before() -> None:
    known = Drafts()
    known.remember([1] * 9, [5, 6, 7, 5, 8, 9])
    known.remember([2] * 9, [3, 4, 30, 31])
    guide = known.guide([1] * 9)
    assert guide.guess([50, 6], 9) == [7, 5, 8, 9]  # 7 then 5: the second 5, after which 8 came
    assert guide.guess([50, 4], 9) == [30, 31]  # only the other text knows 4
    assert guide.guess([50, 51], 9) == []
    assert Drafts().guide([1, 2]).guess([], 5) == []


def test_old_texts_are_forgotten_and_long_prompts_fit() -> None:
    known = Drafts()
    known.remember([7] * 1000, [1])
    for number in range(drafts.KEPT):
        assert known.guide([7] * 1000).guess([], 1) == [1]
        known.remember([number, 8], [2])
    assert known.guide([7] * 1000).guess([], 1) == [2]
