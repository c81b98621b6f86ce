"""Training through a server that answers wrongly: each run ends in one line before it learns from that."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.errors import ReflectkitError
from reflectkit.models.load import LoadedModel, save_player, with_adapter
from reflectkit.sampling.base import Opening
from reflectkit.sampling.config import backend
from reflectkit.train.curriculum import Level
from reflectkit.train.learner import LearnerSettings
from reflectkit.train.local_learner import LocalLearner
from reflectkit.train.rl_config import StalenessConfig
from reflectkit.train.trainer import Trainer, TrainerConfig
from reflectkit.types import Task
from tests.fakes.inference import Inference, serve_model
from tests.train.training import Spelling, corridor_player, favour, objective

UPDATES = 3
LEVELS = {
    "choice": Level("long", Corridor.taskset.tasks("long"), lambda: make("corridor", 5)),
    "text": Level("all", [Task(word, "spelling", "all", word, {"word": word}) for word in ("abba", "bab")], Spelling),
}


@pytest.fixture
def player() -> LoadedModel:
    made = corridor_player(seed=0)
    favour(made, ["\n"], 3.0)  # so that some texts end before their limit
    return made


@pytest.fixture
def server(player: LoadedModel, tmp_path: Path) -> Iterator[Inference]:
    save_player(tmp_path / "base", player)
    with serve_model(player, str(tmp_path / "base"), context=64) as running:
        yield running


def build_trainer(
    kind: str, answer: str, server: Inference, player: LoadedModel, staleness: int, learning_rate: float = 1e-3
) -> Trainer:
    player = with_adapter(player, 4, 16, seed=0)
    row = backend(f"{kind}:{server.url}")
    sampler = row.open(Opening(server.root, "cpu", player), row.settings(server_patience_s=60.0))
    own = objective("reinforce", baseline="none", normalize=False, group_size=1)
    settings = LearnerSettings(learning_rate=learning_rate, loss=own.loss, max_grad_norm=10.0, mismatch=True,
        agrees_with="" if staleness else f"{kind}:{server.url}", is_cap=2.0 if staleness else 0.0)  # fmt: skip
    limits = StalenessConfig(max_staleness=staleness)
    config = TrainerConfig([LEVELS[answer]], UPDATES, 8, own, seed=0, width=8, staleness=limits)
    agent = TwoPlayerAgent(sampler, max_new_tokens=3)
    return Trainer(config, agent, LocalLearner(player, settings))


def updates(trainer: Trainer) -> list[dict[str, Any]]:
    try:
        return [trainer.train_step() for _ in range(UPDATES)]
    finally:
        trainer.close()


def each(change: Callable[[float], Any]) -> Callable[..., None]:
    """A lie about the log-probability of each token that was written."""

    def lie(ids: list[Any], logprobs: list[Any], found: list[dict[Any, Any]]) -> None:
        logprobs[:] = map(change, logprobs)

    return lie


def token(change: Callable[[int], Any]) -> Callable[..., None]:
    """A lie about the tokens that were written."""

    def lie(ids: list[Any], logprobs: list[Any], found: list[dict[Any, Any]]) -> None:
        ids[:] = map(change, ids)

    return lie


def label(change: Callable[[float], Any]) -> Callable[..., None]:
    """A lie about the log-probabilities of the tokens where labels part."""

    def lie(ids: list[Any], logprobs: list[Any], found: list[dict[Any, Any]]) -> None:
        for row in found:
            row.update({one: change(value) for one, value in row.items()})

    return lie


def longer(ids: list[Any], logprobs: list[Any], found: list[dict[Any, Any]]) -> None:
    ids[:], logprobs[:] = (ids * 150)[:150], (logprobs * 150)[:150]


def on_after_the_end(ids: list[Any], logprobs: list[Any], found: list[dict[Any, Any]]) -> None:
    if len(ids) < 3:  # it has ended with the stop token
        ids.append(ids[0])
        logprobs.append(logprobs[0])


CHANCE = random.Random(0)
NUMBERS: dict[str, Callable[[float], Any]] = {
    "nan": lambda value: math.nan,
    "800 too high": lambda value: value + 800,
}
LIES: dict[tuple[str, str], Callable[..., None]] = {
    **{("choice", f"labels: {name}"): label(change) for name, change in NUMBERS.items()},
    ("choice", "labels: random"): label(lambda value: CHANCE.uniform(-20.0, -2.0)),
    ("text", "nan"): each(lambda value: math.nan),
    ("text", "3 too low"): each(lambda value: value - 3),
    ("text", "150 tokens for 3"): longer,
    ("text", "a token behind the stop token"): on_after_the_end,
    ("text", "other tokens"): token(lambda one: (one + 7) % 40),
    ("text", "token -1"): token(lambda one: -1),
    ("text", "token infinity"): token(lambda one: math.inf),
}


OTHERS = [("choice", "labels: random"), ("text", "3 too low")]
LIES_OF = [("vllm", 0, *lie) for lie in LIES]
LIES_OF += [(kind, staleness, *lie) for kind, staleness in (("vllm", 2), ("sglang", 0)) for lie in OTHERS]


@pytest.mark.parametrize(("kind", "staleness", "answer", "what"), LIES_OF)
def test_a_lie_after_the_first_update_ends_training(
    kind: str, staleness: int, answer: str, what: str, player: LoadedModel, server: Inference
) -> None:
    lie = LIES[answer, what]
    server.lie = lambda *said: lie(*said) if len(server.loaded) > 1 else None
    trainer = build_trainer(kind, answer, server, player, staleness)
    with pytest.raises(ReflectkitError) as error:
        updates(trainer)
    assert server.url in str(error.value)
    assert "\n" not in str(error.value)
    assert "learning-rate" not in str(error.value)
    assert trainer.step == 1
    assert all(bool(torch.isfinite(weight).all()) for weight in trainer.learner.player.model.parameters())


def test_one_changed_token_ends_training(tmp_path: Path) -> None:
    """Of one answer of an update, with its log-probability kept, where all else is right."""
    player = corridor_player(seed=0)
    favour(player, ["a"], 1.15)  # so that it writes little else
    save_player(tmp_path / "base", player)
    changed = []

    def lie(ids: list[Any], logprobs: list[Any], found: list[dict[Any, Any]]) -> None:
        played = len(ids) == 3 and len(set(ids)) == 1  # other texts are probes
        if played and len(server.loaded) > 1 and not changed:
            changed.append(ids[-1])
            ids[-1] = (ids[-1] + 7) % 40

    with serve_model(player, str(tmp_path / "base"), context=64) as server:
        server.lie = lie
        trainer = build_trainer("vllm", "text", server, player, staleness=0)
        with pytest.raises(ReflectkitError, match="at a token of an answer of 3 tokens"):
            updates(trainer)
    assert len(changed) == 1


@pytest.mark.parametrize(
    ("kind", "staleness", "answer", "keeps"),
    [("vllm", 0, "choice", "old"), ("vllm", 2, "text", "base")],
)
def test_an_adapter_that_was_not_loaded_ends_training(
    kind: str, staleness: int, answer: str, keeps: str, player: LoadedModel, server: Inference
) -> None:
    """Though the weights have moved so little that the log-probabilities of older ones are within their limits."""
    server.keeps = keeps
    trainer = build_trainer(kind, answer, server, player, staleness, learning_rate=1e-4)
    with pytest.raises(ReflectkitError, match=r"serves other weights than the policy's: .* have moved by"):
        updates(trainer)


@pytest.mark.parametrize(("kind", "staleness", "answer"), [("vllm", 2, "choice"), ("sglang", 0, "text")])
def test_an_honest_server_is_not_in_the_way(
    kind: str, staleness: int, answer: str, player: LoadedModel, server: Inference
) -> None:
    rows = updates(build_trainer(kind, answer, server, player, staleness))
    assert len(rows) == UPDATES
    if not staleness:
        assert all(row["logprob_difference_max"] < 1e-4 for row in rows)
