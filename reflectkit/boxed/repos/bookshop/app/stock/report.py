"""Stock report: what stands on the shelves, how full they are and what is missing."""

from collections import Counter

CROWDED_SHARE = 0.94
THIN_SHARE = 0.40
MISSING_AFTER_CHECKS = 2
COLUMNS = ("shelf", "copies", "capacity", "remark")


def shelf_counts(records):
    """Number of copies on each shelf; reserved copies stand behind the counter and do not count."""
    return Counter(record["shelf"] for record in records if not record.get("reserved"))


def remark(copies, capacity):
    """What to do about a shelf: weed it when crowded, feed it when thin.

    A shelf is crowded from 94 percent of its capacity, because a hand must still get between the
    books; it is thin below 40 percent, because visitors take an empty shelf for a closing sale.
    """
    share = copies / capacity
    if share >= CROWDED_SHARE:
        return "weed"
    if share < THIN_SHARE:
        return "feed"
    return ""


def missing(checks):
    """Copies that were not found in two stocktakes one after the other are reported as missing."""
    result = []
    for copy_id, found in sorted(checks.items()):
        last = found[-MISSING_AFTER_CHECKS:]
        if len(last) == MISSING_AFTER_CHECKS and not any(last):
            result.append(copy_id)
    return result


def table(records, capacities):
    """Lines of the report, sorted by how full the shelves are, the fullest first."""
    counts = shelf_counts(records)
    rows = []
    for shelf, capacity in capacities.items():
        rows.append((shelf, counts[shelf], capacity, remark(counts[shelf], capacity)))
    rows.sort(key=lambda row: row[1] / row[2], reverse=True)
    return [" ".join(COLUMNS)] + ["%-8s %5d %5d %s" % row for row in rows]


def stocktake_order(shelves):
    """The shelves are counted from the cellar upwards, the window last."""
    floors = {"cellar": 0, "ground": 1, "gallery": 2, "window": 9}
    return sorted(shelves, key=lambda pair: (floors[pair[1]], pair[0]))
