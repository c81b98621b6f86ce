"""Calibration: works out offset and slope of a sensor from a comparison in the wash tub."""

import statistics

MIN_POINTS = 5
MIN_SPAN = 18.0
MAX_RESIDUAL = 0.15
OUTLIER_SIGMAS = 2.5
VALID_MONTHS = {"air": 24, "humid": 9, "press": 36, "rain": 12}
BUCKET_TEST_ML = 500
BUCKET_TIPS = 125


class NotGood(Exception):
    """Raised when a comparison cannot be used."""


def fit(reference, reading):
    """Slope and offset of the line reference = slope * reading + offset (least squares)."""
    mean_x, mean_y = statistics.fmean(reading), statistics.fmean(reference)
    sxx = sum((x - mean_x) ** 2 for x in reading)
    sxy = sum((x - mean_x) * (y - mean_y) for x, y in zip(reading, reference))
    slope = sxy / sxx
    return slope, mean_y - slope * mean_x


def calibrate(reference, reading):
    """Fit, throw out points beyond 2.5 sigmas once, fit again and judge the rest.

    At least five points over a span of 18 degrees are needed. If the mean residual of what is
    left is above 0.15 degrees, the sensor goes back to the maker.
    """
    if len(reading) < MIN_POINTS or max(reference) - min(reference) < MIN_SPAN:
        raise NotGood("five points over 18 degrees are needed")
    slope, offset = fit(reference, reading)
    rest = [y - (slope * x + offset) for x, y in zip(reading, reference)]
    sigma = statistics.pstdev(rest) or 1.0
    keep = [i for i, r in enumerate(rest) if abs(r) <= OUTLIER_SIGMAS * sigma]
    xs, ys = [reading[i] for i in keep], [reference[i] for i in keep]
    slope, offset = fit(ys, xs)
    residual = statistics.fmean(abs(y - slope * x - offset) for x, y in zip(xs, ys))
    if residual > MAX_RESIDUAL:
        raise NotGood("residual %.2f" % residual)
    return slope, offset


def bucket_factor(tips):
    """Half a litre poured slowly should give 125 tips; the factor corrects the count."""
    return BUCKET_TIPS / tips


def expired(kind, months):
    """Humidity sensors must be compared every nine months, barometers every three years."""
    return months > VALID_MONTHS[kind]
