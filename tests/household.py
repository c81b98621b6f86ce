"""Small games of ALFWorld: two rooms of each type, written for the package's own domain and grammar."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from reflectkit.types import Task

KITCHEN = ("CounterTop", "Cabinet", "Cabinet", "Drawer", "Fridge", "Microwave", "SinkBasin", "Shelf")
OPENABLE = ("Cabinet", "Drawer", "Fridge", "Microwave")
CAN_DO = {
    "Tomato": ("pickupable", "heatable", "coolable", "cleanable"),
    "Mug": ("pickupable", "heatable", "coolable", "cleanable"),
    "Book": ("pickupable",),
    "DeskLamp": ("toggleable",),
}
GAMES = {
    "pick_and_place_simple": ("Tomato", "Microwave", "put a tomato in microwave"),
    "look_at_obj_in_light": ("Book", "DeskLamp", "look at book under the desklamp"),
    "pick_clean_then_place_in_recep": ("Mug", "Shelf", "put a clean mug in shelf"),
    "pick_heat_then_place_in_recep": ("Tomato", "CounterTop", "put a hot tomato in countertop"),
    "pick_cool_then_place_in_recep": ("Mug", "Cabinet", "cool some mug and put it in cabinet"),
    "pick_two_obj_and_place": ("Mug", "Fridge", "find two mug and put them in fridge"),
}
PLACES = (
    {"Tomato": (3,), "Mug": (1, 7), "Book": (2,), "DeskLamp": (7,)},
    {"Tomato": (1, 7), "Mug": (0, 3), "Book": (7,), "DeskLamp": (0,)},
)
"""Of each kind of object, the numbers in KITCHEN of the receptacles that hold one."""


@dataclass(frozen=True)
class Room:
    """A room and a goal in PDDL."""

    type: str
    number: int

    def problem(self) -> str:
        """The file `initial_state.pddl`."""
        places = [
            f"{kind.removesuffix('Basin')}_bar_{index}{'_bar_SinkBasin' if 'Basin' in kind else ''}"
            for index, kind in enumerate(KITCHEN)
        ]
        things = [(kind, f"{kind}_bar_{at}", at) for kind, held in PLACES[self.number].items() for at in held]
        kinds, objects = sorted(set(KITCHEN)), sorted({*CAN_DO, "Knife", "ButterKnife"})
        facts = ["(= (total-cost) 0)", "(atLocation agent1 loc_start)"]
        for kind, place, index in zip(KITCHEN, places, range(len(places)), strict=True):
            facts += [f"(receptacleType {place} {kind}Type)", f"(receptacleAtLocation {place} loc_{index})"]
            facts += [f"(openable {place})"] if kind in OPENABLE else []
        for kind, thing, at in things:
            facts += [f"(inReceptacle {thing} {places[at]})", f"(objectAtLocation {thing} loc_{at})"]
            facts += [f"(objectType {thing} {kind}Type)", *(f"({able} {thing})" for able in CAN_DO[kind])]
        facts += [f"(canContain {place}Type {kind}Type)" for place in kinds for kind in CAN_DO]
        named = [
            "agent1 - agent",
            *(f"{kind}Type - rtype" for kind in kinds),
            *(f"{kind}Type - otype" for kind in objects),
            *(f"{place} - receptacle" for place in places),
            *(f"{thing} - object" for _, thing, _ in things),
            *(f"loc_{at} - location" for at in ("start", *range(len(places)))),
        ]
        return "\n".join(
            [
                "(define (problem room) (:domain alfred)",
                "(:objects",
                *named,
                ")",
                "(:init",
                *facts,
                ")",
                self.goal(),
                "(:metric minimize (total-cost)))",
            ]
        )

    def goal(self) -> str:
        """What wins."""
        kind, target, _ = GAMES[self.type]
        if self.type == "look_at_obj_in_light":
            return (
                "(:goal (and (exists (?l - object ?r - receptacle ?a - agent ?p - location) (and (objectType ?l"
                f" {target}Type) (isToggled ?l) (receptacleAtLocation ?r ?p) (atLocation ?a ?p) (inReceptacle ?l ?r)))"
                f" (exists (?o - object ?a - agent) (and (objectType ?o {kind}Type) (holds ?a ?o)))))"
            )
        state = {"clean": "(isClean ?o)", "heat": "(isHot ?o)", "cool": "(isCool ?o)"}.get(self.type.split("_")[1], "")
        first = f"(objectType ?o {kind}Type) (receptacleType ?r {target}Type) (inReceptacle ?o ?r) {state}"
        if self.type == "pick_two_obj_and_place":
            first += f" (exists (?p - object) (and (not (= ?o ?p)) (objectType ?p {kind}Type) (inReceptacle ?p ?r)))"
        return f"(:goal (exists (?r - receptacle) (exists (?o - object) (and {first}))))"

    def write(self, root: Path) -> Task:
        """The game in the benchmark's layout below `root`, as a task."""
        kind, target, asked = GAMES[self.type]
        look = self.type == "look_at_obj_in_light"
        name = f"{self.type}-{kind}-None-{target}-{self.number + 1}/trial_T{self.number}"
        folder = root / "json_2.1.1" / "train" / name
        folder.mkdir(parents=True)
        parameters = {
            "object_target": kind,
            "parent_target": "" if look else target,
            "toggle_target": target if look else "",
            "mrecep_target": "",
            "object_sliced": False,
        }
        record = {
            "task_type": self.type,
            "pddl_params": parameters,
            "scene": {"floor_plan": f"FloorPlan{self.number + 1}"},
        }
        (folder / "traj_data.json").write_text(json.dumps(record))
        (folder / "initial_state.pddl").write_text(self.problem())
        found = find_spec("alfworld")
        assert found is not None
        data = Path((found.submodule_search_locations or [""])[0]) / "data"
        game = {
            "pddl_domain": (data / "alfred.pddl").read_text(),
            "grammar": (data / "alfred.twl2").read_text().replace("UNKNOWN GOAL", asked),
            "pddl_problem": self.problem(),
            "solvable": True,
            "walkthrough": None,
        }
        (folder / "game.tw-pddl").write_text(json.dumps(game))
        return Task(
            name,
            "alfworld",
            self.type,
            name,
            {"game": f"json_2.1.1/train/{name}", "room": "FloorPlan1", "split": "train"},
        )


def write_games(root: Path) -> list[Task]:
    """Two games of each type below `root`."""
    return [Room(kind, number).write(root) for kind in GAMES for number in range(len(PLACES))]
