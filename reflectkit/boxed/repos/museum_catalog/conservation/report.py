"""Quarterly report of the conservator to the council."""

from collections import Counter

HOURLY_COST = 47.5
YEARLY_HOURS = 620
MATERIAL_SHARE = 0.18
LONG_TREATMENT_HOURS = 25
BACKLOG_WARNING = 85


def cost(hours):
    """Labour plus 18 percent for material such as wax, tissue and solvents."""
    return round(hours * HOURLY_COST * (1 + MATERIAL_SHARE), 2)


def hours_left(treatments):
    """Hours of the year that are still free; may be negative."""
    return YEARLY_HOURS - sum(float(t["hours"]) for t in treatments)


def long_ones(treatments):
    """Treatments of more than 25 hours; each needs a line of explanation."""
    return [t for t in treatments if float(t["hours"]) > LONG_TREATMENT_HOURS]


def causes(treatments):
    """How often each cause occurs, as share of all treatments."""
    counted = Counter(t["cause"] for t in treatments)
    total = sum(counted.values()) or 1
    return {name: round(n / total, 3) for name, n in counted.most_common()}


def text(treatments, waiting):
    """The report; a warning is added when more than 85 things wait."""
    spent = sum(float(t["hours"]) for t in treatments)
    out = [
        "Conservation, quarter report",
        f"treatments {len(treatments)}, hours {spent:g}, cost {cost(spent):.2f}",
        f"hours left this year {hours_left(treatments):g}",
    ]
    out += [f"long: {t['number']} {t['hours']} h" for t in long_ones(treatments)]
    if waiting > BACKLOG_WARNING:
        out.append(f"WARNING: {waiting} objects wait for treatment")
    return "\n".join(out)
