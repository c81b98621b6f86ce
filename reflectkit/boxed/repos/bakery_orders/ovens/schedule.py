"""Plan which bake goes onto which deck and when."""

from dataclasses import dataclass

DECKS = ["north-1", "north-2", "north-3", "south-1", "rack"]
PIECES_PER_DECK = {"levain_loaf": 24, "dark_rye": 18, "croissant": 90,
                   "cardamom_bun": 84, "poppy_roll": 110, "sesame_roll": 100}
RACK_ONLY = {"croissant", "cardamom_bun"}
FIRST_LOAD = 2 * 60 + 40        # minutes after midnight: 02:40
LAST_UNLOAD = 9 * 60 + 15       # 09:15, then the ovens are let down
TURNAROUND = 12                 # minutes to unload, sweep and recover heat
BAKE_MINUTES = {"levain_loaf": 44, "dark_rye": 68, "croissant": 19,
                "cardamom_bun": 13, "poppy_roll": 17, "sesame_roll": 18}
# Hot things first: the stone decks fall through the night.
ORDER = ["poppy_roll", "sesame_roll", "levain_loaf", "dark_rye",
         "croissant", "cardamom_bun"]


@dataclass
class Bake:
    """One load of one deck."""

    product: str
    pieces: int
    deck: str
    start: str


def clock(minutes):
    """Minutes after midnight as hh:mm."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def loads(product, pieces):
    """Cut the pieces of a product into full deck loads and one rest."""
    size = PIECES_PER_DECK[product]
    while pieces > 0:
        yield min(size, pieces)
        pieces -= size


def plan_bakes(batches):
    """Greedy plan: every load takes the deck that is free first.

    Laminated and sweet goods go to the rack oven only, bread to stone only.
    Loads that would come out after 09:15 are returned as left over.
    """
    free = {deck: FIRST_LOAD for deck in DECKS}
    plan, left_over = [], []
    for product, pieces, _ in sorted(batches, key=lambda b: ORDER.index(b[0])):
        decks = ["rack"] if product in RACK_ONLY else DECKS[:-1]
        for count in loads(product, pieces):
            deck = min(decks, key=free.get)
            end = free[deck] + BAKE_MINUTES[product]
            if end > LAST_UNLOAD:
                left_over.append((product, count))
                continue
            plan.append(Bake(product, count, deck, clock(free[deck])))
            free[deck] = end + TURNAROUND
    return plan, left_over
