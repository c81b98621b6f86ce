"""Round robin schedules for small groups, by the turning circle.

Used for the club championship and for blitz tables. One player stays fixed
and the others turn around the table. An odd group gets an empty chair.
"""

EMPTY_CHAIR = None
LARGEST_SINGLE = 14
DOUBLE_UP_TO = 6


def schedule(ids):
    """List of rounds, each a list of (white, black) pairs.

    The fixed player has white in even rounds, counted from zero. A pair with
    the empty chair is left out, so that its player has a free round.
    """
    seats = list(ids)
    if len(seats) > LARGEST_SINGLE:
        raise ValueError("split the group, a single table seats 14 at most")
    if len(seats) % 2:
        seats.append(EMPTY_CHAIR)
    count = len(seats)
    rounds = []
    for number in range(count - 1):
        pairs = []
        for place in range(count // 2):
            a, b = seats[place], seats[count - 1 - place]
            if number % 2 and place == 0:
                a, b = b, a
            if EMPTY_CHAIR not in (a, b):
                pairs.append((a, b))
        rounds.append(pairs)
        seats = [seats[0], seats[-1]] + seats[1:-1]
    return rounds


def championship(ids):
    """Up to six players play everybody twice, larger groups once."""
    first = schedule(ids)
    if len(ids) > DOUBLE_UP_TO:
        return first
    second = [[(black, white) for white, black in pairs] for pairs in first]
    return first + second


def games_each(count):
    """Number of games that every player has in the championship."""
    return (count - 1) * (2 if count <= DOUBLE_UP_TO else 1)
