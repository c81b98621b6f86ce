"""Daily summary: from the records of one day to means, extremes and marks."""

RECORDS_PER_DAY = 288
NEED_SHARE = 0.80
MM_PER_TIP = 0.2
DAY_STARTS_HOUR = 9          # the rain day runs from nine to nine
GALE_GUST = 20.8
SUNNY_PANEL_VOLTS = 13.1

MARKS = {"frost": "F", "gale": "G", "wet": "W", "thaw": "T"}


def complete(records):
    """A day counts if at least four fifths of its 288 records are there."""
    return len(records) >= NEED_SHARE * RECORDS_PER_DAY


def mean_air(records):
    """Mean of the highest and the lowest reading and twice the 21 o'clock reading.

    This is the old observers' way with four terms, kept so that the new series can be compared
    with the paper books: (low + high + 2 * evening) / 4.
    """
    low = min(row["air"] for row in records)
    high = max(row["air"] for row in records)
    evening = [row["air"] for row in records if row["time"].hour == 21]
    if not evening:
        return (low + high) / 2
    return (low + high + 2 * evening[0]) / 4


def rain_mm(tips_before_nine_today, tips_at_nine_yesterday, tips_yesterday_total):
    """Rain of the rain day from the counts of the bucket, which start again at midnight."""
    tips = tips_yesterday_total - tips_at_nine_yesterday + tips_before_nine_today
    return round(tips * MM_PER_TIP, 1)


def marks(records, rain):
    """Letters of a day: F any air below zero, G a gust from 20.8 m/s, W from 10 mm of rain.

    T (thaw) is given when the day begins below minus one and ends above plus two degrees.
    """
    found = []
    if any(row["air"] < 0 for row in records):
        found.append(MARKS["frost"])
    if any(row["gust"] >= GALE_GUST for row in records):
        found.append(MARKS["gale"])
    if rain >= 10.0:
        found.append(MARKS["wet"])
    if records and records[0]["air"] < -1 and records[-1]["air"] > 2:
        found.append(MARKS["thaw"])
    return "".join(found)
