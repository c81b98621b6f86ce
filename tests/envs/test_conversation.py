"""The transcript that envs with a user share: what an action means, what each side reads, and limits."""

import pytest

from reflectkit.envs.conversation import (
    Refusal,
    Reply,
    Transcript,
    read_action,
    spoken,
)
from reflectkit.tools import HERMES, PLAIN, Form, parse
from reflectkit.types import Message, ToolCall, ToolSpec, ToolUse

FIND = ToolSpec("find_order", "Finds an order.", {"type": "object", "properties": {"id": {"type": "string"}}})
CREDIT = ToolSpec("credit", "Gives a credit.", {"type": "object"})
CALL = ToolCall("find_order", {"id": "W1"})


def transcript() -> Transcript:
    begun = Transcript("support", "Be polite.")
    begun.add_user("Where is my order?")
    return begun


@pytest.mark.parametrize(
    ("text", "form", "meaning"),
    [
        ('find_order {"id": "W1"}', PLAIN, CALL),
        ('<tool_call>{"name": "find_order", "arguments": {"id": "W1"}}</tool_call>', HERMES, CALL),
        ('One moment. <tool_call>{"name": "find_order", "arguments": {"id": "W1"}}</tool_call>', HERMES, CALL),
    ],
)
def test_an_action_is_one_call_or_one_reply(text: str, form: Form, meaning: object) -> None:
    assert read_action(parse(text, (FIND, CREDIT), form, replies=True), "support") == meaning
    assert read_action("Which order is it?", "support") == Reply("Which order is it?")


@pytest.mark.parametrize(
    ("text", "expected", "parts"),
    [
        ('find_order {"id": "W1"}\nfind_order {"id": "W2"}', "2 calls at once", 2),
        ('find_order {"id": 7}', "expected string", 1),
        ('find_order {"id": "W1"}\nfind_ordre {}', "did you mean find_order", 2),
    ],
)
def test_anything_else_is_refused_and_nothing_is_executed(text: str, expected: str, parts: int) -> None:
    talk = transcript()
    action = parse(text, (FIND,), PLAIN, replies=True)
    meaning = talk.add_action(action)
    assert isinstance(meaning, Refusal)
    assert expected in meaning.text
    assert "nothing was executed" in meaning.text
    assert meaning.parts == parts
    assert talk.messages[-2:] == [Message("assistant", text, action.calls), Message("tool", meaning.text)]
    assert talk.spoken == [Message("user", "Where is my order?")]


def test_the_agent_sees_everything_and_the_user_only_what_was_said() -> None:
    talk = transcript()
    assert talk.add_action(ToolUse("find_order …", (CALL,))) == CALL
    talk.add_result("find_order", "shipped")
    assert talk.add_action("<think>Shipped.</think> It is on its way.") == Reply("It is on its way.")
    talk.add_user("Thanks!")
    observation = talk.observe((FIND,))
    assert observation.replies
    assert observation.tools == (FIND,)
    assert observation.messages == (
        Message("system", "Be polite."),
        Message("user", "Where is my order?"),
        Message("assistant", "find_order …", (CALL,)),
        Message("tool", "shipped", name="find_order"),
        Message("assistant", "<think>Shipped.</think> It is on its way."),
        Message("user", "Thanks!"),
    )
    assert [(message.role, message.content) for message in talk.spoken] == [
        ("user", "Where is my order?"),
        ("assistant", "It is on its way."),
        ("user", "Thanks!"),
    ]


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("Hello <think>a</think>there", "Hello there"),
        ("Hello</s><|eot_id|><end_of_turn>\x1e", "Hello"),
        ("[INST]Hello[/INST] [1] < 3 > <b>", "Hello [1] < 3 > <b>"),
        ("Hello" + "<think>" * 200_000, "Hello"),  # hours, if each mark were sought to the end
    ],
    ids=lambda text: text[:40],
)
def test_no_reasoning_and_no_mark_reaches_the_user(text: str, heard: str) -> None:
    assert spoken(text) == heard
