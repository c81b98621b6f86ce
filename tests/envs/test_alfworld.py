"""ALFWorld: the engine is what it was, only faster; its processes; the experts; what the player sees."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from reflectkit.agents.scripted import Demonstrator, Oracle, RandomAgent
from reflectkit.envs import make
from reflectkit.envs.alfworld.engine import Game, State
from reflectkit.envs.alfworld.env import Alfworld
from reflectkit.envs.alfworld.fast import memoised
from reflectkit.envs.alfworld.games import LOOK, PLACE, TWO
from reflectkit.errors import EnvironmentFailure
from reflectkit.eventloop import result_of
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.types import Status, Task, Trajectory
from tests.household import write_games

pytest.importorskip("alfworld", reason="the engine is not installed: pip install 'reflectkit[alfworld]'")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("games")


@pytest.fixture(scope="module")
def tasks(root: Path) -> list[Task]:
    return write_games(root)


def play(
    root: Path, tasks: list[Task], agent: Any, seed: int = 1, horizon: int = 50, **settings: Any
) -> list[Trajectory]:
    return rollout(
        [Episode(task, seed) for task in tasks], lambda: make("alfworld", horizon, games_dir=root, **settings), agent
    )


def one_of(tasks: list[Task], level: str) -> Task:
    return next(task for task in tasks if task.level == level)


# ----------------------------------------------------------------------------------------------------------- the engine


def transcript(game: Game, folder: Path, seed: int, steps: int) -> list[State]:
    """What is said where advice and random commands are mixed."""
    chance = random.Random(seed)
    states = [game.reset(folder, "handcoded")]
    while len(states) <= steps and not states[-1].won:
        state = states[-1]
        command = state.advice if state.advice and chance.random() < 0.6 else chance.choice(state.commands)
        states.append(game.step(command))
    return states


@pytest.mark.parametrize("level", [LOOK, TWO])
def test_memoised_transcripts_are_the_same(root: Path, tasks: list[Task], tmp_path: Path, level: str) -> None:
    folder = root / one_of(tasks, level).data["game"]
    plain = transcript(Game(), folder, 0, 12)
    with memoised(tmp_path):
        game = Game()
        for _ in range(2):
            assert transcript(game, folder, 0, 12) == plain
    with memoised(tmp_path):  # from the files of the first
        assert transcript(Game(), folder, 0, 12) == plain
    assert len(list(tmp_path.iterdir())) == 1


# -------------------------------------------------------------------------------------------------------- the processes


def test_a_hung_engine_is_stopped_and_the_next_reset_has_another(root: Path, tasks: list[Task]) -> None:
    class Hasty(Alfworld):
        step_seconds = 0.2

    env = Hasty(root)
    first = result_of(env.reset(tasks[0], 0))
    assert env.engine is not None
    hung = env.engine.pid
    os.kill(hung, signal.SIGSTOP)
    with pytest.raises(EnvironmentFailure, match=r"has not answered 'step' within 0\.2 s, and was stopped"):
        result_of(env.step(0))
    with pytest.raises(EnvironmentFailure, match="was stopped; reset begins with another"):
        result_of(env.step(0))
    assert gone(hung)
    assert result_of(env.reset(tasks[0], 0)) == first


def test_a_dead_engine_aborts_its_episode_alone(root: Path, tasks: list[Task]) -> None:
    class Killing(RandomAgent):
        async def decide(self, observation: Any, context: Any) -> Any:
            if context.env.task.startswith("look at") and context.env.teacher().note() != "":
                os.kill(context.env.engine.pid, signal.SIGKILL)
            return await super().decide(observation, context)

    chosen = [one_of(tasks, PLACE), one_of(tasks, LOOK), one_of(tasks, TWO)]
    played = play(root, chosen, Killing(), horizon=4)
    assert [trajectory.status for trajectory in played] == [Status.TRUNCATED, Status.ABORTED, Status.TRUNCATED]
    assert "process ended before it answered 'step'" in played[1].reason
    assert len(played[1].turns) == 1


def test_nobody_is_left_behind_by_a_killed_parent(root: Path, tasks: list[Task], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "game.tw-pddl")  # whoever reads it waits for ever
    code = (
        "import sys, time; from pathlib import Path; from reflectkit.envs.alfworld.pool import pool\n"
        "from reflectkit.eventloop import run_sync\n"
        "engines = [pool().take(Path()) for _ in range(3)]\n"
        "for engine in engines: run_sync(engine.start())\n"
        f"run_sync(engines[0].reset(Path({str(root / tasks[0].data['game'])!r}), None, 60))\n"
        f"engines[1].connection.send(('reset', Path({str(tmp_path)!r}), None))\n"
        "print(*(engine.pid for engine in engines), flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    children = [int(word) for word in parent.stdout.readline().split()]
    assert len(children) == 3
    nursery = int(Path(f"/proc/{children[0]}/stat").read_text().rpartition(")")[2].split()[1])
    parent.kill()
    parent.wait()
    assert all(gone(pid) for pid in [*children, nursery])


def gone(pid: int) -> bool:
    """Whether the process ends; waits for it."""
    for _ in range(600):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


# ---------------------------------------------------------------------------------------------------------- the experts


def test_search_wins_all_types_from_wherever_mistakes_lead(root: Path, tasks: list[Task]) -> None:
    assert all(trajectory.success for trajectory in play(root, tasks, Demonstrator(0.5), horizon=150))


def test_the_planner_wins_in_fewest_steps_and_after_departures(root: Path, tasks: list[Task]) -> None:
    straight = play(root, tasks, Oracle(), expert="planner")
    assert all(trajectory.success for trajectory in straight)
    place = straight[tasks.index(one_of(tasks, PLACE))]
    assert [turn.action_text for turn in place.turns] == [
        *("go to drawer 1", "open drawer 1", "take tomato 1 from drawer 1"),
        *("go to microwave 1", "open microwave 1", "move tomato 1 to microwave 1"),
    ]
    assert all(trajectory.success for trajectory in play(root, tasks, Demonstrator(0.4), horizon=100, expert="planner"))


# -------------------------------------------------------------------------------------------------------- what is known
