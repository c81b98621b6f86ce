"""ALFWorld: a household task in a room of receptacles, played as text in the benchmark's own engine.

Departs from the benchmark: the engine runs in a child process, is stopped when it hangs, and is about twenty times as
fast (see `fast`); the planner and the handcoded expert are those that are asked for; a game of sliced objects is
refused, as there.

Observation
    The task, the room's receptacles by kind and number, and the commands so far with what the engine answered, oldest
    first, without its "You arrive at …". An answer over `result_tokens` is cut; the whole prompt is kept within
    `prompt_tokens` (both as counted by `text`): the oldest commands go first, the newest is kept whole.
Choices
    The engine's admissible commands. First one for each receptacle, in the room's order, to go there, or once there to
    examine it, so that each keeps its number through the game; then the others in the engine's order, those that change
    nothing last. `typed`: none are shown, and the action is a command's text; one that is not admissible changes
    nothing, and is told so.
Reward
    The game's score: 1 for the step that wins, else 0.
Episode end
    The game is won (success) or lost.
Source
    ALFWorld, arXiv 2010.03768, package alfworld 0.4; TextWorld, arXiv 1806.11532. Horizon: the benchmark's 50 steps.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from reflectkit.config import Config, option
from reflectkit.console import Progress
from reflectkit.env import Env, StepResult, Taskset, Teacher
from reflectkit.envs.alfworld.belief import ROOM, Belief
from reflectkit.envs.alfworld.engine import CHANGES_NOTHING, GAME, RECORD, State, check_installed
from reflectkit.envs.alfworld.expert import LOOK, SEARCH, TYPES, Goal, good, progress, rules
from reflectkit.envs.alfworld.games import FOLDER, inside, read, room_kind
from reflectkit.envs.alfworld.games import task as task_of
from reflectkit.envs.alfworld.pool import Engine, pool
from reflectkit.envs.alfworld.reflections import write_reflection
from reflectkit.envs.base import PromptSettings, check_choice, check_task
from reflectkit.errors import DataError, EnvironmentFailure, IllegalActionError
from reflectkit.seeding import uniform
from reflectkit.text import count_short, shorten
from reflectkit.types import Message, Observation, Task, ToolUse

ALL = "all"
HORIZON = 50
HEADINGS = 24  # tokens of the fixed words of a prompt, and of the mark for omitted commands
OF_A_VERB = 2  # maximum number of mistakes with the same verb
GO = "go to "
LONGEST_TYPED = 100  # characters of a typed command
SLIP_SHARE = 0.2  # of the steps of a search
NOTHING = "Nothing happens."
HELP = "help"  # never a deliberate mistake: its long answer displaces the history
MORE = "make games with `reflectkit gen-task --env alfworld`, or say where they are with --games-dir"


class AlfworldSettings(PromptSettings):
    """The env's settings."""

    games_dir: Path | None = option(
        None, help=f"Folder of the games (contains json_2.1.1); default: {FOLDER} in the env's data folder."
    )
    expert: Literal["search", "handcoded", "planner"] = option(
        SEARCH, help="The oracle: search (uses only what it has seen), or the package's handcoded or planner."
    )
    typed: bool = option(False, help="The policy writes commands as text instead of choosing from a list.")


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

    def input_files(self, settings: Any, folder: Path, tasks: Sequence[Task]) -> list[Path]:
        """The games."""
        games = (inside(settings.games_dir or folder / FOLDER, task.data.get("game")) for task in tasks)
        return sorted({game for game in games if game and game.is_dir()})

    def benchmark(self, folder: Path, files: int, seed: int, progress: Progress) -> tuple[list[Task], dict[str, Any]]:
        """A game of each type."""
        from reflectkit.envs.alfworld.problems import Maker

        games = Maker(folder, seed, ()).make(len(TYPES), progress)
        return [task_of(game) for game in games], {"games_dir": folder}


class AlfworldTeacher(Teacher):
    """What would be right in `Alfworld`."""

    env: Alfworld

    def action(self) -> int | str:
        """The expert's next command."""
        (action,) = self.env._actions(self.env._good()[:1])
        return action

    def mistakes(self) -> list[int] | list[str]:
        """Commands that make no progress: neither the expert's nor equally good as far as the player can know. At most
        two per verb, which change with each step.
        """
        right = self.env._good()
        by_verb: dict[str, list[int]] = {}
        for index, command in enumerate(self.env._choices):
            if command not in right and command != HELP:
                by_verb.setdefault(command.split()[0], []).append(index)
        step = len(self.env._history)
        chosen = {wrong[(step + turn) % len(wrong)] for wrong in by_verb.values() for turn in range(OF_A_VERB)}
        return self.env._actions([self.env._choices[index] for index in sorted(chosen)])

    def slips(self) -> list[int] | list[str]:
        """The mistake that a negative example makes once: at a random search step, or while the object is held."""
        if self.env._slipped:
            return []
        holds_goal, _ = progress(self.env._belief, self.env.goal)
        return (
            self.mistakes()
            if holds_goal or uniform(self.env._seed, "slip", len(self.env._history)) < SLIP_SHARE
            else []
        )

    def note(self) -> str:
        """The mark of the last command: "" at the start, "good", or "mistake" if it made no progress."""
        return self.env._last_note

    def comment(self, generator: random.Random) -> str:
        """What is held, what was searched, where the object is, and what is left to do, as far as the player knows."""
        return write_reflection(self.env._belief, self.env.goal, self.env._last_note == "mistake", generator)


class Alfworld(Env):
    """See the module's text for the rules, and `AlfworldSettings`."""

    name: ClassVar[str] = "alfworld"
    taskset: ClassVar[Taskset] = GameTasks()
    teacher_type: ClassVar[type[Teacher]] = AlfworldTeacher
    levels: ClassVar[tuple[str, ...]] = (*TYPES, ALL)
    """The type of the task; "all" is any type."""
    horizons: ClassVar[dict[str, int]] = dict.fromkeys(levels, HORIZON)
    Settings: ClassVar[type[Config]] = AlfworldSettings
    settings: AlfworldSettings
    rules: ClassVar[str] = (
        "Goal: do the household task after `Task:` in a simulated room. Find the object, do to it what is asked"
        " (clean, heat, cool or look at it under a lamp), and put it where it belongs.\n"
        "Actions: `go to PLACE`; at a place `open` and `close` it, `take OBJECT from PLACE` and `move OBJECT to"
        " PLACE` (with some games `put OBJECT in/on PLACE`), `clean OBJECT with` a sink basin, `heat OBJECT with` a"
        " microwave, `cool OBJECT with` a fridge, `use` a lamp; `examine`, `look`, `inventory` and `help` change"
        " nothing. You hold one object at a time. What is in a closed place is seen once it is open. A command that"
        " cannot be done changes nothing.\n"
        "End: the episode ends when the task is done, which is success, or when the game is lost.\n"
        "Reward: 1 for the step that completes the task, else 0."
    )
    max_concurrency: ClassVar[int] = 32
    """Concurrent games; each takes a process."""
    load_seconds: ClassVar[float] = 120.0
    """Seconds for an engine to load a game, including the planner's first plan."""
    step_seconds: ClassVar[float] = 60.0

    def __init__(self, games_dir: Path | str | None = None, **settings: Any) -> None:
        super().__init__(games_dir=games_dir, **settings)
        check_installed()
        self.expert = self.settings.expert
        self.result_tokens, self.prompt_tokens = self.settings.result_tokens, self.settings.prompt_tokens
        self.typed = self.settings.typed
        self.engine: Engine | None = None
        self._over = True

    @property
    def games_dir(self) -> Path:
        """The folder of the games."""
        return Path(self.settings.games_dir or (self.data_folder or Path("data/alfworld")) / FOLDER)

    @classmethod
    def action_kind(cls, settings: Any) -> Literal["choice", "text"]:
        """A choice, unless commands are typed."""
        return "text" if settings.typed else "choice"

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin `task`. Nothing in a game is drawn; `seed` is for `slips`.

        Raises
        ------
        ConfigError: the engine's packages are not installed. DataError: another env's task; a game that is not there.
        EnvironmentFailure: a game that is broken; the engine fails or does not answer.
        """
        self._over = True
        check_task(task, self.name, TYPES)
        folder = self._folder(task)
        with _aborting():
            self.goal = _goal(folder, task)
            expert = None if self.expert == SEARCH else self.expert
            state = await self._taken(folder).reset(folder, expert, self.load_seconds)
            opening, _, task_text = state.feedback.partition("Your task is to: ")
            if not task_text or ROOM.search(opening) is None:
                raise DataError(
                    folder / GAME, "does not begin as a game of ALFWorld does; generate or download it again"
                )
        self.task = " ".join(task_text.split()).removesuffix(".")
        self._belief = Belief()
        self._history: list[tuple[str, str]] = []
        self._last_note, self._seed, self._slipped = "", seed, False
        self._take_in(state)
        self._room = ", ".join(self._belief.places)
        self._over = False
        return self._observe()

    async def step(self, action: int | str | ToolUse) -> StepResult:
        """Take choice `action`; or where it is `typed`, the command that it says.

        Raises
        ------
        IllegalActionError: not one of the choices, or the episode is over. EnvironmentFailure: the engine fails or does
        not answer.
        """
        if self._over:
            raise IllegalActionError(f"{self.name}: the episode is over; call reset first")
        command = self._command(action)
        assert self.engine is not None
        self._last_note = "good" if command in self._good() else "mistake"
        self._slipped = self._slipped or self._last_note == "mistake"
        admissible = command in self._choices
        with _aborting():
            state = (
                await self.engine.step(command, self.step_seconds)
                if admissible
                else replace(self._state, feedback=NOTHING)
            )
        answer = " ".join(state.feedback.split())
        self._history.append((command, answer.removeprefix(f"You arrive at {command.removeprefix(GO)}. ")))
        self._take_in(state)
        self._over = state.won or state.lost
        info: dict[str, Any] = {"success": state.won, "score": state.score}
        if state.feedback == NOTHING:
            info["refused"] = 1
        return StepResult(self._observe(), state.score, self._over, info=info)

    def close(self) -> None:
        """Return the engine to the pool."""
        self._over = True
        if self.engine is not None:
            pool().give(self.engine)
            self.engine = None

    def legal(self) -> tuple[str, ...]:
        """The admissible commands."""
        return self._choices

    def _actions(self, commands: list[str]) -> list[int] | list[str]:
        """`commands` as actions."""
        return commands if self.typed else [self._choices.index(command) for command in commands]

    def _command(self, action: int | str | ToolUse) -> str:
        """The command of `action`. Raises IllegalActionError."""
        if self.typed:
            if isinstance(action, str):
                return " ".join(action.split())[:LONGEST_TYPED]
            raise IllegalActionError(f"{self.name}: no action {action!r:.80}; it takes a command's text")
        return self._choices[check_choice(action, self._choices, self.name)]

    def _good(self) -> list[str]:
        good_commands = good(self._belief, self.goal)
        return [self._state.advice, *good_commands] if self._state.advice in self._state.commands else good_commands

    # ---------------------------------------------------------------------------------------------------------- inside

    def _folder(self, task: Task) -> Path:
        name = task.data.get("game")
        folder = inside(self.games_dir, name)
        if folder is None:
            raise DataError(
                task.id,
                f"{name!r:.200} is no name, or leads out of the games' folder {self.games_dir}",
                field="data.game",
            )
        for file in (GAME, RECORD):
            if not (folder / file).is_file():
                raise DataError(
                    task.id, f"there is no {file} in {self.games_dir / str(name)}; {MORE}", field="data.game"
                )
        return folder

    def _taken(self, folder: Path) -> Engine:
        """An engine for this env alone, until the next reset or `close`."""
        self.close()
        self.engine = engine = pool().take(folder)
        return engine

    def _take_in(self, state: State) -> None:
        self._state = state
        self._belief.learn(state.feedback, state.commands)
        self._choices = _numbered(state.commands, self._belief.places)

    def _observe(self) -> Observation:
        return Observation((Message("user", self._text()),), () if self.typed else self._choices)

    def _text(self) -> str:
        """The prompt, within `prompt_tokens`; see the module's docstring for the priorities."""
        start = f"Task: {self.task}\nRoom: {self._room}\n"
        room = self.prompt_tokens - count_short(start) - HEADINGS
        if not self.typed:
            room -= sum(count_short(command) + 2 for command in self._choices)
        lines: list[str] = []
        for command, answer in reversed(self._history):
            line = f" {command}: {' '.join(shorten(answer, self.result_tokens).split())}"
            room -= count_short(line) + 1
            if room < 0 and lines:
                lines.append(" ...")
                break
            lines.append(line)
        return start + "\n".join(["Commands:", *reversed(lines)] if lines else ["Commands: none"])


@contextmanager
def _aborting() -> Iterator[None]:
    """Turns the error of a broken game into one that ends only its own episode, not the run."""
    try:
        yield
    except DataError as error:
        raise EnvironmentFailure(str(error)) from None


def _numbered(commands: Sequence[str], places: Iterable[str]) -> tuple[str, ...]:
    """`commands` in the order in which they are offered; see the module's docstring."""
    ways = [command for place in places for command in (GO + place, f"examine {place}") if command in commands]
    others = [command for command in commands if command not in ways]
    return (*ways, *sorted(others, key=lambda command: command.split()[0] in CHANGES_NOTHING))


def _goal(folder: Path, task: Task) -> Goal:
    """The goal, from the game's files."""
    trajectory, playable = read(folder)
    kind, parameters = trajectory["task_type"], trajectory["pddl_params"]
    if kind != task.level:
        raise DataError(task.id, f"level {task.level!r}, but the game is of type {kind!r}", field="level")
    target = parameters["toggle_target" if kind == LOOK else "parent_target"]
    item = parameters["object_target"].lower()
    return Goal(kind, item, target.lower(), *rules(playable["pddl_problem"], item))
