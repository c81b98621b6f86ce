"""Episodes as an eval log for Inspect (https://inspect.aisi.org.uk/eval-logs.html), shown by `inspect view`.

One log is one player at one level of one run. A sample is an episode, and an epoch is a repeat of its task. The
observation is a user message; a conversation keeps its messages and calls. The reflection is the reasoning of the
answer. Reward, value, advantage, probabilities and info are the answer's metadata.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import IO, Any

from reflectkit.data.conversations import PlayedMessage
from reflectkit.data.episodes import Played, PlayedTurn
from reflectkit.types import Status
from reflectkit.version import VERSION

VERSION_OF_LOG = 2
HALVES = re.compile("[\ud800-\udfff]")
LENGTH = 22  # characters of an id, as in Inspect


class Log:
    """A log that is being written.

    run: the run's name. created: when it was made. settings: from its config.json. samples: a temporary file for the
    samples as they arrive.
    """

    def __init__(
        self, run: str, created: datetime.datetime, settings: Mapping[str, Any], first: Played, samples: IO[bytes]
    ) -> None:
        self.run, self.created, self.settings, self.samples = run, created, dict(settings), samples
        self.task = f"{first.env or 'episodes'}-{first.level}" if first.level else first.env or "episodes"
        self.player = first.name or "unknown"
        self.epochs: dict[str, int] = {}
        self.count, self.counted, self.successes, self.returns = 0, 0, 0, 0.0

    @property
    def name(self) -> str:
        """The file name that Inspect expects: time, task, id."""
        task = re.sub(r"[^A-Za-z0-9-]+", "-", self.task)[:60]
        return f"{self.created.strftime('%Y-%m-%dT%H-%M-%S')}+00-00_{task}_{self._id('log')}.json"

    def add(self, episode: Played) -> None:
        """Add an episode as a sample."""
        epoch = self.epochs[episode.task] = self.epochs.get(episode.task, 0) + 1
        self.samples.write((b",\n" if self.count else b"") + _bytes(_sample(episode, epoch, self.player)))
        self.count += 1
        if episode.status != Status.ABORTED:
            self.counted += 1
            self.successes += bool(episode.success)
            self.returns += episode.total_return or 0.0

    def write(self, file: IO[bytes]) -> None:
        """Write the whole log."""
        file.write(_bytes(self._head())[:-1] + b',"samples":[\n')
        self.samples.seek(0)
        while part := self.samples.read(2**20):
            file.write(part)
        file.write(b"\n]}\n")

    def _id(self, what: str) -> str:
        return hashlib.sha256(repr((what, self.run, self.task, self.player)).encode()).hexdigest()[:LENGTH]

    def _head(self) -> dict[str, Any]:
        when = self.created.isoformat(timespec="seconds")
        counted = max(1, self.counted)
        scores = {"success": self.successes / counted, "return": self.returns / counted}
        return {
            "version": VERSION_OF_LOG,
            "status": "success",
            "eval": {
                "eval_id": self._id("eval"),
                "run_id": self._id("run"),
                "created": when,
                "task": self.task,
                "task_id": self._id("task"),
                "dataset": {"name": self.task, "samples": len(self.epochs), "sample_ids": list(self.epochs)},
                "model": f"reflectkit/{self.player}",
                "config": {"epochs": max(self.epochs.values(), default=1)},
                "packages": {"reflectkit": VERSION},
                "metadata": {"run": self.run, "settings": self.settings},
            },
            "plan": {"name": "plan", "steps": [], "config": {}},
            "results": {
                "total_samples": self.count,
                "completed_samples": self.counted,
                "scores": [
                    {"name": name, "scorer": name, "metrics": {"mean": {"name": "mean", "value": value}}}
                    for name, value in scores.items()
                ],
            },
            "stats": {"started_at": when, "completed_at": when, "model_usage": {}},
        }


def _sample(episode: Played, epoch: int, player: str) -> dict[str, Any]:
    messages = _messages(episode)
    answers = [message for message in messages if message["role"] == "assistant"]
    value = float(bool(episode.success))
    facts = {"level": episode.level, "group": episode.group, "seed": episode.seed, "status": episode.status}
    sample: dict[str, Any] = {
        "id": episode.task,
        "epoch": epoch,
        "input": _input(episode),
        "target": "",
        "messages": messages,
        "output": {
            "model": f"reflectkit/{player}",
            "choices": [{"message": answers[-1], "stop_reason": "stop"}] if answers else [],
        },
        "scores": {
            "success": {
                "value": value,
                "answer": episode.turns[-1].said if episode.turns else None,
                "explanation": episode.reason or None,
            },
            "return": {"value": episode.total_return or 0.0},
        },
        "metadata": facts | {"figures": _loaded(episode.figures), "data": _loaded(episode.data)},
    }
    if episode.status == Status.ABORTED:
        sample["error"] = {"message": episode.reason or "aborted", "traceback": "", "traceback_ansi": ""}
    return sample


def _input(episode: Played) -> str | list[dict[str, Any]]:
    first = episode.turns[0] if episode.turns else None
    messages = _read(first.messages if first and first.messages else episode.ending, ())
    return messages or (first and first.seen) or ""


def _messages(episode: Played) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    ids: list[str] = []
    for number, turn in enumerate(episode.turns):
        if turn.seen is not None:
            messages.append({"role": "user", "content": turn.seen})
        messages += _read(turn.messages or (), ids)
        ids = [f"{number}-{place}" for place in range(len(turn.calls or ()))]
        messages.append(_answer(turn, ids))
    return messages + _read(episode.ending, ids)


def _read(messages: Sequence[PlayedMessage], ids: Sequence[str]) -> list[dict[str, Any]]:
    """What the agent reads. ids: of its last calls, whose results come in the same order."""
    waiting = iter(ids)
    rows = []
    for message in messages:
        row = {"role": message.role, "content": message.content}
        if message.role == "tool":
            row |= {"function": message.name, "tool_call_id": next(waiting, "none")}
        rows.append(row)
    return rows


def _answer(turn: PlayedTurn, ids: Sequence[str]) -> dict[str, Any]:
    numbers = {
        "reward": turn.reward, "value": turn.value, "advantage": turn.advantage, "choices": turn.choices,
        "probabilities": turn.probabilities, "info": _loaded(turn.info),
    }  # fmt: skip
    content: Any = turn.said or ""
    if turn.reflection is not None:
        content = [{"type": "reasoning", "reasoning": turn.reflection}, {"type": "text", "text": content}]
    answer = {
        "role": "assistant",
        "content": content,
        "source": "generate",
        "metadata": {name: value for name, value in numbers.items() if value is not None},
    }
    calls = [
        {"id": name, "function": call.name, "arguments": _loaded(call.arguments), "type": "function"}
        for name, call in zip(ids, turn.calls or (), strict=True)
    ]
    return answer | {"tool_calls": calls} if calls else answer


def _loaded(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _bytes(value: object) -> bytes:
    """JSON in UTF-8. Half a surrogate pair, which Inspect cannot read, becomes U+FFFD."""
    return HALVES.sub("\ufffd", json.dumps(value, ensure_ascii=False, separators=(",", ":"))).encode()
