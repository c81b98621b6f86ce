"""BeelineBench: rank the open states of a best-first search, in a domain of the package
beelinebench.

Departs from the package: only trials from 10,000 on are played, since 1 to 100 are the benchmark
and its own harness plays these; an episode ends at the horizon, where the harness goes on to 2,500
states. Forced choices, the limit of the open states, the random order of the options and the words
are the package's.

Observation
    Task, goal and context as JSON, and the instructions: the question that the harness asks in
    System One's protocol.
Choices
    The open states, 2 to 255, in random order. A step explores one, and its neighbours become open.
Reward
    On reaching the goal the package's score: (fewest moves + 1) / explored states. Otherwise 0.
Episode end
    A state that meets the goal is explored.
Source
    beelinebench 1.0.1, benchmark 1.0.0. Horizon: 100 steps.
"""

from __future__ import annotations

import math
import random
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar

from reflectkit.config import Config, option
from reflectkit.env import (
    Action,
    Env,
    StepResult,
    Taskset,
    Teacher,
    check_choice,
    check_task,
    task_int,
)
from reflectkit.errors import ConfigError, unknown_name
from reflectkit.jsonl import dumps
from reflectkit.text import pluralize
from reflectkit.types import Message, Observation, Task

DOMAINS = ("tiles", "blocksworld", "countdown", "rush_hour", "keys_doors")
DOWNLOADED = ("word_ladder", "wikispeedia")
FIRST_TRIAL = 10_000
LAST_TRIAL = 10**9
HEURISTIC = "heuristic"
COMMENTS = (
    "The nearest open state is {} from the goal.",
    "From the best of them the goal is {} away.",
)
NO_WAY = "No open state leads to the goal."


class BeelineSettings(Config):
    """The env's settings."""

    trials: int = option(
        2000,
        help=f"Number of problems: so many trials from {FIRST_TRIAL:,} on.",
        ge=1,
        le=LAST_TRIAL - FIRST_TRIAL,
    )


class BeelineTasks(Taskset):
    """The trials of a domain."""

    needs_settings: ClassVar[bool] = True

    def tasks(self, level: str) -> list[Task]:
        """The first trials from FIRST_TRIAL on, as many as the settings say."""
        count = self.settings.trials if self.settings is not None else BeelineSettings().trials
        name, domain = self.env.name, self.env.domain
        return [
            Task(f"{domain}-{number}", name, level, f"trial-{number}", {"trial": number})
            for number in range(FIRST_TRIAL, FIRST_TRIAL + count)
        ]


class BeelineTeacher(Teacher):
    """The package's oracle: it knows how far each open state is from the goal."""

    env: Beeline

    def action(self) -> int:
        """One of the nearest states; of several, the first that is shown."""
        distances = self.env.distances
        return distances.index(min(distances))

    def mistakes(self) -> list[int]:
        """The states that are not among the nearest."""
        distances = self.env.distances
        nearest = min(distances)
        return [index for index, distance in enumerate(distances) if distance > nearest]

    def note(self) -> str:
        """The mark of the last action."""
        return self.env.note

    def comment(self, generator: random.Random) -> str:
        """How far the nearest state is from the goal."""
        return generator.choice(self._comments())

    def confirms(self, comment: str) -> bool:
        """Whether it names that distance."""
        return comment in self._comments()

    def _comments(self) -> list[str]:
        nearest = min(self.env.distances)
        # The states on the way were dropped
        if math.isinf(nearest):
            return [NO_WAY]
        moves = pluralize(int(nearest), "move")
        return [text.format(moves) for text in COMMENTS]


class Beeline(Env):
    """A search is looking for a way to reach a goal. Each action is a state that the search has found and has not
    explored yet. The search explores the state that you choose, and then asks again.

    The score is the number of states on a shortest way to the goal, divided by the number of states that you explored.
    """

    name: ClassVar[str] = "beeline"
    answers_with = "label"
    horizons: ClassVar[dict[str, int]] = {"all": 100}
    Settings: ClassVar[type[Config]] = BeelineSettings
    taskset: ClassVar[Taskset] = BeelineTasks()
    teacher_type: ClassVar[type[Teacher]] = BeelineTeacher
    baselines: ClassVar[tuple[str, ...]] = (HEURISTIC,)
    domain: ClassVar[str]

    def reset(self, task: Task, seed: int) -> Observation:
        """Begin a trial. Raises DataError for another env's task, and for a trial below
        FIRST_TRIAL.
        """
        from beelinebench.jev import INSTRUCTIONS, TASK
        from beelinebench.rng import Draws

        from reflectkit.envs.beeline.trials import rules, trial_of

        # 1. The trial, and the package's draws for it
        check_task(task, self.name, self.levels)
        number = task_int(task, "trial", FIRST_TRIAL, LAST_TRIAL)
        self._trial = trial_of(self.domain, number)
        self._most_open, self._most_explored = rules().max_frontier, rules().max_expansions
        self._order = Draws(self.domain, number, "order", str(seed))
        self._evict = Draws(self.domain, number, "evict", str(seed))
        # 2. The question
        problem = self._trial.problem
        question = {"task": TASK, "goal": problem.objective, "context": problem.context}
        self._question = f"{dumps(question)}\n{INSTRUCTIONS}"
        # 3. An empty search
        self._open: list[Any] = [problem.start]
        """The open states, in the order in which they were found."""
        self._known_states = {problem.start}
        self._heuristics: dict[Any, Any] = {}
        self.explored = 0
        self.note = ""
        self._explore_forced()
        return self._observe()

    def step(self, action: Action) -> StepResult:
        """Explore an open state. Raises IllegalActionError: it is not one of the choices."""
        state = self._options[check_choice(action, self._options, self.name)]
        nearest = min(self.distances)
        self.note = "good" if self._trial.distance(state) == nearest else "mistake"
        success = self._explore(self._open.index(state)) or self._explore_forced()
        # The package scores a search without success as one that explored all it may
        state_count = self.explored if success else self._most_explored
        score = (self._trial.shortest + 1) / state_count
        over = success or not self._open
        figures = {"explored": self.explored, "log_score": math.log(score)}
        info: dict[str, Any] = {"last_figures": figures}
        if over:
            info["success"] = success
        return StepResult(self._observe(), score if success else 0.0, over, info=info)

    @property
    def distances(self) -> list[float]:
        """The fewest moves from each state that is shown to the goal."""
        return [self._trial.distance(state) for state in self._options]

    def baseline(self, name: str) -> int:
        """The open state with the lowest heuristic value; of several, the first that was found."""
        heuristic = self._trial.problem.heuristic
        for state in self._open:
            if state not in self._heuristics:
                self._heuristics[state] = heuristic(state)
        return self._options.index(min(self._open, key=self._heuristics.__getitem__))

    def _explore(self, index: int) -> bool:
        """Explore the open state at `index`. Returns whether it meets the goal."""
        problem = self._trial.problem
        state = self._open.pop(index)
        self.explored += 1
        if problem.solved(state):
            return True
        for child in problem.moves(state):
            if child not in self._known_states:
                self._known_states.add(child)
                self._open.append(child)
        # Above the limit, random states are dropped, and may be found again
        while len(self._open) > self._most_open:
            self._known_states.discard(self._open.pop(self._evict.below(len(self._open))))
        return False

    def _explore_forced(self) -> bool:
        """Explore while one state is open. Returns whether the goal was met."""
        while len(self._open) == 1:
            if self._explore(0):
                return True
        return False

    def _observe(self) -> Observation:
        self._options = list(self._open)
        self._order.shuffle(self._options)
        choices = tuple(map(self._trial.problem.render, self._options))
        return Observation((Message("user", self._question),), choices)


@cache
def env_of(domain: str) -> type[Env]:
    """The env of a domain. Raises ConfigError for an unknown one, and if the package is missing."""
    if domain in DOWNLOADED:
        raise ConfigError(f"--env beeline:{domain} needs a download; choose {', '.join(DOMAINS)}")
    if domain not in DOMAINS:
        raise unknown_name("domain of beeline", domain, DOMAINS)
    if find_spec("beelinebench") is None:
        raise ConfigError(
            f"--env beeline:{domain} needs beelinebench; run pip install 'reflectkit[beeline]'"
        )
    # One class for each domain, so that each has folders of its own
    title = f"beeline-{domain}"
    attributes = {
        "name": title,
        "domain": domain,
        "__doc__": Beeline.__doc__,
        "__module__": Beeline.__module__,
    }
    return type(title, (Beeline,), attributes)
