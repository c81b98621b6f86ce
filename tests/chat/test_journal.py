"""The journal of paid answers: a line that was changed is never used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reflectkit.chat.client import Request, open_client
from reflectkit.chat.config import Endpoint, Prices
from reflectkit.chat.journal import Answer, open_journal
from reflectkit.eventloop import run_sync
from reflectkit.types import Message

ANSWER = Answer("Zwei Euro, “sagt sie”.", "stop", "", 100, 20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of three answers, by keys 0 to 2."""
    with open_journal(tmp_path / "journal.jsonl") as journal:
        for key in "012":
            journal.add(key, "m", ANSWER)
    return tmp_path / "journal.jsonl"


def test_a_changed_line_is_never_used(path: Path) -> None:
    """Every byte of the second line is changed in turn; where it becomes a line end, two halves are damaged."""
    first, second, third = path.read_bytes().splitlines(keepends=True)
    for place in range(0, len(second) - 1, 5):
        changed = bytes([second[place] ^ (1, 16, 32)[place % 3]])
        path.write_bytes(first + second[:place] + changed + second[place + 1 :] + third)
        with open_journal(path, write=False) as journal:
            assert journal.answers == dict.fromkeys("02", ANSWER)
            assert journal.damaged == 1 + (changed == b"\n")


def test_a_journal_of_the_first_version_answers_without_a_call(tmp_path: Path) -> None:
    """No server listens; the key of a request, the fields of a line and its checksum are as they were."""
    key = "a815dbafe80e45512583302dfb5733b415d7079aa479dc3299d46221697b7213"
    checksum = "62e7503cf1f1c120b980f4bb4178cf3ce40764cc1e2ff55401af128a4a57eecf"
    row = {"key": key, "model": "m", "text": "Zwei €.", "finish_reason": "stop", "refusal": "", "prompt_tokens": 100}
    row |= {"completion_tokens": 20, "sha256": checksum}
    (tmp_path / "journal.jsonl").write_text(json.dumps(row) + "\n")
    endpoint = Endpoint("local", "m", "http://127.0.0.1:9/v1")
    with open_client(endpoint, tmp_path / "journal.jsonl", Prices(1.0, 2.0)) as client:
        outcome = run_sync(client.ask(Request("item", (Message("user", "item"),), 50, draw=3), str))
    assert (outcome.value, client.calls, client.budget.paid) == ("Zwei €.", 0, 140e-6)
