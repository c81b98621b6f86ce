"""Make the plan of a night from the wishes of the members.

The night is cut into slots of fixed length. Each slot gets the wish with the
highest merit that is allowed at that time. Changing the target costs time, so
a target that is already running gets a small bonus.
"""

SLOT_MINUTES = 20
STAY_BONUS = 0.15
CHANGE_COST_MINUTES = 4
LEAST_SLOTS = 2


def slots(dusk_minute, dawn_minute):
    """Start minutes of the slots; a rest shorter than a slot is left unused."""
    return list(range(dusk_minute, dawn_minute - SLOT_MINUTES + 1, SLOT_MINUTES))


def choose(wishes, minute, running, allowed, merit):
    """Best wish for a slot or None when nothing is allowed."""
    best, best_value = None, 0.0
    for wish in wishes:
        if wish["left"] <= 0 or not allowed(wish, minute):
            continue
        value = merit(wish, minute) + (STAY_BONUS if wish["id"] == running else 0.0)
        if value > best_value:
            best, best_value = wish, value
    return best


def plan(wishes, dusk_minute, dawn_minute, allowed, merit):
    """List of (minute, wish id). Lonely single slots are given up.

    A target that would get one slot only is not worth the pointing, so the
    slot is handed to the target that was running before it.
    """
    running, result = None, []
    for minute in slots(dusk_minute, dawn_minute):
        wish = choose(wishes, minute, running, allowed, merit)
        running = wish["id"] if wish else None
        if wish:
            wish["left"] -= SLOT_MINUTES - (CHANGE_COST_MINUTES if not result else 0)
        result.append((minute, running))
    for index in range(1, len(result) - 1):
        before, here, after = (result[index + k][1] for k in (-1, 0, 1))
        if here != before and here != after:
            result[index] = (result[index][0], before)
    return result
