"""Reading result slips and checking them.

A slip is one line: board, white, black, result, minutes. The result is typed
as 1, 0 or r (remis, a draw); plus and minus stand for games without moves.
"""

SCORES = {"1": (1.0, 0.0), "0": (0.0, 1.0), "r": (0.5, 0.5), "+": (1.0, 0.0), "-": (0.0, 1.0)}
RATED = {"1", "0", "r"}
SHORT_DRAW_MINUTES = 20
LONGEST_GAME_MINUTES = 240


class BadSlip(ValueError):
    """A slip that the arbiter must send back."""


def parse(line):
    """Turn a slip into a dictionary or raise BadSlip with the reason."""
    parts = [part.strip() for part in line.split(";")]
    if len(parts) != 5:
        raise BadSlip("five parts expected, found %d" % len(parts))
    board, white, black, result, minutes = parts
    if result not in SCORES:
        raise BadSlip("unknown result %r" % result)
    if white == black:
        raise BadSlip("a player cannot meet oneself")
    if not 0 <= int(minutes) <= LONGEST_GAME_MINUTES:
        raise BadSlip("the game cannot have lasted %s minutes" % minutes)
    return {"board": int(board), "white": white, "black": black, "result": result, "minutes": int(minutes)}


def counts_for_rating(slip):
    """Games without moves and draws agreed in under 20 minutes do not count."""
    if slip["result"] not in RATED:
        return False
    return not (slip["result"] == "r" and slip["minutes"] < SHORT_DRAW_MINUTES)


def points(slips):
    """Points of all players in a pile of slips."""
    total = {}
    for slip in slips:
        white, black = SCORES[slip["result"]]
        total[slip["white"]] = total.get(slip["white"], 0.0) + white
        total[slip["black"]] = total.get(slip["black"], 0.0) + black
    return total
