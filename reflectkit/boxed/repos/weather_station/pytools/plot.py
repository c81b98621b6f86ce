"""Plots in plain characters for the terminal in the cabin, which has no graphics."""

WIDTH = 72
HEIGHT = 14
LEVELS = " .:-=+*#"
ARROWS = ("v", "/", "<", "\\", "^", "/", ">", "\\")
NIGHT_FROM, NIGHT_TO = 20, 6


def scale(values, steps):
    """Map values to whole steps between the smallest and the largest; gaps stay None."""
    known = [value for value in values if value is not None]
    low, high = min(known), max(known)
    span = (high - low) or 1.0
    return [None if v is None else int((v - low) / span * (steps - 1)) for v in values]


def squeeze(values, width=WIDTH):
    """Bring a series to 72 columns by taking the median of each group, not the mean."""
    group = max(1, -(-len(values) // width))
    result = []
    for at in range(0, len(values), group):
        known = sorted(v for v in values[at:at + group] if v is not None)
        result.append(known[len(known) // 2] if known else None)
    return result


def curve(values):
    """Lines of text, the top first, with an 'o' per column and a '?' at the bottom for gaps."""
    steps = scale(squeeze(values), HEIGHT)
    lines = []
    for level in range(HEIGHT - 1, -1, -1):
        lines.append("".join("o" if step == level else " " for step in steps))
    lines[-1] = "".join("?" if step is None else char for step, char in zip(steps, lines[-1]))
    return lines


def rain_strip(values):
    """One line of rain: eight shades from a blank for nothing to '#' for the heaviest hour."""
    return "".join(LEVELS[0 if s is None else s] for s in scale(values, len(LEVELS)))


def arrow(direction):
    """Where the wind blows to: north wind (0 degrees) points down."""
    if direction is None:
        return "o"
    return ARROWS[int((direction + 22.5) % 360 // 45)]


def hour_axis(hours):
    """Axis below the curve: 'n' for hours of the night, '|' for noon, '.' for the rest."""
    return "".join("|" if h == 12 else "n" if h >= NIGHT_FROM or h < NIGHT_TO else "."
                   for h in hours)
