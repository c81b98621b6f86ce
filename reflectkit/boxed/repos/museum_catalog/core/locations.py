"""Places in the house: parse them, check that a thing may stand there."""

import re

PLACE = re.compile(r"^(R\d{2})-([A-Z])(\d{1,2})$")
# Rooms below the flood line; nothing of paper, cloth or value class a.
FLOOD_ROOMS = {"R01", "R02", "R09"}
FLOOD_FORBIDDEN = {"paper", "wool", "linen", "leather"}
BRIGHT_ROOMS = {"R05", "R07"}
SHELF_LOAD_KG = {"A": 60, "B": 60, "C": 35, "D": 35, "W": 140}
TOP_SHELF = 7
TOP_SHELF_MAX_KG = 8


def parse(place):
    """Split 'R04-C3' into room, cabinet and shelf."""
    match = PLACE.match(place)
    if not match:
        raise ValueError(f"{place!r} is not a place like R04-C3")
    return match.group(1), match.group(2), int(match.group(3))


def objections(place, materials, value_class, weight_kg, shelf_total_kg):
    """List of reasons against putting a thing there; empty means fine.

    Shelves are counted from the floor. From the seventh on nothing heavier
    than 8 kilograms is put, because it has to be lifted over the head.
    """
    room, cabinet, shelf = parse(place)
    out = []
    if room in FLOOD_ROOMS:
        if FLOOD_FORBIDDEN & set(materials):
            out.append("room lies below the flood line")
        if value_class == "a":
            out.append("too valuable for a ground-floor room")
    if room in BRIGHT_ROOMS and "wool" in materials:
        out.append("room is too bright for dyed wool")
    if shelf_total_kg + weight_kg > SHELF_LOAD_KG.get(cabinet, 25):
        out.append(f"shelf would carry more than cabinet {cabinet} allows")
    if shelf >= TOP_SHELF and weight_kg > TOP_SHELF_MAX_KG:
        out.append("too heavy for a shelf above head height")
    return out


def walk_order(places):
    """Order for the stocktaking round: by room, then cabinet, top shelf first."""
    return sorted(places, key=lambda p: (*parse(p)[:2], -parse(p)[2]))
