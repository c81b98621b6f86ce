"""A perfect teacher's comments: what the question asks, what the last output says about it, and where to look next.

The words of the question are gone through one by one, so that the verdict follows from what stands before it: a small
model that writes such a comment token by token has less to see at once than one that must judge a file in a single
step.
"""

from __future__ import annotations

import random
from pathlib import PurePosixPath

from reflectkit.core.text import WORD, keywords, stem
from reflectkit.envs.autoexplore.commands import UP
from reflectkit.envs.autoexplore.repo import Folder

NAMED = 4  # number of the question's words that a comment checks
ASKED = ("The question asks about {words}.", "It is about {words}.")
FOUND = ("{file} answers it.", "{file} is the answer.")
NOT_HERE = ("{file} does not answer it.", "{file} is not the answer.")
WRONG = ("Reading it was a mistake.", "That was a wrong choice.")
STRAYED = ("Coming here was a mistake.", "This was the wrong way.")
TO_FILE = ("{name} may say it.", "{name} looks right.")
TO_FOLDER = ("Folder {name} fits.", "It should lie in {name}.")
TO_TOP = ("Nothing here fits.", "It lies elsewhere.")


def write_reflection(
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
        output_stems = set(keywords(output))
        parts.append(
            ", ".join(f"{word} {'yes' if stem(word.lower()) in output_stems else 'no'}" for word in asked_about) + "."
        )
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


def question_words(question: str) -> list[str]:
    """The content words of a question, as written.

    >>> question_words("Where are the late Fees of a loan set?")
    ['late', 'Fees', 'loan']
    """
    as_written = {stem(word.lower()): word for word in reversed(WORD.findall(question))}
    return [as_written[word] for word in keywords(question)]
