"""Episodes to look at: one self-contained HTML page, built from the files in `viewer/`, or logs for `inspect view`."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import IO, Any

from reflectkit.data.episodes import Played, PlayedCall, PlayedMessage, PlayedTurn
from reflectkit.types import Status, reports_success
from reflectkit.version import VERSION

FILES = ("page.html", "view.css", "conversation.js", "view.js")
BLOCK_CHARACTERS = 256 * 1024  # approximate size of a block's JSON
TURN_CHARACTERS = 60  # approximate size of a turn without its texts
COLUMNS = ("run", "player", "env", "level", "outcome", "task", "total_return", "steps")
TURN_FIELDS = (
    "seen", "reflection", "choices", "probabilities", "action", "said", "reward", "value", "advantage", "tokens",
    "info", "messages", "anew", "calls", "tools",
)  # fmt: skip
EPISODE_FIELDS = ("group", "seed", "status", "reason", "figures", "data", "ending")


@dataclass(frozen=True)
class Source:
    """A run to show."""

    name: str
    """Unique."""
    path: str
    settings: dict[str, Any] = field(default_factory=dict)
    """From its config.json, as JSON values."""
    rows: list[Any] = field(default_factory=list)
    """From its eval.json, as JSON values."""


class _Texts(dict[str, int]):
    """Numbers for texts; each text is stored once."""

    characters = 0

    def number(self, text: str) -> int:
        if text not in self:
            self[text] = len(self)
            self.characters += len(text)
        return self[text]

    def short(self, name: str, value: Any) -> Any:
        """A field with numbers for its texts: messages and calls keep their form, other lists and objects are JSON."""
        if name in ("messages", "ending", "calls"):
            return value if value is None else [self._parts(row) for row in value]
        if isinstance(value, list | dict):
            value = _json(value)
        return self.number(value) if isinstance(value, str) else value

    def _parts(self, row: PlayedMessage | PlayedCall) -> list[int]:
        return [self.short(name, value) for name, value in row]


def write_page(
    file: IO[bytes],
    sources: Sequence[Source],
    episodes: Iterable[tuple[int, Played]],
) -> int:
    """Write the page to `file`, with one block of episodes in memory at a time; returns the number of episodes.

    episodes: each with the index of its source.

    Model output never appears in the markup. It is JSON, deflated and base64-encoded: an index of all episodes, which
    is the table, and blocks of several episodes, which the page unpacks when one of them is opened. Each text appears
    once in a block, and turns refer to it by number. The content policy in the head allows only this script and this
    style sheet.
    """
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    index_texts = _Texts()
    starts = list[int]()
    with tempfile.TemporaryFile() as blocks:
        # 1. The blocks, which follow the index; that is complete only at the end
        for number, block in enumerate(_blocks(episodes, columns, index_texts, starts)):
            opening = b'<script type="text/plain" id="block-%d">' % number
            blocks.write(opening + _packed(block) + b"</script>\n")

        # 2. The index
        index = {
            "runs": [asdict(run) for run in sources],
            "texts": list(index_texts),
            "columns": columns,
            "blocks": starts,
            "episode_fields": EPISODE_FIELDS,
            "turn_fields": TURN_FIELDS,
        }

        # 3. The page
        before, after = _template(_packed(index).decode())
        file.write(before.encode())
        blocks.seek(0)
        shutil.copyfileobj(blocks, file)
        file.write(after.encode())
    return len(columns["run"])


def _blocks(
    episodes: Iterable[tuple[int, Played]],
    columns: dict[str, list[Any]],
    index_texts: _Texts,
    starts: list[int],
) -> Iterator[dict[str, Any]]:
    """Blocks of episodes. Adds each episode to the columns of the index, and each block's first episode to `starts`."""
    texts = _Texts()
    rows = list[Any]()
    turns = 0
    for source, episode in episodes:
        # 1. A row of the index
        if not rows:
            starts.append(len(columns["run"]))
        words = (episode.name, episode.env, episode.level, outcome(episode))
        numbers = map(index_texts.number, words)
        facts = (source, *numbers, episode.task, episode.total_return, len(episode.turns))
        for name, value in zip(COLUMNS, facts, strict=True):
            columns[name].append(value)

        # 2. A row of the block; the turns' texts get their numbers first
        turn_rows = []
        for turn in episode.turns:
            turn_rows.append([texts.short(name, getattr(turn, name)) for name in TURN_FIELDS])
        row = [texts.short(name, getattr(episode, name)) for name in EPISODE_FIELDS]
        rows.append([row, turn_rows])
        turns += len(episode.turns)

        # 3. The block, once it is full
        if texts.characters + turns * TURN_CHARACTERS > BLOCK_CHARACTERS:
            yield {"texts": list(texts), "episodes": rows}
            texts = _Texts()
            rows = []
            turns = 0
    if rows:
        yield {"texts": list(texts), "episodes": rows}


def outcome(episode: Played) -> str:
    """How the episode ended: success, failure, truncated, aborted or unknown."""
    if episode.status == Status.ABORTED:
        return "aborted"
    if episode.success:
        return "success"
    if episode.status == Status.TRUNCATED:
        return "truncated"
    return "unknown" if episode.success is None else "failure"


def _json(value: object) -> str:
    """JSON in ASCII (with escapes for lone surrogates)."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _packed(value: object) -> bytes:
    """JSON, deflated and base64-encoded: only letters, digits and `+/=`."""
    return base64.b64encode(zlib.compress(_json(value).encode("ascii"), 6))


def _template(index: str) -> tuple[str, str]:
    """The page before and after the blocks."""
    files = resources.files("reflectkit") / "evals" / "viewer"
    page, style, *scripts = ((files / name).read_text(encoding="utf-8") for name in FILES)
    script = "".join(scripts)
    policy = (
        f"default-src 'none'; script-src {_allowed(script)}; style-src {_allowed(style)}; base-uri 'none'; form-action"
        " 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    parts = {"policy": policy, "style": style, "script": script, "index": index, "blocks": "\0"}
    before, _, after = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], page).partition("\0")
    return before, after


def _allowed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HALF_PAIRS = re.compile("[\ud800-\udfff]")


def inspect_log(
    run: str,
    created: datetime.datetime,
    settings: Mapping[str, Any],
    episodes: Sequence[Played],
) -> tuple[str, bytes]:
    """(name of its file, content) of an eval log for Inspect (https://inspect.aisi.org.uk/eval-logs.html): one player
    at one level of one run. created: when the run was made. settings: from its config.json.

    A sample is an episode, and an epoch is a repeat of its task. The observation is a user message; a conversation
    keeps its messages and calls. The reflection is the reasoning of the answer. Reward, value, advantage,
    probabilities and info are the answer's metadata. Half a surrogate pair, which Inspect cannot read, becomes U+FFFD.
    """
    first = episodes[0]
    created_at = created.isoformat(timespec="seconds")
    task = first.env or "episodes"
    player = first.name or "unknown"
    if first.level:
        task = f"{task}-{first.level}"

    def id_of(what: str) -> str:
        return hashlib.sha256(repr((what, run, task, player)).encode()).hexdigest()[:22]

    # 1. The samples
    epochs: dict[str, int] = {}
    samples = []
    for episode in episodes:
        epochs[episode.task] = epochs.get(episode.task, 0) + 1
        samples.append(_sample(episode, epochs[episode.task], player))

    # 2. Their means
    complete = [episode for episode in episodes if episode.status != Status.ABORTED]
    sums = {
        "success": sum(bool(episode.success) for episode in complete),
        "return": sum(episode.total_return or 0.0 for episode in complete),
    }
    if not reports_success((episode.status, episode.success) for episode in complete):
        del sums["success"]
    scores = []
    for name, total in sums.items():
        mean = {"name": "mean", "value": total / max(1, len(complete))}
        scores.append({"name": name, "scorer": name, "metrics": {"mean": mean}})

    # 3. The log
    log = {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": id_of("eval"),
            "run_id": id_of("run"),
            "created": created_at,
            "task": task,
            "task_id": id_of("task"),
            "dataset": {"name": task, "samples": len(epochs), "sample_ids": list(epochs)},
            "model": f"reflectkit/{player}",
            "config": {"epochs": max(epochs.values())},
            "packages": {"reflectkit": VERSION},
            "metadata": {"run": run, "settings": settings},
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(complete),
            "scores": scores,
        },
        "stats": {"started_at": created_at, "completed_at": created_at, "model_usage": {}},
        "samples": samples,
    }

    # 4. Its file, by the name that Inspect expects: time, task, id
    task_part = re.sub(r"[^A-Za-z0-9-]+", "-", task)[:60]
    file_name = f"{created.strftime('%Y-%m-%dT%H-%M-%S')}+00-00_{task_part}_{id_of('log')}.json"
    text = HALF_PAIRS.sub("\ufffd", json.dumps(log, ensure_ascii=False, separators=(",", ":")))
    return file_name, text.encode() + b"\n"


def _sample(
    episode: Played,
    epoch: int,
    player: str,
) -> dict[str, Any]:
    # 1. The messages
    messages: list[dict[str, Any]] = []
    ids: list[str] = []
    for number, turn in enumerate(episode.turns):
        if turn.seen is not None:
            messages.append({"role": "user", "content": turn.seen})
        messages += _messages(turn.messages or (), ids)
        ids = [f"{number}-{place}" for place in range(len(turn.calls or ()))]
        messages.append(_answer(turn, ids))
    messages += _messages(episode.ending, ids)
    answers = [message for message in messages if message["role"] == "assistant"]

    # 2. What it began with
    first = episode.turns[0] if episode.turns else None
    opening = first.messages if first and first.messages else episode.ending
    begin: Any = _messages(opening, ())
    if not begin:
        begin = (first and first.seen) or ""

    # 3. How it ended
    last_text = episode.turns[-1].said if episode.turns else None
    scores: dict[str, Any] = {}
    if episode.success is not None:
        scores["success"] = {
            "value": float(episode.success),
            "answer": last_text,
            "explanation": episode.reason or None,
        }
    scores["return"] = {"value": episode.total_return or 0.0}
    facts = ("level", "group", "seed", "status", "figures", "data")
    sample: dict[str, Any] = {
        "id": episode.task,
        "epoch": epoch,
        "input": begin,
        "target": "",
        "messages": messages,
        "output": {
            "model": f"reflectkit/{player}",
            "choices": [{"message": answers[-1], "stop_reason": "stop"}] if answers else [],
        },
        "scores": scores,
        "metadata": {name: getattr(episode, name) for name in facts},
    }
    if episode.status == Status.ABORTED:
        sample["error"] = {
            "message": episode.reason or "aborted",
            "traceback": "",
            "traceback_ansi": "",
        }
    return sample


def _messages(messages: Sequence[PlayedMessage], ids: Sequence[str]) -> list[dict[str, Any]]:
    """What the agent reads. ids: of its last calls, whose results come in the same order."""
    open_calls = iter(ids)
    rows = []
    for message in messages:
        row = {"role": message.role, "content": message.content}
        if message.role == "tool":
            row |= {"function": message.name, "tool_call_id": next(open_calls, "none")}
        rows.append(row)
    return rows


def _answer(turn: PlayedTurn, ids: Sequence[str]) -> dict[str, Any]:
    """What the agent answers. ids: of its calls."""
    # 1. Its comment and its text
    content: Any = turn.said or ""
    if turn.reflection is not None:
        content = [
            {"type": "reasoning", "reasoning": turn.reflection},
            {"type": "text", "text": content},
        ]

    # 2. What is known of it
    names = ("reward", "value", "advantage", "choices", "probabilities", "info")
    facts = {name: getattr(turn, name) for name in names}
    metadata = {name: value for name, value in facts.items() if value is not None}
    answer = {"role": "assistant", "content": content, "source": "generate", "metadata": metadata}

    # 3. Its calls
    calls = []
    for name, call in zip(ids, turn.calls or (), strict=True):
        arguments = {"function": call.name, "arguments": call.arguments}
        calls.append({"id": name, **arguments, "type": "function"})
    return answer | {"tool_calls": calls} if calls else answer
