"""The benchmark of growth measures what it says."""

from __future__ import annotations

from benchmarks.growth import HEAD, line, measured


def test_more_episodes_are_more_tokens_and_words_lengthen_every_prompt() -> None:
    few, long = measured(2, 0), measured(4, 50)
    assert (few["episodes"], long["episodes"]) == (2, 4)
    assert long["tokens"] > few["tokens"]
    assert long["prompt"] - few["prompt"] >= 50  # each word is a token or more
    assert all(one[part] > 0 for one in (few, long) for part in ("rollout", "update", "memory", "each"))
    assert line(long).count("|") == HEAD.splitlines()[0].count("|")
