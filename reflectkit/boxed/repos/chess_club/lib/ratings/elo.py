"""Rating change after a game, the club's own form of the logistic formula.

The expected score follows the usual curve, but the club uses a width of 350
points in place of 400 because the field is small and strengths lie close.
"""

WIDTH = 350.0
FLOOR = 600
K_NEW = 48
K_JUNIOR = 40
K_NORMAL = 22
K_MASTER = 12
GAMES_AS_NEW = 15
MASTER_FROM = 2050


def expected(own, other):
    """Expected score between 0 and 1; differences above 500 count as 500."""
    gap = max(-500, min(500, other - own))
    return 1.0 / (1.0 + 10 ** (gap / WIDTH))


def factor(rating, games, junior):
    """Weight of one game.

    New players move fastest, juniors nearly as fast, and players from 2050
    up move slowest even when they are juniors.
    """
    if games < GAMES_AS_NEW:
        return K_NEW
    if rating >= MASTER_FROM:
        return K_MASTER
    return K_JUNIOR if junior else K_NORMAL


def change(own, other, score, games=99, junior=False):
    """Rating change, rounded to a whole point away from zero at one half."""
    raw = factor(own, games, junior) * (score - expected(own, other))
    return int(raw + 0.5) if raw >= 0 else -int(-raw + 0.5)


def updated(own, other, score, games=99, junior=False):
    """New rating, never under the floor."""
    return max(FLOOR, own + change(own, other, score, games, junior))
