"""A perfect teacher: the shortest path, and comments on what the question asks, what the last output says about it,
and where to look next.

A comment goes through the words of the question one by one, each with the place in the output that has it. The verdict
then follows from the text before it, which is easier for a small model that writes the comment token by token.
"""

from __future__ import annotations

import random
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from reflectkit.env import Teacher
from reflectkit.envs.auto_explore.repository import UP, Folder
from reflectkit.text import WORD, keywords, stem, words
from reflectkit.types import Trajectory

if TYPE_CHECKING:
    from reflectkit.envs.auto_explore.env import AutoExplore

NAMED = 4  # number of the question's words that a comment checks
NAME = re.compile(r"\w+")
LONGEST_PLACE = 40  # characters of a quotation
ASKED = ("The question asks about {words}.", "It is about {words}.")
FOUND = ("{file} answers it.", "{file} is the answer.")
NOT_HERE = ("{file} does not answer it.", "{file} is not the answer.")
WRONG = ("Reading it was a mistake.", "That was a wrong choice.")
STRAYED = ("Coming here was a mistake.", "This was the wrong way.")
TO_FILE = ("{name} may say it.", "{name} looks right.")
TO_FOLDER = ("Folder {name} fits.", "It should lie in {name}.")
TO_TOP = ("Nothing here fits.", "It lies elsewhere.")


class AutoExploreTeacher(Teacher):
    """What would be right in `AutoExplore`."""

    env: AutoExplore
    noise: ClassVar[float] = 0.0
    negatives: ClassVar[int] = 2

    def action(self) -> int:
        """The next command of the shortest path that reads a target and names it."""
        return self.env.commands.index(self.env.way(self.env.walk.here)[0])

    def mistakes(self) -> list[int]:
        """Everything but the right command and naming a file."""
        best = self.action()
        commands = enumerate(self.env.commands)
        return [index for index, command in commands if index != best and not command.startswith("id ")]

    def slips(self) -> list[int]:
        """The mistake that a negative example makes once: reading another file when a target should be read next."""
        commands = self.env.commands
        read_another = any(path not in self.env.targets for path in self.env.walk.shown)
        if read_another or not commands[self.action()].startswith("cat "):
            return []
        return [index for index in self.mistakes() if commands[index].startswith("cat ")]

    def note(self) -> str:
        """The mark of the last command: "" at the start, "good" if it was on a shortest path, else "mistake"."""
        if not self.env.history:
            return ""
        return "good" if self.env.history[-1] == self.env.way(*self.env.before)[0] else "mistake"

    def comment(self, generator: random.Random) -> str:
        """What the question asks, what the last output says about it as far as it is shown, and where to look."""
        env = self.env
        read = env.walk.shown[-1] if env.history and env.history[-1].startswith("cat ") else None
        following = env.commands[self.action()]
        return write_comment(
            env.question, read, env.shown_output, env.walk.folder, following, self.note() == "mistake", generator
        )

    @classmethod
    def drops_choices(cls, settings: Any) -> bool:
        """Whether files are left out: a file that a demonstration reads by mistake may be among them."""
        return bool(settings.leaveout_prob)

    @classmethod
    def is_demonstration(cls, trajectory: Trajectory) -> bool:
        """An episode that names a file."""
        return bool(trajectory.turns[-1].info.get("answer"))

    @classmethod
    def fault(cls, trajectory: Trajectory) -> str:
        """An episode that names a wrong file."""
        wrong = cls.is_demonstration(trajectory) and not trajectory.success
        why = "a wrong file is named, which gives no rows; use --accept-teacher-answers to include them"
        return why if wrong else ""


def write_comment(
    question: str,
    read: str | None,
    output: str,
    folder: Folder,
    following: str,
    mistaken: bool,
    generator: random.Random,
) -> str:
    """One line about a state.

    read: path of the file that the last command showed, or None. output: its text. following: the best next command.
    mistaken: whether the last command was a mistake.
    """
    asked_about = question_words(question)[:NAMED]
    name = following.partition(" ")[2]
    parts = []
    if read is None:
        if mistaken:
            parts.append(generator.choice(STRAYED))
        parts.append(generator.choice(ASKED).format(words=", ".join(asked_about) or "something"))
    else:
        file = PurePosixPath(read).name
        places = places_of_words(output)
        found = [(word, places.get(stem(word.lower()))) for word in asked_about]
        parts.append(", ".join(f'{word} in "{place}"' if place else f"{word} no" for word, place in found) + ".")
        if following == f"id {file}":
            return " ".join([*parts, generator.choice(FOUND).format(file=file)])
        parts.append(generator.choice(NOT_HERE).format(file=file))
        if mistaken:
            parts.append(generator.choice(WRONG))
    if following == UP:
        parts.append(generator.choice(TO_TOP))
    else:
        parts.append(generator.choice(TO_FOLDER if name in folder.folders else TO_FILE).format(name=name))
    return " ".join(parts)


def places_of_words(output: str) -> dict[str, str]:
    """The first place of each word's stem in `output`: the name that has it, up to the end of the next name on its
    line.

    >>> places_of_words("id,late_fee,days\\nLate again")
    {'id': 'id,late_fee', 'late': 'late_fee,days', 'fee': 'late_fee,days', 'day': 'days', 'again': 'again'}
    """
    places: dict[str, str] = {}
    for line in output.splitlines():
        for name in NAME.finditer(line):
            following = NAME.search(line, name.end())
            for word in words(name[0]):
                end = following.end() if following and following.end() - name.start() <= LONGEST_PLACE else name.end()
                places.setdefault(stem(word), line[name.start() : end])
    return places


def question_words(question: str) -> list[str]:
    """The content words of a question, as written.

    >>> question_words("Where are the late Fees of a loan set?")
    ['late', 'Fees', 'loan']
    """
    as_written = {stem(word.lower()): word for word in reversed(WORD.findall(question))}
    return [as_written[word] for word in keywords(question)]
