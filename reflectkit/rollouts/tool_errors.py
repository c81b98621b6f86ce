"""Tools of a user's class that fail by an error of their own code: reported once, and how to end a
run of them.

The agent reads every error as the tool's answer, as in TRL, so a mistake in the code would be
trained on for hours.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from reflectkit.errors import user_code_line
from reflectkit.types import Trajectory

CODE_ERROR_KEY = "raised"
"""In a turn's info: the errors of the code of each tool that was called, by its name."""
CODE_ERRORS = (AttributeError, ImportError, NameError, RuntimeError, TypeError)
"""Errors of code, and not of its arguments. A tool tells the agent of its arguments with others, such as ValueError."""


def code_error(error: Exception) -> str:
    """`error` in words, with its place, if it is one of the tool's code; else "". One in code that
    was an argument, as of a calculator that calls `eval`, is not.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if not isinstance(error, CODE_ERRORS) or (frames and frames[-1].filename == "<string>"):
        return ""
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    place = user_code_line(error)
    return f"{place}: {text}" if place else text


@dataclass
class ToolErrors:
    """Reports of each tool once that its code raised an error."""

    notify: Callable[[str], None]
    reported_tools: set[str] = field(default_factory=set)

    def see(self, trajectory: Trajectory) -> None:
        """Report the tools of an episode."""
        for turn in trajectory.turns:
            for tool, errors in turn.info.get(CODE_ERROR_KEY, {}).items():
                if tool not in self.reported_tools:
                    self.reported_tools.add(tool)
                    reads = "raised an error, which the agent reads as its answer"
                    self.notify(f"tool {tool}() {reads}: {errors[0]}")


def broken_tool(trajectories: Iterable[Trajectory]) -> str:
    """Which tool raised the same error in all its calls, two at least, and what to do; "" if there
    is none.
    """
    # 1. The calls of each tool, and the errors
    calls: Counter[str] = Counter()
    errors_of: dict[str, list[str]] = {}
    for trajectory in trajectories:
        for turn in trajectory.turns:
            calls.update(call.name for call in getattr(turn.decision.action, "calls", ()))
            for tool, errors in turn.info.get(CODE_ERROR_KEY, {}).items():
                errors_of.setdefault(tool, []).extend(errors)

    # 2. One that never worked
    for tool, errors in errors_of.items():
        if len(set(errors)) == 1 and len(errors) == calls[tool] >= 2:
            same = f"raised the same error in all its {len(errors)} calls: {errors[0]}"
            fix = "correct it, or raise ValueError for what the agent is to read"
            return f"tool {tool}() {same}; {fix}"
    return ""
