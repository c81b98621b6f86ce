"""Lists about loans: what is due, what is overdue, the yearly figures."""

import datetime as dt
from collections import Counter

REMINDER_DAYS = (60, 21, 3)
OVERDUE_MARK = "!!"
COLUMN = 26


def days_left(row, today):
    """Days until a loan ends; negative when it is overdue."""
    return (dt.date.fromisoformat(row["end"]) - today).days


def due_lines(rows, within, today=None):
    """Printable lines of the open loans that end within some days.

    Overdue loans come first and are marked with two exclamation marks.
    """
    today = today or dt.date.today()
    open_rows = [r for r in rows if r["returned"] == "no"]
    open_rows.sort(key=lambda r: r["end"])
    out = []
    for row in open_rows:
        left = days_left(row, today)
        if left > within:
            continue
        mark = OVERDUE_MARK if left < 0 else "  "
        out.append(f"{mark} {row['number']:<{COLUMN}}{row['party']:<{COLUMN}}{left}")
    return out


def reminders(rows, today):
    """Loans for which a letter goes out today: 60, 21 and 3 days before the end."""
    return [row for row in rows
            if row["returned"] == "no" and days_left(row, today) in REMINDER_DAYS]


def yearly(rows, year):
    """Figures for the annual report: pieces per direction, and the best partner.

    A loan counts in the year in which it began, even if it was agreed earlier.
    """
    mine = [r for r in rows if r["start"].startswith(str(year))]
    directions = Counter(r["direction"] for r in mine)
    parties = Counter(r["party"] for r in mine)
    best = parties.most_common(1)[0][0] if parties else "none"
    return {"out": directions["out"], "in": directions["in"], "partner": best}
