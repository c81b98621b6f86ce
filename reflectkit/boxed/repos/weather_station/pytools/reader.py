"""Reader for log files (*.HWL): takes pages of 512 bytes apart and yields checked records."""

import datetime
import struct

EPOCH = datetime.datetime(2010, 1, 1)
LAYOUT = struct.Struct("<IhHHHBHHHBH")
OLD_LAYOUT = struct.Struct("<IhHHHBHHHB")
MAGIC = b"HOLLIN4"
PAGE = 512
CALM = 255
MAX_BAD_IN_A_ROW = 60
FIELDS = ("minute", "air", "humid", "wind", "gust", "dir", "tips", "press", "battery", "flags")


class BadFile(Exception):
    """Raised when a file is not a log file or is damaged beyond use."""


def check16(data):
    """The same checksum as in the firmware, but over a bytes object."""
    total = 0xA5C3
    for byte in data:
        total = ((total << 3) | (total >> 13)) & 0xFFFF
        total = (total + byte) & 0xFFFF
    return total


def convert(values):
    """Turn raw integers into a dictionary with degrees, percent, metres per second and volts."""
    row = dict(zip(FIELDS, values))
    row["time"] = EPOCH + datetime.timedelta(minutes=row.pop("minute"))
    row["air"] /= 100
    row["humid"] /= 10
    row["wind"] /= 100
    row["gust"] /= 100
    row["press"] /= 10
    row["battery"] /= 1000
    row["dir"] = None if row["dir"] == CALM else row["dir"] * 1.5
    return row


def records(data):
    """Yield records from the bytes of a file; sixty bad ones in a row end the reading.

    The name of the station stands after the magic word in page 0. Files from before release 4
    have another magic word and are refused here; use the converter in the attic for those.
    """
    if not data.startswith(MAGIC):
        raise BadFile("magic word missing")
    bad = 0
    for start in range(PAGE, len(data), PAGE):
        page = data[start:start + PAGE]
        for at in range(0, len(page) - LAYOUT.size + 1, LAYOUT.size):
            piece = page[at:at + LAYOUT.size]
            if piece == b"\xff" * LAYOUT.size:
                continue
            values = LAYOUT.unpack(piece)
            if check16(piece[:-2]) != values[-1]:
                bad += 1
                if bad >= MAX_BAD_IN_A_ROW:
                    raise BadFile("too many bad records")
                continue
            bad = 0
            yield convert(values[:-1])
