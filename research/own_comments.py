"""Comments that a model wrote itself, and how much each helped a policy: which ones to keep, and a round's figures.

A comment's gain on a state is the policy's log-probability of the demonstrated action with it, less that without it,
in nats. A comment can raise it without saying anything about the state, for instance by its length, so the
kept comments are also tried on other states: a gain that is left there is not information. Keeping what raises a
likelihood is Toolformer's filter (Schick et al. 2023, arXiv 2302.04761, section 2); rounds of sampling, filtering and
SFT are STaR (Zelikman et al. 2022, arXiv 2203.14465) and rejection-sampling fine-tuning (Yuan et al. 2023, arXiv
2308.01825).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any


@dataclass(frozen=True, slots=True)
class Judged:
    """One state with the comments that were sampled for it. Log-probabilities are the policy's of the demonstrated
    action, in nats, ≤ 0.
    """

    state: int
    """Its number among the states of the run, from 0."""
    without: float
    """Log-probability without a comment of its own: without any, with an empty one, or the mean over comments on other
    states.
    """
    comments: tuple[str, ...]
    """The distinct sampled comments (K), in the order in which they came."""
    logprobs: tuple[float, ...]
    """Log-probability with each of them (K)."""
    likeliest: tuple[bool, ...]
    """Whether the demonstrated action is the likeliest one, without it (with the first of several other comments) and
    with each comment (1 + K).
    """
    kept: tuple[int, ...]
    """The indices of the comments to learn from, the best first."""
    swapped: float | None = None
    """Log-probability with a comment that was kept for another state; None if no other state has one."""

    @property
    def gains(self) -> list[float]:
        """Of each comment (K), in nats."""
        return [logprob - self.without for logprob in self.logprobs]


def chosen(without: float, logprobs: Sequence[float], margin: float, most: int) -> tuple[int, ...]:
    """The indices of the at most `most` comments with the largest gains, all of at least `margin` nats; ties: the
    first.

    >>> chosen(-2.0, [-1.0, -3.0, -0.5, -1.0], 0.5, 2)
    (2, 0)
    """
    order = sorted(range(len(logprobs)), key=lambda index: -logprobs[index])
    return tuple(index for index in order[:most] if logprobs[index] - without >= margin)


def elsewhere(kept: Sequence[str | None]) -> list[str | None]:
    """For each state, the comment kept for the next one that has any, the last followed by the first; None where no
    other state has one.

    >>> elsewhere(["a", None, "b"])
    ['b', 'b', 'a']
    >>> elsewhere(["a", None])
    [None, 'a']
    """
    found = []
    for place in range(len(kept)):
        following = [*kept[place + 1 :], *kept[:place]]
        found.append(next((comment for comment in following if comment is not None), None))
    return found


def round_figures(judged: Sequence[Judged]) -> dict[str, float | None]:
    """What a round tells, from at least one state; None where no comment was kept.

    kept_share: states with a kept comment. gain_sampled: mean over all sampled comments; gain: over each state's best
    kept one; gain_swapped: of a kept comment on another state, over the same states. distinct: distinct texts per kept
    comment. words: per kept comment. likeliest_without and likeliest: share of the states where the demonstrated action
    is the likeliest, without a comment and with the best kept one, or none.
    """
    having = [one for one in judged if one.kept]
    texts = [one.comments[index] for one in having for index in one.kept]
    sampled = [gain for one in judged for gain in one.gains]
    swapped = [one.swapped - one.without for one in having if one.swapped is not None]
    return {
        "states": len(judged),
        "kept_share": len(having) / len(judged),
        "gain_sampled": fmean(sampled) if sampled else None,
        "gain": fmean(one.gains[one.kept[0]] for one in having) if having else None,
        "gain_swapped": fmean(swapped) if swapped else None,
        "distinct": len(set(texts)) / len(texts) if texts else None,
        "words": fmean(len(text.split()) for text in texts) if texts else None,
        "likeliest_without": fmean(one.likeliest[0] for one in judged),
        "likeliest": fmean(one.likeliest[1 + one.kept[0]] if one.kept else one.likeliest[0] for one in judged),
    }


def judged_to_json(one: Judged) -> dict[str, Any]:
    """The line of a state."""
    return asdict(one)


FIELDS = {
    "state": int,
    "without": int | float,
    "comments": list,
    "logprobs": list,
    "likeliest": list,
    "kept": list,
}


def judged_from_json(row: Mapping[str, Any]) -> Judged | None:
    """The state of a line with `FIELDS`; None if its parts do not fit together."""
    comments, logprobs, likeliest, kept = (tuple(row[name]) for name in ("comments", "logprobs", "likeliest", "kept"))
    swapped = row.get("swapped")
    fits = (
        len(likeliest) == 1 + len(comments) == 1 + len(logprobs)
        and all(isinstance(text, str) for text in comments)
        and all(type(value) in (int, float) for value in (*logprobs, *(() if swapped is None else (swapped,))))
        and all(type(index) is int and 0 <= index < len(comments) for index in kept)
        and all(type(value) is bool for value in likeliest)
    )
    return Judged(row["state"], row["without"], comments, logprobs, likeliest, kept, swapped) if fits else None
