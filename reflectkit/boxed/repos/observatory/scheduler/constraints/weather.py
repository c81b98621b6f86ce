"""When the weather forbids to observe, and when it is good again.

The station on the mast gives wind, humidity, sky temperature and rain. The
roof closes at once on a bad value but opens only after a calm time, so that it
does not run to and fro.
"""

WIND_CLOSE = 11.5
WIND_OPEN = 8.0
HUMIDITY_CLOSE = 91
HUMIDITY_OPEN = 86
CLEAR_SKY_GAP = 21.0
CALM_MINUTES = 25


def must_close(wind, humidity, rain, sky_gap):
    """Reason for closing or an empty text.

    Wind is in metres a second and the gust of the last ten minutes counts.
    The sky gap is air temperature less sky temperature; clouds make it small.
    """
    if rain:
        return "rain"
    if wind > WIND_CLOSE:
        return "wind"
    if humidity > HUMIDITY_CLOSE:
        return "humidity"
    if sky_gap < CLEAR_SKY_GAP - 6:
        return "cloud"
    return ""


def may_open(history):
    """True when all values of the last 25 minutes were good.

    Each entry is (minutes ago, wind, humidity, rain, sky gap).
    """
    recent = [entry for entry in history if entry[0] <= CALM_MINUTES]
    if not recent:
        return False
    return all(
        wind <= WIND_OPEN and humidity <= HUMIDITY_OPEN and not rain and gap >= CLEAR_SKY_GAP
        for _, wind, humidity, rain, gap in recent
    )
