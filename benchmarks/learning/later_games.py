"""Fourteen games that were written after the defaults were fixed, by an author who did not know the learner.

They are plain classes, like the games in `strangers.py`, which trains and plays them.
"""

from __future__ import annotations

import random
from typing import ClassVar, NamedTuple

Returned = tuple[str, float, bool]
"""The text, the reward, and whether the episode is over."""


class PegTriangle:
    """Peg solitaire on a ten-hole triangle: jump pegs over pegs, get 10 for one peg left, 4 for two, 1 for three."""

    rows = ("A", "BC", "DEF", "GHIJ")
    jumps: ClassVar[dict[str, dict[str, str]]] = {
        "A": {"D": "B", "F": "C"},
        "B": {"G": "D", "I": "E"},
        "C": {"H": "E", "J": "F"},
        "D": {"F": "E", "A": "B"},
        "F": {"D": "E", "A": "C"},
        "G": {"I": "H", "B": "D"},
        "H": {"J": "I", "C": "E"},
        "I": {"G": "H", "B": "E"},
        "J": {"H": "I", "C": "F"},
    }
    """The holes where a peg can land, each with the hole that it jumps over, by the hole where it starts."""
    prizes: ClassVar[dict[int, float]] = {1: 10.0, 2: 4.0, 3: 1.0}
    """By the number of pegs that are left."""

    def reset(self, seed: int) -> str:
        chance = random.Random(seed)
        holes = "".join(self.rows)
        self.pegs: set[str] = set()
        while not self.choices:
            empty_count = chance.choice((1, 2))
            self.pegs = set(holes) - set(chance.sample(holes, empty_count))
        return self.text()

    @property
    def choices(self) -> list[str]:
        options = []
        for start, landings in self.jumps.items():
            for end, over in landings.items():
                if start in self.pegs and over in self.pegs and end not in self.pegs:
                    options.append(f"{start} jumps to {end}")
        return options

    def step(self, choice: str) -> Returned:
        start, end = choice.split(" jumps to ")
        self.pegs -= {start, self.jumps[start][end]}
        self.pegs.add(end)
        if self.choices:
            return self.text(), 0.0, False
        return f"{self.text()}\nNo more jumps.", self.prizes.get(len(self.pegs), 0.0), True

    def text(self) -> str:
        lines = []
        for row in self.rows:
            indent = " " * (4 - len(row))
            lines.append(indent + " ".join(hole if hole in self.pegs else "." for hole in row))
        return "\n".join([*lines, f"Pegs left: {len(self.pegs)}"])


class PrizeDuel:
    """Bid cards 1-5 for prizes 1-5 against Otto: the higher card wins the prize's points from the other; ties nothing.

    Otto, half of the time, bids the card equal to the prize if he has it; otherwise any of his cards.
    """

    def reset(self, seed: int) -> str:
        self.chance = random.Random(seed)
        self.prizes = [1, 2, 3, 4, 5]
        self.chance.shuffle(self.prizes)
        self.hand = [1, 2, 3, 4, 5]
        self.otto_hand = [1, 2, 3, 4, 5]
        return self.text("New deal.")

    @property
    def choices(self) -> list[str]:
        return [f"bid {card}" for card in self.hand]

    def step(self, choice: str) -> Returned:
        prize = self.prizes.pop(0)
        card = int(choice.split()[1])
        self.hand.remove(card)
        otto_card = self.otto_bid(prize)
        self.otto_hand.remove(otto_card)
        gain = 0
        if card > otto_card:
            gain = prize
        if card < otto_card:
            gain = -prize
        news = f"You bid {card}, Otto bid {otto_card}: {gain:+d}."
        return self.text(news), float(gain), not self.prizes

    def otto_bid(self, prize: int) -> int:
        """The card that Otto bids for `prize`."""
        wants_equal = self.chance.random() < 0.5
        if wants_equal and prize in self.otto_hand:
            return prize
        return self.chance.choice(self.otto_hand)

    def text(self, news: str) -> str:
        if not self.prizes:
            return f"{news} The deal is over."
        pile = " ".join(map(str, sorted(self.prizes[1:]))) or "none"
        hand = " ".join(map(str, self.hand))
        otto_hand = " ".join(map(str, self.otto_hand))
        return (
            f"{news} Prize on the table: {self.prizes[0]}. Prizes still in the pile: {pile}. "
            f"Your hand: {hand}. Otto's hand: {otto_hand}."
        )


class PawnMove(NamedTuple):
    """A move by its name, the board after it, and whether it reaches the far row."""

    name: str
    board: str
    reaches_far_row: bool


class PawnWar:
    """Pawns only, 3x4 board: step forward, take diagonally; reach the far row or leave the other without a move to win.

    You are X and start. The other side (o) wins at once when it can and otherwise moves at random.
    """

    start = "ooo......XXX"
    """The rows from the top."""

    def reset(self, seed: int) -> str:
        self.chance = random.Random(seed)
        self.board = self.start
        self.last_reply = "none"
        return self.text()

    @property
    def choices(self) -> list[str]:
        return [move.name for move in self.moves(self.board, "X")]

    def step(self, choice: str) -> Returned:
        move = next(move for move in self.moves(self.board, "X") if move.name == choice)
        self.board = move.board
        replies = self.moves(self.board, "o")
        if move.reaches_far_row or not replies:
            return f"{self.text()}\nX wins", 1.0, True
        winning = [reply for reply in replies if reply.reaches_far_row or not self.moves(reply.board, "X")]
        reply = self.chance.choice(winning or replies)
        self.last_reply, self.board = reply.name, reply.board
        if winning:
            return f"{self.text()}\no wins", -1.0, True
        return self.text(), 0.0, False

    @staticmethod
    def moves(board: str, side: str) -> list[PawnMove]:
        """The moves of X, which goes up the board, or of o, which goes down."""
        direction, far_row, enemy = (-1, 0, "o") if side == "X" else (1, 3, "X")
        moves = []
        for square, piece in enumerate(board):
            row, column = divmod(square, 3)
            new_row = row + direction
            if piece != side or not 0 <= new_row <= 3:
                continue
            for new_column in range(max(0, column - 1), min(2, column + 1) + 1):
                is_capture = new_column != column
                target = new_row * 3 + new_column
                if board[target] != (enemy if is_capture else "."):
                    continue
                squares = list(board)
                squares[square], squares[target] = ".", side
                sign = "x" if is_capture else "-"
                name = f"{'abc'[column]}{4 - row}{sign}{'abc'[new_column]}{4 - new_row}"
                moves.append(PawnMove(name, "".join(squares), new_row == far_row))
        return moves

    def text(self) -> str:
        lines = []
        for row in range(4):
            squares = self.board[row * 3 : row * 3 + 3]
            lines.append(f"{4 - row} {' '.join(squares)}")
        return "\n".join([*lines, "  a b c", f"o's last move: {self.last_reply}"])


class Site(NamedTuple):
    """A place to drill: what its sample is worth, and how much of the battery the drill takes."""

    worth: int
    cost: int


class MarsRover:
    """Drive out from base, drill up to three samples and be back before the battery is empty;
    only samples brought home count.
    """

    horizon = 20

    def reset(self, seed: int) -> str:
        chance = random.Random(seed)
        worths = [chance.randint(1, 9) for _ in range(6)]
        costs = [chance.choice((1, 2, 3)) for _ in range(6)]
        self.sites = dict(enumerate(map(Site, worths, costs), start=1))
        self.kilometre, self.battery = 0, 15
        self.drilled_sites: set[int] = set()
        return self.text()

    @property
    def choices(self) -> list[str]:
        options = []
        if self.kilometre < 6:
            options.append("drive out")
        if self.kilometre > 0:
            options.append("drive back")
            if self.kilometre not in self.drilled_sites and len(self.drilled_sites) < 3:
                options.append("drill")
        return options

    def step(self, choice: str) -> Returned:
        if choice == "drill":
            self.battery -= self.sites[self.kilometre].cost
            if self.battery >= 0:
                self.drilled_sites.add(self.kilometre)
        else:
            self.battery -= 1
            self.kilometre += 1 if choice == "drive out" else -1
        if self.kilometre == 0:
            load = self.load()
            return f"Home with samples worth {load}.", float(load), True
        if self.battery <= 0:
            return "The battery is empty. The rover is lost.", 0.0, True
        return self.text(), 0.0, False

    def load(self) -> int:
        """What the samples in the box are worth."""
        return sum(self.sites[kilometre].worth for kilometre in self.drilled_sites)

    def text(self) -> str:
        descriptions = []
        for kilometre, site in self.sites.items():
            is_drilled = kilometre in self.drilled_sites
            state = "drilled" if is_drilled else f"worth {site.worth}, drilling takes {site.cost}"
            descriptions.append(f"km {kilometre}: {state}")
        return (
            f"ROVER at km {self.kilometre} (base is km 0). Battery {self.battery}. One km takes 1. "
            f"Box {len(self.drilled_sites)}/3, worth {self.load()}. {'; '.join(descriptions)}."
        )


class Order(NamedTuple):
    """The hours that an order takes, the hour by which it is due, and its profit."""

    hours: int
    due: int
    profit: int


class Workshop:
    """One machine, six orders with hours, deadline and profit; a late order costs a 150 penalty instead;
    close when you like.
    """

    def reset(self, seed: int) -> str:
        chance = random.Random(seed)
        self.orders: dict[str, Order] = {}
        for name in "ABCDEF":
            hours, due = chance.randint(1, 4), chance.randint(3, 12)
            self.orders[name] = Order(hours, due, 10 * chance.randint(10, 90))
        self.hour = 0
        return self.text()

    @property
    def choices(self) -> list[str]:
        return [*(f"make {name}" for name in self.orders), "close for today"]

    def step(self, choice: str) -> Returned:
        if choice == "close for today":
            return "Closed.", 0.0, True
        order = self.orders.pop(choice.split()[1])
        self.hour += order.hours
        reward = order.profit if self.hour <= order.due else -150
        return self.text(), float(reward), not self.orders

    def text(self) -> str:
        lines = [f"Hour {self.hour}. Open orders:"]
        for name, order in self.orders.items():
            lines.append(f"- {name}: {order.hours} h, due by hour {order.due}, profit ${order.profit}")
        return "\n".join(lines)


class CarTest(NamedTuple):
    """The price of a test, and the chance that it shows BAD, by the cause."""

    price: int
    bad_chances: dict[str, float]


class DeadCar:
    """The car does not start for one of four reasons; pay for tests (they can err and be repeated),
    then replace one part: right +20, wrong -15.
    """

    causes: ClassVar[dict[str, float]] = {"battery": 0.40, "starter": 0.20, "fuel pump": 0.25, "spark plugs": 0.15}
    """The chance of each."""
    tests: ClassVar[dict[str, CarTest]] = {
        "voltmeter": CarTest(2, {"battery": 0.95, "starter": 0.20, "fuel pump": 0.10, "spark plugs": 0.10}),
        "listen": CarTest(1, {"battery": 0.70, "starter": 0.90, "fuel pump": 0.30, "spark plugs": 0.20}),
        "pressure gauge": CarTest(3, {"battery": 0.05, "starter": 0.05, "fuel pump": 0.90, "spark plugs": 0.10}),
        "pull a plug": CarTest(2, {"battery": 0.20, "starter": 0.20, "fuel pump": 0.40, "spark plugs": 0.95}),
    }
    max_tests = 5
    choices: ClassVar[list[str]] = [*(f"test: {name}" for name in tests), *(f"replace {part}" for part in causes)]
    horizon = 20

    def reset(self, seed: int) -> str:
        self.chance = random.Random(seed)
        [self.cause] = self.chance.choices(list(self.causes), weights=list(self.causes.values()))
        self.bad_counts = dict.fromkeys(self.tests, 0)
        self.fine_counts = dict.fromkeys(self.tests, 0)
        self.tests_left = self.max_tests
        return self.text()

    def step(self, choice: str) -> Returned:
        if choice.startswith("replace "):
            if choice == f"replace {self.cause}":
                return "It starts!", 20.0, True
            return "Still dead.", -15.0, True
        name = choice.removeprefix("test: ")
        test = self.tests[name]
        if self.tests_left:
            is_bad = self.chance.random() < test.bad_chances[self.cause]
            counts = self.bad_counts if is_bad else self.fine_counts
            counts[name] += 1
            self.tests_left -= 1
        return self.text(), -float(test.price), False

    def text(self) -> str:
        shares = ", ".join(f"{cause} {share:.0%}" for cause, share in self.causes.items())
        lines = [
            f"The car won't start. How common the causes are: {shares}.",
            f"Tests (price; chance to show BAD for {'/'.join(self.causes)}):",
        ]
        for name, test in self.tests.items():
            chances = "/".join(f"{test.bad_chances[cause]:.0%}" for cause in self.causes)
            results = f"BAD {self.bad_counts[name]}, FINE {self.fine_counts[name]}"
            lines.append(f"{name} (${test.price}; {chances}): so far {results}")
        hint = "" if self.tests_left else " A further test tells nothing and still costs."
        lines.append(f"Tests left: {self.tests_left}.{hint}")
        return "\n".join(lines)


class Pairs:
    """Memory with eight face-down cards (four pairs) and twelve flips: two flips make a turn,
    each pair found is worth 1; the diary keeps what you saw.
    """

    def reset(self, seed: int) -> str:
        self.cards = ["cat", "cat", "dog", "dog", "owl", "owl", "fox", "fox"]
        random.Random(seed).shuffle(self.cards)
        self.taken_places: set[int] = set()
        self.seen_places: set[int] = set()
        self.face_up: int | None = None
        self.flips_left = 12
        return self.text()

    @property
    def choices(self) -> list[str]:
        face_down = [place for place in range(8) if place not in self.taken_places and place != self.face_up]
        return [f"card {place + 1}" for place in face_down]

    def step(self, choice: str) -> Returned:
        place = int(choice.split()[1]) - 1
        self.flips_left -= 1
        self.seen_places.add(place)
        reward = 0.0
        if self.face_up is None:
            self.face_up = place
        else:
            if self.cards[place] == self.cards[self.face_up]:
                self.taken_places |= {place, self.face_up}
                reward = 1.0
            self.face_up = None
        return self.text(), reward, not self.flips_left or len(self.taken_places) == 8

    def text(self) -> str:
        face_up = "none"
        if self.face_up is not None:
            face_up = f"card {self.face_up + 1} = {self.cards[self.face_up]}"
        lines = [f"Flips left: {self.flips_left}", f"Face up now: {face_up}", "Diary:"]
        for place, animal in enumerate(self.cards):
            note = animal if place in self.seen_places else "?"
            if place in self.taken_places:
                note = "taken"
            lines.append(f"  card {place + 1}: {note}")
        return "\n".join(lines)


class Lighthouse:
    """A ship comes in the fog: find out which valve feeds the lamp, fill it with oil,
    open the right valve and strike a match in 20 moves.
    """

    colours = ("red", "green", "blue")
    roads: ClassVar[dict[str, tuple[str, ...]]] = {
        "beach": ("hut", "tower"),
        "hut": ("beach",),
        "tower": ("beach", "lamp room"),
        "lamp room": ("tower",),
    }
    horizon = 20

    def reset(self, seed: int) -> str:
        self.right_colour = random.Random(seed).choice(self.colours)
        self.room = "beach"
        self.oil_place = "hut"
        """hut, hands or lamp."""
        self.has_read_note, self.is_valve_open = False, False
        self.moves_left = self.horizon
        return self.text("You wake up on a beach. Out in the fog a ship's horn blows.")

    @property
    def choices(self) -> list[str]:
        options = [f"go to the {room}" for room in self.roads[self.room]]
        if self.room == "hut":
            if not self.has_read_note:
                options.append("read the note")
            if self.oil_place == "hut":
                options.append("take the oil can")
        if self.room == "lamp room":
            if self.oil_place == "hands":
                options.append("pour the oil")
            if not self.is_valve_open:
                options += [f"open the {colour} valve" for colour in self.colours]
            options.append("strike a match")
        return options

    def step(self, choice: str) -> Returned:
        self.moves_left -= 1
        news = "Done."
        if choice.startswith("go to the "):
            self.room = choice.removeprefix("go to the ")
            news = "You walk."
        elif choice == "read the note":
            self.has_read_note = True
        elif choice == "take the oil can":
            self.oil_place = "hands"
        elif choice == "pour the oil":
            self.oil_place = "lamp"
        elif choice == "strike a match":
            if self.oil_place == "lamp" and self.is_valve_open:
                return "The lamp blazes. The ship turns away in time!", 1.0, True
            news = "The match burns down. Nothing happens."
        elif choice == f"open the {self.right_colour} valve":
            self.is_valve_open = True
        else:
            return "Water gushes into the lamp. The ship is lost.", 0.0, True
        return self.text(news), 0.0, False

    def text(self, news: str) -> str:
        sentences = [news, self.view()]
        if self.has_read_note:
            sentences.append(f"The note said: only the {self.right_colour} valve feeds the lamp.")
        if self.oil_place == "hands":
            sentences.append("You carry the oil can.")
        sentences.append(f"The ship strikes the rocks in {self.moves_left} moves.")
        return " ".join(sentences)

    def view(self) -> str:
        """What is seen in the room."""
        if self.room == "beach":
            return "You are on the beach. A hut and a tower stand nearby."
        if self.room == "hut":
            note = "" if self.has_read_note else " A note is pinned to the wall."
            can = " An oil can stands in a corner." if self.oil_place == "hut" else ""
            return f"You are in the keeper's hut.{note}{can}"
        if self.room == "tower":
            return "You are at the foot of the tower. Stairs lead up to the lamp room."
        lamp = "full of oil" if self.oil_place == "lamp" else "dry"
        valves = "three valves are shut: red, green, blue. A wrong one floods the lamp."
        if self.is_valve_open:
            valves = "the right valve is open."
        return f"You are in the lamp room. The lamp is {lamp}; {valves}"


class Vineyard:
    """Tend a young vine for eight years at 1 a year; do what it needs or it weakens;
    harvest pays 8 per health at the end; selling pays 1 now and ends all.
    """

    needs: ClassVar[dict[str, str]] = {
        "The leaves hang dry.": "water",
        "Beetles crawl on the leaves.": "spray",
        "The shoots run wild.": "prune",
    }
    choices: ClassVar[list[str]] = ["water", "spray", "prune", "sell the land"]

    def reset(self, seed: int) -> str:
        self.chance = random.Random(seed)
        self.year, self.health = 1, 3
        self.look = self.chance.choice(list(self.needs))
        return self.text()

    def step(self, choice: str) -> Returned:
        if choice == "sell the land":
            return "Sold.", 1.0, True
        if choice != self.needs[self.look]:
            self.health -= 1
        self.year += 1
        if not self.health:
            return "The vine is dead.", -1.0, True
        if self.year > 8:
            return "Harvest at last!", 8.0 * self.health - 1.0, True
        self.look = self.chance.choice(list(self.needs))
        return self.text(), -1.0, False

    def text(self) -> str:
        return f"Year {self.year} of 8. Vine health {self.health} of 3. {self.look}"


class Greenhouse:
    """Keep a greenhouse at 20 to 22 degrees for 16 hours; every hour that ends in the range pays 0.001."""

    weather_effects: ClassVar[dict[str, int]] = {"freezing": -2, "mild": 0, "hot": 2}
    """By how many degrees each weather changes the temperature in an hour."""
    control_effects: ClassVar[dict[str, int]] = {"heat": 2, "heat a lot": 4, "off": 0, "cool": -2, "cool a lot": -4}
    """By how many degrees each choice changes it."""
    choices: ClassVar[list[str]] = list(control_effects)
    horizon = 16

    def reset(self, seed: int) -> str:
        self.chance = random.Random(seed)
        self.degrees = self.chance.randint(15, 27)
        self.weather = self.chance.choice(list(self.weather_effects))
        self.hours_left = self.horizon
        return self.text()

    def step(self, choice: str) -> Returned:
        change = self.control_effects[choice] + self.weather_effects[self.weather] + self.chance.choice((-1, 0, 1))
        self.degrees = min(30, max(12, self.degrees + change))
        if self.chance.random() < 0.3:
            self.weather = self.chance.choice(list(self.weather_effects))
        self.hours_left -= 1
        reward = 0.001 if 20 <= self.degrees <= 22 else 0.0
        return self.text(), reward, not self.hours_left

    def text(self) -> str:
        return f"inside={self.degrees}C outside={self.weather} hours_left={self.hours_left}"


class BoatPlan(NamedTuple):
    """What a day earns on average, and the chance that the hull is damaged, by the sky."""

    mean_money: float
    damage_chances: dict[str, float]


class FishingBoat:
    """Twelve days at sea: catches vary a lot from day to day (spread 8), far and rough water damages the hull,
    at hull 0 the boat sinks (-30).
    """

    skies: ClassVar[dict[str, float]] = {"calm": 0.5, "windy": 0.3, "stormy": 0.2}
    """The chance of each."""
    plans: ClassVar[dict[str, BoatPlan]] = {
        "fish near the coast": BoatPlan(4.0, {"calm": 0.0, "windy": 0.1, "stormy": 0.4}),
        "fish the far bank": BoatPlan(9.0, {"calm": 0.1, "windy": 0.4, "stormy": 0.8}),
        "stay in harbour": BoatPlan(0.0, {"calm": 0.0, "windy": 0.0, "stormy": 0.0}),
        "repair the hull": BoatPlan(-2.0, {"calm": 0.0, "windy": 0.0, "stormy": 0.0}),
    }
    choices: ClassVar[list[str]] = list(plans)

    def reset(self, seed: int) -> str:
        self.chance = random.Random(seed)
        self.day, self.hull = 1, self.chance.randint(1, 3)
        self.sky = self.next_sky()
        return self.text("You take over the boat.")

    def step(self, choice: str) -> Returned:
        plan = self.plans[choice]
        money = plan.mean_money
        if choice.startswith("fish"):
            money = round(self.chance.gauss(plan.mean_money, 8.0), 1)
        if choice == "repair the hull":
            self.hull = min(3, self.hull + 1)
        if self.chance.random() < plan.damage_chances[self.sky]:
            self.hull -= 1
        if not self.hull:
            return "The boat sinks.", money - 30.0, True
        self.day += 1
        self.sky = self.next_sky()
        return self.text(f"Yesterday brought {money:+.1f}."), money, self.day > 12

    def next_sky(self) -> str:
        """A sky by chance."""
        [sky] = self.chance.choices(list(self.skies), weights=list(self.skies.values()))
        return sky

    def text(self, news: str) -> str:
        return f"{news} Day {self.day}/12. The sea is {self.sky}. Hull {self.hull}/3."


class Runway:
    """One runway, two queues: each minute up to two planes go in the set direction, turning it round costs the minute;
    a waiting arrival costs 2, a departure 1.

    An arrival joins with chance 70% a minute, a departure with 60%;
    a plane that finds 5 in its queue is sent away for 6.
    """

    choices: ClassVar[list[str]] = ["land planes", "let planes depart", "do nothing"]

    def reset(self, seed: int) -> str:
        self.chance = random.Random(seed)
        self.arrivals, self.departures = self.chance.randint(0, 4), self.chance.randint(0, 4)
        self.direction = self.chance.choice(("arrivals", "departures"))
        self.minutes_left = 15
        return self.text()

    def step(self, choice: str) -> Returned:
        # 1. Serve the queue of the direction, or turn the runway round
        if choice != "do nothing":
            direction = "arrivals" if choice == "land planes" else "departures"
            if direction != self.direction:
                self.direction = direction
            elif direction == "arrivals":
                self.arrivals = max(0, self.arrivals - 2)
            else:
                self.departures = max(0, self.departures - 2)

        # 2. Let planes join the queues, and send away those that find no room
        cost = 0
        if self.chance.random() < 0.7:
            self.arrivals += 1
        if self.chance.random() < 0.6:
            self.departures += 1
        if self.arrivals > 5:
            self.arrivals = 5
            cost += 6
        if self.departures > 5:
            self.departures = 5
            cost += 6

        # 3. Pay for those that wait
        cost += 2 * self.arrivals + self.departures
        self.minutes_left -= 1
        return self.text(), -float(cost), not self.minutes_left

    def text(self) -> str:
        arrivals = ">" * self.arrivals or "-"
        departures = "<" * self.departures or "-"
        return (
            f"{self.minutes_left} minutes to the end of the shift\n"
            f"arrivals waiting : {arrivals} ({self.arrivals})\n"
            f"departures waiting: {departures} ({self.departures})\n"
            f"runway set for {self.direction}"
        )


class HireOne:
    """Ten applicants come one by one in random order; you hear only how each compares with those before;
    hire one, 1 point if the best of all ten.
    """

    choices: ClassVar[list[str]] = ["hire", "send away"]

    def reset(self, seed: int) -> str:
        self.skills = list(range(10))
        random.Random(seed).shuffle(self.skills)
        self.present = 0
        return self.text()

    def step(self, choice: str) -> Returned:
        if choice == "hire":
            if self.skills[self.present] == 9:
                return "You hired the best.", 1.0, True
            return "A better one was among them.", 0.0, True
        self.present += 1
        if self.present == 10:
            return "Nobody is left. The post stays empty.", 0.0, True
        return self.text(), 0.0, False

    def text(self) -> str:
        number = self.present + 1
        opening = f"Applicant {number} of 10 sits in front of you"
        if number == 1:
            return f"{opening}. Nobody came before."
        rank = 1 + sum(skill > self.skills[self.present] for skill in self.skills[:number])
        if rank == 1:
            return f"{opening}: the best so far."
        return f"{opening}: number {rank} among the {number} seen so far."


class SellPiano:
    """Sell a piano to a buyer who secretly pays at most 100-500 (steps of 50, all equally likely);
    each refusal he leaves with chance 25%; a dealer gives 150.
    """

    limits = range(100, 501, 50)
    max_offers = 6
    choices: ClassVar[list[str]] = [*(f"ask for {price}" for price in limits), "sell to the dealer"]

    def reset(self, seed: int) -> str:
        self.chance = random.Random(seed)
        self.limit = self.chance.choice(self.limits)
        self.talk: list[str] = []
        self.offers_left = self.max_offers
        return self.text()

    def step(self, choice: str) -> Returned:
        if choice == "sell to the dealer":
            return "The dealer takes it.", 1.5, True
        price = int(choice.split()[-1])
        if price <= self.limit:
            return f"Sold for {price}.", price / 100, True
        answer = "Far too much!" if price - self.limit > 100 else "Too much."
        self.talk.append(f'You: {price}? Buyer: "{answer}"')
        self.offers_left -= 1
        if not self.offers_left or self.chance.random() < 0.25:
            return "The buyer is gone and the dealer has closed.", 0.0, True
        return self.text(), 0.0, False

    def text(self) -> str:
        talk = " ".join(self.talk) or "The buyer looks at the piano and waits for your price."
        return (
            f"{talk} ({self.offers_left} more offers before he has to catch his train. "
            f'"Far too much" means over 100 above his limit.)'
        )


OPTIMUM: dict[type, float] = {
    PegTriangle: 6.5433,
    PrizeDuel: 3.0853,
    PawnWar: 0.8333,
    MarsRover: 18.5133,
    Workshop: 2453.8333,
    DeadCar: 10.5858,
    Pairs: 3.8667,
    Lighthouse: 1.0,
    Vineyard: 16.0,
    Greenhouse: 0.0131593,
    FishingBoat: 81.2824,
    Runway: -88.8847,
    HireOne: 0.3987,
    SellPiano: 2.3542,
}
"""The mean return of an optimal player, over all chances, or where chance decides the start alone, over the 300
held-out problems.
"""
