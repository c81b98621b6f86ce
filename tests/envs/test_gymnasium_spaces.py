"""Gymnasium's games with actions of several parts, and with numbers as observations."""

from __future__ import annotations

from copy import deepcopy
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Sequence, Text, Tuple

from reflectkit.env import DEFAULT_HORIZON, Teacher, teacher_of
from reflectkit.envs import env_class
from reflectkit.envs.adapters import adapt
from reflectkit.envs.adapters.spaces import action_key
from reflectkit.errors import ConfigError
from reflectkit.eventloop import result_of
from reflectkit.rollouts.wrappers import Checked
from reflectkit.types import Task

GRID = MultiDiscrete([2, 3], start=[0, 4], dtype=numpy.int32)
TABLE = MultiDiscrete([[1, 2], [2, 1]])
KEYS = MultiBinary(2)
PAIR = Tuple([Discrete(2), MultiBinary(1)])
ROBOT = Dict(gripper=Discrete(2), arm=Dict(up=Discrete(2, start=-1)))


class Guide(Teacher):
    """Says what the game is told to want, in any form."""

    def action(self) -> Any:
        return self.env.wanted


class Parts(gymnasium.Env):
    """Each action ends it, and spoils its own array."""

    teacher_type = Guide
    observation_space: Any = Text(99)
    taken: Any = None
    wanted: Any = None
    mask: Any = None
    seen: Any = "parts"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.seen, {"action_mask": self.mask}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.taken = deepcopy(action)
        if isinstance(action, numpy.ndarray):
            action[:] = 0
        return self.seen, 0.0, True, False, {}


def begun(action_space: Any, **attributes: Any) -> tuple[Any, Any]:
    """A game with this space of actions, and its first observation."""
    kind = type("Parts", (Parts,), {"action_space": action_space, **attributes})
    env: Any = Checked(adapt(kind)())
    return env, env.reset(Task("1", env.name, "all", "1", {}), 0)


@pytest.mark.parametrize(
    ("space", "choices", "index", "action"),
    [
        (GRID, ["(0, 4)", "(0, 5)", "(0, 6)", "(1, 4)", "(1, 5)", "(1, 6)"], 4, [1, 5]),
        (TABLE, ["((0, 0), (0, 0))", "((0, 0), (1, 0))", "((0, 1), (0, 0))", "((0, 1), (1, 0))"], 1, [[0, 0], [1, 0]]),
        (KEYS, ["(0, 0)", "(0, 1)", "(1, 0)", "(1, 1)"], 1, [0, 1]),
        (PAIR, ["(0, (0))", "(0, (1))", "(1, (0))", "(1, (1))"], 3, [1, [1]]),
        (
            ROBOT,
            [f"gripper: {gripper}, arm: (up: {up})" for gripper in (0, 1) for up in (-1, 0)],
            2,
            {"arm": {"up": -1}, "gripper": 1},
        ),
    ],
)
def test_each_combination_of_an_action_s_parts_is_a_choice(
    space: Any, choices: list[str], index: int, action: Any
) -> None:
    env, observation = begun(space)
    assert list(observation.choices) == choices
    for _ in range(2):
        env.reset(Task("1", env.name, "all", "1", {}), 0)
        result_of(env.step(index))
        assert action_key(env.written.taken) == action_key(action)


def test_a_class_names_the_combinations_in_their_order() -> None:
    names = ["Wait", "Brake", "Steer", "Drift"]
    env, observation = begun(KEYS, get_action_meanings=lambda self: names)
    assert observation.choices == ("wait", "brake", "steer", "drift")
    result_of(env.step(2))
    assert env.written.taken.tolist() == [1, 0]


def test_names_that_differ_in_their_capitals_alone_keep_them() -> None:
    names = ["Up", "UP", "down", "Down"]
    assert begun(KEYS, get_action_meanings=lambda self: names)[1].choices == tuple(names)


def test_a_mask_that_allows_nothing_is_told() -> None:
    with pytest.raises(ConfigError, match=r"after reset\(\) the choices are \[\]; see its action_mask: allow"):
        begun(KEYS, mask=[0, 0, 0, 0])


@pytest.mark.parametrize(
    ("space", "mask", "legal"),
    [
        (GRID, [0, 1, 0, 0, 0, 1], [1, 5]),
        (GRID, (numpy.array([0, 1]), numpy.array([1, 0, 1])), [3, 5]),
        (TABLE, (([1], [0, 1]), ([1, 1], [1])), [2, 3]),
        (KEYS, numpy.array([2, 1], numpy.int8), [1, 3]),
        (KEYS, numpy.array([True, False, False, True]), [0, 3]),
        (PAIR, ([0, 1], numpy.array([2])), [2, 3]),
        (ROBOT, {"arm": {"up": [1, 0]}, "gripper": [0, 1]}, [2]),
    ],
)
def test_a_mask_is_for_each_combination_or_for_each_part(space: Any, mask: Any, legal: list[int]) -> None:
    every = begun(space)[1].choices
    assert begun(space, mask=mask)[1].choices == tuple(every[index] for index in legal)


@pytest.mark.parametrize(
    ("space", "seen", "shown"),
    [
        (Dict(observation=Text(9), action_mask=MultiBinary(6)), {"observation": "a table"}, "a table"),
        (Dict(cup=Discrete(4), pen=Discrete(4), action_mask=MultiBinary(6)), {"cup": 1, "pen": 3}, "cup: 1, pen: 3"),
        (Dict(observation=Box(0, 1, (2,)), action_mask=MultiBinary(100)), {"observation": numpy.zeros(2)}, "(0, 0)"),
    ],
)
def test_a_mask_in_the_observation_is_not_shown(space: Any, seen: Any, shown: str) -> None:
    """The info's mask is the one that counts where both are given."""
    mask = numpy.array([0, 1, 0, 0, 0, 1], numpy.int8)
    _, first = begun(GRID, observation_space=space, seen=seen | {"action_mask": mask})
    assert first.choices == ("(0, 5)", "(1, 6)")
    assert first.messages[-1].content.strip() == shown
    _, first = begun(GRID, observation_space=space, seen=seen | {"action_mask": mask}, mask=[1, 0, 0, 0, 0, 0])
    assert first.choices == ("(0, 4)",)
    with pytest.raises(ConfigError, match=r"action_mask is .*; give 0 or 1 for each of 6 actions"):
        begun(GRID, observation_space=space, seen=seen | {"action_mask": [2, 1]})


@pytest.mark.parametrize(
    ("space", "mask"),
    [
        (GRID, [1, 1, 1, 0, 1]),
        (GRID, ([1, 1], [1, 1])),
        (GRID, (1, 1)),
        (KEYS, numpy.array([3, 1])),
        (KEYS, {"0": [1]}),
        (PAIR, ([0, 1],)),
        (ROBOT, {"gripper": [0, 1]}),
        (ROBOT, "all"),
    ],
)
def test_a_mask_of_another_form_is_told(space: Any, mask: Any) -> None:
    with pytest.raises(ConfigError, match=r"action_mask is .*; give 0 or 1 for each of \d actions"):
        begun(space, mask=mask)


@pytest.mark.parametrize(
    ("space", "wanted", "index"),
    [
        (GRID, [1, 6], 5),
        (GRID, numpy.array([0, 5], numpy.int64), 1),
        (PAIR, (numpy.int64(1), numpy.array([0])), 2),
        (ROBOT, {"arm": {"up": 0}, "gripper": 0}, 1),
    ],
)
def test_a_teacher_names_an_action_of_several_parts(space: Any, wanted: Any, index: int) -> None:
    env, _ = begun(space, wanted=wanted)
    assert teacher_of(env, "action").action() == index


@pytest.mark.parametrize("wanted", [3, [1, 7], (1,), {"x": 1}, "(1, 4)", [0.5, 4], None])
def test_an_action_that_is_not_of_the_space_is_told(wanted: Any) -> None:
    env, _ = begun(GRID, wanted=wanted)
    with pytest.raises(ConfigError, match=r"the game's actions are those of MultiDiscrete\(\[2 3\], start=\[0 4\]\)"):
        teacher_of(env, "action").action()


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (MultiBinary(300), "more than 255 combinations; number those that it needs by a gymnasium.ActionWrapper"),
        (Box(-1, 1, (2,)), r"its actions are Box\(-1.0, 1.0, \(2,\), float32\); number them"),
        (Tuple([Discrete(2), Box(0, 1)]), r"its actions are Tuple\(.*; number them"),
    ],
)
def test_actions_that_are_too_many_or_no_numbers_are_told(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        begun(space)


@pytest.mark.parametrize(
    ("space", "seen", "text"),
    [
        (Discrete(500), numpy.int64(328), "328"),
        (Box(-9, 9, (3,)), numpy.array([0.12345678, -0.0, numpy.nan], numpy.float32), "(0.1235, 0, nan)"),
        (Box(0, 1e9, (2, 1)), numpy.array([[12345.6], [7]]), "((12346), (7))"),
        (Tuple([Discrete(32), Discrete(2)]), (14, 1), "(14, 1)"),
        (MultiBinary(2), numpy.array([True, False]), "(True, False)"),
        (Sequence(Discrete(9)), (), "()"),
        (
            Dict(mission=Text(20), near=Dict(wall=Discrete(2)), place=Box(-9, 9, (2,))),
            {"mission": "go", "near": {"wall": 1}, "place": [1.5, -2.0]},
            "mission: go, near: (wall: 1), place: (1.5, -2)",
        ),
        (Dict(map=Text(20), place=Discrete(9)), {"map": "##\n.#\n", "place": 1}, "map:\n##\n.#\nplace:\n1"),
        (Box(0, 1, (2,)), "two numbers", "two numbers"),
    ],
)
def test_observations_of_few_numbers_are_texts(space: Any, seen: Any, text: str) -> None:
    env, observation = begun(Discrete(2), observation_space=space, seen=seen)
    assert observation.text == result_of(env.step(0)).observation.text == text


@pytest.mark.parametrize("space", [Box(0, 255, (84, 84, 3)), Graph(Discrete(2), None), Dict(a=Box(0, 1, (65,)))])
def test_observations_of_many_numbers_are_told(space: Any) -> None:
    with pytest.raises(ConfigError, match=r"its observations are .*; an environment fits if"):
        begun(Discrete(2), observation_space=space)


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (None, "None is no text, number, list or dict; return one of its observation_space"),
        (b"wall", "b'wall' is no text"),
        ({"a": [1, None]}, "None is no text"),
        (numpy.zeros(65), "it has 65 parts, and 64 can be shown"),
    ],
)
def test_an_observation_that_is_not_of_few_numbers_is_told(seen: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"returned the observation .*; {message}"):
        begun(Discrete(2), observation_space=Box(0, 1, (2,)), seen=seen)


class Cart(gymnasium.Wrapper):
    def __init__(self, limit: int = 500) -> None:
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=limit))


@pytest.mark.parametrize(
    ("settings", "horizon", "own"), [({"limit": 9}, DEFAULT_HORIZON, None), ({}, 20, None), ({}, 15, 15)]
)
def test_a_game_is_ended_before_its_own_limit_if_somebody_chose_that(
    settings: dict[str, int], horizon: int, own: int | None
) -> None:
    env = adapt(type("Cart", (Cart,), {"horizon": own}))(**settings)
    env.horizon = horizon
    assert env.reset(Task("1", env.name, "all", "1", {}), 0).choices == ("push left", "push right")


def test_a_game_is_not_ended_before_its_own_limit_by_default() -> None:
    """CartPole's 500 steps ended after the default, and nothing said so."""
    env = adapt(Cart)()
    env.horizon = DEFAULT_HORIZON
    with pytest.raises(ConfigError, match="ends after 500 steps, and episodes end after 128; add --horizon 500"):
        env.reset(Task("1", env.name, "all", "1", {}), 0)


class Drawn(Parts):
    """Says that it draws in characters."""

    metadata: Any = {"render_modes": ["ansi"]}  # noqa: RUF012  Gymnasium's own attribute
    observation_space = Discrete(3)
    seen = 2

    def render(self) -> str:
        return "a board"


class Drawing(Drawn):
    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def close(self) -> None:
        raise RuntimeError("no window")


def test_a_game_is_drawn_if_its_constructor_allows_that_and_else_its_numbers_are_shown() -> None:
    for kind, text in ((Drawn, "2"), (Drawing, "a board")):
        drawn = type("Drawn", (kind,), {"action_space": Discrete(2)})
        env: Any = Checked(adapt(drawn)())
        assert env.reset(Task("1", env.name, "all", "1", {}), 0).text == text


@pytest.mark.skipif(find_spec("shimmy") is not None, reason="what is missing is installed")
def test_what_a_game_lacks_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"GymV26Environment-v0: To use the gym compatibility environments"):
        env_class("gymnasium:GymV26Environment-v0")()
