"""Views of episodes: one self-contained HTML page, or logs for `inspect view`.

The page is built from the files in `viewer/`.
"""

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
BLOCK_CHARACTERS = 256 * 1024
"""The approximate size of a block of episodes, as JSON."""
TURN_CHARACTERS = 60
"""The approximate size of a turn without its texts, as JSON."""
COLUMNS = ("run", "player", "env", "level", "outcome", "task", "total_return", "steps")
"""The columns of the index of episodes."""
TURN_FIELDS = (
    "seen", "reflection", "choices", "probabilities", "action", "said", "reward", "value", "advantage", "tokens",
    "info", "messages", "anew", "calls", "tools",
)  # fmt: skip
"""The fields of a turn in a block."""
EPISODE_FIELDS = ("group", "seed", "status", "reason", "figures", "data", "ending")
"""The fields of an episode in a block, in addition to the columns of the index."""


@dataclass(frozen=True)
class Source:
    """A run to show."""

    name: str
    """A name that no other run on the page has."""
    path: str
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings in its config.json, as JSON values."""
    rows: list[Any] = field(default_factory=list)
    """The rows in its eval.json, as JSON values."""


class _TextTable(dict[str, int]):
    """A number for each text: a text that recurs is stored once."""

    characters = 0
    """The length of all texts together."""

    def number(self, text: str) -> int:
        """The number of `text`, a new one for a new text."""
        if text not in self:
            self[text] = len(self)
            self.characters += len(text)
        return self[text]

    def encode(self, name: str, value: Any) -> Any:
        """The value of field `name`, with numbers in place of texts.

        Messages and calls are lists of their encoded fields. Other lists and objects become texts
        of JSON first.
        """
        if name in ("messages", "ending", "calls"):
            return value if value is None else [self._encode_row(row) for row in value]
        if isinstance(value, list | dict):
            value = _json(value)
        return self.number(value) if isinstance(value, str) else value

    def _encode_row(self, row: PlayedMessage | PlayedCall) -> list[int]:
        """The encoded fields of a message or a call."""
        return [self.encode(name, value) for name, value in row]


def write_page(
    file: IO[bytes],
    sources: Sequence[Source],
    episodes: Iterable[tuple[int, Played]],
) -> int:
    """Write the page to `file`, and return the number of episodes.

    episodes: (index of the source, episode). Only one block of them is in memory at a time.

    Model output never appears in the markup. It is JSON, deflated and base64-encoded. An index of
    all episodes is the table. Blocks of several episodes follow, which the page unpacks when one of
    them is opened. Each text appears once in a block, and turns refer to it by number. The content
    policy in the head allows only this script and this style sheet.
    """
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    index_texts = _TextTable()
    starts = list[int]()
    with tempfile.TemporaryFile() as blocks:
        # 1. The blocks go to a file first, since the index before them is complete only at the end
        for number, block in enumerate(_blocks(episodes, columns, index_texts, starts)):
            opening = b'<script type="text/plain" id="block-%d">' % number
            blocks.write(opening + _pack(block) + b"</script>\n")

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
        before, after = _template(_pack(index).decode())
        file.write(before.encode())
        blocks.seek(0)
        shutil.copyfileobj(blocks, file)
        file.write(after.encode())
    return len(columns["run"])


def _blocks(
    episodes: Iterable[tuple[int, Played]],
    columns: dict[str, list[Any]],
    index_texts: _TextTable,
    starts: list[int],
) -> Iterator[dict[str, Any]]:
    """The blocks of episodes, each with its texts.

    Each episode is added to `columns`, the index. The index of each block's first episode is added
    to `starts`.
    """
    texts = _TextTable()
    rows = list[Any]()
    turns = 0
    for source, episode in episodes:
        # 1. Add a row to the index
        if not rows:
            starts.append(len(columns["run"]))
        words = (episode.name, episode.env, episode.level, outcome(episode))
        numbers = map(index_texts.number, words)
        values = (source, *numbers, episode.task, episode.total_return, len(episode.turns))
        for name, value in zip(COLUMNS, values, strict=True):
            columns[name].append(value)

        # 2. Add a row to the block; the texts of the turns get their numbers first
        turn_rows = []
        for turn in episode.turns:
            turn_rows.append([texts.encode(name, getattr(turn, name)) for name in TURN_FIELDS])
        row = [texts.encode(name, getattr(episode, name)) for name in EPISODE_FIELDS]
        rows.append([row, turn_rows])
        turns += len(episode.turns)

        # 3. Begin a new block if this one is full
        if texts.characters + turns * TURN_CHARACTERS > BLOCK_CHARACTERS:
            yield {"texts": list(texts), "episodes": rows}
            texts = _TextTable()
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
    """`value` as JSON in ASCII, with escapes for lone surrogates."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _pack(value: object) -> bytes:
    """`value` as JSON, deflated and base64-encoded: only letters, digits and `+/=`."""
    deflated = zlib.compress(_json(value).encode("ascii"), 6)
    return base64.b64encode(deflated)


def _template(index: str) -> tuple[str, str]:
    """(the page before the blocks, the page after them). index: the packed index."""
    # 1. The files, and a content policy that allows only them
    files = resources.files("reflectkit") / "evals" / "viewer"
    page, style, *scripts = ((files / name).read_text(encoding="utf-8") for name in FILES)
    script = "".join(scripts)
    policy = (
        f"default-src 'none'; script-src {_hash_source(script)}; style-src {_hash_source(style)};"
        " base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types"
        " 'none'"
    )

    # 2. The page with these parts in place of {{their names}}
    parts = {"policy": policy, "style": style, "script": script, "index": index, "blocks": "\0"}
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], page)
    before, _, after = text.partition("\0")
    return before, after


def _hash_source(text: str) -> str:
    """The source in a content policy that allows a script or a style sheet with this text."""
    checksum = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(checksum).decode()}'"


HALF_PAIRS = re.compile("[\ud800-\udfff]")
"""Halves of surrogate pairs."""


def inspect_log(
    run: str,
    created: datetime.datetime,
    settings: Mapping[str, Any],
    episodes: Sequence[Played],
) -> tuple[str, bytes]:
    """An eval log for Inspect (https://inspect.aisi.org.uk/eval-logs.html): (name of its file,
    content).

    run: the name of the run. created: when it was made. settings: from its config.json. episodes:
    of one player at one level.

    A sample is an episode, and an epoch is a repeat of its task. An observation is a user message;
    a conversation keeps its messages and calls. A reflection is the reasoning of the answer.
    Reward, value, advantage, probabilities and info are the answer's metadata. Inspect cannot read
    half a surrogate pair, which becomes U+FFFD.
    """
    # 1. What the log is about
    first = episodes[0]
    created_at = created.isoformat(timespec="seconds")
    player = first.name or "unknown"
    task = first.env or "episodes"
    if first.level:
        task = f"{task}-{first.level}"

    def id_of(what: str) -> str:
        key = repr((what, run, task, player))
        return hashlib.sha256(key.encode()).hexdigest()[:22]

    # 2. The samples
    epochs: dict[str, int] = {}
    samples = []
    for episode in episodes:
        epochs[episode.task] = epochs.get(episode.task, 0) + 1
        samples.append(_sample(episode, epochs[episode.task], player))

    # 3. The mean scores
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

    # 4. The log
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

    # 5. The file, whose name Inspect expects to be time, task and id
    time = created.strftime("%Y-%m-%dT%H-%M-%S")
    task_part = re.sub(r"[^A-Za-z0-9-]+", "-", task)[:60]
    file_name = f"{time}+00-00_{task_part}_{id_of('log')}.json"
    text = json.dumps(log, ensure_ascii=False, separators=(",", ":"))
    text = HALF_PAIRS.sub("\ufffd", text)
    return file_name, text.encode() + b"\n"


def _sample(
    episode: Played,
    epoch: int,
    player: str,
) -> dict[str, Any]:
    """The sample of an episode. epoch: the number of the repeat of its task, from 1."""
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

    # 2. The input: the first messages, or else the first observation
    first = episode.turns[0] if episode.turns else None
    opening = first.messages if first and first.messages else episode.ending
    sample_input: Any = _messages(opening, ())
    if not sample_input:
        sample_input = (first and first.seen) or ""

    # 3. The scores
    last_text = episode.turns[-1].said if episode.turns else None
    scores: dict[str, Any] = {}
    if episode.success is not None:
        scores["success"] = {
            "value": float(episode.success),
            "answer": last_text,
            "explanation": episode.reason or None,
        }
    scores["return"] = {"value": episode.total_return or 0.0}

    # 4. The sample
    metadata_names = ("level", "group", "seed", "status", "figures", "data")
    sample: dict[str, Any] = {
        "id": episode.task,
        "epoch": epoch,
        "input": sample_input,
        "target": "",
        "messages": messages,
        "output": {
            "model": f"reflectkit/{player}",
            "choices": [{"message": answers[-1], "stop_reason": "stop"}] if answers else [],
        },
        "scores": scores,
        "metadata": {name: getattr(episode, name) for name in metadata_names},
    }
    if episode.status == Status.ABORTED:
        sample["error"] = {
            "message": episode.reason or "aborted",
            "traceback": "",
            "traceback_ansi": "",
        }
    return sample


def _messages(messages: Sequence[PlayedMessage], ids: Sequence[str]) -> list[dict[str, Any]]:
    """The messages that the agent reads.

    ids: of the agent's last calls; messages with their results are in the same order.
    """
    call_ids = iter(ids)
    rows = []
    for message in messages:
        row = {"role": message.role, "content": message.content}
        if message.role == "tool":
            row |= {"function": message.name, "tool_call_id": next(call_ids, "none")}
        rows.append(row)
    return rows


def _answer(turn: PlayedTurn, ids: Sequence[str]) -> dict[str, Any]:
    """The message that the agent writes in a turn. ids: of its calls."""
    # 1. The comment and the text
    content: Any = turn.said or ""
    if turn.reflection is not None:
        content = [
            {"type": "reasoning", "reasoning": turn.reflection},
            {"type": "text", "text": content},
        ]

    # 2. The metadata that are known
    metadata = {}
    for name in ("reward", "value", "advantage", "choices", "probabilities", "info"):
        value = getattr(turn, name)
        if value is not None:
            metadata[name] = value
    answer = {"role": "assistant", "content": content, "source": "generate", "metadata": metadata}

    # 3. The calls
    calls = []
    for call_id, call in zip(ids, turn.calls or (), strict=True):
        function = {"function": call.name, "arguments": call.arguments}
        calls.append({"id": call_id, **function, "type": "function"})
    return answer | {"tool_calls": calls} if calls else answer
