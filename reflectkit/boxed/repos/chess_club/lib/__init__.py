"""Shared pieces of the club tools.

The package has three parts: ratings, pairing and results. This module holds
the player record that all three use, and the order in which players are
listed when nothing else decides.
"""

from dataclasses import dataclass, field

PARTICLES = ("van", "der", "de", "la", "ter")


@dataclass
class Player:
    """A club member as the programs see one."""

    player_id: str
    name: str
    rating: int = 1000
    junior: bool = False
    colours: list = field(default_factory=list)
    opponents: set = field(default_factory=set)

    def sort_name(self):
        """Family name first, particles such as "van" moved to the end."""
        words = self.name.split()
        family = [word for word in words[1:] if word.lower() not in PARTICLES]
        rest = [word for word in words[1:] if word.lower() in PARTICLES]
        return " ".join(family + [words[0]] + rest).lower()


def seed_order(players):
    """Highest rating first; equal ratings put juniors ahead, then by name."""
    return sorted(players, key=lambda p: (-p.rating, not p.junior, p.sort_name()))
