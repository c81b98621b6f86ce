"""The mean returns of optimal players of the later games, computed from the rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations, product
from statistics import fmean
from typing import Any

from benchmarks.learning.later_games import (
    DeadCar,
    FishingBoat,
    Greenhouse,
    HireOne,
    Lighthouse,
    MarsRover,
    Order,
    Pairs,
    PawnMove,
    PawnWar,
    PegTriangle,
    PrizeDuel,
    Runway,
    SellPiano,
    Site,
    Vineyard,
    Workshop,
)
from benchmarks.learning.strangers import PROBLEMS
from reflectkit.data.problems import FIRST_SEED

SEEDS = range(FIRST_SEED["test"], FIRST_SEED["test"] + PROBLEMS)
"""Of the games in which the start alone is left to chance."""


def mean_over_starts(game: Any, best: Callable[[Any], float]) -> float:
    """The mean of `best` of the starts of `game`."""
    returns = []
    for seed in SEEDS:
        game.reset(seed)
        returns.append(best(game))
    return fmean(returns)


def peg_triangle() -> float:
    """Search from each start."""

    @cache
    def best(pegs: frozenset[str]) -> float:
        returns = []
        for start, landings in PegTriangle.jumps.items():
            for end, over in landings.items():
                if {start, over} <= pegs and end not in pegs:
                    returns.append(best(pegs - {start, over} | {end}))
        return max(returns, default=PegTriangle.prizes.get(len(pegs), 0.0))

    return mean_over_starts(PegTriangle(), lambda game: best(frozenset(game.pegs)))


def prize_duel() -> float:
    """The state is what is left: the prizes and both hands."""

    @cache
    def best(prizes: frozenset[int], hand: frozenset[int], otto_hand: frozenset[int]) -> float:
        """Before the next prize is turned up."""
        if not prizes:
            return 0.0
        values = []
        for prize in prizes:
            values.append(max(value(prize, card, prizes, hand, otto_hand) for card in hand))
        return fmean(values)

    def value(prize: int, card: int, prizes: frozenset[int], hand: frozenset[int], otto_hand: frozenset[int]) -> float:
        """Of the bid of `card` for `prize`."""
        total = 0.0
        for otto_card in otto_hand:
            chance = 1 / len(otto_hand)
            if prize in otto_hand:
                chance = 0.5 * chance + 0.5 * (otto_card == prize)
            gain = prize * ((card > otto_card) - (card < otto_card))
            total += chance * (gain + best(prizes - {prize}, hand - {card}, otto_hand - {otto_card}))
        return total

    numbers = frozenset(range(1, 6))
    return best(numbers, numbers, numbers)


def pawn_war() -> float:
    """Expectimax over the moves of X and the replies of o."""

    @cache
    def best(board: str) -> float:
        return max(value(move) for move in PawnWar.moves(board, "X"))

    def value(move: PawnMove) -> float:
        """Of a move of X."""
        replies = PawnWar.moves(move.board, "o")
        if move.reaches_far_row or not replies:
            return 1.0
        if any(reply.reaches_far_row or not PawnWar.moves(reply.board, "X") for reply in replies):
            return -1.0
        return fmean(best(reply.board) for reply in replies)

    return best(PawnWar.start)


def mars_rover() -> float:
    """A plan is a set of sites: drive to the farthest, drill on the way, and drive back."""

    def best(sites: dict[int, Site]) -> float:
        worths = [0]
        for count in (1, 2, 3):
            for plan in combinations(sites, count):
                battery_use = 2 * max(plan) + sum(sites[kilometre].cost for kilometre in plan)
                if battery_use <= 15:
                    worths.append(sum(sites[kilometre].worth for kilometre in plan))
        return float(max(worths))

    return mean_over_starts(MarsRover(), lambda game: best(game.sites))


def workshop() -> float:
    """The state is the set of open orders; the hour follows from it."""

    def best(orders: dict[str, Order]) -> float:
        @cache
        def best_from(open_names: frozenset[str], hour: int) -> float:
            values = [0.0]
            for name in open_names:
                order = orders[name]
                end = hour + order.hours
                reward = order.profit if end <= order.due else -150
                values.append(reward + best_from(open_names - {name}, end))
            return max(values)

        return best_from(frozenset(orders), 0)

    return mean_over_starts(Workshop(), lambda game: best(game.orders))


def dead_car() -> float:
    """The state is the results of the tests in any order: pairs of a test and whether it showed BAD."""
    Results = tuple[tuple[str, bool], ...]

    def posterior(results: Results) -> dict[str, float]:
        """The probability of each cause, by Bayes' rule."""
        joint = {}
        for cause, probability in DeadCar.causes.items():
            for name, is_bad in results:
                bad_chance = DeadCar.tests[name].bad_chances[cause]
                probability *= bad_chance if is_bad else 1 - bad_chance
            joint[cause] = probability
        total = sum(joint.values())
        return {cause: probability / total for cause, probability in joint.items()}

    @cache
    def best(results: Results) -> float:
        causes = posterior(results)
        values = [20.0 * probability - 15.0 * (1 - probability) for probability in causes.values()]
        if len(results) < DeadCar.max_tests:
            values += [value(name, results, causes) for name in DeadCar.tests]
        return max(values)

    def value(name: str, results: Results, causes: dict[str, float]) -> float:
        """Of test `name`."""
        test = DeadCar.tests[name]
        bad_chance = sum(probability * test.bad_chances[cause] for cause, probability in causes.items())
        after_bad = best(tuple(sorted([*results, (name, True)])))
        after_fine = best(tuple(sorted([*results, (name, False)])))
        return bad_chance * after_bad + (1 - bad_chance) * after_fine - test.price

    return best(())


def pairs() -> float:
    """The state is how many cards of each animal were seen, and the animal of the card that is face up."""
    TAKEN = 3  # in place of how many were seen

    @cache
    def best(seen: tuple[int, ...], face_up: int | None, flips: int) -> float:
        if not flips:
            return 0.0
        values = [0.0]

        # 1. Flip a card that was never seen
        unseen = [max(0, 2 - count) for count in seen]
        new_value = 0.0
        for animal, count in enumerate(unseen):
            if count:
                new_value += count / sum(unseen) * value(animal, True, seen, face_up, flips)
        values.append(new_value)

        # 2. Flip a card that was seen
        for animal, count in enumerate(seen):
            face_down = count - (animal == face_up)
            if face_down and count != TAKEN:
                values.append(value(animal, False, seen, face_up, flips))
        return max(values)

    def value(animal: int, is_new: bool, seen: tuple[int, ...], face_up: int | None, flips: int) -> float:
        """Of the flip of a card of `animal`."""
        after = list(seen)
        if is_new:
            after[animal] += 1
        if face_up is None:
            return best(tuple(after), animal, flips - 1)
        if animal != face_up:
            return best(tuple(after), None, flips - 1)
        after[animal] = TAKEN
        return 1.0 + best(tuple(after), None, flips - 1)

    return best((0, 0, 0, 0), None, 12)


def lighthouse() -> float:
    """Without the note, each valve is the right one with the same chance."""

    @cache
    def best(room: str, oil_place: str, has_read_note: bool, is_valve_open: bool, moves: int) -> float:
        if not moves:
            return 0.0
        values = []
        for next_room in Lighthouse.roads[room]:
            values.append(best(next_room, oil_place, has_read_note, is_valve_open, moves - 1))
        if room == "hut":
            values.append(best(room, oil_place, True, is_valve_open, moves - 1))
            if oil_place == "hut":
                values.append(best(room, "hands", has_read_note, is_valve_open, moves - 1))
        if room == "lamp room":
            if oil_place == "hands":
                values.append(best(room, "lamp", has_read_note, is_valve_open, moves - 1))
            if not is_valve_open:
                chance = 1.0 if has_read_note else 1 / len(Lighthouse.colours)
                values.append(chance * best(room, oil_place, has_read_note, True, moves - 1))
            if oil_place == "lamp" and is_valve_open:
                values.append(1.0)
        return max(values)

    return best("beach", "hut", False, False, Lighthouse.horizon)


def vineyard() -> float:
    """The state is the year and the health; what the vine needs is always seen."""

    def best(year: int, health: int) -> float:
        if not health:
            return 0.0
        if year > 8:
            return 8.0 * health
        right, wrong = best(year + 1, health), best(year + 1, health - 1)
        return max(1.0, right - 1.0, wrong - 1.0)

    return best(1, 3)


def greenhouse() -> float:
    """The state is what the text says."""

    @cache
    def best(degrees: int, weather: str, hours: int) -> float:
        if not hours:
            return 0.0
        return max(value(effect, degrees, weather, hours) for effect in Greenhouse.control_effects.values())

    def value(effect: int, degrees: int, weather: str, hours: int) -> float:
        """Of a control with this effect."""
        values = []
        for noise in (-1, 0, 1):
            change = effect + Greenhouse.weather_effects[weather] + noise
            after = min(30, max(12, degrees + change))
            reward = 0.001 if 20 <= after <= 22 else 0.0
            same_weather = best(after, weather, hours - 1)
            any_weather = fmean(best(after, other, hours - 1) for other in Greenhouse.weather_effects)
            values.append(reward + 0.7 * same_weather + 0.3 * any_weather)
        return fmean(values)

    starts = product(range(15, 28), Greenhouse.weather_effects)
    return fmean(best(degrees, weather, Greenhouse.horizon) for degrees, weather in starts)


def fishing_boat() -> float:
    """The state is the day, the hull and the sky."""

    @cache
    def best(day: int, hull: int) -> float:
        """Before the sky is seen."""
        if not hull:
            return -30.0
        if day > 12:
            return 0.0
        total = 0.0
        for sky, chance in FishingBoat.skies.items():
            total += chance * max(value(choice, day, hull, sky) for choice in FishingBoat.plans)
        return total

    def value(choice: str, day: int, hull: int, sky: str) -> float:
        """Of `choice` under this sky."""
        plan = FishingBoat.plans[choice]
        if choice == "repair the hull":
            hull = min(3, hull + 1)
        damage_chance = plan.damage_chances[sky]
        after_damage, after_none = best(day + 1, hull - 1), best(day + 1, hull)
        return plan.mean_money + damage_chance * after_damage + (1 - damage_chance) * after_none

    return fmean(best(1, hull) for hull in (1, 2, 3))


def runway() -> float:
    """The state is both queues and the direction of the runway."""

    @cache
    def best(arrivals: int, departures: int, direction: str, minutes: int) -> float:
        if not minutes:
            return 0.0
        options = [(arrivals, departures, direction)]
        if direction == "arrivals":
            options.append((max(0, arrivals - 2), departures, "arrivals"))
            options.append((arrivals, departures, "departures"))
        else:
            options.append((arrivals, max(0, departures - 2), "departures"))
            options.append((arrivals, departures, "arrivals"))
        return max(value(*option, minutes) for option in options)

    def value(arrivals: int, departures: int, direction: str, minutes: int) -> float:
        """Before planes join the queues."""
        total = 0.0
        for new_arrivals, new_departures in product((0, 1), repeat=2):
            chance = (0.7 if new_arrivals else 0.3) * (0.6 if new_departures else 0.4)
            in_air, on_ground = arrivals + new_arrivals, departures + new_departures
            cost = 6 * (in_air > 5) + 6 * (on_ground > 5)
            in_air, on_ground = min(5, in_air), min(5, on_ground)
            cost += 2 * in_air + on_ground
            total += chance * (best(in_air, on_ground, direction, minutes - 1) - cost)
        return total

    starts = product(range(5), range(5), ("arrivals", "departures"))
    return fmean(best(*start, 15) for start in starts)


def hire_one() -> float:
    """Applicant n is the best of n with chance 1/n, and then the best of all with chance n/10."""
    value = 0.0  # when nobody is left
    for number in range(10, 0, -1):
        chance = 1 / number
        value = chance * max(number / 10, value) + (1 - chance) * value
    return value


def sell_piano() -> float:
    """The state is the limits that the answers leave possible; they stay equally likely."""

    @cache
    def best(limits: tuple[int, ...], offers: int) -> float:
        if not limits or not offers:
            return 0.0
        return max(1.5, *(value(price, limits, offers) for price in SellPiano.limits))

    def value(price: int, limits: tuple[int, ...], offers: int) -> float:
        """Of asking for `price`."""
        too_much = tuple(limit for limit in limits if price - 100 <= limit < price)
        far_too_much = tuple(limit for limit in limits if limit < price - 100)
        total = price / 100 * sum(limit >= price for limit in limits)
        for group in (too_much, far_too_much):
            total += 0.75 * len(group) * best(group, offers - 1)
        return total / len(limits)

    return best(tuple(SellPiano.limits), SellPiano.max_offers)


OPTIMA: dict[type, Callable[[], float]] = {
    PegTriangle: peg_triangle,
    PrizeDuel: prize_duel,
    PawnWar: pawn_war,
    MarsRover: mars_rover,
    Workshop: workshop,
    DeadCar: dead_car,
    Pairs: pairs,
    Lighthouse: lighthouse,
    Vineyard: vineyard,
    Greenhouse: greenhouse,
    FishingBoat: fishing_boat,
    Runway: runway,
    HireOne: hire_one,
    SellPiano: sell_piano,
}
