"""The journal of paid answers: a line that was changed is never used; lines of earlier versions are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reflectkit.chat.journal import Answer, open_journal

ANSWER = Answer("Zwei Euro, “sagt sie”.", "stop", "", 100, 20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of three answers, by keys 0 to 2."""
    with open_journal(tmp_path / "journal.jsonl") as journal:
        for key in "012":
            journal.add(key, "m", ANSWER)
    return tmp_path / "journal.jsonl"


def test_what_was_added_is_read(path: Path) -> None:
    with open_journal(path, write=False) as journal:
        assert journal.answers == dict.fromkeys("012", ANSWER)
        assert journal.damaged == 0


def test_a_changed_line_is_never_used(path: Path) -> None:
    """Every byte of the second line is changed in turn; where it becomes a line end, two halves are damaged."""
    first, second, third = path.read_bytes().splitlines(keepends=True)
    for place in range(len(second) - 1):
        changed = bytes([second[place] ^ (1, 16, 32)[place % 3]])
        path.write_bytes(first + second[:place] + changed + second[place + 1 :] + third)
        with open_journal(path, write=False) as journal:
            assert journal.answers == dict.fromkeys("02", ANSWER)
            assert journal.damaged == 1 + (changed == b"\n")


def test_swapped_keys_are_a_change(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["key"], rows[1]["key"] = rows[1]["key"], rows[0]["key"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with open_journal(path, write=False) as journal:
        assert (list(journal.answers), journal.damaged) == (["2"], 2)


def test_lines_of_earlier_versions_are_read(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        del row["sha256"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with open_journal(path, write=False) as journal:
        assert (journal.answers, journal.damaged) == (dict.fromkeys("012", ANSWER), 0)


@pytest.mark.parametrize("field", ["prompt_tokens", "completion_tokens"])
@pytest.mark.parametrize("count", ["20", None, -1, 20.5, True, float("nan"), 10**30, [20]])
def test_what_is_not_a_number_of_tokens_is_damage(path: Path, field: str, count: object) -> None:
    row = json.loads(path.read_text().splitlines()[0]) | {field: count}
    del row["sha256"]
    path.write_text(json.dumps(row) + "\n")
    with open_journal(path) as journal:
        assert (journal.answers, journal.damaged) == ({}, 1)
