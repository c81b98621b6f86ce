"""Swiss pairings for an evening or a weekend tournament.

Players are sorted into score groups. Inside a group the upper half meets the
lower half. A player who cannot be paired floats down to the next group.
"""

from lib import seed_order
from lib.pairing.rules.colours import give_white


def score_groups(players, points):
    """Lists of players with equal points, best group first."""
    groups = {}
    for player in players:
        groups.setdefault(points.get(player.player_id, 0.0), []).append(player)
    return [seed_order(groups[key]) for key in sorted(groups, reverse=True)]


def pair_group(group):
    """Pair one group, upper half against lower half; return pairs and floaters.

    The lower half is rotated by one place when two players have met before.
    """
    half = len(group) // 2
    upper, lower = group[:half], group[half:]
    pairs = []
    for player in upper:
        for _ in range(len(lower)):
            rival = lower[0]
            if rival.player_id not in player.opponents:
                pairs.append((player, lower.pop(0)))
                break
            lower.append(lower.pop(0))
        else:
            lower.append(player)
    return pairs, lower


def pair_round(players, points):
    """Pairs of a round as (white, black) and the list of unpaired players."""
    carried, boards = [], []
    for group in score_groups(players, points):
        pairs, carried = pair_group(carried + group)
        boards.extend(give_white(a, b) for a, b in pairs)
    return boards, carried


def rounds_for(count):
    """Number of rounds: five up to 16 players, seven up to 40, else nine."""
    if count <= 16:
        return 5
    return 7 if count <= 40 else 9
