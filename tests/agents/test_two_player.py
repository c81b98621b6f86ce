"""The two players: comments, their memo, and decisions in words."""

from __future__ import annotations

from reflectkit.agents.two_player import Reflector
from reflectkit.env import Context
from reflectkit.envs import make
from reflectkit.eventloop import run_sync
from reflectkit.models.load import LoadedModel
from reflectkit.models.tokens import prompt_ids
from reflectkit.prompts import policy_prompt
from reflectkit.sampling.hf import LocalSampler
from reflectkit.types import Message, Observation
from tests.train.training import agent_of, decide_all, favour


def test_a_memoised_comment_is_decoded_once(reflector_player: LoadedModel, observations: list[Observation]) -> None:
    sampler = LocalSampler(reflector_player, frozen=True)
    reflector = Reflector(sampler, max_new_tokens=4)
    seeds = range(len(observations) + 1)
    first = run_sync(reflector.comments([*observations, observations[0]], seeds))
    tokens, read = reflector.tokens, sampler.tokens
    assert (reflector.requests, reflector.hits) == (len(observations) + 1, 1)
    assert run_sync(reflector.comments(observations, seeds[1:])) == first[:-1]
    assert (reflector.tokens, sampler.tokens, reflector.hits) == (tokens, read, 1 + len(observations))
    sampled = Reflector(sampler, temperature=1.0, max_new_tokens=4)
    assert run_sync(sampled.comment(observations[0], 1)) != run_sync(sampled.comment(observations[0], 2))
    assert sampled.memo == {}


def test_reflect_prob_drops_its_share_of_comments(
    policy: LoadedModel, reflector_player: LoadedModel, observations: list[Observation]
) -> None:
    agent = agent_of(policy, reflector_player, reflect_prob=0.25)
    env = make("taxi")
    decisions = decide_all(agent, [observations[0]] * 400, [Context(seed, env) for seed in range(400)])
    share = sum(decision.reflection is not None for decision in decisions) / 400
    assert 0.18 < share < 0.32  # seeded; 0.25 within three standard errors


def test_what_is_written_does_not_depend_on_who_shares_the_batch(policy: LoadedModel) -> None:
    favour(policy, ["\n", policy.tokenizer.eos_token], -40.0)  # so that it never comes to an end
    agent = agent_of(policy, max_new_tokens=20)
    short = Observation((Message("user", "Say: ab"),), ())
    room = policy.context - len(prompt_ids(policy.tokenizer, policy_prompt(short))) - 3
    long = Observation((Message("user", "Say: ab" + " x" * room),), ())
    while len(prompt_ids(policy.tokenizer, policy_prompt(long))) > policy.context - 3:
        long = Observation((Message("user", long.text[:-1]),), ())
    alone = decide_all(agent, [short], [Context(0, 7)])[0]
    beside, cut = decide_all(agent, [short, long], [Context(0, 7), Context(0, 8)])
    assert beside.token_ids == alone.token_ids
    assert len(alone.token_ids) == 20
    assert 0 < len(cut.token_ids) <= 4
