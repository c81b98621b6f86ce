"""Limit checks: is a single reading possible at all, at this height and in this month?"""

# Absolute limits: outside of these a reading is marked 'impossible' and never used.
ABSOLUTE = {
    "air": (-34.0, 39.0),
    "humid": (3.0, 100.0),
    "wind": (0.0, 62.0),
    "gust": (0.0, 78.0),
    "press": (790.0, 1052.0),
    "battery": (9.5, 15.2),
}

# Months in which an air temperature below zero is marked 'odd' at stations below 500 metres.
NO_FROST_MONTHS = (6, 7, 8)
LAPSE_PER_100M = 0.62
ODD_DISTANCE = 14.0
MONTH_MEANS = {1: 1.2, 2: 1.4, 3: 3.3, 4: 6.0, 5: 9.4, 6: 12.5,
               7: 14.3, 8: 14.0, 9: 11.5, 10: 8.1, 11: 4.4, 12: 2.0}


def impossible(row):
    """Names of the readings of a record that are outside the absolute limits."""
    names = []
    for name, (low, high) in ABSOLUTE.items():
        value = row.get(name)
        if value is not None and not low <= value <= high:
            names.append(name)
    return names


def expected_air(month, height_m):
    """Mean air temperature of the month, lowered by 0.62 degrees per hundred metres of height."""
    return MONTH_MEANS[month] - LAPSE_PER_100M * height_m / 100


def odd_air(row, height_m):
    """Air temperature more than 14 degrees away from what is expected, or summer frost low down."""
    month = row["time"].month
    if abs(row["air"] - expected_air(month, height_m)) > ODD_DISTANCE:
        return True
    return row["air"] < 0 and month in NO_FROST_MONTHS and height_m < 500


def gust_fits(row):
    """A gust must be at least the mean wind and at most four times the mean plus six."""
    return row["wind"] <= row["gust"] <= 4 * row["wind"] + 6.0
