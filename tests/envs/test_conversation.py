"""The transcript that envs with a user share: what an action means, what each side reads, and limits."""

from typing import Any

import pytest

from reflectkit.env import UserTurn
from reflectkit.envs.conversation import ConversationEnv, read_action, spoken
from reflectkit.errors import ConfigError
from reflectkit.tools import HERMES, PLAIN, Form, parse
from reflectkit.types import Message, Task, ToolCall, ToolSpec, ToolUse

FIND = ToolSpec("find_order", "Finds an order.", {"type": "object", "properties": {"id": {"type": "string"}}})
CREDIT = ToolSpec("credit", "Gives a credit.", {"type": "object"})
CALL = ToolCall("find_order", {"id": "W1"})


class Desk(ConversationEnv):
    """Its user says one thing; orders are found."""

    name = "desk"
    _tools = (FIND,)

    def _begin(self, task: Task, seed: int) -> str:
        return "Be polite."

    def _user_turn(self, said: str) -> UserTurn:
        return UserTurn("Thanks!" if said else "Where is my order?")

    def _execute(self, call: ToolCall) -> tuple[str, bool, bool]:
        return "shipped", False, False


def desk() -> Desk:
    env = Desk()
    env.reset(Task("1", "desk", "all", "1", {}), 0)
    return env


@pytest.mark.parametrize(
    ("text", "form", "meaning"),
    [
        ('find_order {"id": "W1"}', PLAIN, CALL),
        ('<tool_call>{"name": "find_order", "arguments": {"id": "W1"}}</tool_call>', HERMES, CALL),
        ('One moment. <tool_call>{"name": "find_order", "arguments": {"id": "W1"}}</tool_call>', HERMES, CALL),
        ("Which order is it?", PLAIN, "Which order is it?"),
    ],
)
def test_an_action_is_one_call_or_one_reply(text: str, form: Form, meaning: object) -> None:
    assert read_action(parse(text, (FIND, CREDIT), form, replies=True)) == meaning


@pytest.mark.parametrize(
    ("text", "expected", "parts"),
    [
        ('find_order {"id": "W1"}\nfind_order {"id": "W2"}', "2 calls at once", 2),
        ('find_order {"id": 7}', "expected string", 1),
        ('find_order {"id": "W1"}\nfind_ordre {}', "did you mean find_order", 2),
    ],
)
def test_anything_else_is_refused_and_nothing_is_executed(text: str, expected: str, parts: int) -> None:
    env = desk()
    action = parse(text, (FIND,), PLAIN, replies=True)
    result: Any = env.step(action)
    *_, written, refusal = result.observation.messages
    assert expected in refusal.content
    assert "nothing was executed" in refusal.content
    assert result.info == {"refused": parts}
    assert written == Message("assistant", text, action.calls)
    assert env.dialogue == [Message("user", "Where is my order?")]


def test_the_agent_sees_everything_and_the_user_only_what_was_said() -> None:
    env = desk()
    env.step(ToolUse("find_order …", (CALL,)))
    result: Any = env.step("<think>Shipped.</think> It is on its way.")
    assert result.observation.replies
    assert result.observation.tools == (FIND,)
    assert result.observation.messages == (
        Message("system", "Be polite."),
        Message("user", "Where is my order?"),
        Message("assistant", "find_order …", (CALL,)),
        Message("tool", "shipped", name="find_order"),
        Message("assistant", "<think>Shipped.</think> It is on its way."),
        Message("user", "Thanks!"),
    )
    assert [(message.role, message.content) for message in env.dialogue] == [
        ("user", "Where is my order?"),
        ("assistant", "It is on its way."),
        ("user", "Thanks!"),
    ]


@pytest.mark.parametrize(("method", "returned"), [("_execute", "shipped"), ("_user_turn", "Thanks!")])
def test_what_a_method_must_return_is_said(monkeypatch: pytest.MonkeyPatch, method: str, returned: str) -> None:
    env = desk()
    monkeypatch.setattr(env, method, lambda _: returned)
    with pytest.raises(ConfigError, match=rf"{method}\(\) of env 'desk' returned '{returned}'"):
        env.step(ToolUse("find_order …", (CALL,)) if method == "_execute" else "It is on its way.")


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("Hello <think>a</think>there", "Hello there"),
        ("a</think>b<think>c</think>d", "bd"),
        ("Hello</s><|eot_id|><end_of_turn>\x1e", "Hello"),
        ("[INST]Hello[/INST] [1] < 3 > <b>", "Hello [1] < 3 > <b>"),
        ("Hello" + "<think>" * 200_000, "Hello"),  # hours, if each mark were sought to the end
    ],
    ids=lambda text: text[:40],
)
def test_no_reasoning_and_no_mark_reaches_the_user(text: str, heard: str) -> None:
    assert spoken(text) == heard
