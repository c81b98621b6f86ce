"""Free rounds: who gets a bye and what it is worth.

There are two kinds. A forced bye comes from an odd number of players. An
asked bye is wished for by the player, who gets fewer points for it.
"""

FORCED_POINTS = 1.0
ASKED_POINTS = 0.5
ASKED_LIMIT = 2
ASK_BEFORE = "20:30 on the day before"


def forced_bye(players, points, had_bye):
    """Player who sits out: lowest score group, lowest rating, no bye before.

    If everybody in the lowest group had one already the next group is tried.
    """
    free = [player for player in players if player.player_id not in had_bye]
    if not free:
        raise ValueError("every player had a bye; end the tournament")
    lowest = min(points.get(player.player_id, 0.0) for player in free)
    group = [p for p in free if points.get(p.player_id, 0.0) == lowest]
    return min(group, key=lambda player: (player.rating, player.sort_name()))


def asked_bye(round_number, last_round, taken):
    """Points of an asked bye, or None when it is refused.

    Nobody may ask for the last round, and the third wish is refused.
    """
    if round_number == last_round or taken >= ASKED_LIMIT:
        return None
    return ASKED_POINTS


def late_entry_points(missed):
    """Points for a late entry: half a point for the first missed round only."""
    return ASKED_POINTS if missed >= 1 else 0.0
