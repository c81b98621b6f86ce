"""The page that shows episodes: one self-contained HTML file, built from the files in `viewer/`.

Model output never appears in the markup. It is JSON, deflated and base64-encoded: an index of all episodes, which is
the table, and blocks of several episodes, which the page unpacks when one of them is opened. Each text appears once in
a block, and turns refer to it by number. The content policy in the head allows only this script and this style sheet.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from importlib import resources
from typing import IO, Any

from reflectkit.data.conversations import PlayedCall, PlayedMessage
from reflectkit.data.episodes import Played, PlayedTurn
from reflectkit.types import Status

FILES = ("page.html", "view.css", "conversation.js", "view.js")
BLOCK_CHARACTERS = 256 * 1024  # approximate size of a block's JSON
TURN_CHARACTERS = 60  # approximate size of a turn without its texts
TURN_FIELDS = (
    "seen", "reflection", "choices", "probabilities", "action", "said", "reward", "value", "advantage", "tokens",
    "info", "messages", "anew", "calls",
)  # fmt: skip
ROW_FIELDS = ("messages", "calls", "ending")  # lists of objects whose values are texts
EPISODE_FIELDS = ("group", "seed", "status", "reason", "figures", "data", "ending")


@dataclass(frozen=True)
class Source:
    """A run to show. name: unique. settings: from its config.json. rows: from its eval.json. Both are JSON values."""

    name: str
    path: str
    settings: dict[str, Any] = field(default_factory=dict)
    rows: list[Any] = field(default_factory=list)


def write_page(file: IO[bytes], sources: Sequence[Source], episodes: Iterable[tuple[int, Played]]) -> int:
    """Write the page to `file`, with one block of episodes in memory at a time; returns the number of episodes.

    episodes: each with the index of its source.
    """
    index = _Index()
    with tempfile.TemporaryFile() as blocks:  # they follow the index, which is complete only at the end
        for number, block in enumerate(_blocks(episodes, index)):
            blocks.write(b'<script type="text/plain" id="block-%d">%s</script>\n' % (number, _packed(block)))
        before, after = _template(_packed(index.as_json(sources)).decode())
        file.write(before.encode())
        blocks.seek(0)
        shutil.copyfileobj(blocks, file)
        file.write(after.encode())
    return len(index.run)


def outcome(episode: Played) -> str:
    """How the episode ended: success, failure, truncated, aborted or unknown."""
    if episode.status == Status.ABORTED:
        return "aborted"
    if episode.success is None:
        return "unknown"
    if episode.success:
        return "success"
    return "truncated" if episode.status == Status.TRUNCATED else "failure"


class _Texts:
    """Numbers for texts; each text is stored once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.characters = 0

    def number(self, text: str) -> int:
        if text not in self.numbers:
            self.numbers[text] = len(self.numbers)
            self.characters += len(text)
        return self.numbers[text]

    def short(self, value: Any) -> Any:
        """`value`, or for a text its number; for a tuple, the number of its JSON."""
        if isinstance(value, tuple):
            value = json.dumps(value, separators=(",", ":"))
        return self.number(value) if isinstance(value, str) else value

    def rows(self, values: Sequence[PlayedMessage | PlayedCall] | None) -> list[list[int]] | None:
        """The numbers of the texts of messages or calls."""
        return None if values is None else [[self.number(text) for text in astuple(one)] for one in values]

    def fields(self, record: Played | PlayedTurn, names: Sequence[str]) -> list[Any]:
        """The fields of `record`, in short."""
        values = [(name, getattr(record, name)) for name in names]
        return [self.rows(value) if name in ROW_FIELDS else self.short(value) for name, value in values]


@dataclass
class _Index:
    """Columns of the table, with one value per episode."""

    run: list[int] = field(default_factory=list)
    """Index of the source."""
    player: list[int] = field(default_factory=list)
    """Number of a text, as for env, level and outcome."""
    env: list[int] = field(default_factory=list)
    level: list[int] = field(default_factory=list)
    outcome: list[int] = field(default_factory=list)
    task: list[str] = field(default_factory=list)
    """Id of the task."""
    total_return: list[float | None] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """Number of turns."""
    blocks: list[int] = field(default_factory=list)
    """Number of the first episode of each block."""
    texts: _Texts = field(default_factory=_Texts)
    """The numbered texts."""

    def add(self, source: int, episode: Played) -> None:
        self.run.append(source)
        self.player.append(self.texts.number(episode.name))
        self.env.append(self.texts.number(episode.env))
        self.level.append(self.texts.number(episode.level))
        self.outcome.append(self.texts.number(outcome(episode)))
        self.task.append(episode.task)
        self.total_return.append(episode.total_return)
        self.steps.append(len(episode.turns))

    def as_json(self, sources: Sequence[Source]) -> dict[str, Any]:
        columns = ("run", "player", "env", "level", "outcome", "task", "total_return", "steps")
        return {
            "runs": [
                {"name": one.name, "path": one.path, "settings": one.settings, "rows": one.rows} for one in sources
            ],
            "texts": list(self.texts.numbers),
            "columns": {name: getattr(self, name) for name in columns},
            "blocks": self.blocks,
            "episode_fields": EPISODE_FIELDS,
            "turn_fields": TURN_FIELDS,
        }


def _blocks(episodes: Iterable[tuple[int, Played]], index: _Index) -> Iterator[dict[str, Any]]:
    texts = _Texts()
    rows: list[Any] = []
    turns = 0
    for source, episode in episodes:
        if not rows:
            index.blocks.append(len(index.run))
        index.add(source, episode)
        turn_rows = [texts.fields(turn, TURN_FIELDS) for turn in episode.turns]
        rows.append([texts.fields(episode, EPISODE_FIELDS), turn_rows])
        turns += len(episode.turns)
        if texts.characters + turns * TURN_CHARACTERS > BLOCK_CHARACTERS:
            yield {"texts": list(texts.numbers), "episodes": rows}
            texts, rows, turns = _Texts(), [], 0
    if rows:
        yield {"texts": list(texts.numbers), "episodes": rows}


def _packed(value: object) -> bytes:
    """JSON in ASCII (with escapes for lone surrogates), deflated and base64-encoded: only letters, digits and `+/=`."""
    return base64.b64encode(zlib.compress(json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii"), 6))


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
