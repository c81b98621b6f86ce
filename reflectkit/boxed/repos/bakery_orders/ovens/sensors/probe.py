"""Read the core probes and decide whether a loaf is done."""

from statistics import median

PROBE_OFFSETS = {"P1": 0.4, "P2": -0.2, "P3": 1.1, "P4": 0.0}
SAMPLE_SECONDS = 5
WINDOW = 7
MAX_JUMP = 6.0
STUCK_SAMPLES = 24
HOLD_SECONDS = 90


class ProbeFault(RuntimeError):
    """The probe is broken or has been pulled out."""


def corrected(probe, raw):
    """Apply the offset that was found in the ice-water test."""
    return raw - PROBE_OFFSETS[probe]


def smooth(values):
    """Median of the last seven samples; robust to a single spike."""
    return median(values[-WINDOW:])


def check(values):
    """Raise ProbeFault on a jump of more than 6 degrees or a frozen reading.

    A reading is frozen when 24 samples (two minutes) are exactly the same.
    """
    if len(values) >= 2 and abs(values[-1] - values[-2]) > MAX_JUMP:
        raise ProbeFault("jump: the probe was probably pulled out")
    tail = values[-STUCK_SAMPLES:]
    if len(tail) == STUCK_SAMPLES and len(set(tail)) == 1:
        raise ProbeFault("frozen: same reading for two minutes")


def is_done(values, target):
    """True when the smoothed core has been at the target for 90 seconds."""
    need = HOLD_SECONDS // SAMPLE_SECONDS
    if len(values) < need + WINDOW:
        return False
    for back in range(need):
        end = len(values) - back
        if median(values[end - WINDOW:end]) < target:
            return False
    return True
