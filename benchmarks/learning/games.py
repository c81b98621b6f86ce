"""Small games as strangers write them, with text observations, and the rules from which their optimum follows.

Each class is an environment with choices for `--env benchmarks/learning/games.py:NAME`. It also tells what can follow a
state, so `values.py` computes the optimum and the exact return of a player. No reward is shaped for learning.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

State = Any
"""What the game knows, hashable."""


@dataclass(frozen=True)
class Outcome:
    """What can follow a choice, with its probability."""

    probability: float
    state: State
    reward: float = 0.0
    done: bool = False


class Game(ABC):
    """A game with a finite number of states between a start and the end.

    horizon: most steps of an episode.
    """

    choices: Any = ()
    horizon: ClassVar[int]

    def __init__(self) -> None:
        self.state: State = None
        self.chance = random.Random(0)

    @abstractmethod
    def start(self, chance: random.Random) -> State:
        """A first state."""

    @abstractmethod
    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        """What can follow `choice` in `state`."""

    @abstractmethod
    def text(self, state: State) -> str:
        """What a player reads."""

    def options(self, state: State) -> Sequence[str]:
        """The legal choices in `state`."""
        return tuple(self.choices)

    def vector(self, state: State) -> list[float]:
        """The state as numbers, for learners that read no text."""
        raise NotImplementedError

    def reset(self, seed: int) -> str:
        """Begin an episode."""
        self.chance = random.Random(seed)
        self.state = self.start(self.chance)
        return self.text(self.state)

    def step(self, choice: str) -> tuple[str, float, bool]:
        """Take a choice."""
        possible = self.outcomes(self.state, choice)
        (outcome,) = self.chance.choices(possible, [each.probability for each in possible])
        self.state = outcome.state
        return self.text(self.state), outcome.reward, outcome.done


class ChangingChoices(Game):
    """A game whose choices depend on the state."""

    @property
    def choices(self) -> list[str]:
        """The legal choices now; none before the first reset."""
        return [] if self.state is None else list(self.options(self.state))

    @abstractmethod
    def options(self, state: State) -> Sequence[str]:
        """The legal choices in `state`."""


def sure(state: State, reward: float = 0.0, done: bool = False) -> list[Outcome]:
    """The only outcome."""
    return [Outcome(1.0, state, reward, done)]


# ------------------------------------------------------------------------------------------------------------- one step


class Machines(Game):
    """Four machines that pay 1 with different probabilities, always the same."""

    choices, horizon = ["machine A", "machine B", "machine C", "machine D"], 1
    pays = (0.3, 0.7, 0.5, 0.1)

    def start(self, chance: random.Random) -> State:
        return ()

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        pay = self.pays[self.choices.index(choice)]
        return [Outcome(pay, state, 1.0, True), Outcome(1 - pay, state, 0.0, True)]

    def text(self, state: State) -> str:
        return "You stand before four machines. Which one do you play?"

    def vector(self, state: State) -> list[float]:
        return [1.0]


class Shelves(Game):
    """Put a thing on the shelf of its kind."""

    choices, horizon = ["fruit", "animals", "tools", "clothes"], 1
    things: ClassVar[dict[str, tuple[str, ...]]] = {
        "fruit": ("apple", "pear", "plum", "cherry", "fig"),
        "animals": ("cat", "horse", "goose", "trout", "mole"),
        "tools": ("saw", "hammer", "drill", "chisel", "pliers"),
        "clothes": ("hat", "scarf", "glove", "boot", "coat"),
    }
    every = tuple((kind, thing) for kind, names in things.items() for thing in names)

    def start(self, chance: random.Random) -> State:
        return chance.choice(self.every)

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        return sure(state, 1.0 if choice == state[0] else 0.0, True)

    def text(self, state: State) -> str:
        return f"You hold a {state[1]}. On which shelf does it belong?"

    def vector(self, state: State) -> list[float]:
        return [float(state == each) for each in self.every]


class Umbrella(Game):
    """Take an umbrella, which costs 0.2, or get wet with a probability that the clouds tell."""

    choices, horizon = ["take the umbrella", "leave it at home"], 1

    def start(self, chance: random.Random) -> State:
        return (chance.randrange(9), chance.randrange(40))

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        rain = state[0] / 8
        if choice == self.choices[0]:
            return sure(state, -0.2, True)
        return [Outcome(rain, state, -1.0, True), Outcome(1 - rain, state, 0.0, True)]

    def text(self, state: State) -> str:
        return f"Clouds cover {state[0]} of 8 parts of the sky, and the wind blows with {state[1]} km/h."

    def vector(self, state: State) -> list[float]:
        return [state[0] / 8, state[1] / 40]


class Gifts(Game):
    """Give each of eight guests the one gift of four that he likes. A wrong gift costs 1, and none costs nothing."""

    choices, horizon = ["give the kite", "give the book", "give the drum", "give the cake", "give nothing"], 1
    likes: ClassVar[dict[str, str]] = {
        "Anna": "give the kite",
        "Boris": "give the kite",
        "Clara": "give the book",
        "David": "give the book",
        "Emil": "give the drum",
        "Frida": "give the drum",
        "Georg": "give the cake",
        "Hanna": "give the cake",
    }
    every = tuple(likes)

    def start(self, chance: random.Random) -> State:
        return chance.choice(self.every)

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        if choice == self.choices[-1]:
            return sure(state, 0.0, True)
        return sure(state, 1.0 if choice == self.likes[state] else -1.0, True)

    def text(self, state: State) -> str:
        return f"{state} comes to your party. What do you give?"

    def vector(self, state: State) -> list[float]:
        return [float(state == each) for each in self.every]


class Parcels(Game):
    """Bring each of 24 parcels to the one of twelve streets that it is for, or leave it. A wrong street costs 1."""

    streets = ("kite", "book", "drum", "cake", "rope", "lamp", "coat", "ring", "bell", "fish", "seed", "comb")
    choices, horizon = [*(f"{street} street" for street in streets), "leave it"], 1
    parcels = (
        "Anna", "Boris", "Clara", "David", "Emil", "Frida", "Georg", "Hanna", "Ivan", "Julia", "Karl", "Lotte",
        "Max", "Nina", "Otto", "Paula", "Quirin", "Rosa", "Stefan", "Tina", "Udo", "Vera", "Willi", "Zoe",
    )  # fmt: skip

    def start(self, chance: random.Random) -> State:
        return chance.randrange(len(self.parcels))

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        if choice == self.choices[-1]:
            return sure(state, 0.0, True)
        right = self.choices[7 * state % len(self.streets)]
        return sure(state, 1.0 if choice == right else -1.0, True)

    def text(self, state: State) -> str:
        return f"A parcel for {self.parcels[state]}. Where do you bring it?"

    def vector(self, state: State) -> list[float]:
        return [float(state == number) for number in range(len(self.parcels))]


# ------------------------------------------------------------------------------------------------------------ few steps


class Signal(Game):
    """Say the direction that is shown, three times."""

    choices, horizon = ["left", "right", "straight on"], 3

    def start(self, chance: random.Random) -> State:
        return (0, chance.choice(self.choices))

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        step, direction = state
        reward = 1.0 if choice == direction else 0.0
        return [Outcome(1 / 3, (step + 1, each), reward, step == 2) for each in self.choices]

    def text(self, state: State) -> str:
        return f"The arrow points {state[1]}. Which way do you go?"

    def vector(self, state: State) -> list[float]:
        return [float(state[1] == each) for each in self.choices]


class Search(Game):
    """Six rooms in a row; take the lamp where it is. A step costs 0.01, and a wrong grasp ends the search."""

    choices, horizon = ["go deeper", "go back", "take the lamp"], 10

    def start(self, chance: random.Random) -> State:
        return (0, chance.randrange(1, 6))

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        room, lamp = state
        if choice == "take the lamp":
            return sure(state, 1.0 if room == lamp else -0.01, True)
        room = min(5, room + 1) if choice == "go deeper" else max(0, room - 1)
        return sure((room, lamp), -0.01)

    def text(self, state: State) -> str:
        return f"You are in room {state[0]}. {'You see a lamp.' if state[0] == state[1] else 'It is empty.'}"

    def vector(self, state: State) -> list[float]:
        return [*(float(state[0] == room) for room in range(6)), float(state[0] == state[1])]


class Door(Game):
    """Walk along a corridor to a door. A step costs 0.02."""

    choices, horizon = ["left", "right"], 12

    def start(self, chance: random.Random) -> State:
        return tuple(chance.sample(range(12), 2))

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        place, door = state
        place = max(0, place - 1) if choice == "left" else min(11, place + 1)
        return sure((place, door), 1.0 if place == door else -0.02, place == door)

    def text(self, state: State) -> str:
        return f"You stand at {state[0]}, and the door is at {state[1]}."

    def vector(self, state: State) -> list[float]:
        return [state[0] / 11, state[1] / 11]


class Lock(Game):
    """Three right buttons in a row open a lock; a wrong one begins again. A press costs 0.01."""

    choices, horizon = ["red", "green", "blue", "white", "black"], 8
    code = ("blue", "red", "black")

    def start(self, chance: random.Random) -> State:
        return 0

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        lights = state + 1 if choice == self.code[state] else 0
        return sure(lights % 3, 1.0 if lights == 3 else -0.01, lights == 3)

    def text(self, state: State) -> str:
        return f"A lock with five buttons. {state} of 3 lights are on."

    def vector(self, state: State) -> list[float]:
        return [float(state == lights) for lights in range(3)]


class Guess(ChangingChoices):
    """Guess a number from 1 to 15; one hears whether it is higher or lower. The sooner, the better."""

    horizon = 4

    def start(self, chance: random.Random) -> State:
        return (1, 15, 0)

    def options(self, state: State) -> Sequence[str]:
        return tuple(str(number) for number in range(state[0], state[1] + 1))

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        low, high, guesses = state
        guess, count = int(choice), high - low + 1
        outcomes = [Outcome(1 / count, state, 1.0 - 0.2 * guesses, True)]
        if guess > low:
            outcomes.append(Outcome((guess - low) / count, (low, guess - 1, guesses + 1)))
        if guess < high:
            outcomes.append(Outcome((high - guess) / count, (guess + 1, high, guesses + 1)))
        return outcomes

    def text(self, state: State) -> str:
        return f"I think of a number from {state[0]} to {state[1]}. Guess it."

    def vector(self, state: State) -> list[float]:
        return [state[0] / 15, state[1] / 15]


class Doors(ChangingChoices):
    """A corridor with 2 to 60 doors, one of which is open."""

    horizon = 1

    def start(self, chance: random.Random) -> State:
        count = chance.randint(2, 60)
        return (count, chance.randint(1, count))

    def options(self, state: State) -> Sequence[str]:
        return tuple(f"door {number}" for number in range(1, state[0] + 1))

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        return sure(state, 1.0 if choice == f"door {state[1]}" else 0.0, True)

    def text(self, state: State) -> str:
        return f"The corridor has {state[0]} doors. Door {state[1]} is open."

    def vector(self, state: State) -> list[float]:
        return [state[0] / 60, *(float(state[1] == number) for number in range(1, 61))]


class Fetch(ChangingChoices):
    """Six of twelve things lie on a table, each time in another order; take the one that is asked for."""

    horizon = 1
    things = ("apple", "bread", "candle", "drum", "egg", "fork", "glove", "hammer", "iron", "jar", "key", "lamp")

    def start(self, chance: random.Random) -> State:
        lying = tuple(chance.sample(self.things, 6))
        return (lying, chance.choice(lying))

    def options(self, state: State) -> Sequence[str]:
        return tuple(f"take the {thing}" for thing in state[0])

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        return sure(state, 1.0 if choice == f"take the {state[1]}" else 0.0, True)

    def text(self, state: State) -> str:
        return f"Somebody asks you for the {state[1]}."

    def vector(self, state: State) -> list[float]:
        return [float(state[1] == thing) for thing in self.things]


class House(ChangingChoices):
    """Go to the room of a house where somebody waits; from each room, doors lead to others. A step costs 0.02."""

    horizon = 8
    doors: ClassVar[dict[str, tuple[str, ...]]] = {
        "hall": ("kitchen", "study", "stairs"),
        "kitchen": ("hall", "cellar"),
        "study": ("hall", "library"),
        "stairs": ("hall", "attic", "bedroom"),
        "cellar": ("kitchen",),
        "library": ("study",),
        "attic": ("stairs",),
        "bedroom": ("stairs",),
    }

    def start(self, chance: random.Random) -> State:
        return tuple(chance.sample(tuple(self.doors), 2))

    def options(self, state: State) -> Sequence[str]:
        return tuple(f"go to the {room}" for room in self.doors[state[0]])

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        room, target = choice.removeprefix("go to the "), state[1]
        return sure((room, target), 1.0 if room == target else -0.02, room == target)

    def text(self, state: State) -> str:
        return f"You are in the {state[0]}. Somebody waits in the {state[1]}."

    def vector(self, state: State) -> list[float]:
        return [float(room == named) for named in state for room in self.doors]


class Diary(Game):
    """A key is named on the first day; on the fourth, it opens the door. Other numbers come in between."""

    choices, horizon = ["wait", "key 1", "key 2", "key 3", "key 4"], 5
    events = (
        "{} birds sat on the roof",
        "the bus came {} minutes late",
        "a letter with {} stamps came",
        "{} guests ate here",
    )

    def start(self, chance: random.Random) -> State:
        key = chance.randint(1, 4)
        days = tuple((chance.randrange(4), chance.randint(1, 4)) for _ in range(3))
        return (key, days, 0)

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        key, days, day = state
        if choice == "wait":
            return sure((key, days, min(3, day + 1)), -0.02)
        return sure(state, 1.0 if day == 3 and choice == f"key {key}" else 0.0, True)

    def text(self, state: State) -> str:
        key, days, day = state
        lines = [f"Day 1: They gave me key {key}."]
        for number, (event, count) in enumerate(days[:day], 2):
            lines.append(f"Day {number}: {self.events[event].format(count).capitalize()}.")
        lines.append("Today I stand at the door." if day == 3 else "Today there is no door.")
        return "\n".join(lines)

    def vector(self, state: State) -> list[float]:
        return [*(float(state[0] == key) for key in range(1, 5)), *(float(state[2] == day) for day in range(4))]


class Stock(Game):
    """A shop for five days: order 0 to 3 boxes at 60 each, sell what is asked for at 100; a box kept costs 10."""

    choices, horizon = ["order 0", "order 1", "order 2", "order 3"], 5

    def start(self, chance: random.Random) -> State:
        return (1, 0)

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        day, boxes = state
        ordered = int(choice[-1])
        here = min(5, boxes + ordered)
        outcomes = []
        for asked, probability in ((0, 0.1), (1, 0.3), (2, 0.4), (3, 0.2)):
            sold = min(asked, here)
            profit = 100.0 * sold - 60.0 * ordered - 10.0 * (here - sold)
            outcomes.append(Outcome(probability, (day + 1, here - sold), profit, day == 5))
        return outcomes

    def text(self, state: State) -> str:
        return f"Day {state[0]} of 5. There are {state[1]} boxes in the shop. How many do you order?"

    def vector(self, state: State) -> list[float]:
        return [state[0] / 5, state[1] / 5]


class Blackjack(Game):
    """Gymnasium's Blackjack as text, with endless cards."""

    choices, horizon = ["hit", "stick"], 12
    cards = (*range(1, 10), 10, 10, 10, 10)

    def start(self, chance: random.Random) -> State:
        dealer, *own = (chance.choice(self.cards) for _ in range(3))
        total, ace = 0, False
        for card in own:
            total, ace = self._hand(total, ace, card)
        return (total, ace, dealer)

    @staticmethod
    def _hand(total: int, ace: bool, card: int) -> tuple[int, bool]:
        """(total, whether an ace counts 11 in it) with one more card."""
        total -= 10 if ace else 0
        ace = ace or card == 1
        total += card
        return (total + 10, True) if ace and total + 10 <= 21 else (total, False)

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        total, ace, dealer = state
        if choice == "stick":
            return self._shown(state)
        outcomes = []
        for card in self.cards:
            new, usable = self._hand(total, ace, card)
            bust = new > 21
            outcomes.append(Outcome(1 / 13, (new, usable, dealer), -1.0 if bust else 0.0, bust))
        return outcomes

    def _shown(self, state: State) -> Sequence[Outcome]:
        total, _, dealer = state
        shares = {-1.0: 0.0, 0.0: 0.0, 1.0: 0.0}
        for final, probability in _dealer_totals(dealer).items():
            reward = 1.0 if final > 21 or final < total else 0.0 if final == total else -1.0
            shares[reward] += probability
        return [Outcome(share, state, reward, True) for reward, share in shares.items()]

    def text(self, state: State) -> str:
        return (
            f"Your sum is {state[0]}{', with an ace that counts 11' if state[1] else ''}. The dealer shows {state[2]}."
        )

    def vector(self, state: State) -> list[float]:
        return [state[0] / 21, float(state[1]), state[2] / 10]


_DEALERS: dict[tuple[int, bool], dict[int, float]] = {}


def _dealer_totals(card: int) -> dict[int, float]:
    """The probability of each final sum of a dealer who shows `card` and stops at 17."""

    def follow(total: int, ace: bool) -> dict[int, float]:
        if total >= 17:
            return {min(total, 22): 1.0}
        if (total, ace) not in _DEALERS:
            sums: dict[int, float] = {}
            for drawn in Blackjack.cards:
                for final, probability in follow(*Blackjack._hand(total, ace, drawn)).items():
                    sums[final] = sums.get(final, 0.0) + probability / 13
            _DEALERS[total, ace] = sums
        return _DEALERS[total, ace]

    return follow(*Blackjack._hand(0, False, card))


# ----------------------------------------------------------------------------------------------------------------- maps

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


class Maze(Game):
    """The maze of the README: each seed has another one. A step costs 0.02."""

    choices, horizon = list(MOVES), 12

    def start(self, chance: random.Random) -> State:
        cells = frozenset((row, column) for row in range(5) for column in range(5) if chance.random() < 0.9)
        place, door = chance.sample(sorted(cells), 2)
        return (cells, place, door)

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        cells, place, door = state
        ahead = self._ahead(place, choice)
        place = ahead if ahead in cells else place
        return sure((cells, place, door), 1.0 if place == door else -0.02, place == door)

    @staticmethod
    def _ahead(place: tuple[int, int], choice: str) -> tuple[int, int]:
        return place[0] + MOVES[choice][0], place[1] + MOVES[choice][1]

    def text(self, state: State) -> str:
        cells, place, door = state
        down, right = door[0] - place[0], door[1] - place[1]
        way = f"{abs(down)} {'down' if down > 0 else 'up'}, {abs(right)} {'right' if right > 0 else 'left'}"
        return f"Exit: {way}. Free: {', '.join(each for each in MOVES if self._ahead(place, each) in cells)}."

    def vector(self, state: State) -> list[float]:
        cells, place, door = state
        free = [float(self._ahead(place, each) in cells) for each in MOVES]
        return [(door[0] - place[0]) / 5, (door[1] - place[1]) / 5, *free]


class Ice(Game):
    """Gymnasium's slippery FrozenLake, 4 × 4: a step goes where it should in one of three cases, or aside."""

    choices, horizon = ["left", "down", "right", "up"], 40
    field = ("SFFF", "FHFH", "FFFH", "HFFG")
    ways = ((0, -1), (1, 0), (0, 1), (-1, 0))

    def start(self, chance: random.Random) -> State:
        return (0, 0)

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        wanted = self.choices.index(choice)
        outcomes = []
        for way in ((wanted - 1) % 4, wanted, (wanted + 1) % 4):
            row = min(3, max(0, state[0] + self.ways[way][0]))
            column = min(3, max(0, state[1] + self.ways[way][1]))
            cell = self.field[row][column]
            outcomes.append(Outcome(1 / 3, (row, column), float(cell == "G"), cell in "GH"))
        return outcomes

    def text(self, state: State) -> str:
        rows = [list(row) for row in self.field]
        rows[state[0]][state[1]] = "X"
        return "\n".join(" ".join(row) for row in rows)

    def vector(self, state: State) -> list[float]:
        return [float(state == cell) for cell in product(range(4), range(4))]


class Cliff(Game):
    """Gymnasium's CliffWalking, 4 × 12: each step costs 1, and a fall costs 100 and leads back to the start."""

    choices, horizon = ["up", "right", "down", "left"], 40
    ways = ((-1, 0), (0, 1), (1, 0), (0, -1))

    def start(self, chance: random.Random) -> State:
        return (3, 0)

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        way = self.ways[self.choices.index(choice)]
        row, column = min(3, max(0, state[0] + way[0])), min(11, max(0, state[1] + way[1]))
        if row == 3 and 0 < column < 11:
            return sure((3, 0), -100.0)
        return sure((row, column), -1.0, (row, column) == (3, 11))

    def text(self, state: State) -> str:
        return f"You are in row {state[0]}, column {state[1]}. The goal is in row 3, column 11, behind a cliff."

    def vector(self, state: State) -> list[float]:
        return [float(state == cell) for cell in product(range(4), range(12))]


class Taxi(Game):
    """Gymnasium's Taxi with walls; whatever changes nothing ends the ride. Rewards are those of Gymnasium by 20."""

    choices, horizon = ["south", "north", "east", "west", "pick up", "drop off"], 20
    stands = ((0, 0), (0, 4), (4, 0), (4, 3))
    names = ("red", "green", "yellow", "blue")
    ways: ClassVar[dict[str, tuple[int, int]]] = {"south": (1, 0), "north": (-1, 0), "east": (0, 1), "west": (0, -1)}
    walls = frozenset(
        {((0, 1), (0, 2)), ((1, 1), (1, 2)), ((3, 0), (3, 1)), ((4, 0), (4, 1)), ((3, 2), (3, 3)), ((4, 2), (4, 3))}
    )

    def start(self, chance: random.Random) -> State:
        passenger, target = chance.sample(range(4), 2)
        return (chance.randrange(5), chance.randrange(5), passenger, target, False)

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        row, column, passenger, target, was_aboard = state
        here = (row, column)
        if choice == "pick up":
            if passenger == 4 or here != self.stands[passenger]:
                return sure(state, -0.5, True)
            return sure((row, column, 4, target, True), 0.95)
        if choice == "drop off":
            if passenger != 4 or here != self.stands[target]:
                return sure(state, -0.5, True)
            return sure(state, 0.95, True)
        way = self.ways[choice]
        there = (row + way[0], column + way[1])
        wall = (min(here, there), max(here, there)) in self.walls
        if wall or not (0 <= there[0] < 5 and 0 <= there[1] < 5):
            return sure(state, -0.5, True)
        return sure((*there, passenger, target, was_aboard), -0.05)

    def text(self, state: State) -> str:
        row, column, passenger, target, _ = state
        who = "sits in the taxi" if passenger == 4 else f"waits at {self.names[passenger]}"
        return f"Taxi in row {row}, column {column}. The passenger {who} and wants to go to {self.names[target]}."

    def vector(self, state: State) -> list[float]:
        cells = [float(state[:2] == cell) for cell in product(range(5), range(5))]
        return [
            *cells,
            *(float(state[2] == place) for place in range(5)),
            *(float(state[3] == place) for place in range(4)),
        ]


class TicTacToe(ChangingChoices):
    """Tic-tac-toe against a random player; the policy begins. A win gives 1, a loss −1."""

    horizon = 5
    lines = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))

    def start(self, chance: random.Random) -> State:
        return "." * 9

    def options(self, state: State) -> Sequence[str]:
        return tuple(f"cell {cell}" for cell in range(1, 10) if state[cell - 1] == ".")

    def _wins(self, board: str, player: str) -> bool:
        return any(all(board[cell] == player for cell in line) for line in self.lines)

    def outcomes(self, state: State, choice: str) -> Sequence[Outcome]:
        cell = int(choice[-1]) - 1
        board = f"{state[:cell]}X{state[cell + 1 :]}"
        if self._wins(board, "X"):
            return sure(board, 1.0, True)
        free = [cell for cell in range(9) if board[cell] == "."]
        if not free:
            return sure(board, 0.0, True)
        outcomes = []
        for cell in free:
            answer = f"{board[:cell]}O{board[cell + 1 :]}"
            lost = self._wins(answer, "O")
            outcomes.append(Outcome(1 / len(free), answer, -1.0 if lost else 0.0, lost))
        return outcomes

    def text(self, state: State) -> str:
        rows = [" ".join(state[start : start + 3]) for start in (0, 3, 6)]
        return "\n".join(["You play X.", *rows])

    def vector(self, state: State) -> list[float]:
        return [float(mark == player) for mark in state for player in "XO"]


GAMES: dict[str, type[Game]] = {
    kind.__name__.lower(): kind
    for kind in (
        Machines,
        Shelves,
        Umbrella,
        Gifts,
        Parcels,
        Signal,
        Search,
        Door,
        Lock,
        Guess,
        Doors,
        Fetch,
        House,
        Diary,
        Stock,
        Blackjack,
        Maze,
        Ice,
        Cliff,
        Taxi,
        TicTacToe,
    )
}
"""The games that a model with random weights can play, by name."""
