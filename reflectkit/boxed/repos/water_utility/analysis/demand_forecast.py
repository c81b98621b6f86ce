"""Forecast of the demand for the next day, used to fill the tanks at night.

The forecast is a weighted mean of the same weekday in the last weeks, moved
by the temperature and by what goes on in the town.
"""

WEEK_WEIGHTS = (0.45, 0.30, 0.15, 0.10)
WARM_FROM = 23.0
PER_DEGREE = 0.021
EVENTS = {"wool market": 38.0, "school holiday": -12.0, "pool filling": 95.0, "none": 0.0}
RESERVE_SHARE = 0.12


def base(same_weekday):
    """Weighted mean of the last four equal weekdays, newest first."""
    if len(same_weekday) < len(WEEK_WEIGHTS):
        raise ValueError("four earlier weeks are needed")
    return sum(w * v for w, v in zip(WEEK_WEIGHTS, same_weekday))


def heat_factor(highest_temperature):
    """Above 23 degrees each degree adds 2.1 percent."""
    return 1.0 + PER_DEGREE * max(0.0, highest_temperature - WARM_FROM)


def forecast(same_weekday, highest_temperature, event="none"):
    """Demand of tomorrow in cubic metres."""
    return base(same_weekday) * heat_factor(highest_temperature) + EVENTS[event]


def tank_target(demand, fire_reserve=140.0):
    """Level to reach by six in the morning.

    The tanks hold half the daily demand, a share of twelve in a hundred to
    spare and the reserve for the fire brigade.
    """
    return 0.5 * demand * (1 + RESERVE_SHARE) + fire_reserve


def error_report(pairs):
    """Mean absolute error in percent; above seven the weights are fitted anew."""
    errors = [abs(seen - guess) / seen for guess, seen in pairs]
    return 100.0 * sum(errors) / len(errors)
