"""Calls of tools as text: whatever a model writes is read, and what is wrong with it is said in one line."""

from __future__ import annotations

import faulthandler
import math
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from reflectkit.agents.scripted import AnyAction
from reflectkit.env import Context
from reflectkit.envs import make
from reflectkit.errors import ConfigError
from reflectkit.eventloop import run_sync
from reflectkit.models.call_forms import CALL_FORMS
from reflectkit.prompts import policy_prompt
from reflectkit.tools import (
    HERMES,
    LLAMA,
    MAX_CALLS,
    MAX_ERROR,
    PLAIN,
    THOUGHT,
    Form,
    check_call,
    check_tool,
    form_text,
    parse,
    plain_text,
    thought_marks,
    tools_text,
)
from reflectkit.types import Message, Observation, ToolCall, ToolSpec, ToolUse

FORMS = (PLAIN, HERMES, LLAMA, *CALL_FORMS)

BOOK = ToolSpec(
    "book_flight",
    "Books a flight\nfor one person.",
    {
        "type": "object",
        "properties": {
            "date": {"type": "string"},
            "seats": {"type": "integer"},
            "cabin": {"enum": ["economy", "business"]},
            "bags": {
                "type": "array",
                "items": {"type": "object", "properties": {"kg": {"type": "number"}}, "required": ["kg"]},
            },
        },
        "required": ["date", "seats"],
    },
)
CANCEL = ToolSpec("cancel", "Cancels.", {"type": "object", "properties": {}})
NOTE = ToolSpec("note", "Anything.", {"type": "object", "additionalProperties": True})
TOOLS = (BOOK, CANCEL, NOTE)
BOOKED = ToolCall("book_flight", {"date": "2 May", "seats": 1, "bags": [{"kg": 7.5}]})

scalars = st.none() | st.booleans() | st.integers(-(10**29), 10**29) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["</tool_call>", "<|python_tag|>", "; {", "\n", "\x85"]
)
values = st.recursive(
    scalars | texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
calls_of_notes = st.lists(st.builds(ToolCall, st.just("note"), st.dictionaries(texts, values, max_size=3)), max_size=4)
BEGINNINGS = ("<tool_call>\n<function=note>", "<parameter=a>", "<tool_call>note\n<arg_key>a</arg_key>", "<arg_value>")
BEGINNINGS += ("<|tool_call_start|>[", "note(a=", "<|tool_call>call:note{", '<|"|>', "to=functions.note", "<|message|>")
BEGINNINGS += ('<atem:invoke name="note">', '<atem:parameter name="a">')
ENDINGS = ("</parameter>", "</function>", "</arg_value>", ")", "]<|tool_call_end|>", "<tool_call|>", "<|call|>")
ENDINGS += ("</atem:parameter>", "</atem:invoke>", "<channel|>", "<|end|>", "<|eom|>")
MARKS = ("<tool_call>", "</tool_call>", "<|python_tag|>", "<think>", "</think>", "none", "note ", "cancel {}")
JSON = ("{", "}", "[", "]", '"', ":", ",", ";", "null", '"name"', '"arguments"', '{"name": "cancel", "arguments": {}}')
ODD = ("NaN", "-Infinity", "1e999", "9" * 5000, "\ud800", "\\ud800", "\x00", "\n", "\u2028", "\N{GRINNING FACE}")
pieces = st.sampled_from([*MARKS, *BEGINNINGS, *ENDINGS, *JSON, *ODD])
awkward = st.lists(pieces | st.text(max_size=5), max_size=25).map("".join) | st.text(st.characters())


def check_errors(errors: tuple[str, ...]) -> None:
    for error in errors:
        assert 0 < len(error) <= MAX_ERROR
        assert error.isprintable()  # one line, no control characters
        error.encode()  # no surrogates


@pytest.mark.parametrize("form", FORMS)
@settings(derandomize=True, deadline=None, max_examples=40)
@given(text=awkward)
def test_any_text_is_read(form: Form, text: str) -> None:
    use = parse(text, TOOLS, form)
    assert use.text == text
    assert len(use.calls) + len(use.errors) <= MAX_CALLS + 1
    check_errors(use.errors)
    plain_text(use.calls).encode()  # what is read can be written to a file


@pytest.mark.parametrize("form", [PLAIN, HERMES, LLAMA])  # tests/models/test_call_forms.py has the others
@settings(derandomize=True, deadline=None, max_examples=30)
@given(calls=calls_of_notes)
def test_calls_come_back(form: Form, calls: list[ToolCall]) -> None:
    use = parse(form_text(calls, form), TOOLS, form)
    assert (list(use.calls), use.errors) == (calls, ())


@pytest.mark.parametrize("form", FORMS)
def test_long_texts_are_read_in_time(form: Form) -> None:
    """Quadratic reading would take minutes."""
    faulthandler.dump_traceback_later(60, exit=True)
    for unit in ("[", "{", "<tool_call>", "{;", "cancel {}\n", "</think>", "\ud800", *BEGINNINGS):
        text = unit * (2 * 10**5 // len(unit))
        for begun in (text, "note {" + text, "<tool_call>" + text, "{" + text):
            check_errors(parse(begun, TOOLS, form).errors)
    faulthandler.cancel_dump_traceback_later()


def test_the_three_forms() -> None:
    calls = (BOOKED, ToolCall("cancel", {}))
    booked = '{"date": "2 May", "seats": 1, "bags": [{"kg": 7.5}]}'
    assert plain_text(calls) == f"book_flight {booked}\ncancel {{}}"
    hermes = (
        f'<tool_call>\n{{"name": "book_flight", "arguments": {booked}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "cancel", "arguments": {}}\n</tool_call>'
    )
    assert form_text(calls, HERMES) == hermes
    llama = f'{{"name": "book_flight", "parameters": {booked}}}; {{"name": "cancel", "parameters": {{}}}}'
    assert form_text(calls, LLAMA) == llama
    for text, form in [
        (plain_text(calls), PLAIN),
        (f"<think>cancel? <tool_call></think>I book.\n{hermes} Done.", HERMES),
        (f"<|python_tag|>{llama}", LLAMA),
        (llama.replace("; ", "\n"), LLAMA),
        (f"[{llama.replace('; ', ', ')}]", LLAMA),
    ]:
        use = parse(text, TOOLS, form)
        assert (use.calls, use.errors, use.text) == (calls, (), text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("cancle {}", "no tool named 'cancle'; did you mean cancel?"),
        ('book_flight {"date": 3, "seats": 1}', "book_flight: argument 'date': expected string, found integer 3"),
        ('note {"a": tru}', "'note': invalid JSON at its line 1, column 7: Expecting value; near 'tru}'"),
        (f'note {{"a": {"[" * 40}{"]" * 40}}}', "the JSON is nested more than 32 deep"),
    ],
)
def test_a_bad_call_is_explained(text: str, error: str) -> None:
    use = parse(f"cancel {{}}\n{text}", TOOLS, PLAIN)
    assert use.calls == (ToolCall("cancel", {}),)  # the good one is made
    assert len(use.errors) == 1
    assert use.errors[0].startswith("call 2: ")
    assert error in use.errors[0]


@pytest.mark.parametrize("form", [form for form in FORMS if thought_marks(form) == THOUGHT])
@pytest.mark.parametrize("opened", ["<think>", ""])
def test_a_thought_of_a_call_is_none(form: Form, opened: str) -> None:
    text = f'{opened}I could write {{"name": "cancel", "arguments": {{}}}} now.</think>Done.'
    use = parse(text, TOOLS, form, replies=True)
    assert (use.calls, use.errors) == ((), ())


@pytest.mark.parametrize("reference", ["https://example.org/x.json", "#/nowhere", "file:"])
def test_references_never_leave_the_schema(reference: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *place, **_: asked.append(place) or [])
    (tmp_path / "x.json").write_text('{"type": "integer"}', encoding="utf-8")
    reference = (tmp_path / "x.json").as_uri() if reference == "file:" else reference
    tool = ToolSpec("far", "", {"type": "object", "properties": {"x": {"$ref": reference}}})
    (error,) = parse('far {"x": 1}', [tool], PLAIN).errors
    assert "its schema refers to" in error
    assert "which is not in it" in error
    assert asked == []


@pytest.mark.parametrize(
    ("items", "is_good"),
    [
        ([1, 2, "1", True, [1], {"a": 1}], True),
        ([1, 1.0], False),
        ([1, True, 0, False], True),
        ([{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], False),
        (["x", "x"], False),
        ([1.5, 1.25, 10**30, 10**30 + 1], True),
        ("xx", True),
    ],
)
def test_unique_items_are_those_of_json_schema(items: Any, is_good: bool) -> None:
    schema = {"uniqueItems": True}
    assert Draft202012Validator(schema).is_valid(items) == is_good  # the library agrees
    tool = ToolSpec("pick", "", {"type": "object", "properties": {"items": schema}})
    problem = check_call(ToolCall("pick", {"items": items}), [tool])
    assert (problem is None) == is_good
    assert problem is None or "has non-unique elements" in problem


def test_many_unique_items_are_not_compared_in_pairs() -> None:
    class Counted(str):
        """A text that counts how often it is compared."""

        comparisons = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Counted.comparisons += 1
            return str(self) == other

    tool = ToolSpec("pick", "", {"type": "object", "properties": {"items": {"uniqueItems": True}}})
    items = [item for number in range(300) for item in (number, Counted(number))]
    assert check_call(ToolCall("pick", {"items": items}), [tool]) is None
    assert Counted.comparisons <= len(items)


def test_the_prompt_of_a_model_without_a_template() -> None:
    seen = Observation((Message("user", "Book me a flight."),), tools=(BOOK, CANCEL))
    shown = (
        'book_flight(date: string, seats: integer, cabin?: "economy" | "business", bags?: array of object):'
        "\n Books a flight\n for one person.\ncancel(): Cancels."
    )
    assert tools_text(seen.tools) == shown
    assert policy_prompt(seen) == f"{shown}\n\nBook me a flight.\nCalls:"
    assert policy_prompt(seen, "Ask\nfirst.") == f"{shown}\n\nBook me a flight.\nReflection: Ask first.\nCalls:"


@pytest.mark.parametrize("form", [PLAIN, HERMES, LLAMA, *(form for form in CALL_FORMS if form.name != "python")])
def test_a_name_with_a_colon_is_read_in_each_form(form: Any) -> None:
    call = ToolCall("shop:find", {"title": "Emma"})
    schema = {"properties": {"title": {"type": "string"}}, "required": ["title"]}
    use = parse(form_text([call], form), [ToolSpec("shop:find", "Finds a book.", schema)], form)
    assert (use.calls, use.errors) == ((call,), ())


@pytest.mark.parametrize("schema", [True, ["city"], {"type": "string"}, {"properties": ["city"]},
    {"properties": {"city": {"maximum": math.inf}}}, {"properties": {"city": {"enum": {1}}}},
    {"properties": {"city": {"pattern": "("}}}])  # fmt: skip
def test_a_schema_that_cannot_be_used_is_refused(schema: Any) -> None:
    with pytest.raises(ConfigError, match="tool 'weather': its parameters"):
        check_tool(ToolSpec("weather", "", schema))


def test_a_tool_is_described_and_called_at_random_by_any_schema() -> None:
    properties = {"any": True, "either": {"type": ["null", "integer"]}, "list": {"type": "array", "items": True}}
    tools = (ToolSpec("weather", "Tells it.", {"properties": properties}), ToolSpec("wait", "", {}))
    assert tools_text(tools) == ("weather(any?: any, either?: null | integer, list?: array of any): Tells it.\nwait()")
    observation, player = Observation((Message("user", "Go on."),), tools=tools), AnyAction()
    names = set()
    for seed in range(20):
        use = run_sync(player.decide(observation, Context(seed, make("corridor")))).action
        assert isinstance(use, ToolUse)
        assert all(check_call(call, tools) is None for call in use.calls)
        names |= {call.name for call in use.calls}
    assert names == {"weather", "wait"}
