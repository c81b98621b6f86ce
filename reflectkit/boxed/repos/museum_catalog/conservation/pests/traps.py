"""Count insects in sticky traps and say what has to be done."""

from dataclasses import dataclass

# Insects per trap and month above which something is done.
LIMITS = {"clothes moth": 3, "carpet beetle": 4, "furniture beetle": 1,
          "silverfish": 9, "book louse": 25}
HARMLESS = {"spider", "woodlouse", "fungus gnat"}
FREEZE_CELSIUS = -28
FREEZE_DAYS = 5
SECOND_FREEZE_AFTER_DAYS = 10
NITROGEN_WEEKS = 5


@dataclass
class Catch:
    """What one trap held at the monthly check."""

    trap: str
    insect: str
    count: int


def action(catch):
    """'none', 'watch' (half the limit or more) or 'act'."""
    if catch.insect in HARMLESS:
        return "none"
    limit = LIMITS[catch.insect]
    if catch.count >= limit:
        return "act"
    return "watch" if catch.count * 2 >= limit else "none"


def method(material):
    """How to kill insects in a material.

    Cloth and leather are frozen; painted wood and ivory would crack and go
    into the nitrogen tent instead; plain oak may do either and is frozen.
    """
    return "nitrogen" if material in {"painted wood", "ivory", "bone"} else "freeze"


def programme(material):
    """Words for the treatment sheet."""
    if method(material) == "nitrogen":
        return f"tent, {NITROGEN_WEEKS} weeks under 0.3 percent oxygen"
    return (f"{FREEZE_DAYS} days at {FREEZE_CELSIUS}, thaw, again after "
            f"{SECOND_FREEZE_AFTER_DAYS} days")
