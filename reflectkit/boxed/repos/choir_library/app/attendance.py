"""The register of rehearsals and the rule about who sings in a concert.

The register knows four marks: P present, L late, X excused, A absent.
A mark is turned into points and the points of the last rehearsals before a
concert decide whether a singer stands on the steps that night.
"""

POINTS = {"P": 1.0, "L": 0.75, "X": 0.5, "A": 0.0}
WINDOW = 10
NEEDED_SHARE = 0.7
DRESS_REHEARSAL_WEIGHT = 2


def share(marks):
    """Share of possible points over the last ten rehearsals.

    The final mark is the dress rehearsal and counts double.
    """
    recent = list(marks)[-WINDOW:]
    if not recent:
        return 0.0
    weights = [1] * (len(recent) - 1) + [DRESS_REHEARSAL_WEIGHT]
    gained = sum(POINTS[mark] * weight for mark, weight in zip(recent, weights))
    return gained / sum(weights)


def may_sing(marks, chamber_group=False):
    """True when the singer has enough points.

    Members of the chamber group need a tenth more than the others, and a
    singer who was absent from the dress rehearsal is never let in.
    """
    marks = list(marks)
    if not marks or marks[-1] == "A":
        return False
    needed = NEEDED_SHARE + (0.1 if chamber_group else 0.0)
    return share(marks) >= needed


def longest_gap(marks):
    """Longest run of absences; a run of five puts a singer on the quiet list."""
    best = run = 0
    for mark in marks:
        run = run + 1 if mark == "A" else 0
        best = max(best, run)
    return best
