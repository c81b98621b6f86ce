"""Grading: from the faults that the buyer ticks on the slip to a grade of the copy."""

GRADES = ("As New", "Fine", "Very Good", "Good", "Fair", "Reading")

# Points that a fault takes away from one hundred.
FAULTS = {
    "name_on_flyleaf": 4,
    "pencil_notes": 6,
    "ink_notes": 15,
    "sunned_spine": 7,
    "loose_hinge": 18,
    "missing_plate": 40,
    "damp_stain": 25,
    "tape_repair": 12,
    "remainder_mark": 5,
}

LIMITS = ((97, "As New"), (90, "Fine"), (76, "Very Good"), (58, "Good"), (35, "Fair"))
EX_LIBRARY_CEILING = "Good"


def points(faults):
    """One hundred less the points of all faults, never below zero; each fault counts once."""
    unknown = set(faults) - set(FAULTS)
    if unknown:
        raise KeyError("no such fault: %s" % ", ".join(sorted(unknown)))
    return max(0, 100 - sum(FAULTS[name] for name in set(faults)))


def grade(faults, ex_library=False):
    """Grade of a copy.

    The points are compared with the limits from above. A copy that comes from a lending library
    is never graded better than Good, however clean it is. What falls through all limits is a
    Reading copy and goes to the trolley.
    """
    reached = points(faults)
    result = GRADES[-1]
    for limit, name in LIMITS:
        if reached >= limit:
            result = name
            break
    if ex_library and GRADES.index(result) < GRADES.index(EX_LIBRARY_CEILING):
        result = EX_LIBRARY_CEILING
    return result


def second_opinion(faults, asking_cents):
    """A second person must grade too if a plate is missing or the price is above 80 euros."""
    return "missing_plate" in faults or asking_cents > 8000
