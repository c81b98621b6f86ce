"""The verdict on a conversation, in words: why it failed, how the records differ, and what the user was not told.

An env reports it in the info of its last step: `figures`, where each that is not 0 is a reason; `changes` and
`expected`, lists of `{record, field, before, after}`; and `untold`, a list of facts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from reflectkit.core.types import Trajectory

LONGEST = 200  # characters of a value


def verdict_text(trajectory: Trajectory) -> str:
    """The verdict in lines; empty where the env reports none."""
    if not trajectory.turns or not trajectory.turns[-1].observation.replies:
        return ""
    info = trajectory.turns[-1].info
    reasons = [name.replace("_", " ") for name, value in trajectory.figures.items() if value]
    lines = [] if trajectory.success or not reasons else [f"Why: {', '.join(reasons)}."]
    lines += [f"  {line}" for line in differences(info.get("changes") or (), info.get("expected") or ())]
    untold = info.get("untold") or ()
    return "\n".join([*lines, *([f"Not told to the user: {'; '.join(map(str, untold))}."] if untold else [])])


def differences(changes: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each field that was changed, or was to be.

    >>> change = {"record": "W1", "field": "status", "before": "pending", "after": "cancelled"}
    >>> differences([change], [change])
    ['right: W1 status pending → cancelled']
    >>> differences([], [change])
    ['missing: W1 status pending → cancelled']
    """
    made, right = ({(one["record"], one["field"]): one for one in some} for some in (changes, expected))
    lines = []
    for key in {**right, **made}:
        if key not in made:
            lines.append(f"missing: {_change(right[key])}")
        elif key not in right:
            lines.append(f"forbidden: {_change(made[key])}")
        elif made[key]["after"] == right[key]["after"]:
            lines.append(f"right: {_change(made[key])}")
        else:
            lines.append(f"wrong: {_change(made[key])}; it should be {_value(right[key]['after'])}")
    return lines


def _change(change: Mapping[str, Any]) -> str:
    return f"{change['record']} {change['field']} {_value(change['before'])} → {_value(change['after'])}"


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
