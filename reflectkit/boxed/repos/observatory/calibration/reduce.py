"""Reduce a raw frame: bias, dark, flat, hot pixels and a quality word.

The order is fixed. First the bias is taken off, then the scaled dark, then
the result is divided by the flat. Cosmic rays are left to the stacking.
"""

BIAS_LEVEL = 512
SATURATED = 61000
FLAT_TOO_DIM = 0.55
BAD_SHARE_LIMIT = 0.004


def reduce_frame(raw, dark, dark_scale, flat):
    """Clean frame and the number of pixels that cannot be trusted.

    A pixel is bad when it is saturated in the raw frame or lies in a corner
    where the flat has less than 55 percent of the light; bad pixels become
    None.
    """
    bad, clean = 0, []
    for raw_line, dark_line, flat_line in zip(raw, dark, flat):
        line = []
        for value, current, light in zip(raw_line, dark_line, flat_line):
            if value >= SATURATED or light < FLAT_TOO_DIM:
                bad += 1
                line.append(None)
                continue
            line.append((value - BIAS_LEVEL - dark_scale * current) / light)
        clean.append(line)
    return clean, bad


def quality(star_width, sky_level, bad, pixels):
    """Word for the log: sharp, fair, soft or reject.

    Star width is in seconds of arc. A frame with more than four bad pixels in
    a thousand is rejected no matter how sharp it is.
    """
    if bad / pixels > BAD_SHARE_LIMIT or sky_level > 30000:
        return "reject"
    if star_width <= 2.2:
        return "sharp"
    return "fair" if star_width <= 3.4 else "soft"
