"""The two players: comments, whose they are and their memo, decisions in words, and a tokenizer of single digits."""

from __future__ import annotations

from collections import Counter

import pytest

from reflectkit.agents.two_player import (
    NoComments,
    PromptMemo,
    Reflector,
    ShuffledComments,
    TeacherComments,
    TwoPlayerAgent,
)
from reflectkit.env import Context
from reflectkit.envs import env_class, make
from reflectkit.errors import ConfigError
from reflectkit.eventloop import run_sync
from reflectkit.models.labels import prompt_ids
from reflectkit.models.load import LoadedModel
from reflectkit.prompts import policy_prompt, reflection_prompt
from reflectkit.rollouts.wrappers import checked
from reflectkit.sampling.hf import LocalSampler
from reflectkit.seeding import generator
from reflectkit.types import Message, Observation, PaidComment
from tests.train.training import agent_of, decide_all


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
    agent = agent_of(policy, max_new_tokens=20)
    short = Observation((Message("user", "Say: ab"),), ())
    room = policy.context - len(prompt_ids(policy.tokenizer, policy_prompt(short))) - 3
    long = Observation((Message("user", "Say: ab" + " x" * room),), ())
    while len(prompt_ids(policy.tokenizer, policy_prompt(long))) > policy.context - 3:
        long = Observation((Message("user", long.text[:-1]),), ())
    alone = decide_all(agent, [short], [Context(0, 7)])[0]
    together, cut = decide_all(agent, [short, long], [Context(0, 7), Context(0, 8)])
    assert together.token_ids == alone.token_ids
    assert len(alone.token_ids) == 20
    assert 0 < len(cut.token_ids) <= 4


def test_prompts_are_remembered_up_to_their_length_together(policy: LoadedModel) -> None:
    texts = [f"{number:03} " * 25 for number in range(100)]
    length = len(prompt_ids(policy.tokenizer, texts[0]))
    memo = PromptMemo(policy.tokenizer, tokens=10 * length)
    for text in [*texts, texts[0] * 11]:
        assert memo.ids(text) == tuple(prompt_ids(policy.tokenizer, text))
    assert 8 <= len(memo) <= 12


def test_the_teacher_speaks_of_the_state_that_is_played(policy: LoadedModel) -> None:
    env = make("corridor")
    agent = TwoPlayerAgent(LocalSampler(policy), TeacherComments())
    assert agent.reflector is None
    for task in env_class("corridor").taskset.tasks("long"):
        seen = env.reset(task, 0)
        said = run_sync(agent.decide(seen, Context(task.data["start"], env))).reflection
        steps = 6 - task.data["start"]
        assert f" {steps} cell" in said


def test_a_decision_costs_what_its_comment_cost(policy: LoadedModel, observations: list[Observation]) -> None:
    class Paid:
        async def remark(self, observation: Observation, context: Context) -> str:
            comment = PaidComment("Go.")
            comment.price_usd = 0.5
            return comment

    decision = run_sync(TwoPlayerAgent(LocalSampler(policy), Paid()).decide(observations[0], Context(0, make("taxi"))))
    assert (decision.reflection, decision.price_usd) == ("Go.", 0.5)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_comments_is_on_other_states(share: float, observations: list[Observation]) -> None:
    swapped = ShuffledComments(NoComments(), [("at a", "a"), ("at b", "b")], share)
    env = make("taxi")
    said = [run_sync(swapped.remark(observations[0], Context(seed, env))) for seed in range(400)]
    assert said == [run_sync(swapped.remark(observations[1], Context(seed, env))) for seed in range(400)]
    counts = Counter(said)
    assert abs(1 - counts[""] / 400 - share) <= 3 * (share * (1 - share) / 400) ** 0.5
    assert share == 0 or abs(counts["a"] - counts["b"]) <= 3 * (400 * share) ** 0.5


def test_a_comment_on_another_state_is_not_on_this_one() -> None:
    env = checked(make("taxi"))
    tasks = env_class("taxi").taskset.tasks("full")[::60]
    comments = []
    for task in tasks:
        env.reset(task, 0)
        comments.append(env.teacher().comment(generator(0, task.id)))
    first = env.reset(tasks[0], 0)
    others = [("Elsewhere?", comment) for comment in comments[1:]]
    rows = [("Elsewhere?", comments[0]), (reflection_prompt(first), "With this prompt."), *others]
    swapped = ShuffledComments(NoComments(), rows, 1.0)
    said = {run_sync(swapped.remark(first, Context(seed, env))) for seed in range(100)}
    assert said == {comment for _, comment in others}
    with pytest.raises(ConfigError, match="--swap-from"):
        run_sync(ShuffledComments(NoComments(), rows[:2], 1.0).remark(first, Context(0, env)))
