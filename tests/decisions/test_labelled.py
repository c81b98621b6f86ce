"""Rows of labelled decisions: what they mean, and what is refused with its line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reflectkit.decisions.labelled import labelled_decision, read_labelled
from reflectkit.errors import DataError
from reflectkit.prompts import policy_prompt

ROW = {"state": "I was charged twice.", "question": "Which team?", "options": ["Billing", "Bugs"], "answer": "Bugs"}


def test_rows_become_questions_with_probabilities() -> None:
    decision = labelled_decision(ROW, "rows")
    assert decision.probabilities == (0.0, 1.0)
    assert policy_prompt(decision.observation).endswith("Which team?\nActions:\n 0 Billing\n 1 Bugs\nAction:")
    soft = {"state": {"text": "Hi"}, "options": {"Billing": "payments", "Bugs": None}, "probabilities": {"Billing": 1}}
    decision = labelled_decision(soft, "rows")
    assert (decision.state, decision.question.options) == ('{"text": "Hi"}', ("Billing: payments", "Bugs"))
    assert decision.probabilities == (1.0, 0.0)
    in_order = labelled_decision({**ROW, "answer": None, "probabilities": [0.5, 0.5]}, "rows")
    assert (in_order.probabilities, in_order.best) == ((0.5, 0.5), [0, 1])
    assert labelled_decision({"state": "x", "question": "True?", "answer": False}, "rows").probabilities == (0.0, 1.0)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"state": ""}, "state"),
        ({"options": ["one"]}, "options"),
        ({"options": [str(number) for number in range(256)], "answer": "1"}, "options"),
        ({"options": ["a", "a"]}, "options"),
        ({"options": ["", "a"]}, "options"),
        ({"options": ["a", "b\ud800"], "answer": "a"}, "options"),
        ({"options": [*map(str, range(300_000)), "299999"]}, "options"),
        ({"state": {"text": "\ud800"}}, "state"),
        ({"question": "\udc00?"}, "question"),
        ({"options": "Billing"}, "options"),
        ({"answer": "Sales"}, "answer"),
        ({"answer": None}, "answer"),
        ({"probabilities": [0.5, 0.5]}, "answer"),
        ({"answer": None, "probabilities": [0.5, 0.6]}, "probabilities"),
        ({"answer": None, "probabilities": {"Sales": 1.0}}, "probabilities"),
        ({"answer": None, "probabilities": [1.5, -0.5]}, "probabilities"),
        ({"answer": None, "probabilities": [True, 0]}, "probabilities"),
        ({"instructions": "Which?"}, "instructions"),
    ],
)
def test_a_wrong_row_is_named(changed: dict[str, Any], field: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps({**ROW, **changed}) + "\n")
    with pytest.raises(DataError) as error:
        read_labelled(path)
    assert f"{path}:2: field '{field}'" in str(error.value)
