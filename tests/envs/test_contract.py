"""What every registered env keeps."""

from __future__ import annotations

import atexit
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import reflectkit.integrations.gym  # noqa: F401  registers the gymnasium ids
from reflectkit.agents.scripted import Oracle, RandomAgent
from reflectkit.envs import ENVS, cluster_of, env_class
from reflectkit.envs import make as make_env
from reflectkit.envs.auto_explore.repository import open_repository
from reflectkit.envs.memory.generate import conversation
from reflectkit.envs.support.shop import CUSTOMERS, shop
from reflectkit.envs.support.tasks import make_task, source_of
from reflectkit.envs.tau.env import tasks_of
from reflectkit.envs.tau.package import SPLITS
from reflectkit.errors import DataError, IllegalActionError
from reflectkit.eventloop import result_of
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.types import Decision, Observation, Status, Task, Trajectory, from_json, to_json
from tests.explore import explore_task, write_repository
from tests.household import write_games
from tests.taubench import Talker, installed, write_package

OWN_LEVELS = {
    "auto_explore": ("0", "1", "2"),
    "alfworld": env_class("alfworld").levels[:-1],
    "support": env_class("support").levels[:-1],
    "tau": env_class("tau").levels[:-1],
}  # "all" is no task's own level
NAMES = [
    name for name in ENVS if name not in ("prompts", "decisions") and (name != "alfworld" or find_spec("alfworld"))
]
LEVELS = {name: OWN_LEVELS.get(name, env_class(name).levels) for name in NAMES}
EVERY = [(name, level) for name, levels in LEVELS.items() for level in dict.fromkeys((levels[0], levels[-1]))]
"""The first and the last level of each env."""
UNLISTED = ("auto_explore", "memory", "alfworld", "support", "tau")


@pytest.fixture(autouse=True, scope="module")
def tau_package() -> Iterator[None]:
    """A small package in place of tau_bench."""
    with tempfile.TemporaryDirectory() as folder, installed(write_package(Path(folder))):
        yield


@cache
def games() -> tuple[Path, list[Task]]:
    """A folder of small ALFWorld games, for as long as the tests run, and the tasks."""
    folder = Path(tempfile.mkdtemp(prefix="reflectkit-test-"))
    atexit.register(shutil.rmtree, folder)
    return folder, write_games(folder)


@cache
def repos() -> Path:
    """A folder with one repository, for as long as the tests run."""
    folder = write_repository(Path(tempfile.mkdtemp(prefix="reflectkit-test-")))
    (folder / "library" / "app" / "rules" / "loans.py").write_text('"""How long a book may be kept: three weeks."""\n')
    atexit.register(shutil.rmtree, folder)
    return folder


def make(name: str, horizon: int | None = None) -> Any:
    worlds = {
        "auto_explore": lambda: {"repos_dir": repos()},
        "alfworld": lambda: {"games_dir": games()[0]},
        "tau": lambda: {"user": Talker()},
    }
    return make_env(name, horizon, **worlds.get(name, dict)())


def listed(name: str, level: str) -> list[Task]:
    if name == "memory":
        return [conversation(number, 40 if level == "long" else 4 + number % 7, level, seed=1) for number in range(4)]
    if name == "alfworld":
        return [task for task in games()[1] if task.level == level]
    if name == "tau":
        return [task for split in SPLITS[level] for task in tasks_of(level, split)]
    if name == "support":
        return [make_task(1, number, level, shop(1), source_of(1, CUSTOMERS)) for number in range(12)]
    if name != "auto_explore":
        return env_class(name).taskset.tasks(level)
    paths = sorted(open_repository(repos() / "library").sizes)
    return [explore_task(path) for path in paths if str(path.count("/")) == level]


def some(name: str, level: str, count: int = 12) -> list[Task]:
    tasks = listed(name, level)
    return tasks[:: max(1, len(tasks) // count)]


def play(name: str, level: str, agent: Any, horizon: int | None = None, seed: int = 7) -> list[Trajectory]:
    steps = horizon or env_class(name).horizon_of(level)
    return rollout([Episode(task, seed) for task in some(name, level)], lambda: make(name, steps), agent, width=4)


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_episodes_follow_from_their_seeds_and_survive_json(name: str, level: str) -> None:
    played = play(name, level, RandomAgent())
    assert played == play(name, level, RandomAgent())
    assert played != play(name, level, RandomAgent(), seed=8)
    tasks = listed(name, level)
    assert len({task.id for task in tasks}) == len(tasks)
    for trajectory in played:
        assert (trajectory.task.env, trajectory.task.level) == (name, level)
        assert from_json(Trajectory, json.loads(json.dumps(to_json(trajectory)))) == trajectory
    if name != "memory":  # a conversation that would be cut off is refused (test_memory)
        for trajectory in play(name, level, RandomAgent(), horizon=3):
            assert len(trajectory.turns) <= 3
            assert trajectory.status is Status.COMPLETED or (len(trajectory.turns) == 3 and not trajectory.success)


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_oracle_succeeds(name: str, level: str) -> None:
    for trajectory in play(name, level, Oracle()):
        assert trajectory.success
        assert trajectory.status is Status.COMPLETED
        assert trajectory.turns[-1].info["success"] is True


class Overflowing(RandomAgent):
    """Acts at random, and finds the prompt too long at the turn `at`; with `at` None it goes on to the horizon."""

    def __init__(self, at: int | None) -> None:
        super().__init__()
        self.at, self.turns = at, 0

    async def decide(self, observation: Observation, context: Any) -> Decision:
        self.turns += 1
        if self.turns - 1 == self.at:
            return Decision(0, truncation_reason="the prompt is too long")
        return Decision(self.harmless(observation, context.env))

    def harmless(self, observation: Observation, env: Any) -> Any:
        """An action that neither ends the episode nor succeeds: a mistake if there is one, else as the oracle does."""
        teacher = env.teacher()
        return next(iter(teacher.mistakes() if observation.choices else ()), teacher.action())


@pytest.mark.parametrize(("name", "level"), [(name, level) for name, level in EVERY if name != "memory"])
@pytest.mark.parametrize("at", [0, 2])
def test_a_prompt_that_overflows_pays_what_the_horizon_costs(name: str, level: str, at: int) -> None:
    """Ending early without an answer must not be a way out of the steps that are left."""
    task, steps = some(name, level)[0], 4

    def played(agent: Overflowing) -> Trajectory:
        return rollout([Episode(task, 7)], lambda: make(name, steps), agent, width=1)[0]

    early, whole = played(Overflowing(at)), played(Overflowing(None))
    if any(turn.info.get("success") for turn in whole.turns) or len(whole.turns) < steps:
        pytest.skip("the oracle is done before the horizon")
    assert (early.status, early.success, len(early.turns)) == (Status.TRUNCATED, False, at)
    assert early.total_return == pytest.approx(whole.total_return)
    assert early.total_return == pytest.approx(sum(turn.reward for turn in early.turns) + early.truncation_penalty)
    assert early.truncation_penalty == 0 or at == 0, (
        "where there is a turn, it carries the cost, so that it can be learnt from"
    )


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_illegal_action_is_a_clear_error(name: str, level: str) -> None:
    env: Any = make(name)
    reads_text = result_of(env.reset(some(name, level)[0], 0)).tools
    for action in (-1, 99, True, None, 1.0, *(() if reads_text else ("north",))):
        with pytest.raises(IllegalActionError, match=r"no action .*; (choose 0 to|it takes calls)"):
            result_of(env.step(action))


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_no_step_before_reset_or_past_the_end(name: str, level: str) -> None:
    env: Any = make(name)
    with pytest.raises(IllegalActionError, match="call reset first"):
        result_of(env.step(0))
    result_of(env.reset(some(name, level)[0], 0))
    while not result_of(env.step(env.teacher().action())).terminated:
        pass
    with pytest.raises(IllegalActionError, match="call reset first"):
        result_of(env.step(0))


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_nothing_is_kept_across_a_reset(name: str, level: str) -> None:
    used: Any = make(name)
    first, second = some(name, level)[:2]
    result_of(used.reset(first, 0))
    result_of(used.step(used.teacher().action()))
    assert result_of(used.reset(second, 0)) == result_of(make(name).reset(second, 0))
    assert used.teacher().note() == ""


@pytest.mark.parametrize("name", NAMES)
def test_foreign_or_broken_tasks_are_refused(name: str) -> None:
    good = some(name, env_class(name).levels[0])[0]
    for broken in (
        Task(good.id, "elsewhere", good.level, good.group, good.data),
        Task(good.id, good.env, "no such level", good.group, good.data),
        Task(good.id, good.env, good.level, good.group, {}),
        Task(good.id, good.env, good.level, good.group, dict.fromkeys(good.data, -1)),
        Task(good.id, good.env, good.level, good.group, dict.fromkeys(good.data, "7")),
        Task(good.id, good.env, good.level, good.group, dict.fromkeys(good.data, True)),
    ):
        with pytest.raises(DataError):
            result_of(make(name).reset(broken, 0))


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_mistakes_are_wrong_and_survivable(name: str, level: str) -> None:
    for task in some(name, level):
        env: Any = make(name)
        result_of(env.reset(task, 0))
        for action in env.teacher().mistakes():
            other: Any = make(name)
            result_of(other.reset(task, 0))
            assert not result_of(other.step(action)).terminated
            assert other.teacher().note() == "mistake"
        result_of(env.step(env.teacher().action()))
        assert env.teacher().note() == "good"


CONFIRMING = [(name, level) for name, level in EVERY if env_class(name).teacher_type.has("confirms")]


@pytest.mark.parametrize(("name", "level"), CONFIRMING)
def test_a_teachers_comment_is_confirmed_until_the_state_is_another(name: str, level: str) -> None:
    env: Any = make(name)
    result_of(env.reset(some(name, level)[0], 0))
    before = env.teacher().comment(random.Random(0))
    assert env.teacher().confirms(before)
    for action in (*env.teacher().mistakes()[:1], env.teacher().action()):
        result_of(env.step(action))
        comments = [env.teacher().comment(random.Random(seed)) for seed in range(10)]
        assert all(map(env.teacher().confirms, comments))
        assert not env.teacher().confirms("Go.")
        if before not in comments:
            assert not env.teacher().confirms(before)


@pytest.mark.parametrize(("name", "level"), [(name, level) for name, level in EVERY if name not in UNLISTED])
def test_gymnasium_checker_passes(name: str, level: str) -> None:
    env = gymnasium.make(f"reflectkit/{env_class(name).__name__}-v0", level=level)
    check_env(env.unwrapped, skip_render_check=True)
    observation, info = env.reset(seed=3)
    assert env.observation_space.contains(observation)
    assert len(info["choices"]) == env.action_space.n
    assert env.reset(seed=3)[0] == observation


def test_gymnasium_finds_the_ids() -> None:
    code = "import gymnasium, reflectkit; print(gymnasium.make('reflectkit/Taxi-v0', level='dropoff').unwrapped.level)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "dropoff", done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_cluster_is_what_a_task_is_about_at_every_level(name: str) -> None:
    kind = env_class(name)
    for level in OWN_LEVELS.get(name, kind.levels):
        for task in some(name, level):
            cluster = cluster_of(name, task)
            assert cluster
            assert cluster_of(name, replace(task, id="another id")) == (
                cluster if name not in ("corridor", "memory", "support") else "another id"
            )
            others = [kind.taskset.at_level(task, other) for other in kind.levels]
            same = {cluster_of(name, other) for other in others if other is not None and other.data == task.data}
            assert same <= {cluster}
