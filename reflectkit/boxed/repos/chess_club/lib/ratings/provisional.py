"""First rating of a player who has none.

A newcomer plays at least five rated games. The first number is the average
of the opponents with a correction for the share of points, and it is drawn
towards a guess that depends on the age group.
"""

GUESS_BY_GROUP = {"under 10": 700, "under 14": 850, "under 18": 1000, "adult": 1150, "over 65": 1100}
GAMES_NEEDED = 5
SPREAD = 640
PULL_GAMES = 3


def performance(opponents, points):
    """Average of the opponents, plus or minus half the spread at the ends."""
    share = points / len(opponents)
    return sum(opponents) / len(opponents) + SPREAD * (share - 0.5)


def first_rating(opponents, points, group="adult"):
    """First rating, rounded to the nearest ten.

    The guess for the group counts as three further games, so that a single
    lucky evening does not make a champion. Returns None when there are too
    few games.
    """
    if len(opponents) < GAMES_NEEDED:
        return None
    played = len(opponents)
    value = performance(opponents, points) * played + GUESS_BY_GROUP[group] * PULL_GAMES
    return int(round(value / (played + PULL_GAMES), -1))


def from_other_club(rating, years_old):
    """Take over a rating from another club.

    Every year of age takes off 15 points, and ratings older than six years
    are not taken over at all.
    """
    if years_old > 6:
        return None
    return rating - 15 * years_old
