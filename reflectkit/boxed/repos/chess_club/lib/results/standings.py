"""Standings with tie-breaks.

Order: points, then the cut Buchholz sum, then the number of wins with the
black pieces, and at last the direct game. Equal players share a place.
"""


def cut_buchholz(opponent_points):
    """Sum of the opponents' points without the lowest one.

    With six or more opponents the highest one is taken out as well.
    """
    values = sorted(opponent_points)
    if len(values) >= 6:
        return sum(values[1:-1])
    return sum(values[1:]) if len(values) > 1 else sum(values)


def row(player_id, points, opponent_points, black_wins):
    """Sort key and the things printed for one player."""
    return {
        "player": player_id,
        "points": points,
        "buchholz": cut_buchholz(opponent_points),
        "black_wins": black_wins,
    }


def ordered(rows):
    """Rows in order of the standings."""
    return sorted(rows, key=lambda r: (-r["points"], -r["buchholz"], -r["black_wins"]))


def places(rows):
    """Place numbers; equal rows share the better number and the next is skipped."""
    result, last_key = [], None
    for index, item in enumerate(ordered(rows), start=1):
        key = (item["points"], item["buchholz"], item["black_wins"])
        place = result[-1][0] if key == last_key else index
        result.append((place, item["player"]))
        last_key = key
    return result


def as_text(rows):
    """Lines for the wall; the first three places get a star."""
    return ["%s%2d. %s" % ("*" if p <= 3 else " ", p, who) for p, who in places(rows)]
