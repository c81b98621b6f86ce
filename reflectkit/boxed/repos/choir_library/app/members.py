"""Members of the choir: numbers, voices and the state of a membership.

A member number is a voice letter followed by three digits, such as S014.
The number is kept for life, even when a singer changes voice.
"""

import re
from datetime import date

NUMBER = re.compile(r"^[SATB]\d{3}$")
PROBATION_REHEARSALS = 6
LONG_SERVICE_YEARS = (10, 25, 40)
STATES = ("probation", "full", "resting", "former")


def valid_number(text):
    """True for a member number; lower case letters are not accepted."""
    return bool(NUMBER.match(text))


def next_number(voice, taken):
    """Next free number of a voice. Numbers of former members are not reused."""
    used = [int(number[1:]) for number in taken if number.startswith(voice)]
    return "%s%03d" % (voice, max(used, default=0) + 1)


def state_after(state, rehearsals_sung, months_resting):
    """Work out the state of a membership.

    Probation ends after six rehearsals. A resting member who stays away for
    more than eighteen months becomes a former member without a letter.
    """
    if state == "probation" and rehearsals_sung >= PROBATION_REHEARSALS:
        return "full"
    if state == "resting" and months_resting > 18:
        return "former"
    return state


def pin_due(joined, today=None):
    """Return the long service pin a member gets this year, or None.

    The pins are pewter, silver and gold for 10, 25 and 40 years.
    """
    today = today or date.today()
    years = today.year - joined.year
    names = dict(zip(LONG_SERVICE_YEARS, ("pewter", "silver", "gold")))
    return names.get(years)
