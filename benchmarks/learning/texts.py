"""A game for pretrained models, which write: words that begin with a letter.

Its returns are not exact. A player is measured on held-out prompts: other pairs of a letter and a kind of words.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from reflectkit.commands import evaluate
from reflectkit.console import Quiet
from reflectkit.jsonl import write_jsonl

KINDS = ("animals", "towns", "names", "foods", "verbs", "plants")
LETTERS = "abcdefghilmnoprst"
EPISODES = 8
"""Of each held-out prompt."""


def share_of_words(completions: Sequence[str], letter: Sequence[str], **columns: Any) -> list[float]:
    """The share of the words in an answer that begin with the letter."""
    shares = []
    for text, first in zip(completions, letter, strict=True):
        words = text.lower().split()
        shares.append(sum(word.startswith(first) for word in words) / max(1, len(words)))
    return shares


class Words:
    """The game: prompts with a reward between 0 and 1."""

    def flags(self, folder: Path) -> dict[str, Any]:
        """Of a command that plays it. folder: for the prompts."""
        rows = [
            {"prompt": f"Write five {kind} that begin with the letter {letter.upper()}.", "letter": letter}
            for kind, letter in product(KINDS, LETTERS)
        ]
        write_jsonl(folder / "words.jsonl", rows)
        reward = f"{__file__}:{share_of_words.__name__}"
        return {"env": "prompts", "dataset": str(folder / "words.jsonl"), "reward": (reward,), "max_new_tokens": 16}

    def score(self, value: float) -> float:
        """The return itself: random words have about 0, and the optimum is 1."""
        return value

    def returns(self, checkpoint: Path, folder: Path, temperature: float) -> float:
        """The mean return of a player on held-out prompts."""
        config = evaluate.EvaluateConfig.from_flat(
            **self.flags(folder),
            policy=(f"player={checkpoint}",),
            eval_reps=EPISODES if temperature else 1,
            temperature=temperature,
            name=f"evaluation-{temperature:g}",
            data_dir=folder / "data",
            results_dir=folder / "results",
            device="cpu",
        )
        (row,) = evaluate.run(config, Quiet()).figures["rows"]
        return float(row["return"])


TEXTS = {"words": Words}
"""The games that take words, by name."""
