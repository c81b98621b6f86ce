"""Search in the catalogue of scores.

The search is forgiving: it ignores accents that were typed as apostrophes,
it knows a few old spellings and it ranks by where a word was found.
"""

from app import read_table

FIELD_WEIGHTS = {"title": 5, "composer": 4, "voicing": 2, "notes": 1}
OLD_SPELLINGS = {"psalme": "psalm", "carolle": "carol", "evensonge": "evensong"}
MOST_RESULTS = 12


def normal(text):
    """Lower case, no apostrophes, old spellings replaced."""
    words = text.lower().replace("'", "").split()
    return [OLD_SPELLINGS.get(word, word) for word in words]


def score(row, words):
    """Sum of the weights of the fields in which a word occurs.

    A work with fewer than ten copies loses one point, because it is of
    little use for the full choir.
    """
    total = 0
    for field, weight in FIELD_WEIGHTS.items():
        found = normal(row.get(field, ""))
        total += weight * sum(1 for word in words if word in found)
    if total and int(row.get("copies", "0") or 0) < 10:
        total -= 1
    return total


def find(question, rows=None):
    """Best rows for a question, at most twelve, ties by shelfmark."""
    rows = read_table("scores.csv") if rows is None else rows
    words = normal(question)
    ranked = [(score(row, words), row) for row in rows]
    ranked = [pair for pair in ranked if pair[0] > 0]
    ranked.sort(key=lambda pair: (-pair[0], pair[1]["shelfmark"]))
    return [row for _, row in ranked[:MOST_RESULTS]]
