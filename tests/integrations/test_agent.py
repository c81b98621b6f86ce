"""Acting in one's own program: the prompts and answers are those of evaluate; every mistake is one line."""

from __future__ import annotations

import asyncio
import json
import math
import random
import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest

from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.envs import make
from reflectkit.envs.taxi import ACTIONS
from reflectkit.errors import AgentError, ConfigError
from reflectkit.integrations.agent import LoadedAgent, load_agent
from reflectkit.jsonl import read_json, write_json
from reflectkit.models.load import load_player
from reflectkit.prompts import PROMPT_VERSION, policy_prompt, reflection_prompt
from reflectkit.sampling.hf import LocalSampler
from reflectkit.types import Message, Task


@pytest.fixture(scope="module")
def agent(checkpoints: dict[str, Path]) -> Iterator[LoadedAgent]:
    with load_agent(checkpoints["policy"], checkpoints["reflection"], device="cpu") as agent:
        yield agent


def run_of(folder: Path, source: Path, step: int, facts: dict[str, Any], settings: dict[str, Any]) -> Path:
    """A run as rlft leaves it, with a checkpoint of `source`."""
    checkpoint = folder / f"checkpoint-{step}"
    shutil.copytree(source, checkpoint)
    recorded = json.loads((checkpoint / "reflectkit.json").read_text())
    (checkpoint / "reflectkit.json").write_text(json.dumps(recorded | facts))
    (folder / "config.json").write_text(json.dumps({"stage": "rlft", "settings": settings}))
    return folder


def test_it_acts_as_the_two_players_do_on_the_prompt_of_training(
    agent: LoadedAgent, checkpoints: dict[str, Path], observations: list[Any]
) -> None:
    reflector = Reflector(LocalSampler(load_player(checkpoints["reflection"], device="cpu"), frozen=True, rank=0))
    by_hand = TwoPlayerAgent(LocalSampler(load_player(checkpoints["policy"], device="cpu")), reflector, temperature=0)
    from reflectkit.env import Context

    for seen in observations[:3]:
        expected = asyncio.run(by_hand.decide(seen, Context(0, None)))  # type: ignore[arg-type]
        for shown in (seen.text, seen, list(seen.messages), [{"role": "user", "content": seen.text}]):
            act = agent.act(shown, ACTIONS)
            assert (act.index, act.comment) == (expected.action, expected.reflection)
            assert act.action == ACTIONS[act.index]
            assert math.isclose(sum(act.probabilities), 1, abs_tol=1e-6)
            assert act.probabilities[act.index] == max(act.probabilities)
        tokenizer = load_player(checkpoints["policy"], device="cpu").tokenizer
        whole = tokenizer(policy_prompt(seen, act.comment))["input_ids"]
        assert list(expected.prompt_ids) == whole
        assert reflection_prompt(seen).startswith(seen.text)


def test_a_batch_is_what_one_by_one_is(agent: LoadedAgent, observations: list[Any]) -> None:
    texts = [seen.text for seen in observations]
    alone = [agent.act(text, ACTIONS) for text in texts]
    for choices in (ACTIONS, [ACTIONS] * len(texts)):
        together = agent.act_batch(texts, choices)
        assert [one.action for one in together] == [one.action for one in alone]
        for one, other in zip(together, alone, strict=True):
            assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
    assert agent.act_batch([]) == []


def test_requests_of_coroutines_and_threads_share_batches(
    checkpoints: dict[str, Path], observations: list[Any]
) -> None:
    """While the first is answered, the others queue up; they are answered in far fewer batches than requests."""
    with load_agent(checkpoints["plain"], device="cpu") as agent:
        sampler: Any = agent._agent.policy  # type: ignore[attr-defined]
        sizes, answer = [], sampler._batcher.work
        sampler._batcher.work = lambda asks: sizes.append(len(asks)) or answer(asks)
        texts = [f"{seen.text} {number}" for number in range(4) for seen in observations]

        async def server() -> list[Any]:
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0)

            clock = asyncio.create_task(tick())
            acts = await asyncio.gather(*(agent.act_async(text, ACTIONS) for text in texts))
            clock.cancel()
            assert ticks > len(sizes), "the server's own loop went on"
            return acts

        acts = asyncio.run(server())
        assert sum(sizes) == len(texts)
        assert len(sizes) < len(texts) / 4
        with ThreadPoolExecutor(8) as pool:
            threads = list(pool.map(lambda text: agent.act(text, ACTIONS), texts[:8]))
        assert [one.action for one in threads] == [one.action for one in acts[:8]]


def test_a_run_stands_for_its_newest_checkpoint_and_knows_its_actions(
    checkpoints: dict[str, Path], observations: list[Any], tmp_path: Path
) -> None:
    facts = {"env": "taxi", "prompts": PROMPT_VERSION, "reflector": None}
    run = run_of(tmp_path / "run", checkpoints["plain"], 9, facts, {"env": "taxi"})
    shutil.copytree(run / "checkpoint-9", run / "checkpoint-10")
    (run / "checkpoint-9" / "model.safetensors").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent = load_agent(run, device="cpu")
    assert agent.act(observations[0].text) == agent.act(observations[0].text, ACTIONS)


GAME = """
import gymnasium, numpy, os, random
from pathlib import Path

os.chdir(Path(__file__).parent)

class Game(gymnasium.Env):
    observation_space = SPACE
    action_space = gymnasium.spaces.Discrete(3, start=5)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        random.random(), Path("beside.txt").read_text()
        return SEEN, INFO

    def step(self, action):
        return SEEN, float(action == 6), True, False, INFO
"""
BOX = "gymnasium.spaces.Box(-1, 1, (3,))"
ARRAY = "numpy.array([0.5, -1.0, 0.25], numpy.float32)"
MASK = "numpy.array([0, 1, 1], numpy.int8)"


def gymnasium_agent(folder: Path, policy: Path, space: str = BOX, seen: str = ARRAY, info: str = "{}") -> LoadedAgent:
    """An agent that was trained in a game, which reads a file next to its own."""
    folder.mkdir()
    (folder / "beside.txt").touch()
    file = folder / "game.py"
    file.write_text(GAME.replace("SPACE", space).replace("SEEN", seen).replace("INFO", info))
    run = run_of(folder / "run", policy, 1, {"env": f"{file}:Game"}, {"env": f"{file}:Game"})
    return load_agent(run, device="cpu")


def test_an_observation_of_gymnasium_is_read_as_in_training(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    seen = numpy.array([0.5, -1.0, 0.25], numpy.float32)
    state = random.getstate()
    with gymnasium_agent(tmp_path / "plain", checkpoints["plain"]) as agent:
        played = make(f"{tmp_path}/plain/game.py:Game").reset(Task("a", "game", "all", "a", {"seed": 0}), 0)
        act = agent.act(played)
        for shown in (seen, seen.tolist(), tuple(seen.tolist()), played.text):
            found = agent.act(shown)
            assert (found.action, found.probabilities) == (act.action, act.probabilities)
            assert found.game_action == int(found.action) == 5 + (found.index or 0)
        with pytest.raises(ConfigError, match="observation"):
            agent.act(object())
        both = [Message("user", "a"), Message("user", "b")]
        assert agent.act(both).probabilities == agent.act(tuple(both)).probabilities
    assert random.getstate() == state, "the game's random numbers are its own"


def test_a_mask_of_gymnasium_says_what_is_legal(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    space = f"gymnasium.spaces.Dict(seen={BOX}, action_mask=gymnasium.spaces.MultiBinary(3))"
    shown = f"{{'seen': {ARRAY}, 'action_mask': {MASK}}}"
    seen = {"seen": numpy.array([0.5, -1.0, 0.25], numpy.float32), "action_mask": numpy.array([0, 1, 1], numpy.int8)}
    with gymnasium_agent(tmp_path / "shown", checkpoints["plain"], space, shown) as agent:
        act = agent.act(seen)
        assert len(act.probabilities) == 2
        assert act.game_action == (6, 7)[act.index or 0]
    with gymnasium_agent(tmp_path / "told", checkpoints["plain"], info=f"{{'action_mask': {MASK}}}") as agent:
        assert agent.act(seen["seen"], ["6", "7"]).probabilities == act.probabilities
        with pytest.raises(ConfigError, match=r"where it chooses: give choices=\[…\]"):
            agent.act(seen["seen"])


def test_an_array_is_refused_by_a_policy_of_another_env(agent: LoadedAgent) -> None:
    with pytest.raises(ConfigError, match="what is seen is a text, an Observation, or a list of Message"):
        agent.act(numpy.zeros(3), ACTIONS)


def test_a_run_stands_for_its_best_checkpoint(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", checkpoints["plain"], 9, {"validation_return": 0.5}, {"env": "taxi"})
    for step, score in ((10, 0.4), (11, 0.9), (12, 0.2)):
        shutil.copytree(run / "checkpoint-9", run / f"checkpoint-{step}")
        facts = read_json(run / "checkpoint-9" / "reflectkit.json") | {"validation_return": score}
        write_json(run / f"checkpoint-{step}" / "reflectkit.json", facts)
    assert load_agent(run, device="cpu").policy == run / "checkpoint-11"


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [("auto_explore", {}, "give choices"), ("memory", {}, "pass its Observation"),
     ("alfworld", {"typed": True}, ""), ("gone.module:Env", {}, "")],
)  # fmt: skip
def test_what_the_policy_was_trained_on_says_what_it_needs(
    env: str, settings: dict[str, Any], message: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    run = run_of(tmp_path / "run", checkpoints["plain"], 1, {"env": env, "reflector": None}, settings)
    agent = load_agent(run, device="cpu", max_new_tokens=2)
    if message:
        with pytest.raises(ConfigError, match=message):
            agent.act("You see a door.")
    else:
        act = agent.act("You see a door.")
        assert (act.index is None) == (env != "taxi")


def test_what_does_not_fit_and_a_closed_agent_are_errors_of_their_own(
    checkpoints: dict[str, Path], observations: list[Any]
) -> None:
    agent = load_agent(checkpoints["plain"], device="cpu")
    agent.act(observations[0].text, ACTIONS)
    with pytest.raises(AgentError, match="tokens, but its model reads 256"):
        agent.act("x " * 5000, ACTIONS)
    with pytest.raises(ConfigError, match="2 observations and 1 lists of choices"):
        agent.act_batch(["x", "y"], [["a"]])
    agent.close()
    agent.close()
    with pytest.raises(AgentError, match="was closed"):
        agent.act(observations[0].text)
