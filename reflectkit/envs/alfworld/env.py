"""ALFWorld: a household task in a room of receptacles, played as text in the benchmark's own
engine.

Departs from the benchmark: the engine runs in a child process, is stopped when it hangs, and takes
an eighteenth of the time per step (see `fast`); the planner and the handcoded expert are those that
are asked for.

Observation
    The task, the room's receptacles by kind and number, and the commands so far with what the
    engine answered, oldest first, without its "You arrive at …". An answer over `result_tokens` is
    cut; the whole prompt is kept within `prompt_tokens` (both as counted by `text`): the oldest
    commands go first, the newest is kept whole.
Choices
    The engine's admissible commands. First a command for each receptacle, in the room's order: to
    go there, or once there to examine it. Each keeps its number through the game. Then the others
    in the engine's order, those that change nothing last. `typed`: none are shown, and the action
    is a command's text; if it is not admissible, nothing changes, and the answer says so.
Reward
    The game's score: 1 for the step that wins, else 0.
Episode end
    The game is won (success) or lost.
Source
    ALFWorld, arXiv 2010.03768, package alfworld 0.4; TextWorld, arXiv 1806.11532. Horizon: the
    benchmark's 50 steps.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from reflectkit.config import Config, option
from reflectkit.env import (
    Action,
    Env,
    PromptSettings,
    StepResult,
    Taskset,
    Teacher,
    check_choice,
    check_task,
)
from reflectkit.envs.alfworld.belief import ROOM, Belief
from reflectkit.envs.alfworld.engine import CHANGES_NOTHING, GAME, RECORD, State, check_installed
from reflectkit.envs.alfworld.expert import Goal, good, progress, rules, write_comment
from reflectkit.envs.alfworld.games import FOLDER, LOOK, TYPES, inside, read, room_kind
from reflectkit.envs.alfworld.pool import Engine, pool
from reflectkit.errors import DataError, EnvironmentFailure, IllegalActionError
from reflectkit.seeding import uniform
from reflectkit.text import count_short, shorten
from reflectkit.types import Message, Observation, Task

ALL = "all"
HORIZON = 50
HEADINGS = 24  # tokens of the fixed words of a prompt, and of the mark for omitted commands
GO = "go to "
OF_A_VERB = 2  # maximum number of mistakes with the same verb
SLIP_SHARE = 0.2  # of the steps of a search
HELP = "help"  # never a deliberate mistake: its long answer displaces the history
LONGEST_TYPED = 100  # characters of a typed command
NOTHING = "Nothing happens."
MORE = (
    "make games with `reflectkit gen-task --env alfworld`, or say where they are with --games-dir"
)


class AlfworldSettings(PromptSettings):
    """The env's settings."""

    games_dir: Path | None = option(
        None,
        help=(
            f"Folder of the games (contains json_2.1.1); default: {FOLDER} in the env's data"
            " folder."
        ),
    )
    expert: Literal["search", "handcoded", "planner"] = option(
        "search",
        help=(
            "The oracle: search (uses only what it has seen), or the package's handcoded or"
            " planner."
        ),
    )
    typed: bool = option(
        False, help="The policy writes commands as text instead of choosing from a list."
    )


class GameTasks(Taskset):
    """The problems of `Alfworld`."""

    problem_generator: ClassVar[str] = "reflectkit.envs.alfworld.problems:Games"

    def at_level(self, task: Task, level: str) -> Task | None:
        """The task itself, if it is of type `level` or `level` is "all"."""
        return task if level in (ALL, task.level) else None

    def cluster(self, task: Task) -> str:
        """The game."""
        return str(task.data.get("game", task.id))

    def kind_of_room(self, room: str) -> str:
        """Kitchens, living rooms, bedrooms and bathrooms."""
        return room_kind(room)

    def input_files(
        self,
        settings: Any,
        folder: Path,
        tasks: Sequence[Task],
    ) -> list[Path]:
        """The games."""
        root = settings.games_dir or folder / FOLDER
        games = set()
        for task in tasks:
            game = inside(root, task.data.get("game"))
            if game and game.is_dir():
                games.add(game)
        return sorted(games)


class AlfworldTeacher(Teacher):
    """What would be right in `Alfworld`."""

    env: Alfworld

    def good(self) -> list[str]:
        """The commands that make progress; the first is the expert's."""
        advice, commands = self.env.engine_state.advice, good(self.env.belief, self.env.goal)
        return [advice, *commands] if advice in self.env.commands else commands

    def action(self) -> int | str:
        """The expert's next command."""
        return self._actions(self.good()[:1])[0]

    def mistakes(self) -> Sequence[int | str]:
        """Commands that make no progress: neither the expert's nor equally good as far as the
        player can know. At most two per verb, which change with each step.
        """
        # 1. Commands that make no progress, by verb
        good_commands = self.good()
        by_verb: dict[str, list[str]] = {}
        for command in self.env.commands:
            if command not in good_commands and command != HELP:
                by_verb.setdefault(command.split()[0], []).append(command)
        # 2. Two of each verb, others in each step
        step = len(self.env.history)
        mistakes = set()
        for commands in by_verb.values():
            for turn in range(OF_A_VERB):
                mistakes.add(commands[(step + turn) % len(commands)])
        return self._actions([command for command in self.env.commands if command in mistakes])

    def slips(self) -> Sequence[int | str]:
        """The mistake that a negative example makes once: at a random search step, or while the
        object is held.
        """
        env = self.env
        if env.slipped:
            return []
        holds_goal, _ = progress(env.belief, env.goal)
        if holds_goal or uniform(env.seed, "slip", len(env.history)) < SLIP_SHARE:
            return self.mistakes()
        return []

    def note(self) -> str:
        """The mark of the last command: "" at the start, "good", or "mistake" if it made no
        progress.
        """
        return self.env.mark

    def comment(self, generator: random.Random) -> str:
        """What is held, what was searched, where the object is, and what is left to do, as far as
        the player knows.
        """
        return write_comment(self.env.belief, self.env.goal, self.env.mark == "mistake", generator)

    def _actions(self, commands: list[str]) -> list[int | str]:
        """`commands` as actions."""
        if self.env.settings.typed:
            return [*commands]
        return [self.env.commands.index(command) for command in commands]


class Alfworld(Env):
    """Household tasks as text games (ALFWorld); needs `make alfworld`.

    See the module's text for the rules, and `AlfworldSettings`.
    """

    name: ClassVar[str] = "alfworld"
    answers_with = "label"
    taskset: ClassVar[Taskset] = GameTasks()
    teacher_type: ClassVar[type[Teacher]] = AlfworldTeacher
    levels: ClassVar[tuple[str, ...]] = (*TYPES, ALL)
    """The type of the task; "all" is any type."""
    horizons: ClassVar[dict[str, int]] = dict.fromkeys(levels, HORIZON)
    Settings: ClassVar[type[Config]] = AlfworldSettings
    settings: AlfworldSettings
    rules: ClassVar[str] = (
        "Goal: do the household task after `Task:` in a simulated room. Find the object, do what is"
        " asked with it (clean, heat or cool it, or look at it under a lamp), and put it where it"
        " belongs.\n"
        "Actions: `go to PLACE`; at a place `open` and `close` it, `take OBJECT from PLACE` and"
        " `move OBJECT to PLACE` (with some games `put OBJECT in/on PLACE`), `clean OBJECT with` a"
        " sink basin, `heat OBJECT with` a microwave, `cool OBJECT with` a fridge, `use` a lamp;"
        " `examine`, `look`, `inventory` and `help` change nothing. You hold one object at a time."
        " You see what is in a closed place once you open it. A command that is not possible"
        " changes nothing.\n"
        "End: the episode ends in success when the task is done, or in failure when the game is"
        " lost.\n"
        "Reward: 1 for the step that completes the task, else 0."
    )
    max_concurrency: ClassVar[int] = 32
    """Concurrent games; each takes a process."""
    load_seconds: ClassVar[float] = 120.0
    """Seconds for an engine to load a game, including the planner's first plan."""
    step_seconds: ClassVar[float] = 60.0

    def __init__(
        self,
        games_dir: Path | str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(games_dir=games_dir, **settings)
        check_installed()
        self.engine: Engine | None = None

    @property
    def games_dir(self) -> Path:
        """The folder of the games."""
        return self.settings.games_dir or (self.data_folder or Path("data/alfworld")) / FOLDER

    @classmethod
    def action_kind(cls, settings: Any) -> Literal["choice", "text"]:
        """A choice, unless commands are typed."""
        return "text" if settings.typed else "choice"

    def legal(self) -> tuple[str, ...]:
        """The admissible commands."""
        return self.commands

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin `task`. Nothing in a game is drawn; `seed` is for the teacher's slips.

        Raises ConfigError: the engine's packages are not installed. DataError: another env's task;
        a game that is not there. EnvironmentFailure: a game that is broken; the engine fails or
        does not answer.
        """
        # 1. The game's files
        self.close()
        check_task(task, self.name, TYPES)
        name = task.data.get("game")
        folder = inside(self.games_dir, name)
        if folder is None or not all((folder / file).is_file() for file in (GAME, RECORD)):
            raise DataError(
                task.id,
                f"there is no game {name!r:.200} in {self.games_dir}; {MORE}",
                field="data.game",
            )
        try:
            record, playable = read(folder)
            if record.task_type != task.level:
                why = f"level {task.level!r}, but the game is of type {record.task_type!r}"
                raise DataError(task.id, why, field="level")
            # 2. The goal
            parameters = record.pddl_params
            target = parameters.toggle_target if task.level == LOOK else parameters.parent_target
            item = parameters.object_target.lower()
            self.goal = Goal(task.level, item, target.lower(), *rules(playable.pddl_problem, item))
            # 3. The engine's first words
            self.engine = pool().take(folder)
            expert = None if self.settings.expert == "search" else self.settings.expert
            state = await self.engine.reset(folder, expert, self.load_seconds)
            opening, _, task_text = state.feedback.partition("Your task is to: ")
            if not task_text or ROOM.search(opening) is None:
                raise DataError(
                    folder / GAME,
                    "does not begin as a game of ALFWorld does; generate or download it again",
                )
        # A broken game ends only its own episode, and not the run
        except DataError as error:
            raise EnvironmentFailure(str(error)) from None
        # 4. What the player knows
        self.task = " ".join(task_text.split()).removesuffix(".")
        self.seed = seed
        self.belief = Belief()
        self.history: list[tuple[str, str]] = []
        """The commands, each with the engine's answer."""
        self.mark: Literal["", "good", "mistake"] = ""
        """The teacher's mark of the last command."""
        self.slipped = False
        """Whether a command was a mistake."""
        self._take_in(state)
        return self._observe()

    async def step(self, action: Action) -> StepResult:
        """Take choice `action`; if commands are typed, the command that it says.

        Raises IllegalActionError: not one of the choices. EnvironmentFailure: the engine fails or
        does not answer.
        """
        # 1. The command
        if not self.settings.typed:
            command = self.commands[check_choice(action, self.commands, self.name)]
        elif isinstance(action, str):
            command = " ".join(action.split())[:LONGEST_TYPED]
        else:
            raise IllegalActionError(
                f"{self.name}: no action {action!r:.80}; it takes a command's text"
            )
        self.mark = "good" if command in AlfworldTeacher(self).good() else "mistake"
        self.slipped = self.slipped or self.mark == "mistake"
        # 2. The engine's answer; a command that is not admissible changes nothing
        state = replace(self.engine_state, feedback=NOTHING)
        if command in self.commands:
            assert self.engine is not None
            state = await self.engine.step(command, self.step_seconds)
        answer = " ".join(state.feedback.split())
        answer = answer.removeprefix(f"You arrive at {command.removeprefix(GO)}. ")
        self.history.append((command, answer))
        self._take_in(state)
        info: dict[str, Any] = {"success": state.won, "score": state.score}
        if state.feedback == NOTHING:
            info["refused"] = 1
        return StepResult(self._observe(), state.score, state.won or state.lost, info=info)

    def close(self) -> None:
        """Return the engine to the pool."""
        if self.engine is not None:
            pool().give(self.engine)
            self.engine = None

    def _take_in(self, state: State) -> None:
        self.engine_state = state
        self.belief.learn(state.feedback, state.commands)
        # One command for each place comes first, so that it keeps its number through the game
        ways = []
        for place in self.belief.places:
            for command in (GO + place, f"examine {place}"):
                if command in state.commands:
                    ways.append(command)
        others = [command for command in state.commands if command not in ways]
        others.sort(key=lambda command: command.split()[0] in CHANGES_NOTHING)
        self.commands = (*ways, *others)
        """The admissible commands in the order in which they are offered; see the module's
        docstring.
        """

    def _observe(self) -> Observation:
        """The prompt, within `prompt_tokens`, and the choices; see the module's docstring for the
        priorities.
        """
        settings = self.settings
        start = f"Task: {self.task}\nRoom: {', '.join(self.belief.places)}\n"
        room = settings.prompt_tokens - count_short(start) - HEADINGS
        if not settings.typed:
            room -= sum(count_short(command) + 2 for command in self.commands)
        # The newest commands that fit, and at least one
        lines: list[str] = []
        for command, answer in reversed(self.history):
            line = f" {command}: {' '.join(shorten(answer, settings.result_tokens).split())}"
            room -= count_short(line) + 1
            if room < 0 and lines:
                lines.append(" ...")
                break
            lines.append(line)
        text = start + "\n".join(["Commands:", *reversed(lines)] if lines else ["Commands: none"])
        return Observation((Message("user", text),), () if settings.typed else self.commands)
