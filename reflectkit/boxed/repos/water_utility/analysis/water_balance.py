"""Yearly balance of water: what was pumped, sold, used up and lost.

The loss is what is left when sold water, flushing and fire water have been
taken off. The result goes to the council in the second week of February.
"""

FLUSHING_M3_PER_HYDRANT = 6.5
HYDRANTS = 83
FIRE_DRILL_M3 = 240
METER_UNDERCOUNT = 0.018


def unbilled(fires_m3=0.0):
    """Water that was used but not sold: flushing, drills and real fires."""
    return HYDRANTS * FLUSHING_M3_PER_HYDRANT + FIRE_DRILL_M3 + fires_m3


def apparent_loss(sold):
    """Old meters count a little too low; this water is not really lost."""
    return sold * METER_UNDERCOUNT


def real_loss(pumped, sold, fires_m3=0.0):
    """Water that seeps away from pipes and tanks, in cubic metres."""
    return pumped - sold - unbilled(fires_m3) - apparent_loss(sold)


def loss_per_km_day(loss, pipe_km, days=365):
    """Loss for each kilometre and day; the aim of the works is below 3.1."""
    return loss / pipe_km / days


def grade(value):
    """Grade for the council paper.

    Up to 3.1 is good, up to 5.5 is fair, up to 9 is poor, above it is bad
    and a plan for new pipes has to be added.
    """
    for limit, word in ((3.1, "good"), (5.5, "fair"), (9.0, "poor")):
        if value <= limit:
            return word
    return "bad"


if __name__ == "__main__":
    lost = real_loss(pumped=214_600, sold=168_900)
    print("%.0f m3 lost, grade %s" % (lost, grade(loss_per_km_day(lost, 33.0))))
