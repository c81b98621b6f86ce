"""When the Moon forbids a target.

How far a target must be from the Moon depends on the filter and on how much
of the Moon is lit. Narrow filters bear much more moonlight than wide ones.
"""

import math

FULL_MOON_DISTANCE = {"clear": 95, "red": 70, "green": 75, "blue": 90, "hydrogen": 35, "oxygen": 55}
DARK_PHASE = 0.12


def separation(ra1, dec1, ra2, dec2):
    """Angle between two directions in degrees, by the haversine formula."""
    a1, d1, a2, d2 = (math.radians(v) for v in (ra1, dec1, ra2, dec2))
    h = math.sin((d2 - d1) / 2) ** 2 + math.cos(d1) * math.cos(d2) * math.sin((a2 - a1) / 2) ** 2
    return math.degrees(2 * math.asin(math.sqrt(h)))


def needed_distance(filter_name, lit_share):
    """Distance that is asked for; below an eighth lit there is no rule.

    The table holds for the full Moon and is scaled with the square root of
    the lit share.
    """
    if lit_share <= DARK_PHASE:
        return 0.0
    return FULL_MOON_DISTANCE[filter_name] * math.sqrt(lit_share)


def moon_allows(target, moon, filter_name, lit_share, moon_altitude):
    """True when the target is far enough or the Moon is 4 degrees down."""
    if moon_altitude < -4.0:
        return True
    return separation(*target, *moon) >= needed_distance(filter_name, lit_share)
