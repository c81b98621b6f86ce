"""Taxi on maps that a policy has never seen: they can be driven, and a split holds out whole maps."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from reflectkit.commands import gen_trajectory, split
from reflectkit.console import Quiet
from reflectkit.data.problems import read_records
from research.taxi_maps import MAPS, SIDE, TaxiMaps, map_number

ENV = f"{Path(__file__).parents[2] / 'research' / 'taxi_maps.py'}:TaxiMaps"


def test_every_cell_of_every_map_can_be_reached() -> None:
    for number in range(MAPS):
        plan = map_number(number)
        assert len(set(plan.stands)) == 4
        seen, edge = {(0, 0)}, deque([(0, 0)])
        while edge:
            row, column = edge.popleft()
            neighbours = [(row + 1, column), (row - 1, column)]
            neighbours += [(row, column + 1)] if (row, column) not in plan.walls else []
            neighbours += [(row, column - 1)] if (row, column - 1) not in plan.walls else []
            for cell in neighbours:
                if cell not in seen and min(cell) >= 0 and max(cell) < SIDE:
                    seen.add(cell)
                    edge.append(cell)
        assert len(seen) == SIDE * SIDE


def test_the_oracle_ends_in_the_least_number_of_steps_and_below_the_horizon() -> None:
    longest = 0
    for task in TaxiMaps.taskset.tasks("full")[::40]:
        env, steps = TaxiMaps(), 0
        env.reset(task, 0)
        wanted = map_number(task.data["map"]).distance[env.state]
        while True:
            result = env.step(env.teacher().action())
            steps += 1
            if result.terminated:
                break
        assert result.info["success"]
        assert steps == wanted
        longest = max(longest, steps)
    assert longest < TaxiMaps.horizons["full"]


def test_a_split_holds_out_whole_maps(tmp_path: Path) -> None:
    shared = {"env": ENV, "data_dir": tmp_path / "data", "results_dir": tmp_path / "results"}
    gen_trajectory.run(gen_trajectory.GenTrajectoryConfig.from_flat(**shared, demonstrations=8), Quiet())
    split.run(split.SplitConfig.from_flat(**shared, ratio="20:1:10"), Quiet())
    parts = [
        {
            record.task.data["map"]
            for record in read_records(tmp_path / "data" / "taximaps" / f"{name}.json", "taxi-maps")
        }
        for name in ("train", "validate", "test")
    ]
    assert sum(map(len, parts)) == len(set.union(*parts)) == MAPS
    assert [abs(len(part) - size) <= 2 for part, size in zip(parts, (200, 10, 100), strict=True)] == [True] * 3
