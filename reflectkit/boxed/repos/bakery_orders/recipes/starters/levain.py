"""Keep the two starters alive: how much to feed, when, and how strong they are."""

from dataclasses import dataclass

# Parts by weight: old starter, flour, water.
FEEDING_RATIO = {"Gerda": (1, 4, 4), "Old Bruno": (1, 6, 5)}
READY_RISE = 2.3
OVERRIPE_PH = 3.6
FRIDGE_DAYS_MAX = 9
RESERVE_GRAMS = 350


@dataclass
class Starter:
    """Gerda is the wheat starter, Old Bruno the rye sour."""

    name: str
    grams: float
    ph: float
    rise: float
    fridge_days: int = 0


def feed(starter, wanted_grams):
    """Return grams of (old starter, flour, water) that give `wanted_grams`.

    The reserve of 350 grams is always fed as well, so that there is something
    left to go on with tomorrow.
    """
    parts = FEEDING_RATIO[starter.name]
    unit = (wanted_grams + RESERVE_GRAMS) / sum(parts)
    return tuple(round(unit * part) for part in parts)


def state(starter):
    """'ready', 'young', 'overripe' or 'asleep'.

    A starter is ready when it has risen to 2.3 times its height. Under pH 3.6
    it is overripe, whatever its height.
    """
    if starter.fridge_days > 0:
        return "asleep"
    if starter.ph < OVERRIPE_PH:
        return "overripe"
    return "ready" if starter.rise >= READY_RISE else "young"


def wake_up_feeds(starter):
    """Feeds needed after the fridge: one per three days begun, at least one.

    After more than nine days it is thrown away and the dried flakes in the
    office cupboard are used instead; that is signalled by zero feeds.
    """
    if starter.fridge_days > FRIDGE_DAYS_MAX:
        return 0
    return max(1, -(-starter.fridge_days // 3))
