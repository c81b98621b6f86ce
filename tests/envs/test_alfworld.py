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
from reflectkit.envs.alfworld.belief import Belief
from reflectkit.envs.alfworld.engine import Game, State
from reflectkit.envs.alfworld.env import Alfworld
from reflectkit.envs.alfworld.expert import Goal, good
from reflectkit.envs.alfworld.fast import memoised
from reflectkit.envs.alfworld.games import COOL, HEAT, LOOK, PLACE, TWO
from reflectkit.errors import EnvironmentFailure
from reflectkit.eventloop import result_of
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.types import Status, Task, Trajectory
from tests.household import write_games

pytest.importorskip("alfworld", reason="the engine is not installed: pip install 'reflectkit[alfworld]'")
ROOM = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a"
    " cabinet 1, a countertop 1, a fridge 1, a microwave 1, and a shelf 1.\n\nYour task is to: put a hot tomato in"
    " fridge."
)
EVERYWHERE = tuple(f"go to {place}" for place in ("cabinet 1", "countertop 1", "fridge 1", "microwave 1", "shelf 1"))


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


Step = tuple[str, tuple[str, ...]]


def seen(*steps: Step) -> Belief:
    belief = Belief()
    for feedback, commands in ((ROOM, (*EVERYWHERE, "inventory", "look")), *steps):
        belief.learn(feedback, commands)
    return belief


def said(feedback: str, *commands: str) -> Step:
    return feedback, (*EVERYWHERE, *commands, "look")


AT_FRIDGE = said("You arrive at fridge 1. The fridge 1 is closed.", "examine fridge 1", "open fridge 1")
OPENED = said(
    "You open the fridge 1. The fridge 1 is open. In it, you see a egg 1, and a tomato 2.",
    *("close fridge 1", "examine fridge 1", "take egg 1 from fridge 1", "take tomato 2 from fridge 1"),
)
TAKEN = said(
    "You pick up the tomato 2 from the fridge 1.",
    *("close fridge 1", "cool tomato 2 with fridge 1", "examine fridge 1", "move tomato 2 to fridge 1"),
)
AT_MICROWAVE = said(
    "You arrive at microwave 1. The microwave 1 is closed.",
    *("examine microwave 1", "heat tomato 2 with microwave 1", "open microwave 1"),
)
HEATED = ("You heat the tomato 2 using the microwave 1.", AT_MICROWAVE[1])
HOT = Goal(HEAT, "tomato", "fridge", frozenset({"fridge", "countertop"}), frozenset({"fridge", "cabinet", "microwave"}))


def test_belief_is_what_was_seen() -> None:
    belief = seen(AT_FRIDGE, OPENED)
    assert list(belief.places) == ["cabinet 1", "countertop 1", "fridge 1", "microwave 1", "shelf 1"]
    assert belief.places["fridge 1"] == ["egg 1", "tomato 2"]
    assert belief.unsearched() == ["cabinet 1", "countertop 1", "microwave 1", "shelf 1"]
    assert belief.here == ("fridge 1",)
    belief = seen(AT_FRIDGE, OPENED, TAKEN, AT_MICROWAVE, HEATED)
    assert (belief.held, belief.origin, belief.treated) == ("tomato 2", "fridge 1", {"tomato 2": {"heat"}})
    assert belief.places["fridge 1"] == ["egg 1"]
    assert belief.closed == {"microwave 1"}
    belief.learn("You move the tomato 2 to the shelf 1.", EVERYWHERE)
    assert belief.held is None
    assert belief.where("tomato") == [("tomato 2", "shelf 1")]
    belief.learn("You cool the tomato 2 using the fridge 1.", EVERYWHERE)
    assert belief.treated == {"tomato 2": {"cool"}}


def test_what_is_good_follows_from_what_is_known() -> None:
    # of the five, the two of fitting kinds first, and of these that which needs no opening
    assert good(seen(), HOT)[:2] == ["go to countertop 1", "go to fridge 1"]
    assert set(good(seen(), HOT)) == set(EVERYWHERE)
    assert good(seen(AT_FRIDGE), HOT) == ["open fridge 1"]
    assert good(seen(AT_FRIDGE, OPENED), HOT) == ["take tomato 2 from fridge 1"]
    assert good(seen(AT_FRIDGE, OPENED, TAKEN), HOT) == ["go to microwave 1"]
    assert good(seen(AT_FRIDGE, OPENED, TAKEN, AT_MICROWAVE), HOT) == ["heat tomato 2 with microwave 1"]
    assert good(seen(AT_FRIDGE, OPENED, TAKEN, AT_MICROWAVE, HEATED), HOT) == ["go to fridge 1"]
    # for another goal the tomato in hand is put away, and for a cold one it is cooled here
    assert good(seen(AT_FRIDGE, OPENED, TAKEN), Goal(PLACE, "egg", "shelf")) == ["move tomato 2 to fridge 1"]
    assert good(seen(AT_FRIDGE, OPENED, TAKEN), Goal(COOL, "tomato", "shelf")) == ["cool tomato 2 with fridge 1"]
