"""What a perfect teacher says on a walk: what is asked, what was read and what it says of it, where to look next."""

from __future__ import annotations

import random
from pathlib import PurePosixPath

from reflectkit.core.text import WORD, keywords, stem
from reflectkit.envs.autoexplore.commands import UP
from reflectkit.envs.autoexplore.repo import Folder

NAMED = 4  # words of the question that a comment repeats
ASKED = ("The question asks about {words}.", "It is about {words}.")
FOUND = ("{file} mentions {words}: it answers the question.", "{file} has {words}, so it is the answer.")
FOUND_SILENT = ("{file} answers the question.", "{file} is the answer.")
NOT_HERE = ("{file} does not answer it.", "{file} is not the answer.")
WRONG = ("Reading it was a mistake.", "That was a wrong choice.")
STRAYED = ("Coming here was a mistake.", "This was the wrong way.")
TO_FILE = ("{name} may say it.", "{name} looks right.")
TO_FOLDER = ("Folder {name} fits.", "It should lie in {name}.")
TO_TOP = ("Nothing here fits.", "It lies elsewhere.")


def write_reflection(
    question: str, read: str | None, output: str, folder: Folder, following: str, mistaken: bool, generator: random.Random
) -> str:
    """One line on a state.

    read: path of the file that the last command showed, or None. output: its text. following: the best next command.
    mistaken: whether the last command was a mistake.
    """
    asked = asked_words(question)
    name = following.partition(" ")[2]
    parts = []
    if read is None:
        if mistaken:
            parts.append(generator.choice(STRAYED))
        else:
            parts.append(generator.choice(ASKED).format(words=", ".join(asked[:NAMED]) or "something"))
    else:
        file = PurePosixPath(read).name
        if following == f"id {file}":
            held = set(keywords(output))
            shared = [word for word in asked if stem(word.lower()) in held]
            wording = generator.choice(FOUND if shared else FOUND_SILENT)
            return wording.format(file=file, words=", ".join(shared[:NAMED]))
        parts.append(generator.choice(NOT_HERE).format(file=file))
        if mistaken:
            parts.append(generator.choice(WRONG))
    if following == UP:
        parts.append(generator.choice(TO_TOP))
    else:
        parts.append(generator.choice(TO_FOLDER if name in folder.folders else TO_FILE).format(name=name))
    return " ".join(parts)


def asked_words(question: str) -> list[str]:
    """The words that a question is about, as they stand in it."""
    as_written = {stem(word.lower()): word for word in reversed(WORD.findall(question))}
    return [as_written[word] for word in keywords(question)]
