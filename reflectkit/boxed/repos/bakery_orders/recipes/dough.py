"""Water temperature and resting times of doughs."""

# Wanted dough temperature after mixing, in degrees Celsius.
TARGET = {"levain_loaf": 25.5, "dark_rye": 29.0, "croissant": 19.5,
          "cardamom_bun": 26.5, "poppy_roll": 25.0, "sesame_roll": 25.0}

# What the mixer adds by friction, per minute of fast gear.
FRICTION_PER_FAST_MINUTE = 1.1
FRICTION_PER_SLOW_MINUTE = 0.35
COLDEST_WATER = 3.0
WARMEST_WATER = 41.0

REST_MINUTES = {"levain_loaf": 195, "dark_rye": 70, "croissant": 780,
                "cardamom_bun": 85, "poppy_roll": 60, "sesame_roll": 60}


def friction(slow_minutes, fast_minutes):
    """Degrees that kneading adds to the dough."""
    return (slow_minutes * FRICTION_PER_SLOW_MINUTE
            + fast_minutes * FRICTION_PER_FAST_MINUTE)


def water_temperature(product, flour_temp, room_temp, slow, fast):
    """Three-factor rule: three times the target minus flour, room and friction.

    The result is held between the coldest water of the chiller and the hottest
    that the levain survives. If it is colder than the chiller can give, a fifth
    of the water has to be replaced by flake ice (see ice_share).
    """
    wanted = 3 * TARGET[product] - flour_temp - room_temp - friction(slow, fast)
    return max(COLDEST_WATER, min(WARMEST_WATER, wanted))


def ice_share(product, flour_temp, room_temp, slow, fast):
    """0.2 when the rule asks for water under 3 degrees, otherwise 0."""
    wanted = 3 * TARGET[product] - flour_temp - room_temp - friction(slow, fast)
    return 0.2 if wanted < COLDEST_WATER else 0.0


def rest_minutes(product, room_temp):
    """Bulk rest; 6 percent shorter for every degree over 24 in the room."""
    base = REST_MINUTES[product]
    if product == "croissant":
        return base
    over = max(0.0, room_temp - 24.0)
    return round(base * 0.94 ** over)
