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
    can_be_named,
    find_repository,
    shortest_path,
)
from reflectkit.errors import DataError
from reflectkit.seeding import uniform
from reflectkit.text import WORD, count_short, count_tokens, keywords, shorten, stem, words
from reflectkit.types import Message, Observation, StateQuestion, Task, Trajectory

WORDS_IN_COMMENT = 4  # of the question, to look for in an output
NAME = re.compile(r"\w+")
LONGEST_PLACE = 40  # characters of a quotation
TOPIC = ("The question is about {words}.", "It is about {words}.")
RIGHT_FILE = ("{file} answers it.", "{file} is the answer.")
WRONG_FILE = ("{file} does not answer it.", "{file} is not the answer.")
WRONG = ("Reading it was a mistake.", "That was the wrong choice.")
WRONG_WAY = ("Coming here was a mistake.", "This is the wrong way.")
TO_FILE = ("{name} may answer it.", "{name} looks right.")
TO_FOLDER = ("Folder {name} looks right.", "It should be in {name}.")
TO_TOP = ("Nothing here fits.", "It is elsewhere.")


def places_of_words(output: str) -> dict[str, str]:
    """The first place of each word's stem in `output`: the name that has it, up to the end of the
    next name on its line.

    >>> places_of_words("id,late_fee,days\\nLate again")
    {'id': 'id,late_fee', 'late': 'late_fee,days', 'fee': 'late_fee,days', 'day': 'days', 'again': 'again'}
    """
    places: dict[str, str] = {}
    for line in output.splitlines():
        for name in NAME.finditer(line):
            end = name.end()
            next_name = NAME.search(line, end)
            # Without the next name if the quotation would be too long
            if next_name and next_name.end() - name.start() <= LONGEST_PLACE:
                end = next_name.end()
            for word in words(name[0]):
                places.setdefault(stem(word), line[name.start() : end])
    return places


def question_words(question: str) -> list[str]:
    """The content words of a question, as written.

    >>> question_words("Where are the late Fees of a loan set?")
    ['late', 'Fees', 'loan']
    """
    as_written = {stem(word.lower()): word for word in reversed(WORD.findall(question))}
    return [as_written[word] for word in keywords(question)]


def share_of(keys: Sequence[str], text: str) -> float:
    """The share of the keywords `keys` that `text` has.

    >>> share_of(["late", "fee"], "fees.py")
    0.5
    """
    stems = {stem(word) for word in words(text)}
    return sum(key in stems for key in keys) / max(1, len(keys))


HERE = StateQuestion("here", "Is the answer in this folder?", ("yes", "no"))
READ = StateQuestion("read", "Has the file with the answer been shown?", ("yes", "no"))
ALL = "all"
STEP, ERROR, WARNING = 1, 2, 1
"""Cost of a step, and of each error and warning in its output. The published code's for these two
never occur.
"""
SOLVED_BELOW = 0.01
# The keyword player and a searcher name a file with this share of the question's words
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
        0.0,
        help="Share of unrelated files that each episode leaves out at random.",
        ge=0,
        le=1,
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

    def input_files(
        self,
        settings: Any,
        folder: Path,
        tasks: Sequence[Task],
    ) -> list[Path]:
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
        command = self.env.way(self.env.walk.here)[0]
        return self.env.commands.index(command) if command in self.env.commands else 0

    def answers(self) -> dict[str, list[int]]:
        """The right command, whether the folder has the answer, and whether it was read."""
        env = self.env
        inside = any(target.rpartition("/")[0] == env.walk.here for target in env.targets)
        was_read = any(path in env.targets for path in env.walk.reads)
        return {
            LIKELY.name: [self.action()],
            HERE.name: [int(not inside)],
            READ.name: [int(not was_read)],
        }

    def mistakes(self) -> list[int]:
        """Everything but the right command and naming a file."""
        best = self.action()
        indices = []
        for index, command in enumerate(self.env.commands):
            # Naming a file would end the episode
            if index != best and not command.startswith("id "):
                indices.append(index)
        return indices

    def slips(self) -> list[int]:
        """The mistake that a negative example makes once: reading another file when a target should
        be read next.
        """
        commands = self.env.commands
        # Once: none after another file has been read
        read_another = any(path not in self.env.targets for path in self.env.walk.reads)
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
        env, is_mistake = self.env, self.note() == "mistake"
        topic = question_words(env.question)[:WORDS_IN_COMMENT]
        command = env.commands[self.action()]
        name = command.partition(" ")[2]
        parts = []
        # 1. After `cat`: where the output has the question's words, and whether it is the answer
        if env.history and env.history[-1].startswith("cat "):
            file = PurePosixPath(env.walk.reads[-1]).name
            places = places_of_words(env.output_text)
            evidence = []
            for word in topic:
                place = places.get(stem(word.lower()))
                evidence.append(f'{word} in "{place}"' if place else f"no {word}")
            parts.append(f"{', '.join(evidence)}.")
            if command == f"id {file}":
                return " ".join([*parts, generator.choice(RIGHT_FILE).format(file=file)])
            parts.append(generator.choice(WRONG_FILE).format(file=file))
            if is_mistake:
                parts.append(generator.choice(WRONG))
        # 2. After another command: what the question is about
        else:
            if is_mistake:
                parts.append(generator.choice(WRONG_WAY))
            parts.append(generator.choice(TOPIC).format(words=", ".join(topic) or "something"))
        # 3. Where to go
        advice = TO_FOLDER if name in env.walk.folder.folders else TO_FILE
        if command == UP:
            advice = TO_TOP
        return " ".join([*parts, generator.choice(advice).format(name=name)])

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
        if not cls.is_demonstration(trajectory) or trajectory.success:
            return ""
        return (
            "a wrong file is named, which gives no rows; use --accept-teacher-answers to include"
            " them"
        )


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

    def next_command(
        self,
        history: Sequence[str],
        commands: Sequence[str] | None = None,
    ) -> str:
        """The command after those of `history`. commands: the choices then; None: all."""
        env = self.env
        keys = keywords(env.question)

        # 1. The folders that were visited, and how well each file that was read matches
        walk = Walk(env.repository, env.settings.result_tokens, env.walk.hidden)
        match_of: dict[str, float] = {}
        visits = {walk.here: walk.folder}
        for command in history:
            output = walk.run(command)
            if command.startswith("cat ") and isinstance(output, Output):
                text = f"{command.removeprefix('cat ')} {output.text}"
                match_of[walk.reads[-1]] = share_of(keys, text)
            visits.setdefault(walk.here, walk.folder)
        commands = commands or walk.commands()

        # 2. Name the file that was just read
        last = history[-1] if history else ""
        if last.startswith("cat ") and match_of[walk.reads[-1]] >= ENOUGH:
            return last.replace("cat ", "id ", 1)

        # 3. Name the best file if there is nothing more to see, or no time
        new_commands = []
        for command in commands:
            verb, _, name = command.partition(" ")
            enters = verb == "cd" and command != UP and walk.path(name) not in visits
            if verb == "cat" or enters:
                new_commands.append(command)
        paths = set()
        for folder in visits.values():
            paths |= {f"{folder.path}/{name}".lstrip("/") for name in folder.folders}
        file_count = sum(len(folder.files) for folder in visits.values())
        is_complete = paths <= set(visits) and len(match_of) == file_count
        if match_of:
            best = max(match_of, key=match_of.__getitem__)
            back = shortest_path(best, walk.here, read=True)
            is_late = env.horizon - len(history) <= len(back) + 1
            is_stuck = not new_commands and not walk.here
            if back[0] in commands and (is_complete or is_late or is_stuck):
                return back[0]

        # 4. Search on: the name with most of the words; of equals, files come before folders
        if new_commands:
            return max(
                new_commands,
                key=lambda command: (
                    share_of(keys, command.partition(" ")[2]),
                    command.startswith("cat "),
                ),
            )
        return UP if UP in commands else commands[0]


class AutoExplore(Env):
    """Find the file of a code repository that answers a question, with ls, cd and cat.

    See the module's text for the rules, and `AutoExploreSettings`.
    """

    name: ClassVar[str] = "auto_explore"
    answers_with = "label"
    taskset: ClassVar[Taskset] = Questions()
    teacher_type: ClassVar[type[Teacher]] = AutoExploreTeacher
    levels: ClassVar[tuple[str, ...]] = (*(str(depth) for depth in range(DEEPEST + 1)), ALL)
    """Depth of the target's folder; "all" is any depth."""
    horizons: ClassVar[dict[str, int]] = dict.fromkeys(levels, 15)
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
        # 1. The question
        check_task(task, self.name, self.levels[:-1])
        question = read_question(task.data, task.id)
        folder = (self.data_folder or Path("data/auto_explore")) / REPOSITORIES
        self.repository = find_repository(self.settings.repos_dir or folder, question.root)
        self.question = " ".join(question.question.split())
        tokens = count_short(self.question)
        if tokens > self.settings.prompt_tokens * QUESTION_SHARE:
            why = f"takes {tokens} of {self.settings.prompt_tokens} --prompt-tokens"
            raise DataError(task.id, why, field="question")
        # 2. The files that answer it, which must be within reach
        target, root = question.filename, self.repository.root
        if target not in self.repository.sizes:
            raise DataError(
                task.id,
                f"the repository {root} has no file {target!r:.200}",
                field="filename",
            )
        if not can_be_named(self.repository, target):
            why = f"{target!r:.200} lies in a folder with too many entries to be named"
            raise DataError(task.id, why, field="filename")
        if task.level != str(target.count("/")):
            raise DataError(task.id, f"{target!r:.200} is not at depth {task.level}", field="level")
        others = []
        if self.settings.accept_teacher_answers:
            others = task.data.get("teacher_answers", [])
        if not isinstance(others, list) or not all(isinstance(name, str) for name in others):
            raise DataError(task.id, "expected a list of file names", field="teacher_answers")
        others = [name for name in others if can_be_named(self.repository, name)]
        self.targets = frozenset([target, *others])
        if self.settings.easy:
            self.question = f"Find {question.filename}"

        # 3. The walk, without the files that the episode leaves out
        def is_hidden(path: str) -> bool:
            if path in self.targets:
                return False
            return uniform(seed, "leaveout", path) < self.settings.leaveout_prob

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
        # 1. Run the command
        command = self.commands[check_choice(action, self.commands, self.name)]
        on_the_way = self.settings.first_step and command == self.way(self.walk.here)[0]
        self.before = self.walk.here, len(self.walk.reads)
        result = self.walk.run(command)
        self.history.append(command)
        # `id` gives the path that it names, other commands an output
        answer = result if isinstance(result, str) else None
        self._output = Output() if isinstance(result, str) else result
        # 2. Its cost
        cost = STEP + ERROR * self._output.errors + WARNING * self._output.warnings
        info: dict[str, Any] = {}
        over = self.settings.first_step or answer is not None
        if self.settings.first_step:
            cost += -self.horizon if on_the_way else self.horizon
        elif answer is not None:
            info |= {"answer": answer, "figures": {"named": 1.0}}
            cost += -self.horizon if answer in self.targets else self.horizon
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
        # 1. What the prompt says
        head, _, output = self.prompt().partition("\nOutput:")
        fields = dict(line.split(": ", 1) for line in head.splitlines())
        keys, history = keywords(fields["Task"]), fields["Commands"].split("; ")
        choices = self.commands
        # 2. Name the file that was just read
        verb, _, file = history[-1].partition(" ")
        if verb == "cat" and share_of(keys, f"{file} {output}") >= ENOUGH:
            return choices.index(f"id {file}")
        # 3. Read another file, or enter another folder
        new_commands = []
        for command in choices:
            enters = command.startswith("cd ") and command not in (UP, *history)
            if command.startswith("cat ") or enters:
                new_commands.append(command)
        if new_commands:
            best = max(
                new_commands,
                key=lambda command: (share_of(keys, command), command.startswith("cat ")),
            )
            return choices.index(best)
        return choices.index(UP) if UP in choices else len(choices) - 1

    def way(self, here: str, read_count: int | None = None) -> list[str]:
        """The commands of the shortest path from folder `here` to naming a target, after the first
        `read_count` of the files that were read; None: after all of them.
        """
        reads = self.walk.reads[:read_count]
        ways = []
        for target in sorted(self.targets):
            ways.append(shortest_path(target, here, read=target in reads))
        return min(ways, key=len)

    def _observe(self) -> Observation:
        self.commands = self.walk.commands()
        if self.settings.force_answer and len(self.history) == self.horizon - 1:
            names = tuple(command for command in self.commands if command.startswith("id "))
            self.commands = names or self.commands
        return Observation((Message("user", self.prompt()),), self.commands)

    def prompt(self) -> str:
        """The prompt, within `prompt_tokens`; see the module's docstring for the priorities."""
        # 1. The task and the choices come first, and are whole
        start = f"Task: {self.question}\nFolder: /{self.walk.here}\n"
        room = self.settings.prompt_tokens - count_short(start) - HEADINGS
        room -= sum(count_short(command) + 2 for command in self.commands)
        # 2. The listing gets at most half of the room that is left, rounded, as it is cached
        most = max(room // 2 // ROUNDING * ROUNDING, FEWEST_NAMES)
        listing, tokens = _listing(self.walk.folder, most)
        room -= tokens
        # 3. Then the output, and the commands get the rest
        self.output_text, tokens = self._shorten_output(room)
        commands = _recent(self.history, room - tokens)
        return f"{start}Files: {listing}\nCommands: {commands}\nOutput:{self.output_text}"

    def _shorten_output(self, room: int) -> tuple[str, int]:
        """The last output, indented, and its tokens."""
        text, most = self._output.text.strip("\n"), self.settings.result_tokens
        if not text:
            return " none", 1
        budget = most if room >= most else max(room, 0) // ROUNDING * ROUNDING
        lines = (text if budget == most else shorten(text, budget)).split("\n")
        output = "".join(f"\n {line.rstrip()}" for line in lines if line.strip())
        return output, count_tokens(output)


@lru_cache(maxsize=10_000)
def _listing(folder: Folder, room: int) -> tuple[str, int]:
    """As many names as fit, the number of omitted ones, and the tokens of the text."""
    names = [*(f"{name}/" for name in folder.folders), *folder.files]
    tokens = 0
    visible: list[str] = []
    for name in names:
        tokens += count_short(name) + 1
        if tokens > room and visible:
            rest = len(names) - len(visible)
            return ", ".join(visible) + f", and {rest} more", tokens + 3
        visible.append(name)
    return ", ".join(visible) or "none", tokens


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
