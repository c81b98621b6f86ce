"""DangerousTaxi against gymnasium's own Taxi-v4, rewards derived by hand, and maps drawn from a seed."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from reflectkit.commands import gen_trajectory, split
from reflectkit.console import Quiet
from reflectkit.data.problems import read_records
from reflectkit.envs.taxi import ACTIONS, MAPS, TAXI_V4, Taxi, TaxiMaps, decode, draw, drawn
from reflectkit.types import Task

STATES = TAXI_V4.states


def at(state: int, level: str = "full") -> Taxi:
    env = Taxi()
    env.reset(Task(f"t{state}", "taxi", level, f"g{state}", {"state": state}), 0)
    return env


def test_agrees_with_taxi_v4_on_every_transition() -> None:
    original: Any = gymnasium.make("Taxi-v4").unwrapped
    for state in range(STATES):
        assert tuple(original.decode(state)) == decode(state)
        for action in range(6):
            ((_, following, reward, delivered),) = original.P[state][action]
            result = at(state).step(action)
            assert result.info["state"] == following
            assert result.info["refused"] == (following == state)
            assert result.terminated == (delivered or following == state)
            picked_up = action == 4 and following != state
            expected = -10 if following == state else 20 if delivered or picked_up else reward
            assert result.reward == pytest.approx(expected / 20)


def test_return_of_a_perfect_ride_by_hand() -> None:
    # 328: taxi (3,1), passenger at stand 2 (4,0), destination stand 0 (0,0); a wall between columns 0 and 1 in row 3.
    # So north, west, south, south, pickup, 4 times north, dropoff: 8 moves cost 1 each, the pickup and the delivery pay
    # 20 in its place.
    env, total, taken = at(328), 0.0, []
    while True:
        taken.append(ACTIONS[env.teacher().action()])
        result = env.step(env.teacher().action())
        total += result.reward
        if result.terminated:
            break
    assert taken == ["north", "west", "south", "south", "pickup", "north", "north", "north", "north", "dropoff"]
    assert total == pytest.approx((-8 + 20 + 20) / 20)


def test_only_the_first_pickup_pays() -> None:
    env = at(328)
    for action in (1, 3, 0, 0, 4):
        result = env.step(action)
    assert result.reward == 1.0
    assert env.step(5).reward == pytest.approx(-0.05)  # put down at stand 2, which is not the destination
    assert env.step(4).reward == pytest.approx(-0.05)


def test_map_determines_the_state() -> None:
    reachable = {task.data["state"] for task in Taxi.taskset.tasks("full")}
    edge = list(reachable)
    while edge:
        state = edge.pop()
        for action in range(6):
            following = TAXI_V4.next_state[state][action]
            if not TAXI_V4.delivers(state, action) and following not in reachable:
                reachable.add(following)
                edge.append(following)
    assert len({draw(TAXI_V4, state) for state in reachable}) == len(reachable) == 400


def test_the_originals_prompt_and_history_are_settings() -> None:
    task = next(task for task in Taxi.taskset.tasks("full"))
    plain, told, past = Taxi(), Taxi(with_prompt=True), Taxi(with_history=True)
    start = plain.reset(task, 0).text
    assert told.reset(task, 0).text.startswith("Goal: drive the taxi")
    assert told.reset(task, 0).text.endswith(start.partition("\n")[2])
    assert past.reset(task, 0).text == start
    action = plain.teacher().action()
    assert past.step(action).observation.text == (
        f"{start.partition(chr(10))[0]}\n{draw(TAXI_V4, task.data['state'])}\nMove 1: {ACTIONS[action]}\n"
        f"{plain.step(action).observation.text.partition(chr(10))[2]}"
    )
    assert past.reset(task, 0).text == start, "nothing is kept across a reset"


def test_the_teachers_comments_are_confirmed_in_their_own_state_alone() -> None:
    """Also with the wording of another state's parts: the cell, the target or the advice is then wrong."""
    chance = random.Random(0)
    for number in range(0, STATES, 41):
        env, other = at(number), at((number + 100) % STATES)
        if env.teacher().mistakes():
            env.step(env.teacher().mistakes()[0])
        comment = env.teacher().comment(chance)
        assert env.teacher().confirms(comment)
        assert not other.teacher().confirms(comment)
        assert not env.teacher().confirms(f"{comment} Drive there.")
        assert not env.teacher().confirms("")


SIDE = drawn(0).side


def test_every_cell_of_every_map_can_be_reached() -> None:
    for number in range(MAPS):
        plan = drawn(number)
        assert len(set(plan.stands)) == 4
        seen, edge = {(0, 0)}, deque([(0, 0)])
        while edge:
            row, column = edge.popleft()
            beside = [(row + 1, column), (row - 1, column)]
            beside += [(row, column + 1)] if (row, column) not in plan.walls else []
            beside += [(row, column - 1)] if (row, column - 1) not in plan.walls else []
            for cell in beside:
                if cell not in seen and min(cell) >= 0 and max(cell) < SIDE:
                    seen.add(cell)
                    edge.append(cell)
        assert len(seen) == SIDE * SIDE


def test_the_oracle_ends_in_the_least_number_of_steps_and_below_the_horizon() -> None:
    longest = 0
    for task in TaxiMaps.taskset.tasks("full")[::40]:
        env, steps = TaxiMaps(), 0
        env.reset(task, 0)
        wanted = drawn(task.data["map"]).distance[env.state]
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
    shared = {"env": "taxi-maps", "data_dir": tmp_path / "data", "results_dir": tmp_path / "results"}
    gen_trajectory.run(gen_trajectory.GenTrajectoryConfig.from_flat(**shared, demonstrations=8), Quiet())
    split.run(split.SplitConfig.from_flat(**shared, ratio="20:1:10"), Quiet())
    parts = [
        {
            record.task.data["map"]
            for record in read_records(tmp_path / "data" / "taxi-maps" / f"{name}.json", "taxi-maps")
        }
        for name in ("train", "validate", "test")
    ]
    assert sum(map(len, parts)) == len(set.union(*parts)) == MAPS
    assert [abs(len(part) - size) <= 2 for part, size in zip(parts, (200, 10, 100), strict=True)] == [True] * 3
