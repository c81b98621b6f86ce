"""Conversations through a model: one row an episode, with exactly the sampled tokens; SFT rows with the same tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reflectkit.agents.scripted import Demonstrator
from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.data.sft_rows import joined, lessons, plain_row, policy_row, read_rows
from reflectkit.envs.support.env import Support
from reflectkit.envs.support.shop import CUSTOMERS, shop
from reflectkit.envs.support.tasks import make_task, source_of
from reflectkit.errors import CheckpointError
from reflectkit.models.chat import Dialogue
from reflectkit.models.load import LoadedModel
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.rollouts.wrappers import Checked
from reflectkit.sampling.base import SampleOutput, SampleRequest
from reflectkit.sampling.hf import LocalSampler
from reflectkit.train.sft import encode
from reflectkit.types import Message, Observation, Status, Trajectory
from tests.models.test_chat import QWEN, byte_by_byte, make_tokenizer, rows_of

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
