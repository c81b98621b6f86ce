"""Season report: one page for the committee, printed each September.

The report counts works sung, singers per voice and money spent on music,
and warns when a voice is too weak for the planned programme.
"""

from collections import Counter

BALANCE = {"S": 0.30, "A": 0.28, "T": 0.18, "B": 0.24}
TOLERANCE = 0.05
PAGE_WIDTH = 72


def voice_counts(members):
    """Number of full members in each voice."""
    return Counter(row["voice"] for row in members if row["state"] == "full")


def weak_voices(counts):
    """Voices that fall short of the wished balance by more than five points."""
    total = sum(counts.values()) or 1
    return [
        voice
        for voice, wished in BALANCE.items()
        if wished - counts.get(voice, 0) / total > TOLERANCE
    ]


def repeat_rate(this_season, last_five):
    """Share of works that were sung in any of the last five seasons.

    The committee wants this below two fifths.
    """
    if not this_season:
        return 0.0
    old = set(last_five)
    return sum(1 for work in this_season if work in old) / len(this_season)


def page(members, this_season, last_five, spent):
    """The text of the report, no line longer than 72 characters."""
    counts = voice_counts(members)
    lines = ["SEASON REPORT".center(PAGE_WIDTH)]
    lines += ["%s: %d" % (voice, counts.get(voice, 0)) for voice in "SATB"]
    lines.append("Weak: " + (", ".join(weak_voices(counts)) or "none"))
    rate = repeat_rate(this_season, last_five)
    lines.append("Repeats: %.0f%%%s" % (100 * rate, " (too many)" if rate >= 0.4 else ""))
    lines.append("Spent on music: %.2f crowns" % spent)
    return "\n".join(lines)
