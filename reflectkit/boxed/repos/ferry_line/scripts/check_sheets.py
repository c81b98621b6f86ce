"""Checks the sheets of prices and sailings before they are put on the harbour computer.

Usage: python3 scripts/check_sheets.py FOLDER
"""

import csv
import pathlib
import sys

HARBOURS = {"Ostrand", "Mell", "Little Mell", "Korsby Head"}
HIGHEST_RAISE_PERCENT = 12
LEAST_TURNAROUND = {"H": 18, "T": 11}


def rows(path):
    """The rows of a sheet as dictionaries."""
    with open(path, newline="", encoding="ascii") as handle:
        return list(csv.DictReader(handle))


def minutes(clock):
    """Minutes since midnight of a time like 07:35."""
    hours, mins = clock.split(":")
    return 60 * int(hours) + int(mins)


def raises(new, old):
    """Fares raised by more than twelve percent, which the county council must approve first."""
    before = {(r["from"], r["to"], r["ticket"]): int(r["ore"]) for r in old}
    found = []
    for row in new:
        key = row["from"], row["to"], row["ticket"]
        if key in before and int(row["ore"]) > before[key] * (100 + HIGHEST_RAISE_PERCENT) / 100:
            found.append("raise above %d percent: %s" % (HIGHEST_RAISE_PERCENT, " ".join(key)))
    return found


def clashes(sailings):
    """Pairs of sailings of one boat between which the turnaround is too short."""
    found, last = [], {}
    for row in sorted(sailings, key=lambda r: minutes(r["leaves"])):
        boat = row["number"][0]
        ready = last.get(boat, -99) + LEAST_TURNAROUND[boat]
        if minutes(row["leaves"]) < ready:
            found.append("%s leaves before the boat is ready" % row["number"])
        last[boat] = minutes(row["leaves"]) + int(row["takes"])
    return found


def main(folder):
    """Print all complaints and return 1 if there are any."""
    folder = pathlib.Path(folder)
    complaints = raises(rows(folder / "prices.csv"), rows(folder / "prices_2022.csv"))
    for name in ("sailings_summer.csv", "sailings_winter.csv"):
        table = rows(folder / name)
        complaints += clashes(table)
        complaints += [r["number"] for r in table if {r["from"], r["to"]} - HARBOURS]
    print("\n".join(complaints) or "sheets are in order")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
