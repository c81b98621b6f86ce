"""Wordle: a class as TRL's documentation has it. `GRPOTrainer(environment_factory=Wordle, …)` takes it, too.

reflectkit rlft --env examples/wordle.py:Wordle --model Qwen/Qwen2.5-0.5B-Instruct --lora-r 16
reflectkit evaluate --env examples/wordle.py:Wordle --policy results/1_rlft --policy start=Qwen/Qwen2.5-0.5B-Instruct
"""

import random

WORDS = ["apple", "bread", "chair", "dance", "eagle", "flame", "grape", "house", "juice", "knife", "lemon", "mouse"]
GUESSES = 6


class Wordle:
    """Find the word of five letters."""

    horizon = GUESSES + 1

    def __init__(self):
        self.word, self.guesses = "", []

    def reset(self, **kwargs) -> str:
        self.word, self.guesses = random.choice(WORDS), []
        return f"Find the word of five letters, with at most {GUESSES} guesses. It is one of: {', '.join(WORDS)}."

    def guess(self, word: str) -> str:
        """
        Guess the word.

        Args:
            word: A word of five letters.

        Returns:
            For each letter: G, it is in this place; Y, it is in another place; X, it is not in the word.
        """
        if len(self.guesses) == GUESSES or self.word in self.guesses:
            raise ValueError("The game is over.")
        if len(word) != len(self.word):
            raise ValueError("The word has five letters.")
        self.guesses.append(word)
        marks = ["G" if a == b else "Y" if a in self.word else "X" for a, b in zip(word, self.word, strict=True)]
        return " ".join(marks) + (" You found it." if word == self.word else "")

    def get_reward(self) -> float:
        return float(self.word in self.guesses)
