"""What an env may return: each mistake is one line that names it, wherever in the pipeline the env is wrapped."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from reflectkit.agents.scripted import Demonstrator, Oracle, RandomAgent
from reflectkit.env import StepResult
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.envs.wrappers import Horizon, Shuffled
from reflectkit.errors import ConfigError
from reflectkit.evals.evaluate import Advised
from reflectkit.rollout.checked import Checked, checked
from reflectkit.rollout.episode import Episode, rollout
from reflectkit.types import Message, Observation, Task, ToolSpec, ToolUse

TASK = Corridor.taskset.tasks("short")[0]
EPISODES = [Episode(TASK, 1)]
SEEN = Observation((Message("user", "here"),), ("left", "right"))
MADE: dict[str, Callable[[Any], Any]] = {
    "bare": lambda env: env,
    "horizon": lambda env: Horizon(env, 10),
    "shuffled": lambda env: Horizon(Shuffled(env), 10),
}


def env_that(**returns: Any) -> Corridor:
    """A corridor whose methods return these values."""
    env = Corridor()
    for method, value in returns.items():
        setattr(env, method, lambda *_, value=value: value)
    return env


@pytest.mark.parametrize("wrap", MADE)
@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (None, "returned None as an observation"),
        (replace(SEEN, messages="hello"), "returned an observation with 'hello' for a tuple"),
        (replace(SEEN, choices=None), "returned an observation with None for a tuple"),
        (replace(SEEN, messages=("hello",)), "shows 'hello', which is no message"),
        (replace(SEEN, messages=({"role": "user", "content": "x"},)), "which is no message; write Message"),
        (replace(SEEN, messages=(Message("user", None),)), "shows None, which is no text"),  # type: ignore[arg-type]
        (replace(SEEN, messages=(Message("bot", "x"),)), "a message of role 'bot'; choose from system"),  # type: ignore[arg-type]
        (replace(SEEN, choices=("left", 2)), "shows 2, which is no text"),
        (replace(SEEN, choices=("left", " ")), "offers the choice ' '; a choice is one line, and not empty"),
        (replace(SEEN, choices=("left", "a\nb")), r"offers the choice 'a\\nb'; a choice is one line"),
        (replace(SEEN, choices=("left", "right", "left")), "offers the choice 'left' twice"),
        (replace(SEEN, choices=(), tools=("search",)), "offers 'search' as a tool; make it a ToolSpec"),
    ],
)
def test_an_observation_that_nobody_can_read_or_answer(wrap: str, seen: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rollout(EPISODES, lambda: MADE[wrap](env_that(reset=seen)), RandomAgent())
    if seen is not None:
        with pytest.raises(ConfigError, match=message):
            rollout(EPISODES, lambda: MADE[wrap](env_that(step=StepResult(seen, 0.0, False))), RandomAgent())


@pytest.mark.parametrize("wrap", MADE)
@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, r"step\(\) of env 'corridor' returned None; return a StepResult"),
        (StepResult(SEEN, 0.0, False, info=None), "returned None as info; return a dict"),  # type: ignore[arg-type]
        (StepResult(SEEN, 0.0, False, info={"figures": 3}), "returned 3 as 'figures'; return a dict of numbers"),
        (StepResult(SEEN, 0.0, False, info={"figures": {"success": 1.0}}), "the figure 'success', a name that reflec"),
        (StepResult(SEEN, 0.0, False, info={"figures": {"comment_tokens": 1.0}}), "'comment_tokens', a name that"),
        (
            StepResult(SEEN, None, False, info={"figures": {"reward": 1.0}}),
            "returned None as 'reward'; return a number",
        ),  # type: ignore[arg-type]
        (StepResult(SEEN, 0.0, False, info={"figures": {"": 1.0}}), "the figure '', which is no name"),
        (StepResult(SEEN, 0.0, True, info={"success": 1}), r"ended an episode with 1 as info\['success'\]; say"),
        (StepResult(SEEN, 0.0, True), r"ended an episode with no info\['success'\]; say"),
        (StepResult(SEEN, 0.0, "False"), "returned 'False' as 'terminated'; return True or False"),  # type: ignore[arg-type]
        (StepResult(SEEN, 0.0, False, None), "returned None as 'truncated'; return True or False"),  # type: ignore[arg-type]
    ],
)
def test_a_result_that_cannot_be_counted(wrap: str, result: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rollout(EPISODES, lambda: MADE[wrap](env_that(step=result)), RandomAgent())


@pytest.mark.parametrize("wrap", MADE)
@pytest.mark.parametrize(
    ("agent", "method", "value", "message"),
    [
        (Oracle(), "oracle", -2, "returned -2; return the index of a choice, an int from 0 to 1"),
        (Oracle(), "oracle", 5, "returned 5; return the index"),
        (Oracle(), "oracle", True, "returned True; return the index"),
        (Oracle(), "oracle", "right", "returned 'right'; return the index"),
        (Oracle(), "oracle", None, "returned None; return the index"),
        (Demonstrator(1.0), "mistakes", [7], "returned 7; return the index"),
        (Demonstrator(1.0), "mistakes", None, "returned None; return a list of actions"),
        (Demonstrator(0.0), "note", None, r'returned None; return "good" or "mistake"'),
        (Demonstrator(0.0), "note", "right", r'returned \'right\'; return "good" or "mistake"'),
        (Demonstrator(0.0), "reflection", None, "returned None; return a text"),
    ],
)
def test_a_teacher_that_offers_what_is_not_there(wrap: str, agent: Any, method: str, value: Any, message: str) -> None:
    """An index of -2 was recorded as the choice before the last, and one of 5 was an internal error."""
    with pytest.raises(ConfigError, match=rf"{method}\(\) of env 'corridor' {message}"):
        rollout(EPISODES, lambda: MADE[wrap](env_that(**{method: value})), agent)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "much"])
def test_what_giving_up_costs_is_a_number(value: object) -> None:
    env = Checked(env_that(truncation_penalty=value))
    with pytest.raises(
        ConfigError, match=r"truncation_penalty\(\) of env 'corridor' returned .*; return a number of at most"
    ):
        env.truncation_penalty(3)


def test_an_env_without_a_base_gives_up_at_no_cost() -> None:
    class Bare:
        name, levels = "bare", ("only",)

    assert Checked(Bare()).truncation_penalty(3) == 0.0  # type: ignore[arg-type]


def test_a_score_against_the_oracle_names_its_wrong_index() -> None:
    with pytest.raises(ConfigError, match=r"oracle\(\) of env 'corridor' returned 9; return the index"):
        rollout(EPISODES, lambda: Advised(Horizon(env_that(oracle=9), 5)), RandomAgent())


def test_lists_in_an_observation_are_taken_as_tuples() -> None:
    tool = ToolSpec("find", "Find.", {"type": "object", "properties": {}})
    seen = Observation([Message("user", "x")], ["a", "b"], [])  # type: ignore[arg-type]
    assert Checked(env_that(reset=seen)).reset(TASK, 0) == Observation((Message("user", "x"),), ("a", "b"))
    seen = Observation([Message("user", "x")], (), [tool])  # type: ignore[arg-type]
    assert Checked(env_that(reset=seen)).reset(TASK, 0).tools == (tool,)  # type: ignore[union-attr]


def test_actions_without_choices_are_texts_or_calls() -> None:
    free = Observation((Message("user", "x"),))
    for action in ("a word", ToolUse("a word")):
        env = Checked(env_that(reset=free, oracle=action))
        env.reset(TASK, 0)
        assert env.oracle() == action
    env = Checked(env_that(reset=free, oracle=3))
    env.reset(TASK, 0)
    with pytest.raises(ConfigError, match="returned 3; return a text, as it offers no choices here"):
        env.oracle()


def test_choices_may_give_way_to_text() -> None:
    words = Observation((Message("user", "Write a word."),))
    assert Checked(env_that(step=StepResult(words, 0.0, False))).step(0) == StepResult(words, 0.0, False)


def test_numpy_says_when_an_episode_is_over() -> None:
    result = StepResult(SEEN, 0.0, np.True_, info={"success": True})  # type: ignore[arg-type]
    assert Checked(env_that(step=result)).step(0) == result
    with pytest.raises(ConfigError, match=r"np.True_ as 'success', of type numpy.bool.*bool\(success\)"):
        Checked(env_that(step=replace(result, info={"success": np.True_}))).step(0)


def test_an_env_is_checked_once() -> None:
    env = make("corridor", 8, shuffle=True)
    assert checked(env) is env
    bare = Corridor()
    assert isinstance(checked(bare), Checked)
    assert checked(checked(bare)).env is bare  # type: ignore[attr-defined]


def test_what_is_right_passes_unchanged() -> None:
    bare, env = Corridor(), Checked(Corridor())
    assert env.reset(TASK, 0) == bare.reset(TASK, 0)
    assert env.oracle() == bare.oracle()
    assert env.mistakes() == list(bare.mistakes())
    assert env.step(bare.oracle()) == bare.step(bare.oracle())
    assert (env.note(), env.truncation_penalty(3)) == (bare.note(), bare.truncation_penalty(3))
    assert env.reflection(random.Random(0)) == bare.reflection(random.Random(0))


def test_a_problem_of_another_env_is_refused_as_before() -> None:
    with pytest.raises(Exception, match="is a task of env 'taxi'"):
        Checked(Corridor()).reset(Task("x", "taxi", "short", "x", {}), 0)
