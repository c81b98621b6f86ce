"""Run the ratings of one evening over a file of result slips.

All games of an evening are rated with the ratings from before that evening,
so the order of the slips does not matter. A player cannot gain or lose more
than a fixed number of points in one evening.
"""

import sys

from lib.ratings.elo import FLOOR, change
from lib.results.slips import SCORES, BadSlip, counts_for_rating, parse

EVENING_CAP = 65
UNKNOWN_RATING = 1000


def read_slips(path):
    """Good slips of a file; bad ones are reported and left out."""
    good = []
    with open(path, encoding="ascii") as handle:
        for number, line in enumerate(handle, start=1):
            try:
                good.append(parse(line))
            except BadSlip as problem:
                print("slip %d: %s" % (number, problem), file=sys.stderr)
    return good


def evening(slips, ratings):
    """New ratings after an evening; the input dictionary is left as it is."""
    gains = {}
    for slip in slips:
        if not counts_for_rating(slip):
            continue
        white, black = slip["white"], slip["black"]
        mine = ratings.get(white, UNKNOWN_RATING)
        theirs = ratings.get(black, UNKNOWN_RATING)
        for_white, for_black = SCORES[slip["result"]]
        gains[white] = gains.get(white, 0) + change(mine, theirs, for_white)
        gains[black] = gains.get(black, 0) + change(theirs, mine, for_black)
    result = dict(ratings)
    for who, gain in gains.items():
        capped = max(-EVENING_CAP, min(EVENING_CAP, gain))
        result[who] = max(FLOOR, ratings.get(who, UNKNOWN_RATING) + capped)
    return result


if __name__ == "__main__":
    for name, value in sorted(evening(read_slips(sys.argv[1]), {}).items()):
        print(name, value)
