"""DangerousTaxi against gymnasium's own Taxi-v4, and rewards derived by hand."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import pytest

from reflectkit.envs.taxi import ACTIONS, TAXI_V4, Taxi, decode, draw
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
