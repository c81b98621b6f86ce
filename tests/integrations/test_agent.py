"""Acting in one's own program: the prompts and answers are those of evaluate; every mistake is one line."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import reflectkit
from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.envs.taxi import ACTIONS
from reflectkit.errors import AgentError, ConfigError
from reflectkit.integrations.agent import LoadedAgent, load_agent
from reflectkit.models.load import LoadedModel, load_player, save_player
from reflectkit.prompts import policy_prompt, reflection_prompt
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from tests.server import serve


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
        texts = [f"{seen.text} {number}" for number in range(10) for seen in observations]

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
        threads: list[Any] = [None] * 8

        def work(number: int) -> None:
            threads[number] = agent.act(texts[number], ACTIONS)

        started = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for one in started:
            one.start()
        for one in started:
            one.join()
        assert [one.action for one in threads] == [one.action for one in acts[:8]]


class Opponent(reflectkit.ChoiceEnv):
    """An env that asks an agent about its own moves: from within an episode, as self-play does."""

    name, levels, choices = "opponent", ("only",), ACTIONS
    agent: LoadedAgent

    def _begin(self, task: Any, seed: int) -> None:
        self._moved = 0

    def _text(self) -> str:
        return f"move {self._moved}"

    def _move(self, action: int) -> tuple[float, bool, dict[str, object]]:
        self._moved += 1 + bool(self.agent.act(self._text(), ACTIONS).action)
        return 0.0, self._moved > 4, {"success": True}


def test_an_env_may_act_while_the_same_agent_plays_in_it(agent: LoadedAgent) -> None:
    Opponent.agent = agent
    episodes = [reflectkit.Episode(reflectkit.Task(str(n), "opponent", "only", "", {}), 0) for n in range(3)]
    played = reflectkit.rollout(episodes, Opponent, agent)
    assert [len(one.turns) for one in played] == [3, 3, 3]


def test_a_run_stands_for_its_newest_checkpoint_and_knows_its_actions(
    checkpoints: dict[str, Path], observations: list[Any], tmp_path: Path
) -> None:
    facts = {"env": "taxi", "reflector": None}
    run = run_of(tmp_path / "run", checkpoints["plain"], 9, facts, {"env": "taxi"})
    shutil.copytree(run / "checkpoint-9", run / "checkpoint-10")
    (run / "checkpoint-9" / "model.safetensors").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent = load_agent(run, device="cpu")
    assert agent.act(observations[0].text) == agent.act(observations[0].text, ACTIONS)


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


def test_a_chat_template_reasons_as_in_training(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", checkpoints["plain"], 1, {"reflector": None}, {"thinking": "hidden"})
    for given, expected in ((None, "hidden"), ("off", "off")):
        with load_agent(run, thinking=given, device="cpu") as agent:
            assert agent._agent.dialogue.thinking == expected  # type: ignore[attr-defined]


def test_another_env_than_that_of_training_is_a_warning(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    policy = run_of(tmp_path / "policy", checkpoints["policy"], 1, {"env": "taxi"}, {})
    reflector = run_of(tmp_path / "reflector", checkpoints["reflection"], 1, {"env": "corridor"}, {})
    with pytest.warns(UserWarning, match=r"reflector.* was trained in env 'corridor', but plays in 'taxi'"):
        load_agent(policy, reflector, device="cpu").close()
    plain = run_of(tmp_path / "plain", checkpoints["plain"], 1, {"env": "taxi"}, {})
    episode = Episode(Corridor.taskset.tasks("long")[0], 0)
    with load_agent(plain, device="cpu") as agent, pytest.warns(UserWarning, match="in env 'taxi', but plays in 'corr"):
        rollout([episode], lambda: make("corridor", 1), agent, width=1)


def test_sampling_repeats_with_the_seed(checkpoints: dict[str, Path], observations: list[Any]) -> None:
    def acts(seed: int) -> list[str]:
        with load_agent(checkpoints["plain"], temperature=1.0, seed=seed, device="cpu") as agent:
            return [agent.act(observations[0].text, ACTIONS).action for _ in range(20)]

    assert acts(1) == acts(1)
    assert acts(1) != acts(2)
    assert len(set(acts(1))) > 1


@pytest.mark.parametrize(
    ("seen", "choices", "message"),
    [
        (3, (), "must be a text, an Observation, or a list"),
        ([{"role": "robot", "content": "x"}], (), "'role': one of system, user"),
        ("x", ["south", 3], "choices must be a list"),
        ("x", "south", "choices must be a list"),
    ],
)
def test_what_cannot_be_asked_is_one_line(agent: LoadedAgent, seen: Any, choices: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        agent.act(seen, choices)
    assert "\n" not in str(error.value)


def test_what_does_not_fit_and_a_closed_agent_are_errors_of_their_own(
    checkpoints: dict[str, Path], observations: list[Any]
) -> None:
    agent = load_agent(checkpoints["plain"], device="cpu")
    agent.act(observations[0].text, ACTIONS)
    with pytest.raises(AgentError, match="tokens, but its model reads 256"):
        agent.act("x " * 5000, ACTIONS)
    with pytest.raises(ConfigError, match="2 observations and 1 list of choices"):
        agent.act_batch(["x", "y"], [["a"]])
    agent.close()
    agent.close()
    with pytest.raises(AgentError, match="was closed"):
        agent.act(observations[0].text)


@pytest.mark.parametrize(
    ("policy", "reflector", "message"),
    [
        ("results/nowhere/at/all", None, "no such model folder"),
        ("", None, "is empty"),
        ("oracle", None, "part of an environment"),
        ("openai:gpt-4o", "results/x/y", "plays with a chat model"),
        ("openai:gpt-4o", None, "OPENAI_API_KEY"),
        ("a=b/c/d+e/f/g", "h", "leave one out"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(
    policy: str, reflector: str | None, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(reflectkit.ReflectkitError, match=message) as error:
        load_agent(policy, reflector)
    assert "\n" not in str(error.value)


def test_a_chat_model_reads_the_rules_and_its_failure_is_an_error() -> None:
    with (
        serve(lambda body: "Analysis: It is south.\nChoice: 0") as server,
        load_agent("local:m", base_url=server.url, rules="Drive the taxi.") as agent,
    ):
        act = agent.act("a map", ["south", "north"])
        assert (act.action, act.comment, act.probabilities) == ("south", "It is south.", ())
        assert "Drive the taxi." in json.dumps(server.requests[0])
        server.answer = lambda body: "no idea"
        with pytest.raises(AgentError, match="local:m"):
            agent.act("another map", ["south", "north"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_acts_too(checkpoints: dict[str, Path], observations: list[Any]) -> None:
    """A server that loads first and forks then: the thread stays behind, so the child starts its own."""
    agent = load_agent(checkpoints["plain"], device="cpu")
    expected = agent.act(observations[0].text, ACTIONS).index
    child = os.fork()
    if child == 0:
        os._exit(10 + (agent.act(observations[1].text, ACTIONS).index or 0))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert expected is not None
    assert status == 10 + (agent.act(observations[1].text, ACTIONS).index or 0)


def test_a_base_with_an_adapter_of_a_player_without_role_acts(policy: LoadedModel, tmp_path: Path) -> None:
    """A model that reflectkit did not write has no role and no env: it is shown exactly what is given."""
    save_player(tmp_path / "model", LoadedModel(policy.model, policy.tokenizer, None))
    (tmp_path / "model" / "reflectkit.json").unlink()
    with load_agent(tmp_path / "model", device="cpu", max_new_tokens=3) as agent:
        assert agent.act("x", ["a", "b"]).action in ("a", "b")
        assert agent.act("x").index is None
