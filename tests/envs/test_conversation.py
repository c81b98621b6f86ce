"""The transcript that envs with a user share: what an action means, what each side reads, and limits."""

from typing import Any

import pytest

from reflectkit.env import Context, UserTurn
from reflectkit.envs.conversation import (
    ConversationEnv,
    Refusal,
    Reply,
    Transcript,
    read_action,
    spoken,
)
from reflectkit.errors import ConfigError, IllegalActionError
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.tools import HERMES, PLAIN, Form, parse
from reflectkit.types import Decision, Message, Observation, Task, ToolCall, ToolSpec, ToolUse

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
        ("Which order is it?", PLAIN, Reply("Which order is it?")),
        ("It costs {a lot}.\nReally {so}.", PLAIN, Reply("It costs {a lot}.\nReally {so}.")),
        ('<tool_call>{"name": "find_order", "arguments": {"id": "W1"}}</tool_call>', HERMES, CALL),
        ("<think>Ask {them}.</think>Which order?<|im_end|>", HERMES, Reply("Which order?")),
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
        ('I look it up.\nfind_order {"id": "W1"}', "2 calls at once", 2),
        ('find_order {"id": "W1"}\nfind_ordre {}', "did you mean find_order", 2),
        ("<think>Never ended.", "call one tool, or reply", 1),
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


@pytest.mark.parametrize("action", [0, True, None, 1.5])
def test_a_choice_is_no_action(action: int) -> None:
    with pytest.raises(IllegalActionError, match=r"support: no action .*; it takes calls"):
        transcript().add_action(action)


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
        ("Hello<think>never ended", "Hello"),
        ("Hello</s><|eot_id|><end_of_turn>\x1e", "Hello"),
        ("[INST]Hello[/INST] [1] < 3 > <b>", "Hello [1] < 3 > <b>"),
        ("<think>a<think>b</think>Hello", "Hello"),
        ("Hello" + "<think>" * 200_000, "Hello"),  # hours, if each mark were sought to the end
    ],
    ids=lambda text: text[:40],
)
def test_no_reasoning_and_no_mark_reaches_the_user(text: str, heard: str) -> None:
    assert spoken(text) == heard


class Desk(ConversationEnv):
    """Whoever finds the order has solved it. The answers of its parts can be replaced."""

    name = "desk"
    levels = ("one",)
    _tools: Any = (FIND,)
    says: Any = UserTurn("Where is my order?")
    finds: Any = ("It is lost.", False, True)
    judges: Any = (1.0, {"success": True})

    def _begin(self, task: Task, seed: int) -> str:
        return ""

    def _user_turn(self, said: str) -> Any:
        return self.says

    def _execute(self, call: ToolCall) -> Any:
        return self.finds

    def _verdict(self, ended: bool) -> Any:
        return self.judges


class Caller:
    async def decide(self, observation: Observation, context: Context) -> Decision:
        return Decision(ToolUse("", (CALL,)))


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("says", "Hello.", r"_user_turn\(\) of env 'desk' returned 'Hello.'; return a UserTurn with a text"),
        ("finds", ("It is lost.", False), r"_execute\(\) of env 'desk' returned .*; return \(a text, whether"),
        ("judges", True, r"_verdict\(\) of env 'desk' returned True; return \(reward, info\)"),
    ],
)
def test_what_an_env_of_ones_own_gets_wrong_is_said(part: str, value: object, message: str) -> None:
    episodes = [Episode(Task("0", "desk", "one", "", {}), 0)]
    assert [one.success for one in rollout(episodes, Desk, Caller())] == [True]
    with pytest.raises(ConfigError, match=message):
        rollout(episodes, type("Wrong", (Desk,), {part: value}), Caller())
