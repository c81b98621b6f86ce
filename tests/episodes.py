"""Lines of episodes.jsonl for tests: hostile texts, and many episodes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=alert(1)>",
    "<!-- <script>",
    "]]><svg onload=alert(1)>",
    "<a href='javascript:alert(1)'>x</a>",
    '" onmouseover="alert(1)',
    "{{script}} {{index}} ${alert(1)} `",
    "<style>@import 'https://example.org/x'</style>",
    "<meta http-equiv=refresh content='0;url=https://example.org'>",
    "\u0000\u0007\u001b[2J\u007f\u0085",
    "\u2028\u2029\u202ereversed\u2066\u200b\ufeff",
    "half \ud800 a pair \udfff",
    "&lt;b&gt; &amp; &#60;script&#62;",
    "__proto__",
    "constructor",
)


def episode(text: str, **other: Any) -> dict[str, Any]:
    """An episode that says `text` wherever a model or a user may."""
    turn = {
        "seen": text,
        "reflection": text,
        "choices": [text, "b"],
        "probabilities": [0.7, 0.3],
        "action": 0,
        "said": text,
        "reward": -0.05,
        "value": 0.5,
        "advantage": 0.25,
        "tokens": 1,
        "info": {text: [text, {text: text}]},
    }
    facts = {"name": "SFT", "env": "taxi", "level": "full", "task": text, "group": text, "seed": 3719286943977263176}
    ended = {
        "status": "completed",
        "success": True,
        "return": -0.05,
        "reason": text,
        "figures": {text: 1.5},
        "data": {text: text},
    }
    return facts | ended | {"turns": [turn]} | other


POLICY = "You work at a service desk.\n1. Find out who the user is.\n2. Ask before each change."


def conversation(text: str = "It is fine.", **other: Any) -> dict[str, Any]:
    """A conversation of five turns that says `text` wherever a model, a user or a tool may: a reply, a call with its
    result, a refused call, several calls at once, and a last reply; with reflections, reasoning and a verdict.
    """
    lookup = {"name": "get_order", "arguments": {"order": "W17", "note": text}}
    change = {"record": "W17", "field": "status", "before": "pending", "after": "cancelled"}
    turns: list[dict[str, Any]] = [
        {
            "messages": [{"role": "system", "content": POLICY}, {"role": "user", "content": f"Hello. {text}"}],
            "reflection": f"Nobody has said who they are. {text}",
            "said": f"<think>An order. {text}</think>\n\nWho are you?",
        },
        {"messages": [{"role": "user", "content": text}], "calls": [lookup], "said": 'get_order {"order": "W17"}'},
        {
            "messages": [{"role": "tool", "content": json.dumps({"status": "pending", "note": text}), "name": text}],
            "reflection": text,
            "calls": [{"name": text, "arguments": {text: text}}],
            "said": f"{text} {{}}",
            "info": {"refused": 1, text: text},
        },
        {
            "messages": [{"role": "tool", "content": text, "name": text}],
            "said": f"{text}</think> {text}",
            "info": {"refused": 2},
        },
        {"messages": [{"role": "tool", "content": text}], "said": f"<think>{text}", "tokens": 7},
    ]
    verdict = {
        "figures": {"wrong_change": 1.0, "missing_change": 1.0, "gave_up": 0.0, text: 0.5},
        "success": False,
        "changes": [
            change,
            change | {"record": text, "after": text},
            change | {"field": "paid", "after": {"b": 1, "a": 2}},
        ],
        "expected": [
            change | {"after": "returned"},
            change | {"record": "W18", "after": [text]},
            change | {"field": "paid", "after": {"a": 2, "b": 1}},
        ],
        "untold": ["12.50", text],
    }
    turns[-1]["info"] = verdict
    facts = {"name": "SFT", "env": "support", "level": "one", "task": f"one-{len(text)}", "seed": 7}
    ended = {"status": "completed", "success": False, "return": 0.0, "figures": verdict["figures"]}
    ending = [{"role": "user", "content": f"Goodbye. {text}"}]
    return facts | ended | {"turns": [{"reward": 0.0, **turn} for turn in turns], "ending": ending} | other


def write(folder: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """An episodes.jsonl of `rows` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "episodes.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for row in rows:
            lines.write(json.dumps(row) + "\n")
    return file
