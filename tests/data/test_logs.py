"""Logs of other programs: however a conversation is written down, it teaches the same; what is left out is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.data.logs import logged_lessons
from reflectkit.errors import DataError
from reflectkit.jsonl import read_json, write_jsonl
from reflectkit.types import Decision, Message, Observation, ToolCall, ToolSpec, ToolUse, to_json

Row = dict[str, Any]


def tool(name: str, **properties: Any) -> Row:
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


def call(name: str, key: str = "c1", **arguments: Any) -> Row:
    return {"id": key, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def result(content: str, key: str = "c1") -> Row:
    return {"role": "tool", "tool_call_id": key, "content": content}


TEXT = {"type": "string"}
TOOLS = [tool("weather", city=TEXT, days={"type": "integer"}), tool("flights", origin=TEXT)]
ASKED, SAID = {"role": "user", "content": "Weather in Rome?"}, {"role": "assistant", "content": "Sunny."}
CALLS = {"role": "assistant", "content": None, "tool_calls": [call("weather", city="Rome", days=2)]}
PLAIN = {"messages": [ASKED, CALLS, result("sunny"), SAID], "tools": TOOLS}


def with_call(**message: Any) -> Row:
    """PLAIN with another message that calls."""
    return PLAIN | {"messages": [ASKED, {"role": "assistant", **message}, *PLAIN["messages"][2:]]}


def with_tools(tools: Any) -> Row:
    return PLAIN | {"tools": tools}


def with_weather(**parameters: Any) -> Row:
    weather = {"type": "object", "properties": {"city": TEXT, "days": {"type": "integer"}}, "required": ["city"]}
    functions = [{"name": "weather", "description": "weather", "parameters": weather | parameters}]
    return with_tools([{"type": "function", "function": each} for each in [*functions, TOOLS[1]["function"]]])


FILLED: Row = {"name": "weather", "arguments": {"city": "Rome", "days": 2, "origin": None}}
HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
FUNCTION = "<tool_call><function=weather><parameter=city>Rome</parameter><parameter=days>2</parameter></function>"
GLM = "weather\n<arg_key>city</arg_key><arg_value>Rome</arg_value><arg_key>days</arg_key><arg_value>2</arg_value>"
JSON = '{"name": "weather", "parameters": {"city": "Rome", "days": 2}}'
RESPONSE = {"role": "user", "content": "<tool_response>\nsunny\n</tool_response>"}
SAME = {
    "OpenAI's form": PLAIN,
    "a reward that is a column": PLAIN | {"reward": 1.0, "session": "a"},
    "columns named like settings": PLAIN | {"n": 4, "stop": 3, "logprobs": True, "response_format": {"type": "x"}},
    "tools as text": with_tools(json.dumps(TOOLS)),
    "tools without a level": with_tools([each["function"] for each in TOOLS]),
    "null for what is absent": PLAIN
    | {"messages": [{"name": None, "tool_calls": None, "tool_call_id": None} | each for each in PLAIN["messages"]]},
    "arguments of other tools": with_call(content="", tool_calls=[{"id": "c1", "type": None, "function": FILLED}]),
    "nulls in a schema": with_weather(
        properties={"city": TEXT | {"enum": None}, "days": {"type": "integer"}, "x": None}
    ),
    "Python's types": with_weather(
        type="dict", properties={"city": {"type": "str"}, "days": {"type": "int, optional"}}
    ),
    "a call in words": with_call(content=HERMES),
    "a call in words, in Qwen3.5's form": with_call(content=f"{FUNCTION}</tool_call>"),
    "a call in words, in GLM's form": with_call(content=f"<tool_call>{GLM}</tool_call>"),
    "a call in words, in Llama's form": with_call(content=JSON),
    "a call in words, and its result": PLAIN
    | {"messages": [ASKED, {"role": "assistant", "content": HERMES}, RESPONSE, SAID]},
    "thoughts": with_call(content="<think>\nHm.\n</think>\n\n", tool_calls=CALLS["tool_calls"]),
    "thoughts in the answer": PLAIN
    | {"messages": [*PLAIN["messages"][:3], SAID | {"content": "<think>So {it} is</think>\n\nSunny."}]},
    "thoughts that began in the prompt": with_call(content=f"I call it.\n</think>\n\n{HERMES}"),
    "functions, as before there were tools": {
        "messages": [
            ASKED,
            {"role": "assistant", "content": None, "function_call": CALLS["tool_calls"][0]["function"]},
            {"role": "function", "name": "weather", "content": "sunny"},
            SAID,
        ],
        "functions": [each["function"] for each in TOOLS],
    },
    "ShareGPT's form": {
        "conversations": [
            {"from": "human", "value": "Weather in Rome?"},
            {"from": "gpt", "value": HERMES},
            {"from": "tool", "value": "<tool_response>sunny</tool_response>"},
            {"from": "gpt", "value": "Sunny."},
        ],
        "tools": json.dumps(TOOLS),
    },
    "a call in JSON before its result, without tools": {
        "conversations": [
            {"from": "human", "value": "Weather in Rome?"},
            {"from": "function_call", "value": JSON},
            {"from": "observation", "value": "sunny"},
            {"from": "gpt", "value": "Sunny."},
        ]
    },
    "a prompt and its completion": {"prompt": [ASKED], "completion": PLAIN["messages"][1:], "tools": TOOLS},
}


def learned(tmp_path: Path, *rows: Row) -> list[tuple[str, str, str]]:
    write_jsonl(tmp_path / "log", rows)
    lessons, account = logged_lessons(tmp_path / "log")
    assert (account.rows, account.answers) == (len(rows), len(lessons))
    return [(lesson.observation.text, lesson.reflection, lesson.completion) for lesson in lessons]


@pytest.mark.parametrize("row", SAME.values(), ids=SAME)
def test_a_conversation_is_read_as_it_is_meant(row: Row, tmp_path: Path) -> None:
    calling = '{"city": "Rome", "days": 2}'
    assert learned(tmp_path, row) == [
        ("User: Weather in Rome?", "", f" weather {calling}"),
        (f"User: Weather in Rome?\nAgent: weather {calling}\nTool weather: sunny", "", " Sunny."),
    ]


def test_words_before_a_written_call_are_the_comment_without_its_thoughts(tmp_path: Path) -> None:
    row = with_call(content=f"<think>Hm.</think>\n\nLet me\nlook. {HERMES}")
    assert [comment for _, comment, _ in learned(tmp_path, row)] == ["Let me look.", ""]


@pytest.mark.parametrize("by", ["id", "order"])
def test_results_of_several_calls_belong_to_their_calls(by: str, tmp_path: Path) -> None:
    """With ids they come in the order of the calls; without, they are of the calls in order."""
    calls = [call("weather", "a", city="Rome"), call("weather", "b", city="Oslo"), call("flights", "c", origin="Oslo")]
    results = [result("late", "c"), result("cold", "b"), result("hot", "a")]
    if by == "order":
        calls, results = (
            [each | {"id": None} for each in calls],
            [each | {"tool_call_id": None} for each in results[::-1]],
        )
    messages = [ASKED, {"role": "assistant", "content": None, "tool_calls": calls}, *results, SAID]
    text, _, _ = learned(tmp_path, PLAIN | {"messages": messages})[-1]
    assert text.endswith("\nTool weather: hot\nTool weather: cold\nTool flights: late")


def test_a_null_that_the_schema_knows_stays(tmp_path: Path) -> None:
    row = with_call(tool_calls=[call("weather", city="Rome", days=None, origin=None)])
    row |= {"tools": [tool("weather", city=TEXT, days={"type": ["integer", "null"]})]}
    assert learned(tmp_path, row)[0][2] == ' weather {"city": "Rome", "days": null}'


REFUSED = {
    "a tool that is not offered": with_call(tool_calls=[call("wether", city="Rome")]),
    "an argument that is missing": with_call(tool_calls=[call("weather", city=None)]),
    "a call that is not whole": with_call(content='<tool_call>\n{"name": "weather", "arguments": {"city": '),
    "a call without its opener": with_call(content="<function=weather><parameter=city>Rome</parameter></function>"),
    "words before a result": with_call(content="Weather of Rome"),
    "no words": with_call(content="<think>Hm."),
    "weight 0": with_call(content="Let me see.", weight=0),
}


@pytest.mark.parametrize("row", REFUSED.values(), ids=REFUSED)
def test_an_answer_that_teaches_nothing_is_left_out_and_counted(row: Row, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "log", [PLAIN, row])
    lessons, account = logged_lessons(tmp_path / "log")
    assert [lesson.completion for lesson in lessons][2:] == [" Sunny."]
    assert (account.rows, account.used, account.answers) == (2, 2, 3)
    assert list(account.answers_left_out.values()) == [1]


def test_rows_that_cannot_be_read_are_counted_by_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}
    broken = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ro'}}
    rows = [
        {"query": "?"},
        PLAIN,
        PLAIN | {"messages": [picture, SAID]},
        {"query": "!"},
        PLAIN | {"messages": [ASKED, ASKED]},
        with_call(tool_calls=[broken]),
        {"session": "", "reward": 1.0},
    ]
    write_jsonl(Path("log"), rows)
    assert main(["gen-sft", "--env", "program:true", "--log", "log"]) == 0
    (table,) = [each for each in read_json(Path("results/1_gen-sft/report.json"))["tables"] if "Log" in each["title"]]
    numbers = {what: (number, first) for what, number, first in table["rows"]}
    assert numbers["rows"][0] == "7"
    assert numbers["rows used"][0] == "1"
    assert sorted(number for what, (number, _) in numbers.items() if "left out" in what) == ["1", "1", "1", "1", "2"]
    assert numbers["rows left out: no messages"] == ("2", "line 1: query")
    write_jsonl(Path("log"), rows[:1])
    with pytest.raises(DataError, match="log:1: no row can be used: no messages"):
        logged_lessons(Path("log"))


def test_a_served_answer_teaches_what_the_user_heard_and_what_was_called(tmp_path: Path) -> None:
    seen = Observation((Message("user", "Hi"),), tools=(ToolSpec("look", "", {"type": "object"}),), replies=True)
    uses = [
        ToolUse("<think>Hm.</think>\nHello.<|im_end|>"),
        ToolUse("<think>Hm.</think><tool_call>…</tool_call>", (ToolCall("look", {}),)),
        ToolUse("<tool_call>lok</tool_call>", errors=("call 1: it is none",)),
    ]
    rows = [{"session": "", "observation": to_json(seen), "decision": to_json(Decision(use))} for use in uses]
    write_jsonl(tmp_path / "log", rows)
    lessons, account = logged_lessons(tmp_path / "log")
    assert [lesson.completion for lesson in lessons] == [" Hello.", " look {}"]
    assert (account.used, sum(account.rows_left_out.values())) == (2, 1)
