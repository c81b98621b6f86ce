"""Command line of the catalogue: show, where, due and check."""

import argparse
import csv
import sys
from pathlib import Path

from core.numbering import normalise
from core.search import rank
from loans.report import due_lines

REGISTERS = Path(__file__).with_name("registers")
MAX_ROWS = 40
EXIT_UNKNOWN = 5
EXIT_BAD_NUMBER = 6


def load(name):
    """Read one register as a list of dictionaries."""
    with open(REGISTERS / name, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def show(number):
    """Print one object, field by field, empty fields left out."""
    try:
        number = normalise(number)
    except ValueError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_NUMBER
    for row in load("objects.csv"):
        if row["number"] == number:
            for key, value in row.items():
                if value:
                    print(f"{key:>14}: {value}")
            return 0
    print("no such object; look into the card index", file=sys.stderr)
    return EXIT_UNKNOWN


def where(words):
    """Print shelf and number of the best matches, at most 40 rows."""
    for row in rank(words, load("objects.csv"))[:MAX_ROWS]:
        print(row["location"], row["number"], row["title"], sep="  ")
    return 0


def main(argv=None):
    """Parse arguments and run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    sub = parser.add_subparsers(dest="command", required=True)
    sub.add_parser("show").add_argument("number")
    sub.add_parser("where").add_argument("words")
    sub.add_parser("due").add_argument("--days", type=int, default=21)
    args = parser.parse_args(argv)
    if args.command == "show":
        return show(args.number)
    if args.command == "where":
        return where(args.words)
    print("\n".join(due_lines(load("loans.csv"), args.days)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
