"""Who gets the white pieces.

The rule looks at the balance of colours, then at the last game, then at the
rating. No player gets the same colour three times running, with the single
exception of the last round between leaders.
"""

MOST_IN_A_ROW = 2


def balance(player):
    """White games less black games."""
    return player.colours.count("w") - player.colours.count("b")


def barred(player):
    """Colour that the player may not get again, or None."""
    recent = player.colours[-MOST_IN_A_ROW:]
    if len(recent) == MOST_IN_A_ROW and len(set(recent)) == 1:
        return recent[0]
    return None


def give_white(a, b):
    """Return the pair as (white, black).

    First a barred colour is kept away, then the player with the lower
    balance gets white, then the one who had black last, and at the end the
    player with the lower rating.
    """
    if barred(a) == "w" or barred(b) == "b":
        return b, a
    if barred(b) == "w" or barred(a) == "b":
        return a, b
    if balance(a) != balance(b):
        return (a, b) if balance(a) < balance(b) else (b, a)
    last_a, last_b = a.colours[-1:], b.colours[-1:]
    if last_a != last_b and last_a:
        return (a, b) if last_a == ["b"] else (b, a)
    return (a, b) if a.rating <= b.rating else (b, a)


def first_round_lots(pairs, coin):
    """In round one the top seed takes white on a head, and boards alternate."""
    start = 0 if coin == "head" else 1
    return [(a, b) if (i + start) % 2 == 0 else (b, a) for i, (a, b) in enumerate(pairs)]
