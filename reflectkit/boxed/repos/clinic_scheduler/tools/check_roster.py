"""Checks the roster tables before the practice manager hands them to the service.

Usage: python3 tools/check_roster.py rosters/week_a.csv [rosters/week_b.csv ...]
"""

import csv
import sys

DAYS = ("mon", "tue", "wed", "thu", "fri")
KNOWN_MARKS = {"-", "home", "school"}
MIN_DOCTORS_PER_HALF_DAY = 2
MAX_ROOMS = 6


def half_days(row):
    """Half days that a person works in a week: entries like '1' or '1+4' are room numbers."""
    return sum(len(row[day].split("+")) for day in DAYS if row[day] not in KNOWN_MARKS)


def bad_cells(row):
    """Cells that are neither a known mark nor rooms between 1 and 6."""
    found = []
    for day in DAYS:
        if row[day] in KNOWN_MARKS:
            continue
        for part in row[day].split("+"):
            if not part.isdigit() or not 1 <= int(part) <= MAX_ROOMS:
                found.append("%s on %s: %r" % (row["person"], day, row[day]))
    return found


def thin_days(rows):
    """Days on which fewer than two doctors are in the house."""
    thin = []
    for day in DAYS:
        present = [r for r in rows if r["job"] == "doctor" and r[day] not in KNOWN_MARKS]
        if len(present) < MIN_DOCTORS_PER_HALF_DAY:
            thin.append(day)
    return thin


def main(paths):
    """Print what is wrong and return the number of complaints, at most 99."""
    complaints = []
    for path in paths:
        with open(path, newline="", encoding="ascii") as handle:
            rows = list(csv.DictReader(handle))
        for row in rows:
            complaints += ["%s: %s" % (path, text) for text in bad_cells(row)]
        complaints += ["%s: too few doctors on %s" % (path, day) for day in thin_days(rows)]
    for text in complaints:
        print(text)
    return min(len(complaints), 99)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
