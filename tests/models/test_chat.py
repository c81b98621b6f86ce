"""Conversations with tools: the form a template teaches, contents that stay data, and tokens that are never made again.

The four templates are our own, each in the manner of a family of models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from reflectkit.agents.scripted import Demonstrator
from reflectkit.agents.two_player import Reflector, TwoPlayerAgent, cut_report
from reflectkit.data.sft_rows import joined, lessons, plain_row, policy_row, read_rows
from reflectkit.env import Context
from reflectkit.envs.support.env import Support
from reflectkit.envs.support.shop import CUSTOMERS, shop
from reflectkit.envs.support.tasks import make_task, source_of
from reflectkit.errors import CheckpointError
from reflectkit.jsonl import read_json, write_json
from reflectkit.models import chat
from reflectkit.models.chat import Dialogue
from reflectkit.models.checkpoint_metadata import load_tokenizer
from reflectkit.models.load import LoadedModel, load_player, save_player, with_adapter
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.prompts import policy_prompt
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.rollouts.wrappers import Checked
from reflectkit.sampling.base import SampleOutput, SampleRequest
from reflectkit.sampling.hf import LocalSampler
from reflectkit.tools import HERMES, form_text, parse
from reflectkit.train import training_rows
from reflectkit.train.sft.tokens import encode
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

TEMPLATES = {"qwen": QWEN, "llama": LLAMA3, "mistral": MISTRAL}
ENDS = {"qwen": "<|im_end|>", "llama": "<|eot_id|>", "mistral": "</s>"}
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
    return training_rows.rows([played], numbers, numbers, {})


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


def test_the_latest_conversations_are_remembered_and_no_more_than_the_memo_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat, "MEMO_ENTRIES", 4)
    monkeypatch.setattr(chat, "MEMO_TOKENS", 4000)
    dialogue = dialogue_of("qwen")
    written = {}
    for number in range(9):
        prompt = dialogue.ids(Observation((Message("user", f"Request {number}."),)))
        # byte by byte, which the tokenizer itself would not do
        spelled = byte_by_byte(dialogue.tokenizer, "Paid.")
        written[number] = (*prompt, *spelled)
        dialogue.remember(prompt, [*spelled, dialogue.tokenizer.eos_token_id])

    def is_remembered(number: int) -> bool:
        messages = (Message("user", f"Request {number}."), Message("assistant", "Paid."), REQUEST)
        ids = dialogue.ids(Observation(messages))
        return ids[: len(written[number])] == written[number]

    assert [number for number in range(9) if is_remembered(number)] == [5, 6, 7, 8]


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


TASKS = [
    make_task(0, number, level, shop(0), source_of(0, CUSTOMERS)) for level in ("one", "refuse") for number in (0, 1)
]


def demonstrations(noise: float = 0.0, **settings: Any) -> list[Trajectory]:
    episodes = [Episode(task, 3) for task in TASKS]
    return rollout(episodes, lambda: Checked(Support(horizon=40, **settings), 40), Demonstrator(noise))


def player_of(template: str | None, role: str | None) -> LoadedModel:
    if template is not None:
        tokenizer = make_tokenizer(template)
    else:
        texts = [
            row["prompt"] + row["completion"]
            for row in map(plain_row, lessons([episode.turns for episode in demonstrations(brief=True)]))
        ]
        tokenizer = build_tokenizer(texts, [], 700)
    return LoadedModel(build_model(tokenizer, 8192, 0), tokenizer, role)


def spelt(tokenizer: Any, text: str) -> list[int]:
    """The text's tokens, one for each character, which is not how it would be tokenised; calls have their marks."""
    if text.startswith("<tool_call>"):
        return byte_by_byte(tokenizer, text)
    return [token for character in text for token in tokenizer(character, add_special_tokens=False)["input_ids"]]


class Dictated:
    """A sampler that writes these texts one after the other."""

    def __init__(self, player: LoadedModel, texts: Sequence[str]) -> None:
        self.tokenizer, self.role, self.context, self.tokens = player.tokenizer, player.role, player.context, 0
        self.texts = iter(texts)

    async def sample(self, ask: SampleRequest) -> SampleOutput:
        ids = (*spelt(self.tokenizer, next(self.texts)), self.tokenizer.eos_token_id)
        return SampleOutput(ids, (-0.5,) * len(ids))

    async def publish(self, weights: Any, version: int) -> None:
        pass


PHI = """\
{% for message in messages %}<|{{ message.role }}|>
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% else %}{{ eos_token }}{% endif %}"""


def test_white_space_that_an_end_token_includes_is_not_read_again() -> None:
    """`<|end|>` of Phi-3 includes the newline after it, so no token of its own may follow what was sampled."""
    tokenizer = make_tokenizer(None)
    tokenizer.chat_template = PHI
    tokenizer.add_tokens([AddedToken("<|im_end|>", special=True, rstrip=True, normalized=False)], special_tokens=True)
    dialogue = Dialogue(tokenizer)
    prompt = dialogue.ids(Observation((REQUEST,), replies=True))
    written = [*tokenizer("Calls")["input_ids"], tokenizer.convert_tokens_to_ids("<|im_end|>")]
    assert written[-1] in dialogue.stop_ids
    dialogue.remember(prompt, written)
    then = Observation((REQUEST, Message("assistant", "Calls"), REQUEST), replies=True)
    assert dialogue.ids(then) == tuple(tokenizer(dialogue.text(then), add_special_tokens=False)["input_ids"])


class Asked(Dictated):
    """Keeps the requests."""

    def __init__(self, player: LoadedModel) -> None:
        super().__init__(player, ["calls"] * 3)
        self.asks: list[SampleRequest] = []

    async def sample(self, ask: SampleRequest) -> SampleOutput:
        self.asks.append(ask)
        return await super().sample(ask)


def test_all_that_a_model_writes_ends_with_the_tokens_of_its_generation_config(tmp_path: Path) -> None:
    """Conversations, lines and comments; of a folder, and of an adapter on it."""
    tokenizer = make_tokenizer("mistral")
    model = build_model(tokenizer, 64, 0)
    listed, written = [tokenizer.convert_tokens_to_ids(mark) for mark in ("<|eom_id|>", "<|im_end|>")], "</s>"
    model.generation_config.eos_token_id = listed
    save_player(tmp_path / "base", LoadedModel(model, tokenizer, None))
    save_player(tmp_path / "adapter", with_adapter(load_player(tmp_path / "base", device="cpu"), 2, 4, seed=0))
    for folder in ("base", "adapter"):
        sampler = Asked(LoadedModel(model, load_tokenizer(tmp_path / folder), None))
        agent = TwoPlayerAgent(sampler, Reflector(sampler))
        decide_all(agent, [Observation((REQUEST,), replies=True)], [Context(0, None)])
        decide_all(TwoPlayerAgent(sampler), [Observation((REQUEST,))], [Context(0, None)])
        ends = {*listed, tokenizer.convert_tokens_to_ids(written)}
        newline = set(tokenizer("\n")["input_ids"])
        comment, answer, line = (set(ask.stop_ids) for ask in sampler.asks)
        assert (comment, answer, line) == (ends | newline, ends, ends | newline)


def test_the_end_tokens_of_a_config_are_used_where_no_generation_config_lists_any(tmp_path: Path) -> None:
    save_player(tmp_path / "model", player_of("qwen", None))
    (tmp_path / "model" / "generation_config.json").unlink()
    config, letter = read_json(tmp_path / "model" / "config.json"), 2
    special = make_tokenizer("qwen").convert_tokens_to_ids("<s>")
    write_json(tmp_path / "model" / "config.json", config | {"eos_token_id": [special, letter, -1]})
    tokenizer = load_tokenizer(tmp_path / "model")
    assert Dialogue(tokenizer).stop_ids == {special, tokenizer.eos_token_id}
    write_json(tmp_path / "model" / "generation_config.json", {"eos_token_id": "</s>"})
    with pytest.raises(CheckpointError, match="eos_token_id is '</s>'"):
        load_tokenizer(tmp_path / "model")


def test_answers_that_hardly_ever_end_are_told_with_the_tokens_that_would_end_them() -> None:
    def report(cut: int, answers: int) -> str:
        return cut_report(cut, answers, 64, lambda: make_tokenizer("qwen"), None)

    assert report(10, 20) == ""
    assert "11 of 20 answers" in report(11, 20)
    assert "<|im_end|>" not in report(18, 20)
    assert "<|im_end|>" in report(19, 20)


CALL = {None: " list_products {}", "qwen": '<tool_call>\n{"name": "list_products", "arguments": {}}\n</tool_call>'}


@pytest.mark.parametrize(("template", "role"), [(None, "policy"), ("qwen", None)])
@pytest.mark.parametrize("reflects", [False, True])
def test_an_episode_is_one_row_of_the_sampled_tokens(template: str | None, role: str | None, reflects: bool) -> None:
    """Comments, results and the user's words are masked; what the policy wrote is not, and nothing else is trained."""
    player = player_of(template, role)
    reflector = Reflector(LocalSampler(player, frozen=True, rank=0), max_new_tokens=5) if reflects else None
    space = " " if template is None else ""
    texts = [f"{space}What is your email?", CALL[template], f"{space}Hm <|im_end|>.", f"{space}list_products"]
    agent = TwoPlayerAgent(Dictated(player, texts), reflector)
    brief = template is None
    played = rollout([Episode(TASKS[0], 1)], lambda: Checked(Support(horizon=4, brief=brief), 4), agent)[0]
    assert len(played.turns) == 4
    assert played.turns[1].info == {}, "the call was carried out"
    (row,) = rows_of(played)
    sampled = [token for turn in played.turns for token in turn.decision.token_ids]
    assert [token for token, trained in zip(row.tokens, row.loss_mask, strict=True) if trained] == sampled
    assert [row.decisions[place] for place, trained in enumerate(row.loss_mask) if trained] == [
        number for number, turn in enumerate(played.turns) for _ in turn.decision.token_ids
    ]
    text = player.tokenizer.decode(row.tokens)
    assert text.count("Reflection:") == (len(played.turns) if reflects else 0)
    assert text.count("What is your email?") == 1


def test_rows_of_demonstrations_have_the_tokens_of_play(tmp_path: Path) -> None:
    """A model is trained on the very tokens that it reads when it plays: each row's prompts are the agent's own."""
    for noise in (0.0, 0.5):
        played = demonstrations(noise, brief=True)
        steps = lessons([episode.turns for episode in played])
        rows = joined(
            [policy_row(s, s.reflection, [e.reflection for e in s.earlier]) for s in steps if s.note != "mistake"]
        )
        assert len(rows) == len(played)
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        tokenizer = build_tokenizer([row.text for row in read_rows(path)], [], 900)
        encoded = encode(path, read_rows(path), tokenizer, role="policy")
        dialogue = Dialogue(tokenizer, plain=True)
        for row, trajectory in zip(encoded, played, strict=True):
            shown = [s for s in lessons([trajectory.turns]) if s.note != "mistake"]
            last = shown[-1]
            prompt = policy_row(last, last.reflection, [e.reflection for e in last.earlier])["prompt"]
            whole = [*tokenizer(dialogue.conversation(prompt))["input_ids"]]
            answer = [*tokenizer(last.completion)["input_ids"], tokenizer.eos_token_id]
            assert row["input_ids"] == whole + answer
            trained = [token for token in row["labels"] if token != -100]
            wanted = [[*tokenizer(step.completion)["input_ids"], tokenizer.eos_token_id] for step in shown]
            assert trained == [token for part in wanted for token in part]


THINKING = QWEN.replace(
    "<|im_start|>assistant\n", "<|im_start|>assistant\n{% if enable_thinking is false %}<think></think>{% endif %}"
)


def thinker(thinking: str, template: str = THINKING) -> Dialogue:
    tokenizer = make_tokenizer("qwen")
    tokenizer.chat_template = template
    return Dialogue(tokenizer, thinking=thinking)


def test_thinking_is_on_off_or_hidden() -> None:
    history = (Message("user", "Hi."), Message("assistant", "<think>Hm.</think>\nHello."), Message("user", "Well?"))
    observation = Observation(history, replies=True)
    shown = {thinking: thinker(thinking).text(observation) for thinking in ("on", "off", "hidden")}
    assert shown["off"] == shown["on"] + "<think></think>"
    assert shown["hidden"] == shown["on"].replace("<think>Hm.</think>\n", "")
    with pytest.raises(CheckpointError, match="enable_thinking"):
        thinker("off", QWEN)


def test_an_episode_may_write_so_many_tokens() -> None:
    player = player_of(None, "policy")
    agent = TwoPlayerAgent(LocalSampler(player), max_new_tokens=9, episode_tokens=20)
    played = rollout([Episode(TASKS[0], 1)], lambda: Checked(Support(horizon=40, brief=True), 40), agent)[0]
    assert played.status is Status.TRUNCATED
    assert "20 tokens" in played.reason
    assert sum(len(turn.decision.token_ids) for turn in played.turns) == 20
