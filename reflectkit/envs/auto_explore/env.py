"""AutoExplore: given a question, walk a repository with cd and cat, and name the file that answers
it with id.

Departs from the Reflect-RL code: no sandbox, no copies, no shell; errors cost what they should; a
file that the teacher named is an accepted answer only on request; a prompt that is too long loses
its oldest history, never the task.

Observation
    The question, the current folder and what is in it, the commands so far, and the last command's
    output. Lines of an output are indented: a file cannot forge the prompt's own lines. A file over
    `result_tokens` is shown by its two ends; the whole prompt is kept within `prompt_tokens` (both
    as counted by `text`): first the oldest commands go, then output, then names.
Choices
    `cd ..` (but not at the root), `cd DIR`, `cat FILE` unless it was shown, `id FILE`; at most 252.
Reward
    Minus the cost, divided by the horizon. Cost: 1 a step, 2 an error and 1 a warning in its
    output; at the end, minus the horizon if the file named is right, plus the horizon if it is not,
    or if none was named in time.
Episode end
    `id`. Success: a total cost below 0.01, which is the right file within the horizon.
Source
    Reflect-RL, arXiv 2402.12621.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from reflectkit.config import Config, option
from reflectkit.env import (
    LIKELY,
    SUCCEEDS,
    Action,
    Env,
    PromptSettings,
    StepResult,
    Taskset,
    Teacher,
    check_choice,
    check_task,
)
from reflectkit.envs.auto_explore.questions import read_question
from reflectkit.envs.auto_explore.repository import (
    UP,
    Folder,
    Output,
    Walk,
    find_repository,
    offered,
    shortest_path,
)
from reflectkit.errors import DataError
from reflectkit.seeding import uniform
from reflectkit.text import WORD, count_short, count_tokens, keywords, shorten, stem, words
from reflectkit.types import Message, Observation, StateQuestion, Task, Trajectory

NAMED = 4  # number of the question's words that a comment checks
NAME = re.compile(r"\w+")
LONGEST_PLACE = 40  # characters of a quotation
ASKED = ("The question is about {words}.", "It is about {words}.")
FOUND = ("{file} answers it.", "{file} is the answer.")
NOT_HERE = ("{file} does not answer it.", "{file} is not the answer.")
WRONG = ("Reading it was a mistake.", "That was the wrong choice.")
STRAYED = ("Coming here was a mistake.", "This is the wrong way.")
TO_FILE = ("{name} may answer it.", "{name} looks right.")
TO_FOLDER = ("Folder {name} looks right.", "It should be in {name}.")
TO_TOP = ("Nothing here fits.", "It is elsewhere.")


def places_of_words(output: str) -> dict[str, str]:
    """The first place of each word's stem in `output`: the name that has it, up to the end of the
    next name on its line.

    >>> places_of_words("id,late_fee,days\\nLate again")
    {'id': 'id,late_fee', 'late': 'late_fee,days', 'fee': 'late_fee,days', 'day': 'days', 'again':
    'again'}
    """
    places: dict[str, str] = {}
    for line in output.splitlines():
        for name in NAME.finditer(line):
            following = NAME.search(line, name.end())
            for word in words(name[0]):
                end = (
                    following.end()
                    if following and following.end() - name.start() <= LONGEST_PLACE
                    else name.end()
                )
                places.setdefault(stem(word), line[name.start() : end])
    return places


def question_words(question: str) -> list[str]:
    """The content words of a question, as written.

    >>> question_words("Where are the late Fees of a loan set?")
    ['late', 'Fees', 'loan']
    """
    as_written = {stem(word.lower()): word for word in reversed(WORD.findall(question))}
    return [as_written[word] for word in keywords(question)]


def share_of(asked: Sequence[str], text: str) -> float:
    """The share of the keywords `asked` that `text` has.

    >>> share_of(["late", "fee"], "fees.py")
    0.5
    """
    found = {stem(word) for word in words(text)}
    return sum(word in found for word in asked) / max(1, len(asked))


HERE = StateQuestion("here", "Is the answer in this folder?", ("yes", "no"))
READ = StateQuestion("read", "Has the file with the answer been shown?", ("yes", "no"))
ALL = "all"
STEP, ERROR, WARNING = 1, 2, 1
"""Cost of a step, and of each error and warning in its output. The published code's for these two
never occur.
"""
SOLVED_BELOW = 0.01
# Share of the question's words that a file must have for the keyword player or a searcher to name
# it
ENOUGH = 0.7
DEEPEST = 9
ROUNDING = 32  # tokens; lengths of shortened text are multiples of it
HEADINGS = 24  # tokens of the fixed words of a prompt, and of the mark for omitted commands
FEWEST_NAMES = 40  # minimum tokens of the listing
QUESTION_SHARE = 0.5  # maximum share of prompt_tokens for a question
REPOSITORIES = "repos_filtered"


class AutoExploreSettings(PromptSettings):
    """The env's settings."""

    repos_dir: Path | None = option(
        None, help=f"The filtered repositories; default: {REPOSITORIES} in the env's data folder."
    )
    leaveout_prob: float = option(
        0.0, help="Share of unrelated files that each episode leaves out at random.", ge=0, le=1
    )
    accept_teacher_answers: bool = option(
        False, help="Also accept the file that the teacher named."
    )
    easy: bool = option(
        False, help='Name the file: the task is "Find PATH" instead of the question.'
    )
    force_answer: bool = option(
        False, help="At the last step, offer only files to name, where the folder has some."
    )
    first_step: bool = option(
        False, help="Episodes of one step, for which the first command of the way is right."
    )
    searching_teacher: bool = option(
        False,
        help=(
            "The teacher does not know the answer: it opens files and judges them by the"
            " question's words."
        ),
    )


class Questions(Taskset):
    """The problems of `AutoExplore`."""

    repositories_folder: ClassVar[str] = REPOSITORIES
    records_folder: ClassVar[str] = "tasks_filtered"
    split_by: ClassVar[tuple[str, ...]] = ("repo", "question")
    keeps_other_levels: ClassVar[bool] = False

    def at_level(self, task: Task, level: str) -> Task | None:
        """The task itself, if its depth is `level` or `level` is "all"."""
        return task if level in (ALL, task.level) else None

    def cluster(self, task: Task) -> str:
        """The file that answers the question."""
        return f"{task.data.get('root', '')}/{task.data.get('filename', task.id)}"

    def input_files(self, settings: Any, folder: Path, tasks: Sequence[Task]) -> list[Path]:
        """The repositories that the tasks ask about."""
        roots = sorted({str(task.data.get("root")) for task in tasks})
        place = settings.repos_dir or folder / REPOSITORIES
        return [place / root for root in roots if "/" not in root and (place / root).is_dir()]


class AutoExploreTeacher(Teacher):
    """What would be right in `AutoExplore`."""

    env: AutoExplore
    noise: ClassVar[float] = 0.0
    negatives: ClassVar[int] = 2

    def action(self) -> int:
        """The next command of the shortest path that reads a target and names it; any if that is
        not offered.
        """
        following = self.env.way(self.env.walk.here)[0]
        return self.env.commands.index(following) if following in self.env.commands else 0

    def answers(self) -> dict[str, list[int]]:
        """The right command, whether the folder has the answer, and whether it was read."""
        env = self.env
        inside = any(target.rpartition("/")[0] == env.walk.here for target in env.targets)
        was_read = any(path in env.targets for path in env.walk.shown)
        return {
            LIKELY.name: [self.action()],
            HERE.name: [int(not inside)],
            READ.name: [int(not was_read)],
        }

    def mistakes(self) -> list[int]:
        """Everything but the right command and naming a file."""
        best = self.action()
        commands = enumerate(self.env.commands)
        return [
            index for index, command in commands if index != best and not command.startswith("id ")
        ]

    def slips(self) -> list[int]:
        """The mistake that a negative example makes once: reading another file when a target should
        be read next.
        """
        commands = self.env.commands
        read_another = any(path not in self.env.targets for path in self.env.walk.shown)
        if read_another or not commands[self.action()].startswith("cat "):
            return []
        return [index for index in self.mistakes() if commands[index].startswith("cat ")]

    def note(self) -> str:
        """The mark of the last command: "" at the start, "good" if it was on a shortest path, else
        "mistake".
        """
        if not self.env.history:
            return ""
        return "good" if self.env.history[-1] == self.env.way(*self.env.before)[0] else "mistake"

    def comment(self, generator: random.Random) -> str:
        """What the question asks, what the last output says about it as far as it is shown, and
        where to look.
        """
        env, mistaken = self.env, self.note() == "mistake"
        asked_about = question_words(env.question)[:NAMED]
        following = env.commands[self.action()]
        name = following.partition(" ")[2]
        parts = []
        if env.history and env.history[-1].startswith("cat "):
            file = PurePosixPath(env.walk.shown[-1]).name
            places = places_of_words(env.shown_output)
            found = [(word, places.get(stem(word.lower()))) for word in asked_about]
            parts.append(
                ", ".join(
                    f'{word} in "{place}"' if place else f"no {word}" for word, place in found
                )
                + "."
            )
            if following == f"id {file}":
                return " ".join([*parts, generator.choice(FOUND).format(file=file)])
            parts.append(generator.choice(NOT_HERE).format(file=file))
            if mistaken:
                parts.append(generator.choice(WRONG))
        else:
            if mistaken:
                parts.append(generator.choice(STRAYED))
            parts.append(
                generator.choice(ASKED).format(words=", ".join(asked_about) or "something")
            )
        to = (
            TO_TOP if following == UP else TO_FOLDER if name in env.walk.folder.folders else TO_FILE
        )
        return " ".join([*parts, generator.choice(to).format(name=name)])

    @classmethod
    def drops_choices(cls, settings: Any) -> bool:
        """Whether files are left out: a file that a demonstration reads by mistake may be among
        them.
        """
        return bool(settings.leaveout_prob)

    @classmethod
    def is_demonstration(cls, trajectory: Trajectory) -> bool:
        """An episode that names a file."""
        return bool(trajectory.turns[-1].info.get("answer"))

    @classmethod
    def fault(cls, trajectory: Trajectory) -> str:
        """An episode that names a wrong file."""
        wrong = cls.is_demonstration(trajectory) and not trajectory.success
        why = (
            "a wrong file is named, which gives no rows; use --accept-teacher-answers to include"
            " them"
        )
        return why if wrong else ""


class SearchingTeacher(AutoExploreTeacher):
    """What would be right for a searcher, who knows the question, and of the repository only what
    was shown.

    It names a file that has `ENOUGH` of the question's words. Else it opens the new file, or enters
    the new folder, of the current one whose name has most of them, and backs out of a folder
    without any. When everything was read, or the steps left are just enough, it goes back to the
    file that had most words, and names it.
    """

    def action(self) -> int:
        """The searcher's next command."""
        return self.env.commands.index(self.next_command(self.env.history, self.env.commands))

    def slips(self) -> list[int]:
        """None: reading a file that does not answer is no mistake of a searcher."""
        return []

    def note(self) -> str:
        """The mark of the last command: "" at the start, "good" if it was the searcher's, else
        "mistake".
        """
        *earlier, last = self.env.history or [""]
        if not last:
            return ""
        return "good" if last == self.next_command(earlier) else "mistake"

    def next_command(self, history: Sequence[str], commands: Sequence[str] | None = None) -> str:
        """The command after those of `history`. commands: what is offered then, if not everything."""
        env = self.env
        asked = keywords(env.question)

        # 1. What was seen so far
        walk = Walk(env.repository, env.settings.result_tokens, env.walk.hidden)
        match_of: dict[str, float] = {}
        seen = {walk.here: walk.folder}
        for command in history:
            output = walk.run(command)
            if command.startswith("cat ") and isinstance(output, Output):
                match_of[walk.shown[-1]] = share_of(
                    asked, f"{command.removeprefix('cat ')} {output.text}"
                )
            seen.setdefault(walk.here, walk.folder)
        commands = commands or walk.commands()

        # 2. Name the file that was just read
        last = history[-1] if history else ""
        if last.startswith("cat ") and match_of[walk.shown[-1]] >= ENOUGH:
            return last.replace("cat ", "id ", 1)

        # 3. Name the best file if there is nothing more to see, or no time
        def is_new(command: str) -> bool:
            verb, _, name = command.partition(" ")
            return verb == "cat" or (verb == "cd" and command != UP and walk.path(name) not in seen)

        new = [command for command in commands if is_new(command)]
        paths = [
            f"{folder.path}/{name}".lstrip("/")
            for folder in seen.values()
            for name in folder.folders
        ]
        count = sum(len(folder.files) for folder in seen.values())
        saw_all = set(paths) <= set(seen) and len(match_of) == count
        if match_of:
            best = max(match_of, key=match_of.__getitem__)
            back = shortest_path(best, walk.here, read=True)
            is_late = env.horizon - len(history) <= len(back) + 1
            if back[0] in commands and (saw_all or is_late or not (new or walk.here)):
                return back[0]

        # 4. Search on
        if new:
            matches = [share_of(asked, command.partition(" ")[2]) for command in new]
            # of equals, files come before folders
            return max(
                zip(matches, new, strict=True),
                key=lambda pair: (pair[0], pair[1].startswith("cat ")),
            )[1]
        return UP if UP in commands else commands[0]


class AutoExplore(Env):
    """Find the file of a code repository that answers a question, with ls, cd and cat.

    See the module's text for the rules, and `AutoExploreSettings`.
    """

    name: ClassVar[str] = "auto_explore"
    taskset: ClassVar[Taskset] = Questions()
    teacher_type: ClassVar[type[Teacher]] = AutoExploreTeacher
    levels: ClassVar[tuple[str, ...]] = (*(str(depth) for depth in range(DEEPEST + 1)), ALL)
    """Depth of the target's folder; "all" is any depth."""
    Settings: ClassVar[type[Config]] = AutoExploreSettings
    settings: AutoExploreSettings
    horizon: int = 15
    baselines: ClassVar[tuple[str, ...]] = ("keyword",)
    rules: ClassVar[str] = (
        "Goal: find the one file in a repository that answers the question after `Task:`, and"
        " name it with id.\n"
        "Actions: `cd DIR` and `cd ..` change the folder, `cat FILE` shows a file in the current"
        " folder, and `id FILE` names one as your answer. Of a long file, only the beginning and"
        " the end are shown. Each file can be shown once.\n"
        "End: `id` ends the episode, right or wrong, so read a file before you name it. Success is"
        " naming the right file in time; running out of steps counts as a wrong file.\n"
        f"Cost: {STEP} per command, {ERROR} more for an error in its output, {WARNING} more for a"
        " warning. At the end, the step limit is subtracted for the right file, or added for a"
        " wrong file or none. The reward is the negative cost, divided by the step limit."
    )

    @classmethod
    def questions(cls) -> tuple[StateQuestion, ...]:
        """What leads to success, whether it will come, and where the answer is."""
        return LIKELY, SUCCEEDS, HERE, READ

    def reset(self, task: Task, seed: int) -> Observation:
        """Begin `task`. Raises DataError for another env's task, a repository or file that is not
        there or cannot be named, and a question that is too long for the prompt.
        """
        check_task(task, self.name, self.levels[:-1])
        asked = read_question(task.data, task.id)
        self.repository = find_repository(
            self.settings.repos_dir
            or (self.data_folder or Path("data/auto_explore")) / REPOSITORIES,
            asked.root,
        )
        self.question = " ".join(asked.question.split())
        if (tokens := count_short(self.question)) > self.settings.prompt_tokens * QUESTION_SHARE:
            raise DataError(
                task.id,
                f"takes {tokens} of {self.settings.prompt_tokens} --prompt-tokens",
                field="question",
            )
        target, root = asked.filename, self.repository.root
        if target not in self.repository.sizes:
            raise DataError(
                task.id, f"the repository {root} has no file {target!r:.200}", field="filename"
            )
        if not offered(self.repository, target):
            why = f"{target!r:.200} lies in a folder with too many entries to be named"
            raise DataError(task.id, why, field="filename")
        if task.level != str(target.count("/")):
            raise DataError(task.id, f"{target!r:.200} is not at depth {task.level}", field="level")
        others = (
            task.data.get("teacher_answers", []) if self.settings.accept_teacher_answers else []
        )
        if not isinstance(others, list) or not all(isinstance(name, str) for name in others):
            raise DataError(task.id, "expected a list of file names", field="teacher_answers")
        self.targets = frozenset(
            [target, *(name for name in others if offered(self.repository, name))]
        )
        if self.settings.easy:
            self.question = f"Find {asked.filename}"

        def is_hidden(path: str) -> bool:
            return (
                path not in self.targets
                and uniform(seed, "leaveout", path) < self.settings.leaveout_prob
            )

        hidden = is_hidden if self.settings.leaveout_prob else None
        self.walk = Walk(self.repository, self.settings.result_tokens, hidden)
        self.history: list[str] = []
        self.before = "", 0
        """The folder before the last command, and the number of files that had been read."""
        self.total_cost = 0.0
        self._output = Output()
        return self._observe()

    def step(self, action: Action) -> StepResult:
        """Take choice `action`. Raises IllegalActionError: not one of the choices."""
        command = self.commands[check_choice(action, self.commands, self.name)]
        on_the_way = self.settings.first_step and command == self.way(self.walk.here)[0]
        self.before = self.walk.here, len(self.walk.shown)
        done = self.walk.run(command)
        self.history.append(command)
        self._output = Output() if isinstance(done, str) else done
        cost = STEP + ERROR * self._output.errors + WARNING * self._output.warnings
        info: dict[str, Any] = {}
        over = self.settings.first_step or isinstance(done, str)
        if self.settings.first_step:
            cost += -self.horizon if on_the_way else self.horizon
        elif isinstance(done, str):
            info |= {"answer": done, "figures": {"named": 1.0}}
            cost += -self.horizon if done in self.targets else self.horizon
        elif len(self.history) == self.horizon:
            cost += self.horizon
        self.total_cost += cost
        info |= {"cost": cost, "success": over and self.total_cost < SOLVED_BELOW}
        return StepResult(self._observe(), -cost / self.horizon, over, info=info)

    def teacher(self) -> Teacher:
        """Who knows the answer, or a searcher."""
        return SearchingTeacher(self) if self.settings.searching_teacher else super().teacher()

    def truncation_penalty(self, steps_left: int) -> float:
        """The cost of reaching the horizon: the remaining steps, and naming no file."""
        return -(STEP * (self.horizon - len(self.history)) + self.horizon) / self.horizon

    def baseline(self, name: str) -> int:
        """The choice of the keyword player, which reads only what a policy reads.

        It names the file that it has just read if that has enough of the question's words; else
        reads the file, or enters the new folder, whose name has most of them; else goes up.
        """
        head, _, output = self._text().partition("\nOutput:")
        fields, choices = dict(line.split(": ", 1) for line in head.splitlines()), self.commands
        asked, done = keywords(fields["Task"]), fields["Commands"].split("; ")
        verb, _, read = done[-1].partition(" ")
        if verb == "cat" and share_of(asked, f"{read} {output}") >= ENOUGH:
            return choices.index(f"id {read}")
        new = [
            n
            for n in choices
            if n.startswith("cat ") or (n.startswith("cd ") and n not in (UP, *done))
        ]
        if new:
            return choices.index(
                max(new, key=lambda name: (share_of(asked, name), name.startswith("cat ")))
            )
        return choices.index(UP) if UP in choices else len(choices) - 1

    def way(self, here: str, shown: int | None = None) -> list[str]:
        """The commands of the shortest path from folder `here` to naming a target. shown: number of
        files read.
        """
        read = self.walk.shown[:shown]
        return min(
            (shortest_path(target, here, read=target in read) for target in sorted(self.targets)),
            key=len,
        )

    def _observe(self) -> Observation:
        self.commands = self.walk.commands()
        if self.settings.force_answer and len(self.history) == self.horizon - 1:
            names = tuple(command for command in self.commands if command.startswith("id "))
            self.commands = names or self.commands
        return Observation((Message("user", self._text()),), self.commands)

    def _text(self) -> str:
        """The prompt, within `prompt_tokens`; see the module's docstring for the priorities."""
        start = f"Task: {self.question}\nFolder: /{self.walk.here}\n"
        room = self.settings.prompt_tokens - count_short(start) - HEADINGS
        room -= sum(count_short(command) + 2 for command in self.commands)
        listing, used = _listing(
            self.walk.folder, max(room // 2 // ROUNDING * ROUNDING, FEWEST_NAMES)
        )
        room -= used
        self.shown_output, used = self._shorten_output(room)
        return (
            f"{start}Files: {listing}\nCommands:"
            f" {_recent(self.history, room - used)}\nOutput:{self.shown_output}"
        )

    def _shorten_output(self, room: int) -> tuple[str, int]:
        """The last output, indented, and its tokens."""
        text, most = self._output.text.strip("\n"), self.settings.result_tokens
        if not text:
            return " none", 1
        budget = most if room >= most else max(room, 0) // ROUNDING * ROUNDING
        lines = (text if budget == most else shorten(text, budget)).split("\n")
        shown = "".join(f"\n {line.rstrip()}" for line in lines if line.strip())
        return shown, count_tokens(shown)


@lru_cache(maxsize=10_000)
def _listing(folder: Folder, room: int) -> tuple[str, int]:
    """As many names as fit, the number of omitted ones, and the tokens of the text."""
    names = [*(f"{name}/" for name in folder.folders), *folder.files]
    used = 0
    shown: list[str] = []
    for name in names:
        used += count_short(name) + 1
        if used > room and shown:
            hidden = len(names) - len(shown)
            return ", ".join(shown) + f", and {hidden} more", used + 3
        shown.append(name)
    return ", ".join(shown) or "none", used


def _recent(commands: list[str], room: int) -> str:
    """The last commands that fit into `room` tokens; a mark replaces the older ones."""
    recent: list[str] = []
    for command in reversed(commands):
        room -= count_short(command) + 1
        if room < 0:
            recent.append("...")
            break
        recent.append(command)
    return "; ".join(reversed(recent)) or "none"
