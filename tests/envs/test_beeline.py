"""BeelineBench as an environment: the package's own trials, oracle, heuristic and score. Skipped without the package
(`pip install 'reflectkit[beeline]'`).
"""

from __future__ import annotations

import asyncio
import math
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from reflectkit.agents.scripted import Baseline, Oracle, RandomAgent
from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.cli.main import main
from reflectkit.commands.serve import PolicyServer, ServeConfig
from reflectkit.decisions.systemone import SystemOneRequest
from reflectkit.env import Context
from reflectkit.envs import env_class, listed, make
from reflectkit.errors import ConfigError, DataError, UnknownNameError
from reflectkit.eventloop import run_sync
from reflectkit.integrations.agent import load_agent
from reflectkit.models.load import LoadedModel, save_player
from reflectkit.models.tiny import build_relative, build_tokenizer
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from reflectkit.types import Task
from tests.asgi import served

DOMAINS = ("tiles", "blocksworld", "countdown", "rush_hour", "keys_doors")


def test_what_is_no_domain_of_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'tiles'"):
        env_class("beeline:tile")
    with pytest.raises(ConfigError, match="needs a download"):
        env_class("beeline:wikispeedia")
    from reflectkit.envs.beeline import env

    monkeypatch.setattr(env, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"run pip install 'reflectkit\[beeline\]'"):
        env.env_of.__wrapped__("tiles")


needs_package = pytest.mark.skipif(
    find_spec("beelinebench") is None, reason="needs beelinebench: pip install 'reflectkit[beeline]'"
)


def slow(test: Any) -> Any:
    """A slow test that needs the package."""
    return pytest.mark.slow(needs_package(test))


def package_problem(domain: str, number: int) -> Any:
    from reflectkit.envs.beeline.trials import MODULES, rules

    return MODULES[domain].problem(number, **rules().domains[domain])


def trial(domain: str, number: int) -> Task:
    return Task("a", f"beeline-{domain}", "all", "a", {"trial": number})


@slow
@pytest.mark.parametrize("domain", DOMAINS)
def test_trials_and_distances_are_the_package_s(domain: str) -> None:
    """Also where they are made in another way here."""
    from beelinebench.search import distances_to_goal

    from reflectkit.envs.beeline.trials import trial_of

    for number in (10_003,) if domain == "rush_hour" else (10_000, 10_007):
        theirs, ours = package_problem(domain, number), trial_of(domain, number)
        assert ours.problem.start == theirs.start
        assert (ours.problem.objective, ours.problem.context) == (theirs.objective, theirs.context)
        assert ours.problem.render(theirs.start) == theirs.render(theirs.start)
        assert set(ours.problem.moves(theirs.start)) == set(theirs.moves(theirs.start))
        distances = distances_to_goal(start=theirs.start, moves=theirs.moves, solved=theirs.solved)
        for state, distance in list(distances.items())[::97]:
            assert ours.distance(state) == distance


@slow
@pytest.mark.parametrize("domain", ["tiles", "blocksworld", "countdown", "keys_doors"])
def test_players_have_the_scores_of_the_package_s_own_search(domain: str) -> None:
    """The heuristic's, and the oracle's, which is 1; at random it is worse."""
    from beelinebench.run import baseline
    from beelinebench.search import efficiency

    from reflectkit.envs.beeline.trials import rules, trial_of

    name = f"beeline:{domain}"
    tasks = listed(name, "all", env_class(name).Settings(trials=6))
    episodes = [Episode(task, 3) for task in tasks]
    made = {}
    for label, agent in (("oracle", Oracle()), ("heuristic", Baseline("heuristic")), ("random", RandomAgent())):
        made[label] = rollout(episodes, lambda: make(name, 2500), agent, width=6)
    for place, task in enumerate(tasks):
        number = task.data["trial"]
        outcome = baseline(package_problem(domain, number), rules())
        score = efficiency(trial_of(domain, number).shortest, outcome.expansions)
        assert made["heuristic"][place].total_return == pytest.approx(score)
        assert made["heuristic"][place].figures["explored"] == outcome.expansions
        assert made["oracle"][place].total_return == 1.0
        assert made["oracle"][place].success
    means = {label: sum(each.total_return for each in played) for label, played in made.items()}
    assert means["random"] < means["heuristic"] < means["oracle"]


@slow
def test_an_episode_asks_what_the_harness_asks() -> None:
    """The text that a policy sees is that of the harness's question over HTTP, read by our own server."""
    from beelinebench.jev import INSTRUCTIONS, TASK

    problem, env = package_problem("countdown", 10_001), make("beeline:countdown")
    seen = env.reset(trial("countdown", 10_001), 5)
    state = {"task": TASK, "goal": problem.objective, "context": problem.context}
    criteria = dict.fromkeys(seen.choices)
    body = {
        "model": "m",
        "state": state,
        "questions": {"choose": {"type": "choice", "instructions": INSTRUCTIONS, "criteria": criteria}},
    }
    request = SystemOneRequest.model_validate(body)
    ((_, question),) = request.named_questions
    assert question.observation(request.text) == seen
    assert sorted(seen.choices) == sorted({problem.render(state) for state in problem.moves(problem.start)})


@slow
def test_the_score_is_of_explored_states_and_the_last_figures_tell_of_failures() -> None:
    """Countdown takes 3 moves, so 4 states are the fewest: 1 wrong state before the right ones makes 4 / 5."""
    env: Any = make("beeline:countdown")
    env.reset(trial("countdown", 10_000), 0)
    wrong = env.teacher().mistakes()
    assert env.teacher().comment(random.Random(0)) in {
        "The nearest open state is 2 moves from the goal.",
        "From the best of them the goal is 2 moves away.",
    }
    result = env.step(wrong[0])
    assert (result.reward, result.terminated, env.teacher().note()) == (0.0, False, "mistake")
    assert result.info["last_figures"] == {"explored": 2, "log_score": pytest.approx(math.log(4 / 2500))}
    rewards = []
    for _ in range(3):
        result = env.step(env.teacher().action())
        rewards.append(result.reward)
    assert (rewards, result.terminated, result.info["success"]) == ([0.0, 0.0, 4 / 5], True, True)


@slow
@pytest.mark.parametrize("number", [1, 100, 9_999, "7"])
def test_trials_of_the_benchmark_are_never_played(number: Any) -> None:
    with pytest.raises(DataError, match="from 10000 to"):
        make("beeline:tiles").reset(trial("tiles", number), 0)
    tasks = listed("beeline:tiles", "all", env_class("beeline:tiles").Settings(trials=3))
    assert [task.data["trial"] for task in tasks] == [10_000, 10_001, 10_002]


@slow
def test_a_long_search_keeps_255_open_states() -> None:
    """As the package's does; the order and what is dropped follow from the seed."""

    async def play(seed: int) -> list[tuple[str, ...]]:
        env, agent = make("beeline:blocksworld", 300), RandomAgent()
        seen = env.reset(trial("blocksworld", 10_000), seed)
        shown = []
        for step in range(260):
            shown.append(seen.choices)
            decision = await agent.decide(seen, Context(step, env))
            result: Any = env.step(decision.action)
            if result.terminated:
                break
            seen = result.observation
        return shown

    first, again, other = (asyncio.run(play(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert max(map(len, first)) == 255


@slow
def test_it_goes_through_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env", "beeline:countdown"]
    assert main(["gen-trajectory", *flags, "--trials", "20", "--demonstrations", "10"]) == 0
    assert main(["split", *flags]) == 0
    assert main(["gen-sft", *flags, "--answer", "score"]) == 0
    players = ["--policy", "oracle", "--policy", "heuristic", "--policy", "random"]
    assert main(["evaluate", *flags, *players]) == 0
    assert "log score" in capsys.readouterr().out


@slow
def test_the_harness_asks_a_server_and_a_function_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own client over HTTP gets the probabilities that the policy has in the env, and both ways explore the same
    states.
    """
    import httpx
    from beelinebench import api
    from beelinebench.jev import JevClient, jev_chooser
    from beelinebench.rng import Draws
    from beelinebench.search import Spend

    from benchmarks import beeline

    env = make("beeline:countdown")
    seen = env.reset(trial("countdown", 10_002), 0)
    tokenizer = build_tokenizer([seen.text, *seen.choices], [], 400)
    model = LoadedModel(build_relative(tokenizer, 4096, 0, 1), tokenizer, "plain", answer="score")
    save_player(tmp_path / "model", model)
    agent = TwoPlayerAgent(LocalSampler(model, frozen=True), answer="score", show=True)
    decision = run_sync(agent.decide(seen, Context(0, env)))

    problem, spend = package_problem("countdown", 10_002), Spend(max_requests=9, max_input_tokens=10**9)
    states = list(dict.fromkeys(problem.moves(problem.start)))
    server = PolicyServer(agent, ServeConfig(policy=tmp_path / "model"))
    with served(server.application()) as url, httpx.Client() as http:
        client = JevClient(api_key=None, model="jev-latest", api_base=f"{url}/v1", http=http)
        choose = jev_chooser(
            client,
            objective=problem.objective,
            context=problem.context,
            render=problem.render,
            spend=spend,
            order=Draws("order"),
        )
        chosen = choose(states)
    server.thread.close()
    shares = dict(zip(seen.choices, decision.probabilities, strict=True))
    by_state = [shares[problem.render(state)] for state in states]
    assert spend.probabilities == pytest.approx(by_state, abs=1e-6)
    with load_agent(tmp_path / "model", device="cpu") as loaded:
        decide = beeline.decider(loaded)
        by_function = api.chooser(decide, problem, spend, Draws("order"))(states)
    assert spend.probabilities == pytest.approx(by_state, abs=1e-6)
    assert chosen == by_function == by_state.index(max(by_state))

    monkeypatch.setattr(beeline, "FOLDER", tmp_path)
    line = beeline.play("countdown", "random-weights", str(tmp_path / "model"), 2)
    assert line.startswith("countdown random-weights: 0.")
    assert "oracle 1.000" in line
    assert "= 1.000 (1.000 to 1.000)" in beeline.compare("countdown", "random-weights", "random-weights")


@needs_package
def test_a_ratio_of_geometric_means_has_student_s_interval() -> None:
    """Log ratios of 0, log 2 and log 4: their mean is log 2 and its error log 2 / √3, of which t has 4.303."""
    from benchmarks.beeline import ratio

    times, low, high = ratio([0.2, 0.4, 0.4], [0.2, 0.2, 0.1])
    width = 2 ** (4.303 / math.sqrt(3))
    assert (times, low, high) == pytest.approx((2, 2 / width, 2 * width), rel=1e-3)
