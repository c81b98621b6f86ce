"""Plain classes, TRL's environments, reward functions and Gymnasium's games as environments."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import dataclasses
import enum
import inspect
import json
import math
import random
import re
import threading
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import gymnasium
import numpy
import pyarrow
import pytest
from pyarrow import parquet

from reflectkit.agents.scripted import Demonstrator, Oracle
from reflectkit.cli.main import main
from reflectkit.env import Teacher, rules_of, teacher_of
from reflectkit.envs import data_folder, env_class, listed
from reflectkit.envs import make as make_env
from reflectkit.envs.adapters import adapt
from reflectkit.envs.adapters.plain import with_members
from reflectkit.envs.adapters.rows import read_rows
from reflectkit.envs.setup import EnvSetup
from reflectkit.errors import ConfigError, DataError, IllegalActionError
from reflectkit.eventloop import result_of, run_sync
from reflectkit.integrations.agent import load_agent
from reflectkit.jsonl import read_json, read_jsonl, write_json, write_jsonl
from reflectkit.rollouts.episode import Episode, play, rollout
from reflectkit.rollouts.tool_errors import ToolErrors, broken_tool
from reflectkit.rollouts.wrappers import Checked
from reflectkit.train.trainer import env_figures
from reflectkit.types import Decision, Observation, Status, Task, ToolCall, ToolUse, Trajectory, Turn
from tests.examples import own_module
from tests.fakes.players import Plays


def make(kind: type, horizon: int | None = None, **settings: Any) -> Any:
    env: Any = adapt(kind)
    env.name = getattr(kind, "name", kind.__name__.lower())
    made = env(**settings)
    made.horizon = horizon
    return Checked(made)


def task_of(env: Any, **data: Any) -> Task:
    return Task("1", env.name, "all", "1", data)


def step(env: Any, action: Any) -> Any:
    return result_of(env.step(action))


class Counter:
    choices = ("one", "two")
    form = 3

    def __init__(self, wanted: int = 3) -> None:
        self.wanted = wanted

    def reset(self) -> str:
        self.sum = 0
        return "0"

    def step(self, choice: str) -> Any:
        self.sum += self.choices.index(choice) + 1
        done = self.sum >= self.wanted
        reward = float(self.sum == self.wanted)
        returned = [str(self.sum), reward, done]
        if self.form == 5:
            returned.append(False)
        if self.form > 3:
            returned.append({"figures": {"sum": self.sum}, "array": numpy.zeros(2)})
        return tuple(returned)


@pytest.mark.parametrize("form", [3, 4, 5])
def test_choices_are_taken_by_their_texts(form: int) -> None:
    env = make(type("Counter", (Counter,), {"form": form}), wanted=3)
    seen = env.reset(task_of(env, seed=1), 0)
    assert (seen.text, seen.choices) == ("0", ("one", "two"))
    first, last = env.step(0), env.step(1)
    assert (first.observation.text, first.reward, first.terminated) == ("1", 0, False)
    assert (last.observation.text, last.reward, last.terminated, last.info["success"]) == ("3", 1, True, True)
    assert last.info.get("figures") == ({"sum": 3} if form > 3 else None)


class ByIndex:
    choices = ("left", "right")

    def reset(self) -> str:
        return "a fork"

    def step(self, action: int) -> Any:
        return f"{action!r} taken", float(action == 1), True


def test_a_step_whose_action_is_an_int_gets_the_index() -> None:
    env = make(ByIndex)
    env.reset(task_of(env), 0)
    ended = step(env, 1)
    assert (ended.observation.text, ended.reward) == ("1 taken", 1.0)


class Successor:
    choices, horizon = str, 3

    def reset(self, seed: int) -> str:
        return "What follows 4?"

    def step(self, text: str) -> Any:
        return f"You said {text}.", float(text == "5"), text == "5"


def test_where_choices_are_str_a_step_gets_any_text() -> None:
    env = make(Successor)
    assert not env.reset(task_of(env), 0).choices
    assert step(env, "6").reward == 0
    ended = step(env, ToolUse("5", ()))
    assert (ended.reward, ended.terminated, ended.observation.choices) == (1.0, True, ())
    assert adapt(Successor).action_kind(None) == "text"
    with pytest.raises(IllegalActionError, match="no action 0; it takes a text"):
        step(make_begun(Successor), 0)


class Late:
    choices: list[str] | None = None

    def reset(self) -> str:
        self.choices = ["one", "two"]
        return "pick"

    def step(self, choice: str) -> Any:
        return choice, 1.0, True


def test_choices_may_be_none_until_an_episode_begins() -> None:
    assert adapt(Late).action_kind(None) == "choice"
    assert make_begun(Late).step(1).observation.text == "two"


def make_begun(kind: type) -> Any:
    env = make(kind)
    env.reset(task_of(env), 0)
    return env


def test_a_choice_is_the_one_that_was_shown_whatever_other_episodes_do_to_the_list() -> None:
    class Turned(Counter):
        choices: Any = ["one", "two"]  # noqa: RUF012 (as people write it)

        def reset(self) -> str:
            self.choices.reverse()
            return super().reset()

        def step(self, choice: str) -> Any:
            return choice, 0.0, True

    first, second = make(Turned), make(Turned)
    shown = first.reset(task_of(first, seed=1), 0).choices
    second.reset(task_of(second, seed=2), 0)
    assert (shown, first.step(0).observation.text) == (("two", "one"), "two")


@pytest.mark.parametrize(
    ("rewards", "success"),
    [
        ([0.0, 0.0], False),
        ([-0.02, 1.0], True),
        ([-0.02, 0.98], True),  # a goal less the cost of the step
        ([-1.0, -1.0], False),
        ([1.0, 1.0], None),  # points
        ([0.4, -0.6], None),  # profits
        ([-0.6, 3.2], None),
        ([0.0, 0.4], None),  # a mark
        ([0.5, 0.0], None),
    ],
)
def test_success_is_guessed_in_games_with_a_goal_only(rewards: list[float], success: bool | None) -> None:
    class Rewarded(Counter):
        def step(self, choice: str) -> Any:
            self.sum += 1
            return "?", rewards[self.sum - 1], self.sum == 2

    env = make(Rewarded)
    env.reset(task_of(env, seed=1), 0)
    env.step(0)
    assert env.step(0).info["success"] is success


def test_numbers_in_the_info_of_a_step_are_figures_and_the_last_counts() -> None:
    class Shop(Counter):
        horizon = 2

        def step(self, choice: str) -> Any:
            self.sum += 3
            told = {"profit": numpy.float32(self.sum), "sold": 2, "bust": numpy.bool_(True), "success": 1, "return": 7}
            return "?", 1.0, False, told | {"name": "x", "mask": numpy.zeros(2), "nothing": None, 5: 6}

    env = make(Shop)
    (trajectory,) = rollout([Episode(task_of(env, seed=1), 0)], lambda: Checked(env, 2), Plays(0))
    assert trajectory.figures == {"profit": 6.0, "sold": 2.0, "bust": 1.0}


def test_gymnasiums_truncation_and_success_are_understood() -> None:
    class Cut(Counter):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # type: ignore[override]
            return f"seed {seed}", {}

        def step(self, choice: str) -> Any:
            return "end", 1.0, False, numpy.bool_(True), {"success": False}

    env = make(Cut)
    assert env.reset(task_of(env, seed=7), 0).text == "seed 7"
    last = env.step(0)
    assert (last.terminated, last.truncated, last.info["success"]) == (False, True, False)


@pytest.mark.parametrize(
    ("told", "success"),
    [
        ({"is_success": 1.0}, True),
        ({"is_success": numpy.float32(0)}, False),
        ({"is_success": True, "success": False}, False),
        ({"is_success": None}, True),
    ],
)
def test_is_success_says_what_success_is(told: dict[str, Any], success: bool) -> None:
    class Robot(Counter):
        def step(self, choice: str) -> Any:
            return "end", 1.0, True, told

    env = make(Robot)
    env.reset(task_of(env, seed=7), 0)
    last = env.step(0)
    assert (last.info["success"], last.info.get("last_figures")) == (success, None)


def test_a_part_of_a_success_is_refused() -> None:
    class Robot(Counter):
        def step(self, choice: str) -> Any:
            return "end", 1.0, True, {"is_success": 0.3}

    env = make(Robot)
    env.reset(task_of(env, seed=7), 0)
    with pytest.raises(ConfigError, match="'is_success' must be True or False"):
        env.step(0)


class Dice:
    """Uses the global generators."""

    choices = ("roll",)

    def reset(self) -> str:
        return self.roll()

    def step(self, choice: str) -> Any:
        return self.roll(), 0.0, False

    def roll(self) -> str:
        return f"{random.random()} {numpy.random.random()}"


def test_global_generators_are_the_episodes_own() -> None:
    def alone(seed: int) -> list[str]:
        env = make(Dice)
        return [env.reset(task_of(env, seed=seed), 0).text, env.step(0).observation.text]

    before = random.getstate()
    one, other = make(Dice), make(Dice)
    starts = [one.reset(task_of(one, seed=1), 0).text, other.reset(task_of(other, seed=2), 0).text]
    ends = [env.step(0).observation.text for env in (one, other)]
    assert [*zip(starts, ends, strict=True)] == [tuple(alone(1)), tuple(alone(2))]
    assert starts[0] != starts[1]
    assert random.getstate() == before


class Desk:
    """In the form of TRL."""

    def reset(self, **row: Any) -> str | None:
        self.row, self.sum = row, 0
        return None if row.get("quiet") else " Use the tool."

    def add(self, number: int) -> int:
        """
        Adds a number.

        Args:
            number: The number to add.

        Returns:
            The sum.
        """
        if number < 0:
            raise ValueError("Not below 0.")
        self.sum += number
        return self.sum

    def get_reward(self) -> float:
        return self.sum / 10

    def _private(self) -> None:
        pass


def calls(*numbers: int) -> ToolUse:
    return ToolUse("written", tuple(ToolCall("add", {"number": number}) for number in numbers))


def test_public_methods_are_tools_until_none_is_called() -> None:
    env = make(Desk)
    seen = env.reset(task_of(env, prompt="Count to 10.", answer="10"), 3)
    assert env.plain.row == {"prompt": "Count to 10.", "answer": "10", "seed": 3}
    assert [(message.role, message.content) for message in seen.messages] == [("user", "Count to 10. Use the tool.")]
    (tool,) = seen.tools
    assert (tool.name, tool.description) == ("add", "Adds a number.")
    number = {"type": "integer", "description": "The number to add."}
    assert tool.parameters == {"type": "object", "properties": {"number": number}, "required": ["number"]}
    result = step(env, calls(4, -1, 6))
    results = [message.content for message in result.observation.messages[2:]]
    assert (results, result.info, result.terminated) == (
        ["4", "{'error': 'Not below 0.'}", "10"],
        {"refused": 1},
        False,
    )
    last = step(env, ToolUse("Done."))
    assert (last.reward, last.terminated, last.info["success"]) == (1.0, True, True)


class Nested(Desk):
    def add(self, number: int) -> list[Any]:
        """Adds a number.

        Args:
            number: The number to add.
        """
        result: list[Any] = []
        for _ in range(5000):
            result = [result]
        return result


def test_a_result_that_has_no_text_is_an_error_of_the_tool() -> None:
    env = make(Nested)
    env.reset(task_of(env, prompt="Add."), 3)
    result = step(env, calls(4))
    assert "error" in result.observation.messages[-1].content
    assert "RecursionError" in result.info["raised"]["add"][0]


class Keeper(Desk):
    """Waits at the start, changes the list that it is given, and returns what has no text."""

    async def reset(self, **row: Any) -> str:  # type: ignore[override]
        await asyncio.sleep(0)
        self.sum = 0
        return "Go."

    def sort(self, numbers: list[int]) -> list[int]:
        """Sorts numbers.

        Args:
            numbers: These.
        """
        numbers.sort()
        return numbers

    def count(self, number: int) -> Any:
        """Counts.

        Args:
            number: How far.
        """
        yield from range(number)


def test_a_tool_that_changes_a_list_does_not_change_the_call() -> None:
    env = make(Keeper)
    assert result_of(env.reset(task_of(env), 3)).text == "User: Go."
    use = ToolUse("", (ToolCall("sort", {"numbers": [2, 1]}),))
    assert step(env, use).observation.messages[-1].content == "[1, 2]"
    assert use.calls[0].arguments == {"numbers": [2, 1]}


def test_a_result_that_is_a_place_in_memory_is_an_error_of_the_tool() -> None:
    env = make(Keeper)
    result_of(env.reset(task_of(env), 3))
    result = step(env, ToolUse("", (ToolCall("count", {"number": 2}),)))
    assert "returned generator, which has no text" in result.observation.messages[-1].content
    assert "TypeError" in result.info["raised"]["count"][0]


class Calculator:
    name = "asking"

    def reset(self) -> str:
        return "Calculate."

    def calculate(self, text: str) -> float:
        """Calculates.

        Args:
            text: What.
        """
        return eval(text)  # type: ignore[no-any-return]

    def look(self) -> str:
        """Looks."""
        return not_there  # type: ignore[name-defined]  # noqa: F821

    def get_reward(self) -> float:
        return 0.0


LOOKS_AT_CALLS = """
SEEN = []

def calls(completions, **kwargs):
    SEEN.append(completions)
    return [float(sum(len(message.get("tool_calls") or []) for message in one)) for one in completions]

def number_of_ids(completion_ids, **kwargs):
    return [len(ids) for ids in completion_ids]

def logs(prompts, completions, log_extra, log_metric):
    log_extra("kind", ["long"])
    log_extra("object", [print])
    log_metric("words", 3)
    log_metric("words", 4)
    return [1.0]

def none(completions, **kwargs):
    return [None]

def zero(completions, **kwargs):
    return [0.0]

def state(completions, trainer_state, **kwargs):
    return [float(trainer_state.global_step)]

def state_or_none(completions, trainer_state=None, **kwargs):
    return [1.0 if trainer_state is None else 0.0]

def of_column(completions, solution):
    return [1.0]
"""


@pytest.fixture
def look(request: pytest.FixtureRequest) -> Callable[[str], str]:
    name = f"{own_module(request.node)}.py"
    Path(name).write_text(LOOKS_AT_CALLS, encoding="utf-8")
    return lambda function: f"{name}:{function}"


def test_reward_functions_get_calls_and_names_as_in_trl(look: Callable[[str], str]) -> None:
    env = make(Desk, reward=(look("calls"), look("zero")))
    env.reset(task_of(env, prompt="Add."), 3)
    step(env, ToolUse('I add.\n<tool_call>\n{"name": "add", "arguments": {"number": 4}}\n</tool_call>', calls(4).calls))
    step(env, ToolUse("subtract {}", errors=("no tool named 'subtract'",)))
    assert step(env, ToolUse("Done.")).reward == 0.4 + 1.0
    from reflectkit.registry import resolve

    ((completion,),) = resolve("list", look("SEEN"), {})
    call = {"type": "function", "function": {"name": "add", "arguments": {"number": 4}}}
    assert completion == [
        {"role": "assistant", "content": "I add.", "tool_calls": [call]},
        {"role": "tool", "name": "add", "content": "4"},
        {"role": "assistant", "content": "subtract {}"},
        {"role": "tool", "name": "unknown", "content": "no tool named 'subtract'"},
        {"role": "assistant", "content": "Done."},
    ]


def test_reward_functions_get_the_tokens_of_the_completion(look: Callable[[str], str]) -> None:
    class Sampled(Plays):
        """Its prompt begins with what it read and wrote before, as far as `grows`."""

        grows = True

        async def decide(self, observation: Any, context: Any) -> Decision:
            turn = len(context.turns)
            prompt = (1, 2, *[5] * (4 * turn)) if self.grows else (turn,)
            return dataclasses.replace(await super().decide(observation, context), prompt_ids=prompt, token_ids=(7, 8))

    agent = Sampled(calls(4), ToolUse("Done."))
    make_desk = partial(make, Desk, reward=(look("number_of_ids"),))
    task = Task("1", "desk", "all", "1", {"prompt": "Add.", "seed": 1})
    (grown,) = rollout([Episode(task, 1)], make_desk, agent)
    assert grown.figures["number_of_ids"] == 4 + 2  # what is between the first prompt and the last, and what it wrote
    agent.grows = False
    (rewritten,) = rollout([Episode(task, 1)], make_desk, agent)
    assert rewritten.figures["number_of_ids"] == 2 + 2
    assert answered((look("number_of_ids"),), text="fünf").reward == 5  # nobody sampled: the bytes


def test_reward_functions_log_as_in_trl(look: Callable[[str], str]) -> None:
    info = answered((look("logs"),), row={}).info
    assert info["figures"] == {"logs": 1.0, "words": 3.5}
    assert info["extra"] == {"kind": "long", "object": repr(print)}


def test_an_answer_that_no_reward_applies_to_is_left_out_and_counted(look: Callable[[str], str]) -> None:
    def played(*rewards: str) -> Trajectory:
        env: Any = env_class("prompts")
        task = Task("1", "prompts", "all", "1", {"prompt": "Hi"})
        return rollout([Episode(task, 1)], lambda: Checked(env(reward=rewards)), Plays("Hello."))[0]

    scored = played(look("none"), look("zero"))
    assert scored.status is Status.COMPLETED
    assert scored.inapplicable == ("none",)
    assert scored.figures == {"zero": 0.0}
    assert env_figures([scored])["zero"] == 0.0
    unscored = played(look("none"))
    assert unscored.status is Status.ABORTED
    assert "no reward applies" in unscored.reason


def test_what_does_not_exist_here_is_refused_with_the_fix(look: Callable[[str], str]) -> None:
    assert answered((look("state_or_none"),)).reward == 1.0
    with pytest.raises(ConfigError, match=r"asks for trainer_state.*trainer_state=None"):
        answered((look("state"),))
    with pytest.raises(ConfigError, match=r"missing.*'solution'.*name a column so"):
        answered((look("of_column"),), row={})
    with pytest.raises(ConfigError, match=r"'answer'.*\*\*kwargs"):
        answered((look("logs"),))


def test_an_error_of_a_tools_code_is_told_once_and_one_of_its_arguments_is_not() -> None:
    looks, sums = ToolUse("", (ToolCall("look", {}),) * 2), ToolUse("", (ToolCall("calculate", {"text": "x + 1"}),))
    told: list[str] = []
    errors = ToolErrors(told.append)

    def ended(trajectory: Trajectory) -> None:
        errors.see(trajectory)

    episodes, agent = [EPISODE] * 2, Plays(sums, looks, ToolUse("Done."))
    played = rollout(episodes, lambda: make(Calculator), agent, width=1, on_end=ended)
    assert [message.content for message in played[0].turns[2].observation.messages if message.role == "tool"] == [
        "{'error': \"name 'x' is not defined\"}",
        *["{'error': \"name 'not_there' is not defined\"}"] * 2,
    ]
    assert len(told) == 1
    assert "look()" in told[0]
    assert re.search(r"test_adapters.py, line \d+: NameError: name 'not_there' is not defined", told[0])
    assert "look() raised the same error in all its 4 calls" in broken_tool(played)


def test_a_tool_that_worked_once_is_not_broken() -> None:
    def turn(tool: str, **info: Any) -> Turn:
        use = ToolUse("", (ToolCall(tool, {}),))
        return Turn(Observation(()), Decision(use), 0.0, info)

    def played(*turns: Turn) -> list[Trajectory]:
        return [Trajectory(EPISODE.task, 1, turns, Status.COMPLETED, False)]

    failed, other = turn("look", raised={"look": ["NameError: x"]}), turn("look", raised={"look": ["NameError: y"]})
    assert broken_tool(played(failed, failed))
    assert not broken_tool(played(failed))
    assert not broken_tool(played(failed, other))
    assert not broken_tool(played(failed, failed, turn("look")))


def test_the_score_is_also_asked_at_the_horizon() -> None:
    env = make(Desk, horizon=1)
    env.reset(
        task_of(env, prompt=[{"role": "system", "content": "S"}, {"role": "user", "content": "U"}], quiet=True), 3
    )
    last = step(env, calls(4))
    assert [message.content for message in last.observation.messages[:2]] == ["S", "U"]
    assert (last.reward, last.terminated, last.info["success"]) == (0.4, False, False)


REWARDS = """
import asyncio

SEEN = []

def exact(prompts, completions, answer, **kwargs):
    SEEN.append((prompts, completions, answer))
    return [float(completion == right) for completion, right in zip(completions, answer)]

async def short(completions, **kwargs):
    return [1 - len(completion) / 10 for completion in completions]

async def late(completions, **kwargs):
    await asyncio.sleep(0.01)
    return [0.5]

def alone(completions, **kwargs):
    return asyncio.run(late(completions))

class Late:
    async def __call__(self, completions, **kwargs):
        return await late(completions)

late_object = Late()

def as_array(completions, **kwargs):
    import numpy
    return numpy.array([0.25 for _ in completions])

def looks(completions, photo, **kwargs):
    return [0.0]


def of_desk(environments, completions, **kwargs):
    return [environments[0].sum + len(completions[0])]
"""


@pytest.fixture
def rewards(request: pytest.FixtureRequest) -> str:
    name = f"{own_module(request.node)}.py"
    Path(name).write_text(REWARDS, encoding="utf-8")
    return name


def answered(
    rewards: tuple[str, ...], prompt: Any = "2 + 3 =", text: str = "5", row: Any = MappingProxyType({"answer": "5"})
) -> Any:
    env: Any = env_class("prompts")(reward=rewards)
    env.reset(Task("1", "prompts", "all", "1", {"prompt": prompt, **row}), 0)
    return step(env, text)


def test_reward_functions_are_called_as_by_trl_and_added_by_weight(rewards: str) -> None:
    result = answered((f"{rewards}:exact", f"{rewards}:short=0.5"))
    assert result.reward == pytest.approx(1 + 0.5 * 0.9)
    assert result.info == {"success": True, "figures": {"exact": 1.0, "short": 0.9}}
    messages = [{"role": "user", "content": "2 + 3 ="}]
    assert answered((f"{rewards}:exact",), messages).info["success"] is False
    from reflectkit.registry import resolve

    assert resolve("list", f"{rewards}:SEEN", {}) == [
        (["2 + 3 ="], ["5"], ["5"]),
        ([messages], [[{"role": "assistant", "content": "5"}]], ["5"]),
    ]


def test_figures_of_reward_functions_with_one_name_are_numbered(rewards: str) -> None:
    Path("other_rewards.py").write_text("def exact(completions, **_): return [0.25]", encoding="utf-8")
    result = answered((f"{rewards}:exact", "other_rewards.py:exact=2", f"{rewards}:short=0"))
    assert result.reward == 1.5
    assert result.info["figures"] == {"exact_1": 1.0, "exact_2": 0.25, "short": 0.9}


def test_arrays_are_rewards_and_texts_in_parts_are_prompts(rewards: str) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "2 + "}, {"type": "text", "text": "3 ="}]}]
    assert answered((f"{rewards}:as_array",), parts).reward == 0.25
    with pytest.raises(DataError, match="not continued"):
        answered((f"{rewards}:as_array",), [*parts, {"role": "assistant", "content": "It is"}])
    with pytest.raises(ConfigError, match="twice"):
        answered((f"{rewards}:as_array", f"{rewards}:as_array=2"))


def test_calls_in_a_prompt_are_shown_with_their_results(rewards: str) -> None:
    function = {"name": "add", "arguments": '{"a": 2, "b": 3}'}
    messages: list[Any] = [{"role": "user", "content": "2 + 3?", "tool_calls": None}]
    messages += [{"role": "assistant", "content": None, "tool_calls": [{"id": None, "function": function}]}]
    messages += [{"role": "tool", "content": "5", "name": "add"}, {"role": "user", "content": "2 + 3 ="}]
    env: Any = env_class("prompts")(reward=(f"{rewards}:as_array",))
    seen = env.reset(Task("1", "prompts", "all", "1", {"prompt": messages}), 0)
    assert seen.text == 'User: 2 + 3?\nAgent: add {"a": 2, "b": 3}\nTool add: 5\nUser: 2 + 3 ='
    with pytest.raises(DataError, match="no JSON object"):
        answered(
            (f"{rewards}:as_array",),
            [{"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "["}}]}],
        )


def test_reward_functions_see_the_environments(rewards: str) -> None:
    env = make(Desk, reward=(f"{rewards}:of_desk=2",))
    env.reset(task_of(env), 3)
    step(env, calls(4))
    assert step(env, ToolUse("Done.")).reward == 0.4 + 2 * (4 + 3)  # of three messages


@pytest.mark.parametrize("reward", ["late", "late_object"])
def test_an_env_that_waits_for_a_reward_leaves_the_random_state_to_others(rewards: str, reward: str) -> None:
    env = make(Desk, reward=(f"{rewards}:{reward}",))
    env.reset(task_of(env), 3)
    before = random.getstate()

    async def end() -> tuple[Any, Any]:
        ending = asyncio.ensure_future(env.step(ToolUse("Done.")))
        await asyncio.sleep(0)
        return random.getstate(), await ending

    meanwhile, result = run_sync(end())
    assert meanwhile == before
    assert result.reward == 0.5


def ask() -> str:
    """The answer of somebody who is asked in an event loop of its own, in the main thread."""

    async def answer() -> str:
        await asyncio.sleep(0)
        return "asked"

    assert threading.current_thread() is threading.main_thread()
    return asyncio.run(answer())


EPISODE = Episode(Task("1", "asking", "all", "1", {"seed": 1}), 1)


class AskingTeacher(Teacher):
    def action(self) -> int:
        return ["asked", "other"].index(ask())

    def comment(self, generator: random.Random) -> str:
        return ask()


class Asking:
    name = "asking"
    teacher_type = AskingTeacher

    def __init__(self) -> None:
        ask()

    def choices(self) -> list[str]:
        return [ask(), "other"]

    def reset(self) -> str:
        return ask()

    def step(self, choice: str) -> Any:
        return ask(), float(choice == "asked"), True


class AskingAtLast(Asking):
    """Its step is a coroutine, and what is called after it is not."""

    async def step(self, choice: str) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return "end", float(choice == "asked"), False


class AskingDesk:
    name = "asking"

    def reset(self) -> str:
        return ask()

    def look(self) -> str:
        """Looks."""
        return ask()

    def get_reward(self) -> float:
        return float(ask() == "asked")


@pytest.mark.parametrize("kind", [Asking, AskingAtLast])
@pytest.mark.parametrize("agent", [Oracle(), Demonstrator(0.0)], ids=["oracle", "demonstrator"])
def test_a_class_and_its_teacher_may_start_a_loop(kind: type, agent: Any) -> None:
    (played,) = rollout([EPISODE], lambda: Checked(adapt(kind)(), 1), agent)
    assert (played.total_return, played.turns[0].observation.choices) == (1.0, ("asked", "other"))


def test_a_tool_a_score_and_a_reward_function_may_start_a_loop(rewards: str) -> None:
    agent = Plays(ToolUse("", (ToolCall("look", {}),)), ToolUse("Done."))
    (played,) = rollout([EPISODE], lambda: make(AskingDesk, reward=(f"{rewards}:alone",)), agent)
    assert [message.content for message in played.turns[-1].observation.messages if message.role == "tool"] == ["asked"]
    assert played.total_return == 1 + 0.5


def test_somebody_elses_loop_may_play_an_episode_of_such_a_class() -> None:
    """As slime's does."""
    assert asyncio.run(play(EPISODE, make(Asking), Oracle())).total_return == 1.0


class Keeps:
    """Keeps its row, and has a tool with the name of a method of environments."""

    def reset(self, **row: Any) -> None:
        self.row = row

    def step(self, box: int) -> str:
        """Look.

        Args:
            box: Which.
        """
        return str(box)

    def get_reward(self) -> float:
        return 1.0


class TakesTask(Keeps):
    def reset(self, prompt: str, task: str) -> None:  # type: ignore[override]
        self.row = {"prompt": prompt, "task": task}


@pytest.mark.parametrize("seed", ["abc", 7, [1], None])
def test_a_column_may_have_any_name(seed: Any) -> None:
    row = {"prompt": "Hi", "seed": seed, "task": "t", "method": "m", "function": "f", "own": "o"}
    env = make(Keeps)
    env.reset(task_of(env, **row), 5)
    assert env.plain.row == row


def test_a_column_called_task_is_no_problem_of_an_env(request: pytest.FixtureRequest) -> None:
    file = f"{own_module(request.node)}.py"
    code = f"from typing import Any\n\n{inspect.getsource(Keeps)}\n\n{inspect.getsource(TakesTask)}"
    Path(file).write_text(code, encoding="utf-8")
    env: Any = make_env(f"{file}:TakesTask")
    env.reset(task_of(env, prompt="Hi", task="t"), 0)
    assert env.plain.row["task"] == "t"


def test_a_column_that_no_method_can_get_is_told(rewards: str) -> None:
    env = make(Keeps)
    with pytest.raises(DataError, match="the column 'self' cannot be an argument of reset"):
        env.reset(task_of(env, prompt="Hi", self="s"), 5)
    Path(f"{rewards}_method.py").write_text(
        "class Judge:\n    def __call__(self, completions, **row):\n        return [1.0]\n\n\njudge = Judge()\n\n\n"
        "def free(completions, **row):\n    return [float(row['self'] == ['s'] and row['function'] == ['f'])]\n"
    )
    for name, problem in (("free", ""), ("judge", "cannot get the column 'self'; rename it")):
        answered: Any = Checked(env_class("prompts")(reward=(f"{rewards}_method.py:{name}",)))
        answered.reset(task_of(answered, prompt="Hi", self="s", function="f"), 0)
        with pytest.raises(ConfigError, match=problem) if problem else contextlib.nullcontext():
            assert step(answered, ToolUse("x")).reward == 1


def test_the_folder_of_a_reward_function_may_hold_an_equals_sign(rewards: str) -> None:
    Path("lr=1").mkdir()
    Path("lr=1/r.py").write_text("def half(completions, **row):\n    return [0.5]\n")
    env: Any = Checked(env_class("prompts")(reward=("lr=1/r.py:half=0.5",)))
    env.reset(task_of(env, prompt="Hi"), 0)
    assert step(env, ToolUse("x")).reward == 0.25


CHECKED_TYPES = """
from __future__ import annotations
from typing import TYPE_CHECKING
from reflectkit import ChoiceEnv, Config, option

if TYPE_CHECKING:
    from nowhere import Result, Thing


class Doors:
    choices = ("left", "right")

    def __init__(self, size: int = 3, thing: Thing | None = None):
        self.size = size

    def reset(self, seed: int) -> Result:
        return "doors"

    def step(self, choice: str) -> Result:
        return "over", float(self.size), True


class Shop:
    def __init__(self, size: int = 3, thing: Thing | None = None):
        pass

    def reset(self, **row: Thing) -> Result:
        return "Buy."

    def buy(self, count: int) -> Result:
        '''Buy.

        Args:
            count: How many.
        '''

    def get_reward(self) -> Result:
        return 1.0


class Needs(Doors):
    def __init__(self, thing: Thing):
        pass


class Unknown(Shop):
    def sell(self, what: Thing):
        '''Sell.

        Args:
            what: What.
        '''


class Own(ChoiceEnv):
    choices = ("left", "right")

    class Settings(Config):
        thing: Thing = option(1, help="A thing.")

    def _text(self):
        return "doors"
"""


def test_types_that_only_checkers_know_are_understood_where_they_matter(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    file = f"{own_module(request.node)}.py"
    Path(file).write_text(CHECKED_TYPES, encoding="utf-8")
    env: Any = make_env(f"{file}:Doors", size=5)
    env.reset(task_of(env), 0)
    assert step(env, 0).reward == 5
    env = make_env(f"{file}:Shop")
    (tool,) = env.reset(task_of(env), 0).tools
    assert tool.parameters["properties"]["count"]["type"] == "integer"
    for name, told in (
        ("Needs", "constructor's argument 'thing' cannot be a flag"),
        ("Unknown", "sell() cannot be a tool: name 'Thing' is not defined"),
        ("Own", "its settings: name 'Thing' is not defined"),
    ):
        assert main(["evaluate", "--env", f"{file}:{name}", "--policy", "random", "--problems", "1"]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1


ROWS = [{"prompt": "1 + 1 =", "answer": 2}, {"prompt": "2 + 2 =", "answer": 4}, {"prompt": "1 + 1 =", "answer": 2}]


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_rows_of_files_are_problems(ending: str) -> None:
    path = Path(f"{ending}_sums.{ending}")
    if ending == "jsonl":
        write_jsonl(path, ROWS)
    else:
        path.write_text("prompt,answer\n" + "".join(f"{row['prompt']},{row['answer']}\n" for row in ROWS))
    kind = env_class("prompts")
    settings = kind.Settings(dataset=str(path))
    rows = [row | {"answer": str(row["answer"])} for row in ROWS] if ending == "csv" else ROWS
    assert [(task.group, task.data) for task in listed("prompts", "all", settings)] == [
        ("0", rows[0]),
        ("1", rows[1]),
        ("0", rows[2]),
    ]
    assert kind.taskset.with_settings(settings).records_folder == path.name


def rows_of(path: str, **settings: Any) -> list[dict[str, Any]]:
    return [task.data for task in listed("prompts", "all", env_class("prompts").Settings(dataset=path, **settings))]


LOOKALIKES = ["001", "1e5", "True", "2024-03-01", "12", "", "NA"]


def test_the_texts_of_a_csv_file_stay_texts() -> None:
    with Path("texts.csv").open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows([("prompt", "answer"), *(("Say it.", text) for text in LOOKALIKES)])
    assert [row["answer"] for row in rows_of("texts.csv")] == LOOKALIKES


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_lines_of_a_csv_file_end_as_on_any_system(end: str) -> None:
    read_rows.cache_clear()
    Path("ends.csv").write_bytes(f"prompt;answer{end}One;01{end}Two;02{end}".encode())
    assert rows_of("ends.csv") == [{"prompt": "One", "answer": "01"}, {"prompt": "Two", "answer": "02"}]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_large_csv_file_has_lines_in_its_texts(delimiter: str) -> None:
    path, long = f"long{ord(delimiter)}.csv", "- an item, and; more\n" * 1000
    rows = [{"prompt": f"{number}\n{long}", "answer": "x" * 200_000} for number in range(8)]
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, ("prompt", "answer"), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    assert rows_of(path) == rows


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"prompt,answer\nOne,1\nTwo, three,2\n", "wrong.csv:3: row 2 has 3 columns, and the header 2"),
        (b'prompt,answer\n"One,1\nTwo,2\n', "wrong.csv:3: not CSV: unexpected end of data"),
        (b"prompt,answer\nOne,1\nW\xe4hle,2\n", "wrong.csv:3: not UTF-8"),
        (b"prompt,prompt\nOne,1\n", "two columns 'prompt'"),
        (b"question,answer\nOne,1\n", "the columns are question, answer"),
        (b"prompt,answer\n,1\n", "wrong.csv, row 1: field 'prompt'"),
        (b"prompt,answer\n", "has no rows"),
    ],
)
def test_what_is_wrong_in_a_csv_file_is_named_with_its_place(content: bytes, told: str) -> None:
    read_rows.cache_clear()
    Path("wrong.csv").write_bytes(content)
    with pytest.raises(DataError) as caught:
        rows_of("wrong.csv")
    assert told in str(caught.value)


def test_a_json_file_may_begin_with_a_mark_and_have_values_that_are_no_json() -> None:
    rows = [{"prompt": "One", "score": math.nan}, {"prompt": "Two"}]
    Path("marked.json").write_text(json.dumps(rows), encoding="utf-8-sig")
    Path("marked.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8-sig")
    for name in ("marked.json", "marked.jsonl"):
        assert rows_of(name) == [{"prompt": "One", "score": None}, {"prompt": "Two", "score": None}]


def test_a_column_that_is_nested_too_deep_is_left_out() -> None:
    Path("deep.jsonl").write_text('{"prompt": "One", "deep": ' + "[" * 800 + "]" * 800 + "}", encoding="utf-8")
    assert rows_of("deep.jsonl") == [{"prompt": "One"}]


def test_columns_that_json_does_not_have_are_texts_or_left_out_unless_asked_for(rewards: str) -> None:
    columns = {
        "prompt": ["One", "Two"],
        "when": [datetime(2024, 3, 1, 12), None],
        "price": [Decimal("1.50"), Decimal("2.00")],
        "score": [math.nan, 0.5],
        "photo": [None, b"\x89PNG"],
        "deep": [[{"far": math.inf}], []],
    }
    parquet.write_table(pyarrow.table(columns), "columns.parquet")
    assert rows_of("columns.parquet", reward=(f"{rewards}:exact",)) == [
        {"prompt": "One", "when": "2024-03-01T12:00:00", "price": "1.50", "score": None},
        {"prompt": "Two", "when": None, "price": "2.00", "score": 0.5},
    ]
    with pytest.raises(
        DataError, match=r"columns\.parquet: row 2, column 'photo': a value of type bytes, and .* asks for it"
    ):
        rows_of("columns.parquet", reward=(f"{rewards}:looks",))


def game(name: str, **settings: Any) -> tuple[Any, str]:
    env = make_env(f"gymnasium:{name}", 20, **settings)
    return env, env.reset(Task("1", env.name, "all", "1", {"seed": 1}), 0).text


def test_a_game_of_gymnasium_is_played_by_the_names_of_its_actions() -> None:
    env, text = game("FrozenLake-v1", is_slippery=False)
    assert env.last_observation.choices == ("left", "down", "right", "up")
    assert text == "SFFF\nFHFH\nFFFH\nHFFG\nred at line 1, column 1: S"
    for action in (1, 1, 2, 2, 1):
        assert not env.step(action).terminated
    last = env.step(2)
    assert (last.reward, last.terminated, last.info) == (1.0, True, {"success": True})
    assert env_class("gymnasium:FrozenLake-v1").horizons == {"all": 100}
    assert data_folder("gymnasium:FrozenLake-v1", Path("data")) == Path("data/frozenlake-v1")


class Waits:
    """Each call waits, as for a server."""

    choices, horizon = ("a", "b"), 3

    async def reset(self, seed: int) -> str:
        await asyncio.sleep(0)
        self.taken = str(seed)
        return self.taken

    async def step(self, choice: str) -> tuple[str, float, bool]:
        await asyncio.sleep(0)
        self.taken += choice
        return self.taken, 1.0, len(self.taken) == 3


@pytest.mark.parametrize("data", [{"seed": "1"}, {"seed": 1.0}, {"seed": True}, {"seed": -1}, {"state": 5}])
def test_a_problem_that_is_no_seed_is_not_played_as_another(data: Any) -> None:
    env = make(Counter)
    with pytest.raises(DataError, match=r"1: field 'data"):
        env.reset(task_of(env, **data), 0)


def test_a_class_with_choices_may_wait() -> None:
    env = make(Waits)
    assert result_of(env.reset(task_of(env, seed=7), 0)).text == "7"
    assert step(env, 0).observation.text == "7a"
    last = step(env, 1)
    assert (last.observation.text, last.terminated, last.info) == ("7ab", True, {"success": None})


def test_the_choices_of_a_game_are_those_of_its_action_mask() -> None:
    env = game("Taxi-v4")[0]
    names = ("south", "north", "east", "west", "pick up", "drop off")
    while True:
        mask = env.written.action_mask(env.written.s)
        assert env.last_observation.choices == tuple(name for name, legal in zip(names, mask, strict=True) if legal)
        before, last = env.written.s, env.step(len(env.last_observation.choices) - 1)
        if last.truncated or last.terminated:
            break
        assert env.written.s != before  # each action that is offered does something


def test_a_module_or_file_registers_an_own_game(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    name = own_module(request.node)
    Path(f"{name}.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv\n\n\n"
        f"class Pond(FrozenLakeEnv):\n    pass\n\n\n"
        f"gymnasium.register('{name}-v0', entry_point=Pond, max_episode_steps=7)\n",
        encoding="utf-8",
    )
    for place in (name, f"{name}.py"):
        setup = EnvSetup(f"gymnasium:{place}:{name}-v0", tmp_path)
        assert setup.kind.horizons == {"all": 7}
        assert setup.code_files == [Path(f"{name}.py")]
        del gymnasium.registry[f"{name}-v0"]


class Corner(Teacher):
    def action(self) -> int:
        return 5 + self.env.wanted


class Doors(gymnasium.Env):
    """One of two doors is right."""

    horizon, teacher_type = 30, Corner
    action_space, observation_space = gymnasium.spaces.Discrete(2, start=5), gymnasium.spaces.Text(9)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.wanted = 1
        return "doors", {}

    def step(self, action: int) -> Any:
        return "over", float(action == 5 + self.wanted), True, False, {}


def test_a_horizon_of_gymnasium_is_a_whole_number() -> None:
    """A text or a fraction was ignored, and episodes had 15 steps; with True, they had one."""
    for horizon in ("5", 5.5, True):
        with pytest.raises(ConfigError, match=r"its horizon is .*; give a whole number of steps"):
            env_class(type("Long", (Doors,), {"horizon": horizon, "__module__": __name__}))


def test_a_horizon_of_a_plain_class_is_a_whole_number() -> None:
    for horizon in ("5", 5.5, True):
        kind = type(
            "Long", (), {"horizon": horizon, "choices": ("a", "b"), "reset": lambda *_: "s", "step": lambda *_: None}
        )
        with pytest.raises(ConfigError, match=r"its horizons are .*: give a whole number"):
            env_class(kind)


class Locked(Doors):
    """The left door is locked."""

    mask: Any = (0, 1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()[0], {"action_mask": self.mask}

    def step(self, action: int) -> Any:
        return (*super().step(action)[:-1], {"action_mask": (0, 0)})


def test_a_teacher_names_the_actions_of_a_masked_game() -> None:
    env = make(Locked)
    assert env.reset(task_of(env), 0).choices == ("6",)
    teacher = teacher_of(env, "action")
    assert (teacher.action(), teacher.best_actions(), teacher.answers()) == (0, [0], {"likely": [0]})
    assert step(env, 0).reward == 1.0


def test_an_action_that_a_game_does_not_have_is_no_other() -> None:
    env = make(Doors)
    env.reset(task_of(env), 0)
    env.written.wanted = -4
    with pytest.raises(ConfigError, match=r"action\(\) returned 1; the game's actions are the numbers from 5 to 6"):
        teacher_of(env, "action").action()


@pytest.mark.parametrize(
    "mask",
    [(1,), [[1, 1]], "yes", (0.0, -math.inf), (math.nan, 1), ("0", "1"), numpy.array([2, 0]), (0.5, 0.5)],
)
def test_a_mask_of_another_form_is_told(mask: Any) -> None:
    env = make(type("Locked", (Locked,), {"mask": mask}))
    with pytest.raises(ConfigError, match=r"action_mask is .*; give 0 or 1 for each of 2 actions"):
        env.reset(task_of(env), 0)


class Reversed(gymnasium.ActionWrapper):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(gymnasium.make("FrozenLake-v1", render_mode=render_mode))

    def action(self, action: int) -> int:
        return 3 - action


def test_a_wrapper_that_reorders_actions_leaves_them_unnamed() -> None:
    env = make(Reversed)
    assert env.reset(task_of(env), 0).choices == ("0", "1", "2", "3")


class Numbers(Doors):
    """Draws in two ways that no seed decides in Gymnasium."""

    action_space = gymnasium.spaces.Discrete(10**6)

    def get_action_meanings(self) -> range:
        return range(10**6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return f"{self.np_random.random()} {self.action_space.sample()}", {}


def test_the_seed_decides_what_a_game_draws_without_gymnasiums_reset() -> None:
    def text(env: Any, seed: int) -> str:
        return env.plain.reset(seed)

    one, two = adapt(Numbers)(), adapt(Numbers)()
    first = text(one, 1)
    two.plain.env.action_space.sample()  # another game has spaces of its own
    assert text(two, 2) != first == text(one, 1) == text(two, 1)


@pytest.mark.parametrize("seen", [None, 3, {"wall": 1}, numpy.zeros(2)])
def test_an_observation_that_is_no_text_is_told(seen: Any) -> None:
    kind = type("Blind", (Doors,), {"step": lambda self, action: (seen, 0.0, False, False, {})})
    env = make(kind)
    env.reset(task_of(env), 0)
    with pytest.raises(ConfigError, match=r"step\(\) of Blind returned .*; its observation must be a text"):
        env.step(0)


def test_actions_that_change_are_told() -> None:
    class Grows(Doors):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.action_space = gymnasium.spaces.Discrete(3)
            return "doors", {}

    env = make(Grows)
    with pytest.raises(ConfigError, match=r"its action space was Discrete\(2, start=5\), and is Discrete\(3\)"):
        env.reset(task_of(env), 0)


def test_a_game_is_closed_after_play_though_that_may_fail() -> None:
    closed = []

    class Held(Doors):
        def close(self) -> None:
            closed.append(self)
            raise RuntimeError("no window")

    kind = adapt(Held)
    task = Task("1", kind.name, "all", "1", {})
    (trajectory,) = rollout([Episode(task, 1)], kind, Plays(1))
    assert trajectory.status is Status.COMPLETED
    assert len(closed) == 1


class Own(Doors):
    teacher_type = "human"

    @property
    def horizon(self) -> int:  # type: ignore[override]
        return 3


def test_a_step_reads_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it takes thirty milliseconds, many times what the step of a small game takes."""

    class Door:
        choices = ("open", "wait")

        def reset(self, seed: int) -> str:
            return "a door"

        def step(self, choice: str) -> tuple[str, float, bool]:
            return "a door", 0.0, choice == "open"

    env = make_env(Door)
    read: list[Any] = []
    monkeypatch.setattr(inspect, "getsourcelines", read.append)
    env.reset(task_of(env, seed=1), 0)
    env.step(1)
    env.step(0)
    assert read == []


def test_a_class_of_gymnasium_keeps_what_it_has_of_an_env() -> None:
    assert (adapt(Own).horizons, adapt(Own).teacher_type) == ({}, Teacher)
    env = make(Doors)
    assert adapt(Doors).horizons == {"all": 30}
    assert rules_of(env) == "One of two doors is right."
    env.reset(task_of(env), 0)
    assert teacher_of(env, "action").action() == 1
    assert step(env, 1).reward == 1.0


BAD = '''
import gymnasium

class Base:
    choices = ("a", "b")
    def reset(self, seed): return "?"
    def step(self, choice): return "?", 0.0, True

class Short(Base):
    def step(self, choice): return "?", 0.0

class Raises(Base):
    def step(self, choice): return 1 / 0

class Draws(gymnasium.Env):
    action_space, observation_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Text(9)
    def reset(self, *, seed=None, options=None): return "?", {}
    def step(self, action): return "?", float("nan"), True, False, {}

class Said(Base):
    def step(self, choice): return "?", 0.0, True, {"success": "no"}

class Long(Base):
    def step(self, choice): return "?" * 500, float("nan"), True

class Huge(Base):
    def step(self, choice): return "?", 10**5000, True

class Fourth(Base):
    def step(self, choice): return "?", 0.0, True, "won"

class Figures(Base):
    def step(self, choice): return "?", 0.0, True, {"figures": {1: 2.0}}

class Half(Base):
    def step(self, choice): return "?", 0.0, True, {"figures": {"\\ud800": 2.0}}

class Stops(Base):
    def step(self, choice): return next(iter(()))

class Taught(Base):
    teacher_type = dict

class Game(gymnasium.Env):
    action_space, observation_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Text(9)
    def reset(self, *, seed=None, options=None): return "?", {}
    def step(self, action): return "?", 0.0, True, False, {}

class Four(Game):
    def step(self, action): return "?", 0.0, True, {}

class Bare(Game):
    def reset(self, *, seed=None, options=None): return "?"

class Uninformed(Game):
    def step(self, action): return "?", 0.0, True, False, None

class Async(Game):
    async def step(self, action): return super().step(action)

class Seedless(Game):
    def reset(self): return "?", {}

class Spaceless(Game):
    observation_space = None

class Blank(Game):
    observation_space, metadata = gymnasium.spaces.Discrete(2), {"render_modes": ["ansi"]}
    def __init__(self, render_mode=None): self.render_mode = render_mode
    def render(self): return None

class Named(Game):
    def get_action_meanings(self): return ["left"]

class Loss(Base):
    def step(self, choice): return "?", 0.0, False, {"profit": float("inf")}

class Partly(Base):
    def step(self, choice): return "?", 0.0, True, {"success": 0.3}

class Textless(Base):
    choices = (object(), object())

class Far(Base):
    def __init__(self): self.horizon = 50

class Mute(Base):
    class Error(Exception):
        def __str__(self): return self.reason
    def step(self, choice): raise self.Error

class Tools:
    def reset(self): return "?"
    def add(self, a: int) -> int:
        """Adds.

        Args:
            a: It.
        """
        return a

class Attribute(Tools):
    get_reward = 1.0

class Asks(Tools):
    def get_reward(self, row): return 1.0

class Nameless(Tools):
    def get_reward(self): return 1.0
    def all(self, *numbers: int):
        """Adds.

        Args:
            numbers: These.
        """

class Within:
    def reset(self, seed): return "?"
    def step(self, choice): return "?", 0.0, True
if "Four-v0" not in gymnasium.registry: gymnasium.register("Four-v0", entry_point=Four, max_episode_steps=9)
'''


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Short", ".py, line 10: step() of Short returned ('?', 0.0); return (observation, reward, done)"),
        ("Raises", ".py, line 13: ZeroDivisionError"),
        ("Draws", ".py, line 18: step() of Draws returned"),
        ("Said", "its 'success' must be True or False"),
        ("Loss", "its 'profit' is inf; return a finite number"),
        ("Partly", "its 'success' must be True or False"),
        ("Textless", "has no text; give a list of texts"),
        ("Far", "its constructor sets a horizon of 50, and episodes end after 128 steps"),
        ("Mute", ": Error (`reflectkit --traceback"),
        ("Attribute", "Attribute: get_reward is no method; write def get_reward(self)"),
        ("Asks", "get_reward() missing 1 required positional argument: 'row'; it is called with no arguments"),
        ("Nameless", "all() cannot be a tool: its arguments are given by name, and '*numbers: int' has none"),
        ("Within", "Within has no choices; set them in the class or in reset()"),
        ("Long", "its reward is nan; return a finite number"),
        ("Huge", "its reward is an integer of 16,610 bits"),
        ("Fourth", "its last value is 'won'"),
        ("Figures", "a figure is named 1"),
        ("Half", "a figure is named '\\ud800'"),
        ("Stops", ".py, line 39: StopIteration"),
        ("Taught", "its teacher_type is <class 'dict'>"),
        ("Four", "step() of Four: it returned ('?', 0.0, True, {})"),
        ("gymnasium:FILE:Four-v0", "step() of Four-v0: not enough values to unpack (expected 5, got 4)"),
        ("Bare", "reset() of Bare: it returned '?'; write reset(self, *, seed=None, options=None)"),
        ("Uninformed", "False, None), whose info is no dict; write step(self, action), and return"),
        ("Async", ", as it is async; write step(self, action)"),
        ("Seedless", "unexpected keyword argument 'seed'; write reset(self, *, seed=None, options=None)"),
        ("Spaceless", "Spaceless has no observation_space"),
        ("Blank", "render() of Blank returned None"),
        ("Named", "get_action_meanings() of Named returned ['left']; return a list of 2 names"),
    ],
)
def test_mistakes_are_one_line(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    file = f"{own_module(request.node)}.py"
    Path(file).write_text(BAD, encoding="utf-8")
    env = name.replace("FILE", file) if ":" in name else f"{file}:{name}"
    command = ["evaluate", "--env", env, "--policy", "random", "--problems", "2"]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


class Sized(Counter):
    """Arguments as people write them."""

    def __init__(
        self,
        place: int = 1,
        /,
        size: int = None,  # type: ignore[assignment]  # noqa: RUF013
        colour: Literal["red"] = None,  # type: ignore[assignment]  # noqa: RUF013
        slippery: bool = 0,  # type: ignore[assignment]
        folder: Path = "maps",  # type: ignore[assignment]
        limit: float = math.inf,
        shape: tuple[int, int] = (4, 4),
        copy: int = 5,
        _debug: bool = False,
    ) -> None:
        super().__init__()
        self.given = (place, size, colour, slippery, folder, limit, shape, copy, _debug)


def test_a_default_may_be_of_another_type_than_its_hint() -> None:
    """The first had to be given, though it has a default, and the last two were internal errors."""
    kind = env_class(Sized)
    assert set(kind.Settings.model_fields) == {"size", "colour", "slippery", "folder"}
    env: Any = kind(**dict(kind.Settings.from_flat()))
    assert env.plain.given == (1, None, None, 0, Path("maps"), math.inf, (4, 4), 5, False)
    env = kind(size=3, colour="red")
    assert env.plain.given[:3] == (1, 3, "red")


FOLDERS = """
import os
from pathlib import Path

HERE = Path(__file__).parent
os.chdir(HERE / "maps")


class Folders:
    choices = ("a", "b")

    def __init__(self):
        self.map = Path("map.txt").read_text()

    def reset(self, seed):
        os.chdir(HERE / "maps" / "turns")
        return f"{self.map} {seed}"

    def step(self, choice):
        return Path("turn.txt").read_text(), 1.0, True
"""


def test_a_class_may_change_the_working_folder(request: pytest.FixtureRequest) -> None:
    """Its file was not found again, and results went to the folder that it changed to."""
    turns = Path("maps/turns")
    turns.mkdir(parents=True)
    (turns / "turn.txt").write_text("a turn", encoding="utf-8")
    (turns.parent / "map.txt").write_text("a map", encoding="utf-8")
    file = Path(f"{own_module(request.node)}.py")
    file.write_text(FOLDERS, encoding="utf-8")
    before = Path.cwd()
    command = ["evaluate", "--env", str(file), "--policy", "random", "--problems", "3", "--name", "folders"]
    assert main(command) == 0
    assert Path.cwd() == before
    assert read_json(Path("results/folders/eval.json"))["rows"][0]["success"] == 1.0


def test_arguments_of_constructors_are_flags(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    file = f"{own_module(request.node)}.py"
    Path(file).write_text(inspect.getsource(Counter).replace("-> Any", ""), encoding="utf-8")
    write_json(Path("tasks.json"), [{"id": "1", "env": "counter", "level": "all", "group": "1", "data": {}}])
    command = ["evaluate", "--env", file, "--task-file", "tasks.json", "--policy", "random", "--name", "counter"]
    assert main([*command, "--wanted", "1"]) == 0
    assert read_json(Path("results/counter/config.json"))["settings"]["wanted"] == 1
    assert read_json(Path("results/counter/eval.json"))["rows"][0]["steps"] == 1
    assert main([*command, "--wanted", "much"]) == 2
    assert main(["evaluate", "--env", file, "--help"]) == 0
    assert "--wanted" in capsys.readouterr().out


NAMED_LIKE_FLAGS = """
class Game:
    choices = ("a", "b")

    def __init__(self, max_steps: int, seed: int = 0):
        self.max_steps, self.made_with = max_steps, seed

    def reset(self, seed):
        self.steps = 0
        return f"{self.max_steps} steps, made with {self.made_with}"

    def step(self, choice):
        self.steps += 1
        return "on", 1.0, self.steps == self.max_steps
"""


SETS_CHOICES = """
class Game:
    def reset(self, seed):
        self.choices = ["a", "b", "c"][: 2 + seed % 2]
        return "begin"

    def step(self, choice):
        self.choices = ["x"]
        return "on", 0.0, False
"""


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Painter:
    """Tools whose arguments are members of enumerations."""

    def reset(self) -> str:
        self.painted: list[Color] = []
        return "Paint."

    def paint(self, color: Color, others: list[Color] | None = None) -> str:
        """Paint.

        Args:
            color: The first colour.
            others: More.
        """
        self.painted += [color, *(others or [])]
        return color.name

    def get_reward(self) -> float:
        return float(all(isinstance(color, Color) for color in self.painted))


def test_members_of_enumerations_reach_a_tool_as_members() -> None:
    """A tool got the text "red", and its comparison with Color.RED was never true."""
    env: Any = Checked(env_class(Painter)())
    env.reset(task_of(env), 0)
    step(env, ToolUse("", (ToolCall("paint", {"color": "red"}),)))
    result = step(env, ToolUse("", (ToolCall("paint", {"color": "blue", "others": ["red", "blue"]}),)))
    assert [message.content for message in result.observation.messages if message.role == "tool"] == ["RED", "BLUE"]
    assert env.env.plain.painted == [Color.RED, Color.BLUE, Color.RED, Color.BLUE]
    assert step(env, ToolUse("Done.")).reward == 1.0
    with pytest.raises(ValueError, match="color: Input should be 'red' or 'blue'"):
        with_members(Painter().paint, {"color": "green"})


@pytest.mark.parametrize(
    ("signature", "got"),
    [
        ("self, seed", 7),
        ("self, number", 7),
        ("self, my_seed=3", 7),
        ("self, *, seed=None, options=None", 7),
        ("self, options=None", None),
        ("self, *, options=None", None),
        ("self", None),
    ],
)
def test_reset_gets_the_seed_where_it_asks_for_one(signature: str, got: int | None) -> None:
    """reset(options=None) got the seed as its options."""
    name = signature.replace("self, ", "").replace("*, ", "").partition(",")[0].partition("=")[0]
    namespace: dict[str, Any] = {}
    value = "None" if name == "self" else name
    exec(f"def reset({signature}):\n    self.got = {value}\n    return 'begin'", namespace)
    attributes = {"choices": ("a", "b"), "step": lambda self, choice: ("end", 0.0, True)}
    env: Any = Checked(env_class(type("Game", (), attributes | namespace))())
    env.reset(task_of(env), 7)
    assert env.env.plain.got == got


def test_reset_with_any_keywords_gets_the_seed() -> None:
    class Game:
        choices = ("a", "b")

        def reset(self, **keywords: Any) -> str:
            self.got = keywords
            return "begin"

        def step(self, choice: str) -> tuple[str, float, bool]:
            self.choices = ()  # type: ignore[assignment]
            return "end", 0.0, True

    env: Any = Checked(env_class(Game)())
    env.reset(task_of(env), 7)
    assert env.env.plain.got == {"seed": 7}
    # What an episode leaves behind is not taken for its own end
    step(env, 0)
    with pytest.raises(ConfigError, match=r"after reset\(\) the choices are \(\); give a list of texts, also where"):
        env.reset(task_of(env), 8)


ENDLESS_TOOLS = """
from reflectkit import Decision
from reflectkit.types import ToolCall, ToolUse

class Well:
    def reset(self):
        return "Draw water."

    def draw(self) -> str:
        \"\"\"Draw a bucket of water.\"\"\"
        return "a bucket"

    def get_reward(self):
        return 0.5

class Thirsty:
    async def decide(self, observation, context):
        return Decision(ToolUse("draw", (ToolCall("draw", {}),)))
"""


def test_the_default_limit_of_tools_is_told(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    file = f"{own_module(request.node)}.py"
    Path(file).write_text(ENDLESS_TOOLS, encoding="utf-8")
    command = ["evaluate", "--env", f"{file}:Well", "--policy", f"thirsty={file}:Thirsty", "--problems", "2"]
    assert main(command) == 0
    assert "2 of 2 episodes reached 30 steps, the default limit; add --horizon N" in capsys.readouterr().out
    assert main([*command, "--horizon", "40"]) == 0
    assert "the default limit" not in capsys.readouterr().out


def test_methods_may_set_the_choices_and_the_default_limit_is_told(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    file = f"{own_module(request.node)}.py"
    Path(file).write_text(SETS_CHOICES, encoding="utf-8")
    command = ["evaluate", "--env", file, "--policy", "random", "--problems", "2", "--name"]
    assert main([*command, "game"]) == 0
    assert (
        "random (all): 2 of 2 episodes reached 128 steps, the default limit; add --horizon N" in capsys.readouterr().out
    )
    episodes = [episode for _, episode in read_jsonl(Path("results/game/episodes.jsonl"))]
    assert [len(episode["turns"]) for episode in episodes] == [128, 128]
    training = ["rlft", "--env", file, "--model", "tiny", "--max-steps", "1", "--episodes", "8", "--name", "rl"]
    assert main(training) == 0
    assert "8 of 8 episodes reached 128 steps, the default limit" in capsys.readouterr().out
    assert main([*command, "chosen", "--horizon", "3"]) == 0
    told = capsys.readouterr().out
    assert "no episode ended within 3 steps, the limit" in told
    assert "default limit" not in told


def test_arguments_named_like_flags_have_a_prefix_in_every_command(request: pytest.FixtureRequest) -> None:
    file = f"{own_module(request.node)}.py"
    Path(file).write_text(NAMED_LIKE_FLAGS, encoding="utf-8")
    game = ["--env", file, "--env-max-steps", "3", "--env-seed", "7"]
    assert main(["play", *game, "--policy", "random", "--auto", "--name", "play"]) == 0
    ((_, episode),) = read_jsonl(Path("results/play/episodes.jsonl"))
    assert len(episode["turns"]) == 3
    assert main(["rlft", *game, "--model", "tiny", "--max-steps", "1", "--episodes", "8", "--name", "rl"]) == 0
    settings = read_json(Path("results/rl/config.json"))["settings"]
    assert (settings["max_steps"], settings["env_max_steps"]) == (1, 3)
    # A trained policy knows the choices of its environment, which needs its argument
    with load_agent("results/rl/checkpoint-1") as agent:
        assert agent.act("3 steps, made with 7").action in ("a", "b")
    assert make_env(file, max_steps=4).settings.max_steps == 4
    with pytest.raises(ConfigError, match="--env-max-steps must be a valid integer"):
        make_env(file, max_steps="many")
