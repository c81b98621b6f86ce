"""A calculator: tools, in the form that TRL's `environment_factory` takes.

reflectkit rlft --env examples/calculator.py --model Qwen/Qwen2.5-0.5B-Instruct --lora-r 16
reflectkit evaluate --env examples/calculator.py --policy results/1_rlft --policy start=Qwen/Qwen2.5-0.5B-Instruct
"""

import random


class Calculator:
    """Compute with the tools, then give the answer."""

    horizon = 6

    def reset(self, seed: int = 0) -> str:
        a, b, c = random.Random(seed).sample(range(2, 99), 3)
        self.wanted, self.given = a * b + c, None
        return f"What is {a} * {b} + {c}? Use the tools, and give the result to answer."

    def add(self, a: int, b: int) -> int:
        """
        Adds two numbers.

        Args:
            a: The first number.
            b: The second number.

        Returns:
            Their sum.
        """
        return a + b

    def multiply(self, a: int, b: int) -> int:
        """
        Multiplies two numbers.

        Args:
            a: The first number.
            b: The second number.

        Returns:
            Their product.
        """
        return a * b

    def answer(self, value: int) -> str:
        """
        Gives the answer.

        Args:
            value: The result of the whole calculation.

        Returns:
            A confirmation.
        """
        self.given = value
        return "Noted. Say that you are done."

    def get_reward(self) -> float:
        return float(self.given == self.wanted)
