"""new: write a small environment of your own to start from, and say how to play and train it."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from reflectkit.config import Config, option
from reflectkit.console import Progress, Report
from reflectkit.errors import ConfigError

EXAMPLES = (
    "reflectkit new maze",
    "reflectkit new shop --kind tools",
    "reflectkit new quiz --kind prompts",
)
CHOICES = '''"""NAME: an environment with choices."""

import random

OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}


class CLASS:
    """Walk through rooms in which the signs point away from the right door. A wrong door costs a step."""

    choices = list(OPPOSITE)  # what the player can do; a property, if that changes
    horizon = 5  # most steps of an episode

    def __init__(self, rooms: int = 3):  # an argument is a flag: --rooms 4
        self.rooms = rooms

    def reset(self, seed):  # returns what the player sees first; the seed decides the problem
        chance = random.Random(seed)
        self.signs = [chance.choice(self.choices) for _ in range(self.rooms)]
        self.room = 0
        return self.text()

    def step(self, choice):  # returns what the player sees next, the reward, and whether the episode is over
        if choice != OPPOSITE[self.signs[self.room]]:
            return self.text(), -0.1, False
        self.room += 1
        if self.room == self.rooms:
            return "You are through.", 1.0, True
        return self.text(), 0.1, False

    def text(self):
        return f"Room {self.room + 1} of {self.rooms}. The sign points {self.signs[self.room]}."
'''
TOOLS = '''"""NAME: an environment with tools, in the form that TRL's environment_factory takes."""

import random


class CLASS:
    """Find the hidden number with a tool."""

    horizon = 8

    def __init__(self, span: int = 6):  # an argument is a flag: --span 14
        self.span = span

    def reset(self, seed: int = 0) -> str:  # the prompt; the seed decides the problem
        low = random.Random(seed).randint(1, 100)
        self.wanted = random.Random(seed + 1).randint(low, low + self.span)
        self.guesses = []
        return f"Find the number from {low} to {low + self.span}."

    def guess(self, number: int) -> str:  # each public method is a tool
        """
        Guess the number.

        Args:
            number: The guess.

        Returns:
            Whether the hidden number is smaller, larger, or found.
        """
        self.guesses.append(number)
        return "found" if number == self.wanted else "smaller" if number > self.wanted else "larger"

    def get_reward(self) -> float:  # asked once, when no more tools are called
        return float(self.wanted in self.guesses)
'''
PROMPTS = '''"""NAME: reward functions for the prompts in NAME.jsonl, in TRL's form. Its columns are arguments."""


def exact(completions, answer, **kwargs):  # 1 for the right answer
    return [float(text.strip() == right) for text, right in zip(completions, answer, strict=True)]


def short(completions, **kwargs):  # from 1 for no text to 0 for 40 characters; None would leave a completion out
    return [max(0.0, 1 - len(text) / 40) for text in completions]
'''
FILES = {"choices": CHOICES, "tools": TOOLS, "prompts": PROMPTS}


class NewConfig(Config):
    """Settings of new."""

    name: str = option(help="Name of the environment: letters, digits and _.", argument=True)
    kind: Literal["choices", "tools", "prompts"] = option(
        "choices",
        help="How the player acts: choices, tools (it calls them) or prompts (it answers one).",
    )

    @field_validator("name")
    @classmethod
    def _identifier(cls, name: str) -> str:
        if not re.fullmatch("[a-z][a-z0-9_]*", name):
            raise ValueError(f"{name!r:.40}: write small letters, digits and _, e.g. my_maze")
        if name in sys.stdlib_module_names:
            raise ValueError(f"{name!r} is a module of Python; write another name, e.g. my_{name}")
        return name


CONFIG = NewConfig


def run(config: NewConfig, progress: Progress) -> Report:
    """Write NAME.py, and for prompts NAME.jsonl. Raises ConfigError if there is one."""
    # 1. The texts, with the name in place
    name, kind = config.name, "".join(part.capitalize() for part in config.name.split("_"))
    texts = {Path(f"{name}.py"): FILES[config.kind].replace("NAME", name).replace("CLASS", kind)}
    env = f"--env {name}.py:{kind}"
    if config.kind == "prompts":
        texts[Path(f"{name}.jsonl")] = "".join(json.dumps(row) + "\n" for row in _sums())
        env = (
            f"--env prompts --dataset {name}.jsonl --reward {name}.py:exact --reward"
            f" {name}.py:short=0.1"
        )

    # 2. The files, if none of them exists
    for path in texts:
        if path.exists():
            raise ConfigError(f"{path} exists already, and is left as it is; choose another name")
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    # tiny does not write, and a model that thinks first needs more tokens than the default
    model = "tiny" if config.kind == "choices" else "Qwen/Qwen2.5-0.5B-Instruct --lora-r 16"
    closing = (
        "Play it, then train it:",
        f"  reflectkit play {env}",
        f"  reflectkit rlft {env} --model {model}",
    )
    return Report("new", Path(), {}, tuple(texts), closing=closing)


def _sums() -> list[dict[str, str]]:
    # In a random order that is always the same
    numbers = [(a, b) for a in range(10) for b in range(10)]
    random.Random(0).shuffle(numbers)
    return [
        {"prompt": f"What is {a} + {b}? Answer with the number only.", "answer": str(a + b)}
        for a, b in numbers
    ]
