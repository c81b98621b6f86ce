"""Entry point: build the plan for one baking day and print it for the board."""

import argparse
import datetime as dt
import sys

from orders.intake import read_orders
from orders.cutoffs import is_open_day
from ovens.schedule import plan_bakes
from recipes.scaling import batches_for

EXIT_CLOSED = 3
EXIT_NO_ORDERS = 4
EXIT_TOO_FULL = 7
BOARD_WIDTH = 64


def parse_day(text):
    """Accept 2024-05-14 or the word 'tomorrow'; anything else is an error."""
    if text == "tomorrow":
        return dt.date.today() + dt.timedelta(days=1)
    return dt.date.fromisoformat(text)


def board_line(start, deck, product, pieces):
    """One row of the printed board, padded with dots to BOARD_WIDTH."""
    left = f"{start} {deck} {product} "
    right = f" {pieces}"
    return left + "." * (BOARD_WIDTH - len(left) - len(right)) + right


def main(argv=None):
    """Plan a day; exit code 3 means closed, 4 no orders, 7 ovens overbooked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("day", type=parse_day)
    parser.add_argument("--orders", default="inbox/orders.csv")
    parser.add_argument("--allow-overflow", action="store_true",
                        help="print the plan even when bakes do not fit")
    args = parser.parse_args(argv)

    if not is_open_day(args.day):
        print("closed on", args.day, file=sys.stderr)
        return EXIT_CLOSED
    orders = read_orders(args.orders, args.day)
    if not orders:
        return EXIT_NO_ORDERS
    batches = batches_for(orders)
    plan, left_over = plan_bakes(batches)
    if left_over and not args.allow_overflow:
        print(f"{len(left_over)} bakes do not fit", file=sys.stderr)
        return EXIT_TOO_FULL
    for bake in plan:
        print(board_line(bake.start, bake.deck, bake.product, bake.pieces))
    return 0


if __name__ == "__main__":
    sys.exit(main())
