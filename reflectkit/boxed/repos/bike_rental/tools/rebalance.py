"""Plan the evening round of the van: move bikes from full to empty stations."""

import csv
import sys

VAN_HOLDS = 14
LEAST_MOVE = 3
ISLAND = "Lighthouse"
MINUTES_PER_STOP = 7
VAN_KM_PER_HOUR = 28


def surplus(stations, counts):
    """Bikes too many (positive) or too few (negative) at each station.

    The island is left out: no van goes there, its bikes move with the ferry on
    Monday mornings.
    """
    return {row["station"]: counts.get(row["station"], 0) - int(row["bikes_wanted"])
            for row in stations if row["station"] != ISLAND}


def moves(balance):
    """Greedy list of (from, to, bikes).

    The fullest station always gives to the emptiest. A move of fewer than three
    bikes is not worth a stop and ends the plan.
    """
    balance = dict(balance)
    plan = []
    while balance:
        giver = max(balance, key=balance.get)
        taker = min(balance, key=balance.get)
        count = min(balance[giver], -balance[taker], VAN_HOLDS)
        if count < LEAST_MOVE:
            return plan
        plan.append((giver, taker, count))
        balance[giver] -= count
        balance[taker] += count
    return plan


def minutes(plan, metres):
    """Driving time at 28 km/h and seven minutes for each stop, two per move."""
    driving = metres / 1000 / VAN_KM_PER_HOUR * 60
    return round(driving + 2 * len(plan) * MINUTES_PER_STOP)


def main(path, counts):
    """Print the round; counts are given as NAME=NUMBER on the command line."""
    with open(path, newline="", encoding="utf-8") as handle:
        stations = list(csv.DictReader(handle, delimiter="\t"))
    have = {k: int(v) for k, v in (item.split("=") for item in counts)}
    for giver, taker, count in moves(surplus(stations, have)):
        print(f"{count:>3} from {giver} to {taker}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
