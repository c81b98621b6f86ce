"""Every chat template of TRL and transformers that shows a tool, with stand-in vocabularies that have its marks.

What is rendered is what the template renders, a call comes back, and the sampled tokens of a turn are kept where the
template leaves the turn as it was. `docs/call-formats.md` has the table.
"""

from __future__ import annotations

import re
import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast
from transformers.models.llama4.processing_llama4 import chat_template as llama4

from reflectkit.envs.conversation import spoken
from reflectkit.models.call_forms import tool_of
from reflectkit.models.chat import SWITCH, Dialogue
from reflectkit.models.tiny import build_tokenizer
from reflectkit.tools import LLAMA, PLAIN, form_text, parse, plain_text, thought_marks, written_message
from reflectkit.types import Message, Observation, ToolCall, ToolSpec

FOLDER = Path(trl.__file__).parent / "chat_templates"
TEMPLATES = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.jinja"))} | {"llama4": llama4}
TABLE = Path(__file__).parents[2] / "docs/call-formats.md"
ROWS = re.findall(r"\| (\w+) \| [^|]+ \| (\w+) \| (.+) \| (.+) \| (.+) \|", TABLE.read_text(encoding="utf-8"))[1:]
MARK = re.compile(r"<\|[^<>|\s]+\|>|<\|\"\|>|<\|?[a-z_]+\|?>|</[a-z_]+>|\[gMASK\]")
ENDS = ("<|im_end|>", "<|eot_id|>", "<turn|>", "<|tool_response>", "<|call|>", "<|return|>", "<|eot|>")
NO_END = "<|observation|>"
"""What GLM writes behind calls; its template has it in front of the results."""
DROPS_CALLS = "lfm2"
"""The template that has calls only as the assistant's text."""

KINDS = {"text": "string", "count": "integer", "share": "number", "sure": "boolean", "list": "array", "thing": "object"}
OPTIONAL = {"word": {"type": ["string", "null"]}, "place": {"$ref": "#/$defs/place"}}
PLACE = {"type": "object", "properties": {"city": {"type": "string"}}}
KEEP = ToolSpec(
    "keep_it",
    "Keeps something.",
    {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in KINDS.items()} | OPTIONAL,
        "$defs": {"place": PLACE},
    },
)
LOOK = ToolSpec("look-up.v2", "Looks.", {"type": "object", "properties": {"id": {"type": "string"}}})
TOOLS = (KEEP, LOOK)
HARD = {
    "text": '  Zoë said "it\'s 5 < 6"\n\tand \\n, 😀\n',
    "count": -3,
    "share": 1.5,
    "sure": False,
    "list": [1, "a", {"k": ["ü", None, True]}],
    "thing": {"a": {"b": "q\"'q", "c": []}},
    "word": None,
    "place": {"city": "Zürich, 'west'"},
}
CALLS = (ToolCall("keep_it", HARD), ToolCall("look-up.v2", {"id": "75001"}))
EASY = ToolCall("keep_it", {"text": "a b", "count": 2})
HISTORY = (Message("system", "Be kind."), Message("user", "Please."))
FOUND, NEXT = Message("tool", "found", name="keep_it"), Message("user", "And?")


@cache
def plain_tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(["Please keep it"] * 3, [" 0"])


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    template, tokenizer = TEMPLATES[name], deepcopy(plain_tokenizer())
    marks = sorted({*MARK.findall(template), *(end for end in (*ENDS, NO_END) if end in template), "<|end|>", "<s>"})
    tokenizer.add_tokens([AddedToken(mark, special="|" in mark) for mark in marks])
    tokenizer.chat_template, tokenizer.bos_token = template, "<s>"
    tokenizer.eos_token = next((end for end in ENDS if end in template), "<|end|>")
    return tokenizer


def raw(message: Message, calls: tuple[ToolCall, ...] = (), thought: str = "") -> dict[str, Any]:
    """The message as the template's makers want it."""
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        shown["name"] = message.name
    if thought:
        shown |= {"reasoning_content": thought, "thinking": thought}
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return shown | ({"tool_calls": [{"type": "function", "function": one} for one in functions]} if calls else {})


def rendered(dialogue: Dialogue, messages: list[dict[str, Any]], *, prompt: bool) -> str:
    functions = [{"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in TOOLS]
    tools = [{"type": "function", "function": function} for function in functions]
    return dialogue._render(messages, tools, answered=not prompt)


class Turn:
    """One call after HISTORY, as the template itself writes it."""

    def __init__(self, name: str, thought: str = "", calls: tuple[ToolCall, ...] = (EASY,)) -> None:
        off = not thought and SWITCH in TEMPLATES[name]
        self.dialogue, self.calls = Dialogue(tokenizer_of(name), thinking="off" if off else "on"), calls
        self.messages = [*map(raw, HISTORY), raw(Message("assistant", ""), calls, thought)]
        self.seen = Observation(HISTORY, tools=TOOLS)
        self.prompt = self.dialogue.text(self.seen)
        self.whole = rendered(self.dialogue, self.messages, prompt=False).rstrip()
        if name == DROPS_CALLS:
            self.whole = f"{self.prompt}{form_text(calls, self.dialogue.form)}<|im_end|>"
        self.end = next((end for end in ENDS if self.whole.endswith(end)), NO_END)
        self.begins = self.whole.startswith(self.prompt)  # otherwise it rewrites its own prompt
        start = self.prompt if self.begins else rendered(self.dialogue, self.messages[:-1], prompt=False)
        self.answer = self.whole.removesuffix(self.end)[len(start) :].removeprefix("<|im_start|>assistant\n")
        self.thinks = thought in self.answer

    def then(self, *more: Message, answer: str = "") -> tuple[str, bool]:
        """(the prompt after the answer and `more` messages, whether it has the tokens that were sampled)."""
        answer = answer or self.answer
        prompt = self.dialogue.ids(self.seen)
        ids = [token for part in (answer, self.end) for token in spelt(self.dialogue.tokenizer, part)]
        assert self.dialogue.words(ids) == answer + self.end
        self.dialogue.remember(prompt, ids)
        use = parse(answer, TOOLS, self.dialogue.form)
        history = (*HISTORY, Message("assistant", answer, use.calls), *more)
        after = self.dialogue.ids(Observation(history, tools=TOOLS))
        text = self.dialogue.text(Observation(history, tools=TOOLS))
        kept = after[: len(prompt) + len(ids)] == (*prompt, *ids)
        if kept:
            assert self.dialogue.words(after).endswith(text[len(self.whole) :] if answer == self.answer else "")
        return text, kept


def spelt(tokenizer: Any, text: str) -> list[int]:
    """Tokens that tokenising `text` would not give: no merges, but marks are one token each."""
    marks = sorted(map(re.escape, tokenizer.get_added_vocab()), key=len, reverse=True)
    parts = re.findall(f"{'|'.join(marks)}|.", text, re.DOTALL)
    rows = tokenizer(parts, add_special_tokens=False)["input_ids"] if parts else []
    return [token for row in rows for token in row]


def word(kept: bool) -> str:
    return "yes" if kept else "new row"


def test_the_table_has_every_template_that_shows_a_tool() -> None:
    dialogues = {name: Dialogue(tokenizer_of(name)) for name in TEMPLATES if not name.endswith("_training")}
    assert not [name for name, dialogue in dialogues.items() if dialogue.unknown_form]
    forms = {name: getattr(dialogue.form, "name", dialogue.form) for name, dialogue in dialogues.items()}
    assert {name: form for name, form, *_ in ROWS} == {name: form for name, form in forms.items() if form != PLAIN}
    assert len(ROWS) == 29


@pytest.mark.parametrize(("name", "form", "calls", "loop", "user"), ROWS)
def test_a_conversation_is_rendered_as_the_template_does(
    name: str, form: str, calls: str, loop: str, user: str
) -> None:
    """And what the model wrote is kept, to the token, where it says so; the table is true."""
    facts = []
    for thought, more in (("", (FOUND,)), ("Hm { no }", (FOUND,)), ("Hm { no }", (FOUND, NEXT))):
        turn = Turn(name, thought)
        if not turn.thinks:  # the template has no place for it: it stays in the text, or is dropped
            text, kept = turn.then(*more, answer=thought.join(thought_marks(turn.dialogue.form)) + turn.answer)
            assert kept == (thought in text)
            facts.append("none")
            continue
        use = parse(turn.answer, TOOLS, turn.dialogue.form)
        assert (use.calls, use.errors) == (turn.calls, ())
        if thought:
            ids = spelt(turn.dialogue.tokenizer, turn.answer)
            assert thought in turn.dialogue.words(ids[: turn.dialogue.thought_tokens(ids)])
            assert "keep_it" not in turn.dialogue.words(ids[: turn.dialogue.thought_tokens(ids)])
            assert thought not in spoken(turn.answer)
        text, kept = turn.then(*more)
        if name != DROPS_CALLS:
            assert text == rendered(turn.dialogue, [*turn.messages, *map(raw, more)], prompt=True)
        if thought:
            assert kept == (turn.begins and thought in text), "thoughts are kept or dropped as the template does"
        facts.append(word(kept))
    assert facts == [calls, loop, user]


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("cohere", ["<|END_OF_TURN_TOKEN|>"]),
        ("gemma3", ["<end_of_turn>"]),
        ("gemma4_v5", ["<turn|>", "<|tool_response>"]),
        ("glm4moe", ["<|observation|>", "<|user|>"]),  # which its template writes before the next message
        ("gptoss", ["<|call|>", "<|return|>"]),  # `<|end|>` ends its reasoning
        ("llama3_1", ["<|eom_id|>", "<|eot_id|>"]),
        ("phi3_5", ["<|end|>"]),
        ("qwen3", ["<|im_end|>"]),
    ],
)
def test_a_turn_ends_where_the_template_ends_it(name: str, ends: list[str]) -> None:
    tokenizer = deepcopy(tokenizer_of(name))
    tokenizer.eos_token = "<s>"
    assert sorted(Dialogue(tokenizer).stop_tokens) == sorted(["<s>", *ends])
    assert Dialogue(tokenizer, plain=True).stop_tokens == ("<s>",)


@pytest.mark.parametrize("name", [row[0] for row in ROWS])
def test_the_templates_calls_are_read(name: str) -> None:
    """What the template makes of two calls with awkward arguments, as far as it can tell them."""
    dialogue = Dialogue(tokenizer_of(name))
    calls = CALLS[:1] if name.startswith(("llama3", "gptoss")) else CALLS
    if getattr(dialogue.form, "name", "") == "python":  # quotes are not escaped
        hard = HARD | {"text": "Zoë, 😀", "thing": {"a": [1]}, "place": {"city": "ü"}}
        calls = (ToolCall("keep_it", hard), CALLS[1])
    if name.startswith("gemma4") and not name.endswith("v5"):  # null is None
        hard = HARD | {"word": "w", "list": [1, "a", {"k": ["ü", True]}]}
        calls = (ToolCall("keep_it", hard), CALLS[1])
    use = parse(Turn(name, calls=calls).answer, TOOLS, dialogue.form)
    assert (use.calls, use.errors) == (calls, ())


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        (
            "qwen3_5_think",
            "Hm.</think><tool_call><function=keep_it><parameter=sure>true</parameter></function></tool_call>",
        ),
        ("nemotron_3_nano", "Hm.\n</think>\n<tool_call>\n<function=keep_it>\n</function></tool_call>\n"),
        ("glm4moe", "<tool_call>keep_it<arg_key>count</arg_key><arg_value>2</arg_value></tool_call>"),
        ("gemma4_v5", '<|tool_call>call:keep_it{text:<|"|>a<|"|>,count: 2}<tool_call|>'),
        ("gptoss", '<|channel|>commentary to=functions.keep_it <|constrain|>json<|message|>{"count":2}'),
        ("muse_glimmer", 'to=keep_it<|message|><atem:invoke name="keep_it"></atem:invoke>'),
        ("lfm2_2_5_v2", '<|tool_call_start|>[keep_it(text="a\\"b", sure=true)]<|tool_call_end|>'),
    ],
)
def test_a_call_in_other_words_is_kept_as_it_was_written(name: str, answer: str) -> None:
    turn = Turn(name, "Hm." if answer.startswith("Hm.") else "")
    assert len(parse(answer, TOOLS, turn.dialogue.form).calls) == 1
    text, kept = turn.then(FOUND, answer=answer)
    assert kept
    assert "found" in text


@pytest.mark.parametrize("name", [row[0] for row in ROWS])
def test_what_is_no_call_is_an_error_and_the_conversation_goes_on(name: str) -> None:
    turn = Turn(name)
    for answer in (turn.answer[:-15], turn.answer.replace("keep_it", "lose_it"), "Hello. <|end|>"):
        use = parse(answer, TOOLS, turn.dialogue.form)
        assert use.errors or use.calls or "keep_it" not in answer
        text, _ = turn.then(Message("tool", "No such call."), answer=answer)
        assert text.count("No such call.") == 1


FOREIGN = (
    "I keep it.\n<function=keep_it>\n<parameter=text>\na\n</parameter>\n</function>\n</tool_call>",
    'So:\n```json\n{"name": "keep_it", "arguments": {"text": "a"}}\n```',
    "```tool_code\nprint(keep_it(text='a'))\n```",
    '<|channel|>commentary to=keep_it json<|message|>{"text": "a"}',
    'keep_it {"text": "a"}',
    "I do: \ncall:keep_it{count:1}",
    "```python\nx = tools.keep_it(text='a')\n```",
    "<keep_it>a</keep_it>",
    "Action: keep_it[a]",
    '<|channel|>final <|constrain|>json<|message|>{"text": "a"}',
    "Thought: keep.\nAction: keep_it\nAction Input: a",
    'OK. [TOOL_CALLS][{"name": "keep_it", "arguments": {"text": "a"}}]',
    '{"keep_it": {"text": "a"}}',
    '{"function_name": "keep_it", "arguments": {"text": "a"}}',
    '{"tool_uses": [{"recipient_name": "functions.keep_it", "parameters": {"text": "a"}}]}',
    "`keep_it(text='a')`",
    "await keep_it(text='a')",
    "<tool_use>\n<name>keep_it</name>\n<input>a</input>\n</tool_use>",
    "<action>keep_it(text='a')</action>",
    '<\uff5cDSML\uff5cinvoke name="keep_it">',
)


@pytest.mark.parametrize("name", [row[0] for row in ROWS])
def test_a_call_in_no_form_of_the_models_is_told_and_stays_as_sampled(name: str) -> None:
    turn, refusal = Turn(name), Message("tool", "No such call.")
    _, words_are_kept = turn.then(refusal, answer="Hello.")
    for answer in FOREIGN:
        use = parse(answer, TOOLS, turn.dialogue.form, replies=True)
        assert not use.calls
        assert len(use.errors) == 1
        text, kept = turn.then(refusal, answer=answer)
        assert text.count("No such call.") == 1
        assert kept == words_are_kept


def test_wrong_types_in_json_are_told_where_arguments_are_tags() -> None:
    answer = '<tool_call>{"name": "keep_it", "arguments": {"text": 3, "list": {"a": 1}, "count": "2"}}</tool_call>'
    (error,) = parse(answer, TOOLS, Dialogue(tokenizer_of("qwen3_5_nothink")).form).errors
    assert "expected string" in error
    assert "expected array" in error


@pytest.mark.parametrize("name", [row[0] for row in ROWS])
def test_words_that_tell_of_tools_are_words(name: str) -> None:
    form = Dialogue(tokenizer_of(name)).form
    for words in (
        "I could keep_it (the text), or look-up.v2.",
        'It says {"name": "Ann", "text": "a"}.',
        "```x = 1```",
        "`keep_it(text)` keeps a text.",
        "I used <b>keep_it</b>.",
    ):
        use = parse(words, TOOLS, form, replies=True)
        assert (use.calls, use.errors) == ((), ())


FUNCTION = "<function=keep_it>\n<parameter=text>\n{}\n</parameter>\n</function>\n"
ARG_KEY = "keep_it\n<arg_key>text</arg_key>\n<arg_value>{}</arg_value>\n"


@pytest.mark.parametrize(("name", "call"), [("qwen3_5_nothink", FUNCTION), ("glm4moe", ARG_KEY)])
def test_each_call_between_the_same_marks_is_read_for_itself(name: str, call: str) -> None:
    turn = Turn(name)
    answer = f"<tool_call>{call.format('a')}{call.format('b')}</tool_call>"
    use = parse(answer, TOOLS, turn.dialogue.form)
    assert (use.calls, use.errors) == ((ToolCall("keep_it", {"text": "a"}), ToolCall("keep_it", {"text": "b"})), ())
    text, kept = turn.then(FOUND, FOUND, answer=answer)
    assert kept
    assert text.count("found") == 2


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("qwen3_5_nothink", f"<tool_call>Now {FUNCTION}</tool_call>"),
        ("qwen3_5_nothink", f"<tool_call>{FUNCTION.replace('</parameter>', '</parameter> and')}</tool_call>"),
        ("qwen3_5_nothink", "<tool_call><function=keep_it><parameter=word>a<parameter=text>b</parameter></tool_call>"),
        ("qwen3_5_nothink", FUNCTION),
        ("glm4moe", f"<tool_call>{ARG_KEY}and so on</tool_call>"),
        ("glm4moe", f"<tool_call>{ARG_KEY}{ARG_KEY.removeprefix('keep_it')}</tool_call>"),
        ("gemma4_v5", "<|tool_call>call:keep_it{count:1}call:keep_it{count:2}<tool_call|>"),
        ("lfm2_2_5", "<|tool_call_start|>[keep_it('a')]<|tool_call_end|>"),
        ("gptoss", '<|start|>assistant to=functions.keep_it<|channel|>commentary<|message|>{"text": "a"}{"text": "b"}'),
        ("muse_glimmer", '<atem:invoke name="keep_it">a</atem:invoke>'),
    ],
)
def test_what_a_call_has_too_much_is_told_and_costs_no_other(name: str, wrong: str) -> None:
    turn = Turn(name)
    use = parse(f"{turn.answer}{turn.end if name == 'gptoss' else ''}{wrong}", TOOLS, turn.dialogue.form)
    assert use.calls == turn.calls
    assert len(use.errors) == 1


@pytest.mark.parametrize("name", [row[0] for row in ROWS])
def test_a_call_that_was_made_elsewhere_is_shown_in_the_models_form(name: str) -> None:
    """Also where there are words before it, which were all that was shown."""
    dialogue = Dialogue(tokenizer_of(name))
    message = written_message("I keep it.", (EASY,))
    text = dialogue.text(Observation((*HISTORY, message, FOUND), tools=TOOLS))
    assert plain_text((EASY,)) not in text
    assert text.count("a b") == 1
    if dialogue.form != LLAMA and name != DROPS_CALLS:
        messages = [*map(raw, HISTORY), raw(Message("assistant", "I keep it."), (EASY,)), raw(FOUND)]
        assert text == rendered(dialogue, messages, prompt=True)


def test_a_function_is_described_without_loading_torch() -> None:
    code = (
        "import sys\nfrom reflectkit.models.call_forms import tool_of\n"
        "def add(a: int) -> int:\n    'Adds.\\n\\nArgs:\\n    a: It.'\n"
        "assert tool_of(add).parameters['properties'] == {'a': {'type': 'integer', 'description': 'It.'}}\n"
        "assert 'torch' not in sys.modules, 'so it takes seconds'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def listen(sound: torch.Tensor) -> None:
    """Listen.

    Args:
        sound: What to hear.
    """


def test_an_argument_may_be_a_tensor() -> None:
    assert tool_of(listen).parameters["properties"] == {"sound": {"type": "audio", "description": "What to hear."}}
