"""What happens to a rating when a player stays away.

A rating does not fall on the first missed season. Later it drifts towards
the club mean, and the player needs a few games before prizes are open again.
"""

CLUB_MEAN = 1320
FREE_SEASONS = 1
DRIFT_PER_SEASON = 0.06
MOST_DRIFT = 120
GAMES_TO_RETURN = 4


def drifted(rating, seasons_away):
    """Rating after some seasons away.

    Each season beyond the first takes six hundredths of the distance to the
    club mean; the whole drift is never more than 120 points.
    """
    counted = max(0, seasons_away - FREE_SEASONS)
    target = rating
    for _ in range(counted):
        target += DRIFT_PER_SEASON * (CLUB_MEAN - target)
    drift = max(-MOST_DRIFT, min(MOST_DRIFT, target - rating))
    return int(round(rating + drift))


def shown_in_brackets(seasons_away, games_since):
    """True while the list prints the rating in brackets."""
    return seasons_away >= 2 and games_since < GAMES_TO_RETURN


def may_win_rating_prize(seasons_away, games_since):
    """Players in brackets may win board prizes but no rating prizes."""
    return not shown_in_brackets(seasons_away, games_since)


def off_the_list(seasons_away):
    """After nine seasons the name moves to the archive book in the cellar."""
    return seasons_away >= 9
