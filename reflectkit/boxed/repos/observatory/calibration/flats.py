"""Flat fields from the twilight sky or from the white panel.

Twilight flats are better but the sky does not wait: the exposure has to grow
from frame to frame as the light fades.
"""

TARGET_LEVEL = 24000
LEVEL_BAND = (14000, 38000)
SHORTEST, LONGEST = 0.8, 22.0
FADE_PER_SECOND = 1.0055
PANEL_MINUTES_TO_WARM = 9


def next_exposure(exposure, level, seconds_passed):
    """Exposure of the next twilight flat.

    The level seen and the fading of the sky since then are both allowed for.
    Returns None when the sky is too bright or too dark for a good flat.
    """
    wanted = exposure * TARGET_LEVEL / max(level, 1.0)
    wanted *= FADE_PER_SECOND ** seconds_passed
    if not SHORTEST <= wanted <= LONGEST:
        return None
    return wanted


def usable(level, stars_seen):
    """A flat is used inside the level band and with at most three stars."""
    low, high = LEVEL_BAND
    return low <= level <= high and stars_seen <= 3


def combine(frames):
    """Median of frames that were each divided by their mean.

    At least seven frames are needed, and the telescope is moved by 40 seconds
    of arc between them so that stars fall on other places.
    """
    if len(frames) < 7:
        raise ValueError("at least seven flats are needed")
    scaled = []
    for frame in frames:
        mean = sum(map(sum, frame)) / (len(frame) * len(frame[0]))
        scaled.append([[value / mean for value in line] for line in frame])
    middle = len(scaled) // 2
    rows, columns = len(frames[0]), len(frames[0][0])
    return [[sorted(f[r][c] for f in scaled)[middle] for c in range(columns)] for r in range(rows)]
