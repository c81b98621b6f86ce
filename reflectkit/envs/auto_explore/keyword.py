"""The keyword player: untrained, it looks for the question's words in names and in the last output.

It reads the prompt and the choices, as a policy does, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from reflectkit.envs.auto_explore.commands import UP
from reflectkit.text import keywords, stem, words

ENOUGH = 0.7
"""Share of the question's words that a file must have to be named."""


def keyword_choice(prompt: str, choices: Sequence[str]) -> int:
    """The index of the command to take: name the file just read if it has enough of the question's words; otherwise
    read the file, or enter the new folder, whose name has most of them; otherwise go up.
    """
    head, _, output = prompt.partition("\nOutput:")
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    asked, done = keywords(fields["Task"]), fields["Commands"].split("; ")
    verb, _, read = done[-1].partition(" ")
    if verb == "cat" and _share(asked, f"{read} {output}") >= ENOUGH:
        return choices.index(f"id {read}")
    new = [name for name in choices if name.startswith("cat ") or (name.startswith("cd ") and name not in (UP, *done))]
    if new:
        return choices.index(max(new, key=lambda name: (_share(asked, name), name.startswith("cat "))))
    return choices.index(UP) if UP in choices else len(choices) - 1


def _share(asked: Sequence[str], text: str) -> float:
    """The share of the words `asked` that are in `text`."""
    found = {stem(word) for word in words(text)}
    return sum(word in found for word in asked) / max(1, len(asked))
