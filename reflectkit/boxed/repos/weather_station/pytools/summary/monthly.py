"""Monthly summary: sums, ranks and the growing index of the field club."""

MISSING_DAYS_ALLOWED = 4
GROWTH_BASE = 5.5
HEATING_BASE = 15.0
DRY_SPELL_DAYS = 9
TRACE_MM = 0.3


def usable(days_in_month, days_with_data):
    """A month is summarised if at most four of its days are missing; otherwise it gets a dash."""
    return days_in_month - days_with_data <= MISSING_DAYS_ALLOWED


def growing_index(daily_means):
    """Sum of the daily means above 5.5 degrees, which the grass of the fells needs to grow."""
    return round(sum(max(0.0, mean - GROWTH_BASE) for mean in daily_means), 1)


def heating_sum(daily_means):
    """Heating degrees of the cabin: shortfall below 15 degrees, days above count nothing."""
    return round(sum(max(0.0, HEATING_BASE - mean) for mean in daily_means), 1)


def dry_spells(daily_rain):
    """Lengths of the dry spells: nine or more days with less than 0.3 mm each."""
    spells, run = [], 0
    for rain in list(daily_rain) + [TRACE_MM]:
        if rain < TRACE_MM:
            run += 1
            continue
        if run >= DRY_SPELL_DAYS:
            spells.append(run)
        run = 0
    return spells


def wind_rose(directions, sectors=12):
    """Share of the records in each of twelve sectors of 30 degrees; calms are left out."""
    counts = [0] * sectors
    width = 360 / sectors
    for direction in directions:
        if direction is not None:
            counts[int(((direction + width / 2) % 360) // width)] += 1
    total = sum(counts) or 1
    return [round(count / total, 3) for count in counts]


def rank_text(value, earlier):
    """Where a month stands among the earlier years, said in words for the club's letter."""
    above = sum(1 for other in earlier if other > value)
    if above == 0:
        return "highest of %d years" % (len(earlier) + 1)
    if above == len(earlier):
        return "lowest of %d years" % (len(earlier) + 1)
    return "place %d of %d" % (above + 1, len(earlier) + 1)
