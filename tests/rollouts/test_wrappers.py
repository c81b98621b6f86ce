"""What an env and its teacher may return: each mistake is one line that names it, however the env is wrapped."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from reflectkit.agents.scripted import Demonstrator, Oracle, RandomAgent
from reflectkit.env import StepResult, Teacher
from reflectkit.envs import env_class
from reflectkit.envs.corridor import Corridor
from reflectkit.errors import ConfigError
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.rollouts.wrappers import Checked, Shuffled
from reflectkit.types import Message, Observation, Task, ToolSpec, ToolUse

TASK = Corridor.taskset.tasks("short")[0]
EPISODES = [Episode(TASK, 1)]
SEEN = Observation((Message("user", "here"),), ("left", "right"))
DEEP: list[Any] = []
for _ in range(5000):
    DEEP = [DEEP]
ENDLESS = ToolSpec("wait", "", {"properties": {"seconds": {"maximum": float("inf")}}})
WRAPPED: tuple[Callable[[Any], Any], ...] = (lambda env: env, lambda env: Checked(Shuffled(env), 10))


def env_that(teacher: dict[str, Any] | None = None, **returns: Any) -> Corridor:
    """A corridor whose methods, and whose teacher's, return these values."""
    env = Corridor()
    for method, value in returns.items():
        setattr(env, method, lambda *_, value=value: value)
    if teacher:
        methods = {method: lambda *_, value=value: value for method, value in teacher.items()}
        kind: Any = type("Faulty", (Corridor.teacher_type,), methods)
        env.teacher = lambda: kind(env)  # type: ignore[method-assign]
    return env


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (replace(SEEN, messages="hello"), "messages of the observation are 'hello'; return a tuple"),
        (replace(SEEN, choices=("left", "a\nb")), r"offers the choice 'a\\nb'; return a text of one line"),
        (replace(SEEN, choices=("left", "right", "left")), "return choices that all differ"),
        (Observation(SEEN.messages, tools=(ENDLESS,)), "tool 'wait': its parameters are no JSON"),
    ],
)
def test_an_observation_that_cannot_be_read_or_answered(seen: Any, message: str) -> None:
    for wrap in WRAPPED:
        with pytest.raises(ConfigError, match=f"env 'corridor': .*{message}"):
            rollout(EPISODES, lambda wrap=wrap: wrap(env_that(reset=seen)), RandomAgent())
        with pytest.raises(ConfigError, match=message):
            rollout(EPISODES, lambda wrap=wrap: wrap(env_that(step=StepResult(seen, 0.0, False))), RandomAgent())


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, r"step\(\) returned None; return a StepResult"),
        (StepResult(SEEN, float("nan"), False), "reward nan or info {} is not valid JSON"),
        (StepResult(SEEN, 1.0, False, info={"deep": DEEP}), "is not valid JSON"),
        (
            StepResult(SEEN, 0.0, True, info={"success": 1}),
            r"info\['success'\] of the last step is 1; return True or False",
        ),
    ],
)
def test_a_result_that_cannot_be_counted(result: Any, message: str) -> None:
    for wrap in WRAPPED:
        with pytest.raises(ConfigError, match=message):
            rollout(EPISODES, lambda wrap=wrap: wrap(env_that(step=result)), RandomAgent())


@pytest.mark.parametrize(
    ("agent", "method", "value", "message"),
    [
        (Oracle(), "action", -2, "-2; return the index of a choice, from 0 to 1"),
        (Demonstrator(0.0), "note", "right", '\'right\'; return "good" or "mistake"'),
    ],
)
def test_a_teacher_that_offers_what_is_not_there(agent: Any, method: str, value: Any, message: str) -> None:
    """An index of -2 was recorded as the choice before the last, and 5 was an internal error."""
    for wrap in WRAPPED:
        with pytest.raises(ConfigError, match=rf"the teacher's {method}\(\) returned {message}"):
            rollout(EPISODES, lambda wrap=wrap: wrap(env_that({method: value})), agent)


def test_actions_without_choices_are_texts_or_calls() -> None:
    free = Observation((Message("user", "x"),))
    for action in ("a word", ToolUse("a word")):
        env = Checked(env_that({"action": action}, reset=free))
        env.reset(TASK, 0)
        assert env.teacher().action() == action
    env = Checked(env_that({"action": 3}, reset=free))
    env.reset(TASK, 0)
    with pytest.raises(ConfigError, match="returned 3; return a text or a ToolUse"):
        env.teacher().action()


def test_what_is_right_passes_unchanged() -> None:
    bare, env = Corridor(), Checked(Corridor())
    assert env.reset(TASK, 0) == bare.reset(TASK, 0)
    ours, theirs = env.teacher(), bare.teacher()
    assert isinstance(theirs, Teacher)
    assert (ours.action(), ours.mistakes()) == (theirs.action(), list(theirs.mistakes()))
    assert env.step(1) == bare.step(1)
    assert (ours.note(), env.truncation_penalty(3)) == (theirs.note(), bare.truncation_penalty(3))
    assert ours.comment(random.Random(0)) == theirs.comment(random.Random(0))


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("best_actions", [2], r"best_actions\(\) returned 2; return the index of a choice"),
        ("best_actions", [], r"best_actions\(\) returned \[\]; return one action at least"),
        ("answers", None, r"answers\(\) returned None; return a dict of lists"),
        ("answers", {"likely": [-1]}, r"answers\(\) to 'likely' are \[-1\]; return a list of indices of its 2 options"),
        ("answers", {"success": [2]}, r"answers\(\) to 'success' are \[2\]"),
    ],
)
def test_a_teacher_whose_answers_are_no_options(method: str, value: Any, message: str) -> None:
    for wrap in WRAPPED:
        env = wrap(Checked(env_that({method: value})))
        env.reset(TASK, 0)
        with pytest.raises(ConfigError, match=message):
            getattr(env.teacher(), method)()


def test_shuffled_choices_are_what_a_teacher_answers_by() -> None:
    """The best action was the index in the original order, so that an oracle disagreed with itself."""

    class Answers(Corridor.teacher_type):  # type: ignore[name-defined, misc]
        def best_actions(self) -> list[int]:
            return [1, 0]

        def answers(self) -> dict[str, list[int]]:
            return {"likely": [1], "success": [1]}

    bare = Corridor()
    bare.teacher = lambda: Answers(bare)  # type: ignore[method-assign]
    env = Shuffled(bare)
    orders = set()
    for seed in range(9):
        env.reset(TASK, seed)
        right, left = env.order.index(1), env.order.index(0)
        orders.add(right)
        assert env.teacher().best_actions() == [right, left]
        assert env.teacher().answers() == {"likely": [right], "success": [1]}
    assert orders == {0, 1}


class Bag:
    """Keeps its only info, and takes things out of the problem's list."""

    def reset(self, task: Task, seed: int) -> Observation:
        self.things, self.info = task.data["things"], {"figures": {"left": 2}}
        return SEEN

    def step(self, action: int) -> StepResult:
        self.things.pop()
        self.info["figures"]["left"] = len(self.things)
        return StepResult(SEEN, 0.0, not self.things, info=self.info)


def test_neither_a_problem_nor_an_info_changes_with_later_steps() -> None:
    task = Task("1", "bag", "all", "1", {"things": ["hat", "map"]})
    trajectories = rollout([Episode(task, 1), Episode(task, 2)], env_class(Bag), RandomAgent())
    for trajectory in trajectories:
        assert [turn.info["figures"]["left"] for turn in trajectory.turns] == [1, 0]
        assert trajectory.task.data == {"things": ["hat", "map"]}
