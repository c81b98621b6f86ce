"""Report about the ovens: gas used, idle decks, bakes that ran too long."""

KWH_PER_GAS_UNIT = 10.6
IDLE_LIMIT_MINUTES = 35
OVERRUN_SHARE = 0.15
GOOD_KWH_PER_KG = 0.62


def energy_per_kg(gas_units, bread_kg):
    """Kilowatt hours per kilogram of bread; None when nothing was baked."""
    if bread_kg <= 0:
        return None
    return gas_units * KWH_PER_GAS_UNIT / bread_kg


def idle_gaps(bakes):
    """Gaps of more than 35 minutes between two bakes on the same deck.

    `bakes` are (deck, start, end) in minutes, in any order. The time before the
    first and after the last bake of a deck does not count as idle.
    """
    last_end, gaps = {}, []
    for deck, start, end in sorted(bakes, key=lambda b: b[1]):
        if deck in last_end and start - last_end[deck] > IDLE_LIMIT_MINUTES:
            gaps.append((deck, last_end[deck], start))
        last_end[deck] = end
    return gaps


def overruns(bakes, planned):
    """Bakes that took 15 percent longer than planned, worst first."""
    slow = []
    for name, minutes in bakes:
        share = minutes / planned[name] - 1
        if share > OVERRUN_SHARE:
            slow.append((name, share))
    return sorted(slow, key=lambda pair: -pair[1])


def verdict(gas_units, bread_kg):
    """One word for the board: 'good', 'fair' (up to a third more) or 'bad'."""
    value = energy_per_kg(gas_units, bread_kg)
    if value is None:
        return "no bread"
    if value <= GOOD_KWH_PER_KG:
        return "good"
    return "fair" if value <= GOOD_KWH_PER_KG * 4 / 3 else "bad"
