"""How far the words of questions alone lead to their files, as a measure of how much like quotations they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import bm25s

from reflectkit.data.questions import Question
from reflectkit.text import keywords


def found_by_words(questions: Sequence[Question], files: Mapping[str, str]) -> int:
    """Number of `questions` whose keywords rank their own file first among `files` (path → text), before all others.

    By BM25 (Robertson and Zaragoza 2009), with Lucene's idf, k1 1.5 and b 0.75; of the texts, not of their names.
    """
    paths = sorted(files)
    words = [keywords(files[path]) for path in paths]
    if not questions or not any(words):
        return 0
    index = bm25s.BM25()
    index.index(words, show_progress=False)
    found = 0
    for question in questions:
        asked = keywords(question.question)
        scores = dict(zip(paths, map(float, index.get_scores(asked)), strict=True)) if asked else {}
        own = scores.get(question.filename, 0.0)
        found += own > 0 and all(score < own for path, score in scores.items() if path != question.filename)
    return found
