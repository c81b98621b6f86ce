"""A perfect teacher's comments: what the question asks, what the last output says about it, and where to look next.

A comment goes through the words of the question one by one, each with the place in the output that has it. The verdict
then follows from the text before it, which is easier for a small model that writes the comment token by token.
"""

from __future__ import annotations

import random
import re
from pathlib import PurePosixPath

from reflectkit.envs.auto_explore.repository import UP, Folder
from reflectkit.text import WORD, keywords, stem, words

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
