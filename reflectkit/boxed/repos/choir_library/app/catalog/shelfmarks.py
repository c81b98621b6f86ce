"""Shelfmarks: how a work gets its place in the cabinets.

A shelfmark has three parts, for instance ``R-VES-07``. The first letter is
the colour group of the season, the middle part is taken from the composer
and the last part is a running number inside that composer.
"""

GROUPS = {
    "requiem": "K",
    "advent": "V",
    "lent": "R",
    "folk song": "F",
    "anthem": "N",
    "other": "Z",
}
SMALL_WORDS = {"von", "van", "de", "la", "du"}


def composer_part(name):
    """First three letters of the family name, small words left out.

    Names shorter than three letters are filled with the letter X, and an
    unknown composer is written ANO.
    """
    words = [word for word in name.split() if word.lower() not in SMALL_WORDS]
    if not words:
        return "ANO"
    return (words[-1].upper() + "XX")[:3]


def shelfmark(kind, composer, number):
    """Build the shelfmark; numbers above 99 raise an error."""
    if not 1 <= number <= 99:
        raise ValueError("start a new composer part before number 100")
    group = GROUPS.get(kind.lower(), GROUPS["other"])
    return "%s-%s-%02d" % (group, composer_part(composer), number)


def cabinet(mark):
    """Cabinet for a shelfmark.

    Requiems stand on the organ stair because the boxes are heavy, folk songs
    in the crypt room and everything else on the north wall.
    """
    first = mark[0]
    if first == "K":
        return "organ stair"
    if first == "F":
        return "crypt room"
    return "north wall"
