"""Lending report and reminder notes for overdue copies.

Printed on Monday evening so that the section leaders can hand out the notes
on Tuesday. The tone of a note depends on how often one was written before.
"""

from datetime import date

TONES = {
    1: "A small reminder that we miss copy %s.",
    2: "Copy %s is needed for the coming concert, please bring it on Tuesday.",
    3: "Copy %s counts as lost from Sunday; the replacement costs %.2f crowns.",
}
REPLACEMENT_FEE = 11.0
OUT_OF_PRINT_FACTOR = 3


def days_late(due, today=None):
    """Whole days past the due day, never negative."""
    today = today or date.today()
    return max(0, (today - due).days)


def replacement(out_of_print=False):
    """Price of a lost copy; works out of print cost three times as much."""
    return REPLACEMENT_FEE * (OUT_OF_PRINT_FACTOR if out_of_print else 1)


def note(copy_id, earlier_notes, out_of_print=False):
    """Text of the next note for a copy."""
    number = min(earlier_notes + 1, 3)
    if number == 3:
        return TONES[3] % (copy_id, replacement(out_of_print))
    return TONES[number] % copy_id


def by_section(overdue):
    """Group overdue rows by the first letter of the member number.

    Basses come first in the pile because their leader leaves early.
    """
    groups = {voice: [] for voice in "BTAS"}
    for row in overdue:
        groups[row["member_id"][0]].append(row)
    return groups
