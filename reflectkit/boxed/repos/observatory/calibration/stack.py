"""Stack clean frames of one target into a picture.

Frames are weighted by their sharpness and by the darkness of the sky. Values
far from the middle, such as cosmic rays and aeroplanes, are left out.
"""

CLIP_LOW, CLIP_HIGH = 3.5, 2.6
LEAST_FRAMES = 8
WIDTH_POWER = 2.0


def weight(star_width, sky_level):
    """Weight of a frame: one over width squared and over the sky level."""
    return 1.0 / (star_width ** WIDTH_POWER * max(sky_level, 50.0))


def clipped_mean(values, weights, passes=2):
    """Weighted mean without outliers.

    Two passes are made. High values are clipped harder than low ones, since
    aeroplanes only ever add light.
    """
    pairs = [(v, w) for v, w in zip(values, weights) if v is not None]
    for _ in range(passes):
        if len(pairs) < 3:
            break
        mean = sum(v for v, _ in pairs) / len(pairs)
        spread = (sum((v - mean) ** 2 for v, _ in pairs) / len(pairs)) ** 0.5
        pairs = [(v, w) for v, w in pairs if -CLIP_LOW * spread <= v - mean <= CLIP_HIGH * spread]
    total = sum(w for _, w in pairs)
    return sum(v * w for v, w in pairs) / total if total else None


def enough(frames, hours):
    """A stack needs eight frames and at least forty minutes of light."""
    return len(frames) >= LEAST_FRAMES and hours * 60 >= 40


def best_share(frames, share=0.85):
    """Sharpest frames; the worst 15 percent are dropped before stacking."""
    ordered = sorted(frames, key=lambda frame: frame["star_width"])
    return ordered[: max(LEAST_FRAMES, int(len(ordered) * share))]
