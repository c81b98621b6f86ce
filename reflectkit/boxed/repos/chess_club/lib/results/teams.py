"""Team matches against other clubs.

A team has six boards and two reserves. The board order follows the ratings
but a captain may swap neighbours whose ratings are close.
"""

BOARDS = 6
RESERVES = 2
SWAP_LIMIT = 75
MATCH_WIN, MATCH_DRAW = 3, 1


def legal_order(ratings):
    """True when no player sits above one who is more than 75 points better."""
    for upper in range(len(ratings)):
        for lower in range(upper + 1, len(ratings)):
            if ratings[lower] - ratings[upper] > SWAP_LIMIT:
                return False
    return True


def match_points(own, other):
    """Three points for a win and one for a draw.

    A team that turns up with fewer than four players loses the match no
    matter what the boards say; that is checked by the caller.
    """
    if own > other:
        return MATCH_WIN
    return MATCH_DRAW if own == other else 0


def berlin_count(results):
    """Tie-break of a drawn cup match: upper boards weigh more.

    Board one weighs six points, board six weighs one.
    """
    return sum((BOARDS - index) * score for index, score in enumerate(results))


def team_size_ok(present, reserves_used):
    """At least four players, and not more reserves than allowed."""
    return present >= 4 and reserves_used <= RESERVES
