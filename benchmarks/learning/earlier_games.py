"""Twelve games in the form in which strangers write them. One default was chosen by them: `--shrink-values`.

They are plain classes, which `strangers.py` trains and plays.
"""

from __future__ import annotations

import random
from itertools import permutations
from typing import ClassVar

Returned = tuple[str, float, bool]
"""The text, the reward, and whether the episode is over."""


class Nim:
    """Take 1 to 3 of 10 to 21 sticks, in turns with a random player; who takes the last wins."""

    choices: ClassVar = ["take 1", "take 2", "take 3"]

    def reset(self, seed: int) -> str:
        self.chance = random.Random(seed)
        self.sticks = self.chance.randint(10, 21)
        return self.text()

    def step(self, choice: str) -> Returned:
        self.sticks -= min(self.sticks, int(choice.split()[1]))
        if not self.sticks:
            return "You took the last stick.", 1.0, True
        self.sticks -= min(self.sticks, self.chance.randint(1, 3))
        if not self.sticks:
            return "The other took the last stick.", 0.0, True
        return self.text(), 0.0, False

    def text(self) -> str:
        return f"{self.sticks} sticks are left."


class Lights:
    """Six lights, two by three; a button switches its light and its neighbours. Switch all off."""

    choices: ClassVar = [f"press {name}" for name in "ABCDEF"]
    horizon = 8
    near = ((0, 1, 3), (0, 1, 2, 4), (1, 2, 5), (0, 3, 4), (1, 3, 4, 5), (2, 4, 5))

    def reset(self, seed: int) -> str:
        chance = random.Random(seed)
        self.is_on = [False] * 6
        while not any(self.is_on):
            for button in chance.sample(range(6), chance.randint(1, 3)):
                self.press(button)
        return self.text()

    def step(self, choice: str) -> Returned:
        self.press("ABCDEF".index(choice[-1]))
        done = not any(self.is_on)
        return self.text(), 1.0 if done else -0.05, done

    def press(self, button: int) -> None:
        for light in self.near[button]:
            self.is_on[light] = not self.is_on[light]

    def text(self) -> str:
        words = ["on" if is_on else "off" for is_on in self.is_on]
        return f"A B C: {' '.join(words[:3])}\nD E F: {' '.join(words[3:])}"


class Hanoi:
    """The towers of Hanoi with three discs."""

    choices: ClassVar = [f"{one} to {other}" for one, other in permutations("ABC", 2)]
    horizon = 20

    def reset(self, seed: int) -> str:
        self.pegs: dict[str, list[int]] = {"A": [3, 2, 1], "B": [], "C": []}
        return self.text()

    def step(self, choice: str) -> Returned:
        one, other = (self.pegs[name] for name in choice.split(" to "))
        if not one or (other and other[-1] < one[-1]):
            return f"Not allowed. {self.text()}", -0.1, False
        other.append(one.pop())
        done = len(self.pegs["C"]) == 3
        return self.text(), 1.0 if done else -0.02, done

    def text(self) -> str:
        return "; ".join(f"peg {name}: {' '.join(map(str, discs)) or 'empty'}" for name, discs in self.pegs.items())


class Hangman:
    """Guess one of eight words by letters, with two mistakes."""

    words = ("house", "river", "table", "cloud", "bread", "night", "paper", "stone")

    def reset(self, seed: int) -> str:
        self.word = random.Random(seed).choice(self.words)
        self.tried: set[str] = set()
        self.mistakes_left = 3
        return self.text()

    @property
    def choices(self) -> list[str]:
        return [letter for letter in "abcdeghilnoprstuv" if letter not in self.tried]

    def step(self, letter: str) -> Returned:
        self.tried.add(letter)
        self.mistakes_left -= letter not in self.word
        has_won = set(self.word) <= self.tried
        return self.text(), float(has_won), has_won or not self.mistakes_left

    def text(self) -> str:
        shown = " ".join(letter if letter in self.tried else "_" for letter in self.word)
        return f"Word: {shown}. {self.mistakes_left} mistakes left."


class Simon:
    """Repeat three colours, which stay in view with what was said."""

    choices: ClassVar = ["red", "green", "blue", "go on"]
    horizon = 8

    def reset(self, seed: int) -> str:
        chance = random.Random(seed)
        self.colours = [chance.choice(self.choices[:3]) for _ in range(3)]
        self.said: list[str] = []
        return self.text()

    def step(self, choice: str) -> Returned:
        if choice != self.colours[len(self.said)]:
            return f"{self.text()} Wrong: {choice}", 0.0, True
        self.said.append(choice)
        return self.text(), 1 / 3, len(self.said) == 3

    def text(self) -> str:
        said = f" You said {', '.join(self.said)}." if self.said else ""
        return f"The colours are {', '.join(self.colours)}.{said}"


class Elevator:
    """Go to the floor where somebody waits, and open."""

    choices: ClassVar = ["up", "down", "open"]
    horizon = 12

    def reset(self, seed: int) -> str:
        self.floor, self.target = random.Random(seed).sample(range(1, 7), 2)
        return self.text()

    def step(self, choice: str) -> Returned:
        if choice == "open":
            is_there = self.floor == self.target
            return self.text(), 1.0 if is_there else -0.2, is_there
        self.floor = min(6, max(1, self.floor + (1 if choice == "up" else -1)))
        return self.text(), -0.02, False

    def text(self) -> str:
        return f"The lift is on floor {self.floor}. Somebody waits on floor {self.target}."


class River:
    """A wolf, a goat and a cabbage cross a river."""

    choices: ClassVar = ["cross alone", "take the wolf", "take the goat", "take the cabbage"]
    horizon = 20

    def reset(self, seed: int) -> str:
        self.is_across = dict.fromkeys(("farmer", "wolf", "goat", "cabbage"), False)
        return self.text()

    def step(self, choice: str) -> Returned:
        across = self.is_across
        cargo = choice.split()[-1]
        if cargo != "alone":
            if across[cargo] != across["farmer"]:
                return f"It is on the other bank. {self.text()}", -0.05, False
            across[cargo] = not across[cargo]
        across["farmer"] = not across["farmer"]
        is_alone_with_food = across["goat"] in (across["wolf"], across["cabbage"])
        if across["goat"] != across["farmer"] and is_alone_with_food:
            return "Something was eaten.", -0.5, True
        done = all(across.values())
        return self.text(), 1.0 if done else -0.02, done

    def text(self) -> str:
        left, right = (
            ", ".join(name for name, there in self.is_across.items() if there is bank) or "nobody"
            for bank in (False, True)
        )
        return f"Left bank: {left}. Right bank: {right}."


class Roshambo:
    """Ten rounds of rock, paper and scissors against somebody who plays what beats the last move."""

    choices: ClassVar = ["rock", "paper", "scissors"]
    beaten_by: ClassVar = {"rock": "paper", "paper": "scissors", "scissors": "rock"}

    def reset(self, seed: int) -> str:
        self.next_move = random.Random(seed).choice(self.choices)
        self.round = 1
        return "Round 1."

    def step(self, choice: str) -> Returned:
        other = self.next_move
        reward = float(choice == self.beaten_by[other]) - float(other == self.beaten_by[choice])
        self.next_move = self.beaten_by[choice]
        self.round += 1
        return f"Round {self.round}. You played {choice}, they played {other}.", reward, self.round > 10


class Knapsack:
    """Take or leave five things, one after the other; a sack for 10 kg."""

    choices: ClassVar = ["take", "skip"]

    def reset(self, seed: int) -> str:
        chance = random.Random(seed)
        self.things = [(chance.randint(1, 6), chance.randint(1, 9)) for _ in range(5)]
        self.room, self.seen = 10, 0
        return self.text()

    def step(self, choice: str) -> Returned:
        weight, worth = self.things[self.seen]
        if choice == "take":
            if weight > self.room:
                return "The sack tore.", -10.0, True
            self.room -= weight
        reward = float(worth) if choice == "take" else 0.0
        self.seen += 1
        if self.seen == 5:
            return "Done.", reward, True
        return self.text(), reward, False

    def text(self) -> str:
        weight, worth = self.things[self.seen]
        return f"Thing {self.seen + 1} of 5: {weight} kg, worth {worth}. Room for {self.room} kg."


class Sorting:
    """Sort four numbers by swaps of neighbours."""

    choices: ClassVar = ["swap 1 2", "swap 2 3", "swap 3 4"]
    horizon = 12

    def reset(self, seed: int) -> str:
        chance = random.Random(seed)
        self.row = [1, 2, 3, 4]
        while self.row == sorted(self.row):
            chance.shuffle(self.row)
        return self.text()

    def step(self, choice: str) -> Returned:
        first = int(choice.split()[1]) - 1
        self.row[first : first + 2] = reversed(self.row[first : first + 2])
        done = self.row == sorted(self.row)
        return self.text(), 1.0 if done else -0.05, done

    def text(self) -> str:
        return f"The row is {' '.join(map(str, self.row))}."


class Key:
    """Six rooms in a row; fetch the key in the first, and unlock the door in the last. Only that is paid."""

    choices: ClassVar = ["left", "right", "take", "unlock"]
    horizon = 30

    def reset(self, seed: int) -> str:
        self.room, self.has_key = random.Random(seed).randint(1, 3), False
        return self.text()

    def step(self, choice: str) -> Returned:
        if choice == "left":
            self.room = max(0, self.room - 1)
        if choice == "right":
            self.room = min(5, self.room + 1)
        if choice == "take" and self.room == 0:
            self.has_key = True
        done = choice == "unlock" and self.room == 5 and self.has_key
        return self.text(), float(done), done

    def text(self) -> str:
        here = "Nothing here."
        if self.room == 0:
            here = "An empty hook." if self.has_key else "A key hangs here."
        if self.room == 5:
            here = "A locked door is here."
        return f"Room {self.room}. {here} You {'have a key' if self.has_key else 'have nothing'}."


class Quiz:
    """Four questions about capitals, four answers each; a wrong one costs half a point."""

    capitals: ClassVar = {
        "France": "Paris",
        "Italy": "Rome",
        "Spain": "Madrid",
        "Peru": "Lima",
        "Kenya": "Nairobi",
        "Japan": "Tokyo",
        "Cuba": "Havana",
        "Norway": "Oslo",
        "Egypt": "Cairo",
        "Ghana": "Accra",
        "Nepal": "Kathmandu",
        "Chile": "Santiago",
    }

    def reset(self, seed: int) -> str:
        self.chance = random.Random(seed)
        self.asked = 0
        return self.text()

    def step(self, choice: str) -> Returned:
        reward = 1.0 if choice == self.capitals[self.country] else -0.5
        return self.text(), reward, self.asked > 4

    def text(self) -> str:
        self.asked += 1
        self.country = self.chance.choice(list(self.capitals))
        right = self.capitals[self.country]
        wrong = [city for city in self.capitals.values() if city != right]
        self.choices = self.chance.sample([right, *self.chance.sample(wrong, 3)], 4)
        return f"What is the capital of {self.country}?"


OPTIMUM: dict[type, float] = {
    Nim: 0.9955,
    Lights: 0.97,
    Hanoi: 0.88,
    Hangman: 1.0,
    Simon: 1.0,
    Elevator: 0.9533,
    River: 0.88,
    Roshambo: 9.0,
    Knapsack: 17.2988,
    Sorting: 0.8935,
    Key: 1.0,
    Quiz: 4.0,
}
"""The mean return of an optimal player, over all problems."""
