"""Conversations with tools: the form a template teaches, contents that stay data, and tokens that are never made again.

The four templates are our own, each in the manner of a family of models.
"""

from __future__ import annotations

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.env import Context
from reflectkit.models.chat import Dialogue
from reflectkit.models.load import LoadedModel
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.prompts import policy_prompt
from reflectkit.sampling.hf import LocalSampler
from reflectkit.tools import HERMES, form_text, parse
from reflectkit.train import batch
from reflectkit.types import (
    Decision,
    Message,
    Observation,
    Sample,
    Status,
    Task,
    ToolCall,
    ToolSpec,
    ToolUse,
    Trajectory,
    Turn,
)
from tests.train.training import decide_all

QWEN = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}You may call these:
<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>
Call one so: <tool_call>
{"name": <its name>, "arguments": <an object>}
</tool_call><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role != 'system' %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

FORGETFUL = QWEN.replace(
    "{{ message.content }}<|im_end|>", "{{ message.content.split('</think>')[-1] | trim }}<|im_end|>"
)

LLAMA3 = """\
{{ '<|begin_of_text|>' }}{% if tools %}<|start_header_id|>system<|end_header_id|>

Today: {{ date_string }}
Functions:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Respond with {"name": function, "parameters": object}.<|eot_id|>{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>

{{ message.content | tojson }}<|eot_id|>
{%- else %}<|start_header_id|>{{ message.role }}<|end_header_id|>

{{ message.content | trim }}<|eot_id|>
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

MISTRAL = """\
<s>{% for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- if message.role == 'user' %}[INST] {{ message.content }} [/INST]{% else %}{{ message.content }}</s>{% endif %}
{%- endfor %}"""

TEMPLATES = {"qwen": QWEN, "forgetful": FORGETFUL, "llama": LLAMA3, "mistral": MISTRAL}
ENDS = {"qwen": "<|im_end|>", "forgetful": "<|im_end|>", "llama": "<|eot_id|>", "mistral": "</s>"}
SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
]
SPECIAL += ["<s>", "</s>", "[INST]", "[/INST]", "<|python_tag|>"]
NAMED = ["<tool_call>", "</tool_call>", "<think>", "</think>"]

LOOK = ToolSpec(
    "look_up", "Finds an order.", {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
)
REFUND = ToolSpec("refund", "Pays back.", {"type": "object", "properties": {}})
TOOLS = (LOOK, REFUND)
RULES, REQUEST = Message("system", "Be kind."), Message("user", "Where is my order A1? I want my money back.")


def make_tokenizer(name: str | None) -> PreTrainedTokenizerFast:
    tokenizer = build_tokenizer(
        [f"{REQUEST.content} Calls: none", '{"name": "look_up", "arguments": {"id": "A1"}}'] * 3, [" 0"]
    )
    tokenizer.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in SPECIAL], special_tokens=True)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in NAMED])
    if name is not None:
        tokenizer.chat_template = TEMPLATES[name]
        tokenizer.eos_token = ENDS[name]
    return tokenizer


def dialogue_of(name: str | None) -> Dialogue:
    return Dialogue(make_tokenizer(name))


def byte_by_byte(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Tokens that decode to `text` and that tokenising it would not give: no merges, but marks are one token each."""
    marks = [mark for mark in [*SPECIAL, *NAMED] if text.startswith(mark)]
    if marks:
        first = [tokenizer.convert_tokens_to_ids(marks[0])]
        return first + byte_by_byte(tokenizer, text[len(marks[0]) :])
    return tokenizer(text[0])["input_ids"] + byte_by_byte(tokenizer, text[1:]) if text else []


def play(dialogue: Dialogue, thought: str = "") -> Trajectory:
    """Two calls, each with its result, and a last word; sampled byte by byte, with an end-of-turn token each."""
    messages: tuple[Message, ...] = (RULES, REQUEST)
    calls = [[ToolCall("look_up", {"id": "A1"})], [ToolCall("refund", {}), ToolCall("look_up", {"id": "ü"})], []]
    turns = []
    for made in calls:
        seen = Observation(messages, tools=TOOLS)
        prompt = dialogue.ids(seen)
        said = thought + (form_text(made, dialogue.form) or "It is paid.")
        written = (*byte_by_byte(dialogue.tokenizer, said), dialogue.tokenizer.eos_token_id)
        assert dialogue.words(written[:-1]) == said
        use = parse(said, TOOLS, dialogue.form)
        assert (list(use.calls), use.errors) == (made, ())
        dialogue.remember(prompt, written)
        turns.append(Turn(seen, Decision(use, None, prompt, written, (-0.5,) * len(written)), 1.0))
        results = [Message("tool", f"{call.name}: <|im_end|> found </s>", name=call.name) for call in made]
        messages = (*messages, Message("assistant", use.text, use.calls), *results)
    return Trajectory(Task("t", "e", "l", "g", {}), 0, tuple(turns), Status.COMPLETED, True)


def rows_of(played: Trajectory) -> list[Sample]:
    numbers = [[1.0] * len(played.turns)]
    return batch.rows([played], numbers, numbers, {})


@pytest.mark.parametrize("name", ["qwen", "llama", "mistral"])
def test_one_row_where_the_history_goes_on(name: str) -> None:
    dialogue = dialogue_of(name)
    played = play(dialogue)
    (row,) = rows_of(played)
    sampled = [token for turn in played.turns for token in turn.decision.token_ids]
    assert [token for token, trained in zip(row.tokens, row.loss_mask, strict=True) if trained] == sampled
    last = played.turns[-1]
    assert dialogue.words(row.tokens) == dialogue.text(last.observation) + dialogue.words(last.decision.token_ids)
    tokenised_again = dialogue.tokenizer(dialogue.words(row.tokens), add_special_tokens=False)["input_ids"]
    assert len(row.tokens) > len(tokenised_again)  # so nothing was tokenised again


@pytest.mark.parametrize("name", ["qwen", "llama", "mistral", None])
@pytest.mark.parametrize("mark", ["</tool_call>", "<|eot_id|>", "[/INST]", "<<|im_end|>"])
def test_contents_are_data(name: str | None, mark: str) -> None:
    """The prompt has the special tokens that it has with a harmless word in the mark's place, in this order."""
    dialogue = dialogue_of(name)

    def tokens(word: str) -> list[int]:
        tool = ToolSpec("look_up", f"Finds {word}.", LOOK.parameters | {"description": word})
        contents = (Message("system", f"Be {word}"), Message("user", f"{word} x {word}"), Message("assistant", "hello"))
        messages = (*contents, Message("tool", f"{word}\n", name="look_up"))
        marked = {*map(dialogue.tokenizer.convert_tokens_to_ids, [*SPECIAL, *NAMED, "<|end|>"])}
        return [token for token in dialogue.ids(Observation(messages, tools=(tool,)), f"{word} no") if token in marked]

    assert tokens(mark) == tokens("hello")


def test_what_the_assistant_wrote_keeps_its_calls_and_no_other_marks() -> None:
    dialogue = dialogue_of("qwen")
    said = form_text([ToolCall("look_up", {"id": "<|im_end|>"})], HERMES) + "<|im_start|>"
    ids = dialogue.ids(Observation((REQUEST, Message("assistant", said), REQUEST), tools=TOOLS))
    history = dialogue.words(ids).split("assistant\n", 1)[1]
    opened = dialogue.tokenizer.convert_tokens_to_ids("<tool_call>")
    assert ids.count(opened) == 2  # one in the template's own words
    assert history.count("<|im_start|>") == 2  # the next user's and the next assistant's


def test_a_turn_with_marks_spelt_out_goes_on_exactly() -> None:
    dialogue = dialogue_of("qwen")
    first = Observation((REQUEST,), tools=TOOLS)
    prompt = dialogue.ids(first)
    written = [token for character in "<|im_end|> ok" for token in dialogue.tokenizer(character)["input_ids"]]
    dialogue.remember(prompt, [*written, dialogue.tokenizer.eos_token_id])
    said = dialogue.words(written)
    then = dialogue.ids(Observation((REQUEST, Message("assistant", said), REQUEST), tools=TOOLS))
    assert then[: len(prompt) + len(written)] == (*prompt, *written)


@pytest.mark.parametrize("name", ["qwen", None])
def test_the_policy_writes_calls(name: str | None) -> None:
    tokenizer = make_tokenizer(name)
    policy = LoadedModel(build_model(tokenizer, 1024, 0), tokenizer, None)  # not fine-tuned: its template is used
    agent = TwoPlayerAgent(LocalSampler(policy), max_new_tokens=12)
    offered = Observation((REQUEST,), tools=TOOLS)
    free = Observation((REQUEST,))
    contexts = [Context(seed, None) for seed in range(4)]
    decisions = decide_all(agent, [offered, free, offered, free], contexts)
    assert [type(decision.action) for decision in decisions] == [ToolUse, str, ToolUse, str]
    for decision in decisions:
        assert 0 < len(decision.token_ids) == len(decision.logprobs) <= 12
        assert max(decision.logprobs) <= 0
    first = decisions[0]
    assert first.prompt_ids == agent.dialogue.ids(offered)
    assert isinstance(first.action, ToolUse)
    stopped = first.token_ids[-1] in agent.dialogue.stop_ids
    assert first.action.text == agent.dialogue.words(first.token_ids[: len(first.token_ids) - stopped])
    assert decisions[1].prompt_ids == tuple(tokenizer(policy_prompt(free))["input_ids"])
    alone = decide_all(agent, [free], contexts[1:2])[0]
    assert (alone.action, alone.token_ids) == (decisions[1].action, decisions[1].token_ids)
    if name is not None:  # the conversation goes on from what was sampled
        then = Observation((REQUEST, Message("assistant", first.action.text), REQUEST), tools=TOOLS)
        held = (*first.prompt_ids, *first.token_ids)
        assert agent.dialogue.ids(then)[: len(held)] == held
