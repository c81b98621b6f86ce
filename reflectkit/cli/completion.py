"""Completion in the shell, which asks through environment variables what may follow: typer answers for commands and
flags, `stages.shared.completing` for their values.

Bash breaks words at "=" and ":", as in `NAME=CHECKPOINT` and `openai:MODEL`; here they are put together again, and only
what follows the break is answered.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Any

from reflectkit.core.text import visible

ASKED = "_REFLECTKIT_COMPLETE"
BREAKS = re.compile(r"[=:]+")
LONGEST_NUMBER = 7  # digits
SPECIAL = re.compile(r"([^\w@%+=:,./~-])")


def asked() -> bool:
    """Whether a shell asks for completions, with this process for an answer."""
    return os.environ.get(ASKED, "").startswith("complete_")


def complete(answer: Callable[[], object]) -> int:
    """Print what `answer`, which runs typer's own completion, prints; what it raises is no matter for the prompt of a
    shell.
    """
    bash = os.environ[ASKED] == "complete_bash"
    word = _join_words() if bash else ""
    with contextlib.redirect_stdout(io.StringIO()) as lines, contextlib.redirect_stderr(io.StringIO()):
        code: object = 1
        try:
            answer()
        except SystemExit as leaving:
            code = leaving.code
        except Exception:
            return 1
    start = max((match.end() for match in BREAKS.finditer(word)), default=0)
    for line in lines.getvalue().splitlines():
        parts = line[start:] if bash and line.startswith(word[:start]) else line
        shown = SPECIAL.sub(r"\\\1", parts) if bash else "\t".join(map(visible, parts.split("\t")))
        sys.stdout.write(f"{shown}\n")  # with the tabs, at which fish divides it
    return code if isinstance(code, int) else 0


def _join_words() -> str:
    """Join in the environment the words that bash has broken; returns the value that is being written, without its
    flag.
    """
    text, cursor = os.environ.get("COMP_WORDS", ""), os.environ.get("COMP_CWORD", "")
    words = text.split("\n" if "\n" in text else " ")
    current = int(cursor) if cursor.isdecimal() and len(cursor) < LONGEST_NUMBER else 0
    words = words[: current + 1] if current < len(words) else [*words, ""]
    joined = words[:1]
    for word in words[1:]:
        if len(joined) > 1 and (BREAKS.fullmatch(word) or BREAKS.fullmatch(joined[-1][-1:])):
            joined[-1] += word
        else:
            joined.append(word)
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(joined), str(len(joined) - 1)
    with contextlib.suppress(ValueError):
        last = (shlex.split(joined[-1]) or [""])[-1]
        return last.partition("=")[2] if last.startswith("--") else last
    return ""


def completer(
    stage: str, setting: str, arguments: Mapping[str, str]
) -> Callable[[Any, str], list[tuple[str, str] | str]]:
    """The function that typer asks for the values of `setting`. arguments: those of the command, by name, as typer has
    none while the last flag is without its value.
    """

    def complete(ctx: Any, incomplete: str) -> list[tuple[str, str] | str]:
        from reflectkit.stages.shared.completing import Begun, values

        given: dict[str, Any] = {**arguments} | {name: value for name, value in ctx.params.items() if value is not None}
        return [(value, about) if about else value for value, about in values(Begun(stage, given, incomplete), setting)]

    return complete
