"""AutoExplore: given a question, walk a repository with cd and cat, and name the file that answers it with id.

Departs from the Reflect-RL code: no sandbox, no copies, no shell; errors cost what they should; a file that the teacher
named is an accepted answer only on request; a prompt that is too long loses its oldest history, never the task.

Observation
    The question, the current folder and what is in it, the commands so far, and the last command's output. Lines of an
    output are indented, so that a file cannot forge the prompt's own lines. A file over `result_tokens` is shown by its
    two ends; the whole prompt is kept within `prompt_tokens` (both as counted by `core.text`): first the oldest
    commands go, then output, then names.
Choices
    `cd ..` (but not at the root), `cd DIR`, `cat FILE` unless it was shown, `id FILE`; at most 252.
Reward
    Minus the cost, divided by the horizon. Cost: 1 a step, 2 an error and 1 a warning in its output; at the end, minus
    the horizon if the file named is right, plus the horizon if it is not, or if none was named in time.
Episode end
    `id`. Success: a total cost below 0.01, which is the right file within the horizon.
Source
    Reflect-RL, arXiv 2402.12621.
"""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from reflectkit.core.errors import DataError, IllegalActionError
from reflectkit.core.protocols import StepResult
from reflectkit.core.seeding import uniform
from reflectkit.core.text import count_short, count_tokens, shorten
from reflectkit.core.types import Message, Observation, Task, ToolUse
from reflectkit.envs.autoexplore import costs
from reflectkit.envs.autoexplore.commands import UP, Output, Walk, offered
from reflectkit.envs.autoexplore.reflections import write_reflection
from reflectkit.envs.autoexplore.repo import Folder, Repository, open_repository
from reflectkit.envs.base import check_budgets, check_choice, check_task

ALL = "all"
DEEPEST = 9
ROUNDING = 32  # tokens; what is shortened is shortened to multiples of it, so that it is worked out once
HEADINGS = 24  # tokens of the words that every prompt has, and of the mark for commands left out
FEWEST_NAMES = 40  # tokens of the listing that are kept whatever else there is
QUESTION_SHARE = 0.5  # of prompt_tokens that a question may take


class AutoExplore:
    """See the module's text for the rules.

    repos_dir: folder of the filtered repositories. horizon: in the cost; the wrapper that cuts an episode off is given
    the same. leaveout_prob: share of the unrelated files that an episode leaves out at random. accept_teacher_answers:
    whatever file the task's teacher named is right too. result_tokens, prompt_tokens: what an output and the whole
    observation may have.
    """

    name: ClassVar[str] = "auto_explore"
    levels: ClassVar[tuple[str, ...]] = (*(str(depth) for depth in range(DEEPEST + 1)), ALL)
    """How many folders deep the target lies; "all" is whatever depth."""
    horizons: ClassVar[dict[str, int]] = {}
    records_folder: ClassVar[str] = "tasks_filtered"
    settings: ClassVar[tuple[str, ...]] = (
        "repos_dir", "leaveout_prob", "accept_teacher_answers", "result_tokens", "prompt_tokens", "horizon",
    )  # fmt: skip
    noise: ClassVar[float] = 0.0
    rules: ClassVar[str] = (
        "Goal: find the one file of a repository that answers the question after `Task:`, and name it with id.\n"
        "Actions: `cd DIR` and `cd ..` change the folder, `cat FILE` shows a file of the current folder as the"
        " output, and `id FILE` gives that file of the current folder as your answer. Long files are shown by their"
        " two ends, and a file is shown once.\n"
        "End: `id` ends the episode, right or wrong, so read a file before you name it. Success is the right file in"
        " time; running out of steps counts like a wrong file.\n"
        f"Cost: {costs.STEP} for each command, {costs.ERROR} more for an error in its output, {costs.WARNING} more for"
        " a warning; at the end the number of steps allowed is taken off for the right file, and added for a wrong"
        " file or none. The reward is minus the cost, divided by that number."
    )

    def __init__(
        self,
        repos_dir: Path | str = Path("data/auto_explore/repos_filtered"),
        *,
        horizon: int = 15,
        leaveout_prob: float = 0.0,
        accept_teacher_answers: bool = False,
        result_tokens: int = 400,
        prompt_tokens: int = 800,
    ) -> None:
        check_budgets(result_tokens, prompt_tokens)
        self.repos_dir, self.horizon, self.leaveout_prob = Path(repos_dir), horizon, leaveout_prob
        self.accept_teacher_answers = accept_teacher_answers
        self.result_tokens, self.prompt_tokens = result_tokens, prompt_tokens
        self._over = True

    @classmethod
    def at_level(cls, task: Task, level: str) -> Task | None:
        """The task itself, if it is as deep as `level` says or that is "all"."""
        return task if level in (ALL, task.level) else None

    @classmethod
    def cluster(cls, task: Task) -> str:
        """The file that answers the question, whatever is asked about it."""
        return f"{task.data.get('root', '')}/{task.data.get('filename', task.id)}"

    def reset(self, task: Task, seed: int) -> Observation:
        """Begin `task`.

        Raises
        ------
        DataError: another env's task; a repository or file that is not there; a question that is too long for the
        prompt.
        """
        check_task(task, self.name, self.levels[:-1])
        self.repository = self._repository(task)
        self.question = " ".join(_text(task, "question").split())
        if count_short(self.question) > self.prompt_tokens * QUESTION_SHARE:
            raise DataError(
                task.id, f"takes {count_short(self.question)} of {self.prompt_tokens} --prompt-tokens", field="question"
            )
        self.targets = self._targets(task)
        self._walk = Walk(self.repository, self.result_tokens, self._hidden(seed) if self.leaveout_prob else None)
        self._history: list[str] = []
        self._output = Output("")
        self._last: str | None = None
        self._note = ""
        self.total_cost = 0.0
        self._over = False
        return self._observe()

    def step(self, action: int | str | ToolUse) -> StepResult:
        """Take choice `action`. Raises IllegalActionError: not one of the choices, or the episode is over."""
        if self._over:
            raise IllegalActionError(f"{self.name}: the episode is over; call reset first")
        command = self._choices[check_choice(action, self._choices, self.name)]
        before = self._walk.here, len(self._walk.shown)
        done = self._walk.run(command)
        self._history.append(command)
        self._last, self._before = command, before
        self._output = Output("") if isinstance(done, str) else done
        cost = costs.step_cost(self._output.errors, self._output.warnings)
        info: dict[str, Any] = {}
        if isinstance(done, str):
            self._over = True
            info["answer"] = done
            cost += costs.end_cost(done in self.targets, self.horizon)
        elif len(self._history) == self.horizon:
            cost += costs.end_cost(False, self.horizon)
        self.total_cost += cost
        info |= {"cost": cost, "success": self._over and costs.solved(self.total_cost)}
        return StepResult(self._observe(), -cost / self.horizon, self._over, info=info)

    def forfeit(self, steps_left: int) -> float:
        """What the horizon would have cost: the steps that were left, and naming no file."""
        return -(costs.STEP * (self.horizon - len(self._history)) + costs.end_cost(False, self.horizon)) / self.horizon

    # ------------------------------------------------------------------------------------------------ the oracle
    # teacher

    def oracle(self) -> int:
        """The next command of the shortest way that reads a target and names it."""
        return self._choices.index(self._way(self._walk.here)[0])

    def mistakes(self) -> list[int]:
        """Everything but the oracle's command and naming a file."""
        best = self.oracle()
        return [index for index, command in enumerate(self._choices) if index != best and not command.startswith("id ")]

    def slips(self) -> list[int]:
        """The mistakes that a negative example makes, once: where a target is to be read next, to read another file."""
        strayed = any(path not in self.targets for path in self._walk.shown)
        if strayed or not self._choices[self.oracle()].startswith("cat "):
            return []
        return [index for index in self.mistakes() if self._choices[index].startswith("cat ")]

    def note(self) -> str:
        """How the last command is to be marked: "" at the start, "good" if it was on a shortest way, else "mistake"."""
        if self._last is None:
            return ""
        here, shown = self._before
        return "good" if self._last == self._way(here, shown)[0] else "mistake"

    def reflection(self, generator: random.Random) -> str:
        """What the question asks, what the last output says about it, and where to look."""
        read = self._walk.shown[-1] if self._last is not None and self._last.startswith("cat ") else None
        following = self._choices[self.oracle()]
        return write_reflection(
            self.question, read, self._output.text, self._walk.folder, following, self.note() == "mistake", generator
        )

    def _way(self, here: str, shown: int | None = None) -> list[str]:
        """The commands of the shortest way from folder `here` to naming a target. shown: how many files had been, by
        then.
        """
        ways = [_way(here, target, target in self._walk.shown[:shown]) for target in sorted(self.targets)]
        return min(ways, key=len)

    # ---------------------------------------------------------------------------------------------------------- inside

    def _repository(self, task: Task) -> Repository:
        root = _text(task, "root")
        if "/" in root or "\\" in root or "\0" in root or root in (".", ".."):
            raise DataError(task.id, f"a repository's name, not {root!r:.80}, was expected", field="root")
        return open_repository(self.repos_dir / root)

    def _targets(self, task: Task) -> frozenset[str]:
        target = _text(task, "filename")
        if target not in self.repository.sizes:
            raise DataError(
                task.id, f"the repository {self.repository.root} has no file {target!r:.200}", field="filename"
            )
        if not offered(self.repository, target):
            raise DataError(
                task.id, f"{target!r:.200} lies in a folder with too many entries to be named", field="filename"
            )
        if task.level != str(target.count("/")):
            raise DataError(task.id, f"{target!r:.200} is not at depth {task.level}", field="level")
        others = task.data.get("teacher_answers", []) if self.accept_teacher_answers else []
        if not isinstance(others, list) or not all(isinstance(name, str) for name in others):
            raise DataError(task.id, "expected a list of file names", field="teacher_answers")
        return frozenset(
            [target, *(name for name in others if name in self.repository.sizes and offered(self.repository, name))]
        )

    def _hidden(self, seed: int) -> Any:
        def hidden(path: str) -> bool:
            return path not in self.targets and uniform(seed, "leaveout", path) < self.leaveout_prob

        return hidden

    def _observe(self) -> Observation:
        self._choices = self._walk.commands()
        return Observation((Message("user", self._text()),), self._choices)

    def _text(self) -> str:
        """The prompt's parts within `prompt_tokens`; see the module's text for what goes first."""
        walk, folder = self._walk, self._walk.folder
        start = f"Task: {self.question}\nFolder: /{walk.here}\n"
        room = self.prompt_tokens - count_short(start) - HEADINGS - _choice_tokens(self._choices)
        listing, used = _listing(folder, max(room // 2 // ROUNDING * ROUNDING, FEWEST_NAMES))
        room -= used
        output, used = self._shown_output(room)
        room -= used
        history = _recent(self._history, room)
        return f"{start}Files: {listing}\nCommands: {history}\nOutput:{output}"

    def _shown_output(self, room: int) -> tuple[str, int]:
        """The last output, indented, and its tokens."""
        text = self._output.text.strip("\n")
        if not text:
            return " none", 1
        budget = self.result_tokens if room >= self.result_tokens else max(room, 0) // ROUNDING * ROUNDING
        key = self._last, self._walk.here, self.result_tokens, budget
        if key not in self.repository.memo:
            self.repository.memo[key] = _indented(text if budget == self.result_tokens else shorten(text, budget))
        shown: tuple[str, int] = self.repository.memo[key]
        return shown


def _way(here: str, target: str, read: bool) -> list[str]:
    """Up as far as needed, down, `cat` unless the file was read, `id`."""
    *folders, name = target.split("/")
    standing = here.split("/") if here else []
    common = 0
    while common < min(len(folders), len(standing)) and folders[common] == standing[common]:
        common += 1
    ways = [UP] * (len(standing) - common) + [f"cd {folder}" for folder in folders[common:]]
    return [*ways, *([] if read else [f"cat {name}"]), f"id {name}"]


def _indented(text: str) -> tuple[str, int]:
    """The lines that hold something, each behind a space, and their tokens."""
    shown = "".join(f"\n {line.rstrip()}" for line in text.split("\n") if line.strip())
    return shown, count_tokens(shown)


@lru_cache(maxsize=10_000)
def _choice_tokens(choices: tuple[str, ...]) -> int:
    """Of the numbered actions: each is a line with a label."""
    return sum(count_short(choice) + 2 for choice in choices)


@lru_cache(maxsize=10_000)
def _listing(folder: Folder, room: int) -> tuple[str, int]:
    """As many names as fit, and their tokens; how many are not shown is said."""
    names = [*(f"{name}/" for name in folder.folders), *folder.files]
    used = 0
    shown: list[str] = []
    for name in names:
        used += count_short(name) + 1
        if used > room and shown:
            left = len(names) - len(shown)
            return ", ".join(shown) + f", and {left} more", used + 3
        shown.append(name)
    return ", ".join(shown) or "none", used


def _recent(commands: list[str], room: int) -> str:
    """The last commands that fit into `room` tokens; a mark stands for the older ones."""
    kept: list[str] = []
    for command in reversed(commands):
        room -= count_short(command) + 1
        if room < 0:
            kept.append("...")
            break
        kept.append(command)
    return "; ".join(reversed(kept)) or "none"


def _text(task: Task, field: str) -> str:
    value = task.data.get(field)
    if not isinstance(value, str) or not value.strip():
        raise DataError(task.id, f"expected text, found {value!r:.60}", field=field)
    return value
