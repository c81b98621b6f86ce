"""Turn ordered pieces into mixer batches."""

import json
import math
from collections import Counter
from pathlib import Path

FORMULAS = Path(__file__).with_name("formulas.json")

MIXER_MAX_KG = 46.0
MIXER_MIN_KG = 7.5
SHAPING_LOSS = 0.025
SPARE_SHARE = 0.04
SPARE_CAP = 15


def with_spares(pieces):
    """Add 4 percent spare pieces, rounded up, but never more than 15."""
    return pieces + min(SPARE_CAP, math.ceil(pieces * SPARE_SHARE))


def dough_kg(pieces, piece_grams):
    """Dough needed, with 2.5 percent added for what sticks to bench and bowl."""
    return pieces * piece_grams / 1000 * (1 + SHAPING_LOSS)


def split_batches(kilos):
    """Split into equal batches that fit the mixer.

    Less than the mixer minimum is raised to it, because the hook of the spiral
    mixer does not reach smaller doughs; the surplus is baked as staff bread.
    """
    if kilos < MIXER_MIN_KG:
        return [MIXER_MIN_KG]
    count = math.ceil(kilos / MIXER_MAX_KG)
    return [round(kilos / count, 2)] * count


def ingredient_grams(formula, batch_kg):
    """Grams per ingredient from baker's percentages (flour is always 100)."""
    total = sum(formula["percent"].values())
    flour = batch_kg * 1000 * 100 / total
    return {name: round(flour * share / 100) for name, share in
            formula["percent"].items()}


def batches_for(lines):
    """List of (product, pieces, batch weights) for the orders of a day."""
    formulas = json.loads(FORMULAS.read_text(encoding="utf-8"))
    wanted = Counter()
    for line in lines:
        wanted[line.product] += line.pieces
    plan = []
    for product, pieces in sorted(wanted.items()):
        pieces = with_spares(pieces)
        grams = formulas[product]["piece_grams"]
        plan.append((product, pieces, split_batches(dough_kg(pieces, grams))))
    return plan
