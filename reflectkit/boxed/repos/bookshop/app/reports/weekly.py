"""The Monday sheet: one printed page with what the owner wants to know about last week."""

import argparse
import datetime

LINES_ON_SHEET = 58
GOAL_COPIES = 140
GOAL_INTAKE = 165
PRINTER = "gallery-laser"
SECTIONS = ("sold", "bought", "posted", "returned", "wanted", "birthdays")


def week_span(today):
    """The week runs from Sunday to Saturday, as the till is emptied on Saturday evening."""
    back = (today.weekday() + 1) % 7
    last_sunday = today - datetime.timedelta(days=back + 7)
    return last_sunday, last_sunday + datetime.timedelta(days=6)


def smiley(copies):
    """A mark for the goal of 140 copies: reached, nearly (90 percent) or missed."""
    if copies >= GOAL_COPIES:
        return ":-)"
    if copies >= 0.9 * GOAL_COPIES:
        return ":-|"
    return ":-("


def balance(bought, sold):
    """Shelf balance: the shop must buy more than it sells, or the web catalogue runs dry."""
    if bought >= GOAL_INTAKE:
        return "enough"
    return "short by %d, sold %d" % (GOAL_INTAKE - bought, sold)


def sheet(today, figures):
    """The text of the sheet: one line per section, filled up with empty lines to 58."""
    first, last = week_span(today)
    lines = ["WEEK %s TO %s   %s" % (first, last, smiley(figures.get("sold", 0)))]
    for name in SECTIONS:
        lines.append("%-10s %5d" % (name, figures.get(name, 0)))
    lines.append("intake: " + balance(figures.get("bought", 0), figures.get("sold", 0)))
    return lines + [""] * (LINES_ON_SHEET - len(lines))


def main():
    """Print the sheet; with --print it is meant for the laser printer on the gallery."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", dest="paper")
    args = parser.parse_args()
    target = PRINTER if args.paper else "screen"
    print("\n".join(["to: " + target] + sheet(datetime.date.today(), {})))


if __name__ == "__main__":
    main()
