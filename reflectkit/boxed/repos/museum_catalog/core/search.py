"""Find objects by words: a small ranking, no index needed."""

import re
from difflib import get_close_matches

WEIGHTS = {"title": 5.0, "maker": 3.0, "material": 2.0, "remark": 1.0}
EXACT_BONUS = 2.5
FUZZY_CUTOFF = 0.82
FUZZY_FACTOR = 0.4
STOP_WORDS = {"the", "of", "with", "and", "a", "from", "for"}
SYNONYMS = {"jug": ["ewer", "pitcher"], "chest": ["coffer", "kist"],
            "cap": ["bonnet"], "lamp": ["lantern", "cresset"]}


def words_of(text):
    """Lower-case words without stop words; plural s is cut off."""
    found = re.findall(r"[a-z]+", text.lower())
    return [w[:-1] if len(w) > 3 and w.endswith("s") else w
            for w in found if w not in STOP_WORDS]


def expand(query):
    """The query words and their synonyms; synonyms work in one direction."""
    out = []
    for word in words_of(query):
        out.append(word)
        out.extend(SYNONYMS.get(word, []))
    return out


def score(query_words, row):
    """Sum of field weights per word; a near miss counts 0.4 of a hit."""
    total = 0.0
    for name, weight in WEIGHTS.items():
        have = words_of(row.get(name, "") or "")
        for word in query_words:
            if word in have:
                total += weight
                if have == [word]:
                    total += EXACT_BONUS
            elif get_close_matches(word, have, 1, FUZZY_CUTOFF):
                total += weight * FUZZY_FACTOR
    return total


def rank(query, rows):
    """Rows with a score above zero, best first; ties by number."""
    wanted = expand(query)
    scored = [(score(wanted, row), row) for row in rows]
    scored = [pair for pair in scored if pair[0] > 0]
    scored.sort(key=lambda pair: (-pair[0], pair[1]["number"]))
    return [row for _, row in scored]
