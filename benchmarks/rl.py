"""`bench rl`: the overhead of rollouts and updates over the model's bare passes on the same tokens.

Each round plays, learns and makes the bare passes in the same process, so that the ratios hold on a busy machine too.
Both sides' tokens are counted: those of prompts that are read and those that are written, without padding.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.console import Bar
from reflectkit.env import Context, Env
from reflectkit.eventloop import result_of, run_sync
from reflectkit.models.architecture import CACHE
from reflectkit.models.labels import prompt_ids
from reflectkit.models.load import LoadedModel, pick_device
from reflectkit.models.rows import left_pad, right_pad
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.prompts import LABELS, policy_prompt, reflection_prompt
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.decoding import decode, position_ids
from reflectkit.sampling.hf import LocalSampler
from reflectkit.seeding import derive
from reflectkit.train import training_rows
from reflectkit.train.algorithms import AlgorithmConfig
from reflectkit.train.learner import LearnerSettings
from reflectkit.train.local_learner import LocalLearner
from reflectkit.train.microbatch import packed, units
from reflectkit.types import Decision, Observation, Sample, Task, Trajectory

BATCH = 32
COUNTED = ("rollout", "bare_forward", "reflecting_rollout", "bare_reflecting", "update", "bare_backward")
"""What tokens are counted of: three pairs of ours and the floor."""
COMMENT_TOKENS = 16  # an untrained reflector never stops by itself
TOKENS = {"tiny": 40_000, "gpt2-small": 6_000}
"""The sizes, with the tokens of prompts that a round has if the number of its episodes is not given: half a minute on a
core.
"""
FEWEST, MOST = 8, 128
"""Episodes of a round if their number is not given."""
PROBES = 4
"""Episodes that are played to know how long they are."""
PARTS = 6
"""How often a round moves the bar."""
SIZES = tuple(TOKENS)


@dataclass
class Clock:
    """Seconds by name, one value per round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the duration of the block to `name`."""
        started = wall()
        yield
        self.seconds.setdefault(name, []).append(wall() - started)

    def ratio(self, part: str, whole: str) -> float:
        """Median over rounds of `part` divided by `whole`."""
        return statistics.median(
            one / other for one, other in zip(self.seconds[part], self.seconds[whole], strict=True)
        )


def wall() -> float:
    """Seconds on the clock when all work given to a GPU is done."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.perf_counter()


def tokens_of_an_episode(tasks: Sequence[Task], make: Callable[[], Env], seed: int) -> float:
    """Tokens of the prompts of an episode, on average, that the smallest model with random weights plays."""
    episodes = [Episode(tasks[index % len(tasks)], derive(seed, "probe", index)) for index in range(PROBES)]
    played = rollout(episodes, make, TwoPlayerAgent(LocalSampler(player(SIZES[0], tasks, make, seed))), width=PROBES)
    return sum(len(turn.decision.prompt_ids) for one in played for turn in one.turns) / PROBES


def fitting(size: str, tokens: float) -> int:
    """How many episodes of so many tokens a round of `size` has at most."""
    return min(MOST, int(TOKENS[size] / max(1.0, tokens)))


def measure(
    size: str,
    tasks: Sequence[Task],
    make: Callable[[], Env],
    episodes: int,
    rounds: int,
    seed: int,
    bar: Bar,
    device: str = "cpu",
) -> dict[str, float]:
    """The figures for a model of `size` (one of SIZES) with random weights: rates, and ratios to the bare passes. The
    bar moves PARTS times in each round and in the first one, which warms up.
    """
    policy = player(size, tasks, make, seed, device)
    reflector = player(size, tasks, make, seed + 1, device)
    clock, tokens, played = Clock(), dict.fromkeys(COUNTED, 0), 0
    learner = LocalLearner(policy, LearnerSettings(learning_rate=0.0, minibatch=BATCH))
    for number in range(rounds + 1):  # the first one warms up
        chosen = [tasks[(number * episodes + index) % len(tasks)] for index in range(episodes)]
        plays = [Episode(task, derive(seed, "bench", number, index)) for index, task in enumerate(chosen)]
        counts = _round(policy, reflector, learner, plays, make, clock, bar)
        if number == 0:
            clock.seconds.clear()
        else:
            played += episodes
            tokens = {name: tokens[name] + counts[name] for name in COUNTED}
    total = {name: sum(values) for name, values in clock.seconds.items()}
    figures = {
        "rollout_episodes_per_second": played / total["rollout"],
        "rollout_tokens_per_second": tokens["rollout"] / total["rollout"],
        "rollout_to_bare_forward": clock.ratio("bare_forward", "rollout"),
        "rollout_share_in_model": clock.ratio("rollout_model", "watched_rollout"),
        "reflecting_rollout_episodes_per_second": played / total["reflecting_rollout"],
        "reflecting_rollout_tokens_per_second": tokens["reflecting_rollout"] / total["reflecting_rollout"],
        "reflecting_rollout_to_bare_passes": clock.ratio("bare_reflecting", "reflecting_rollout"),
    }
    if "decoding" in total:
        figures["decoding"] = clock.ratio("bare_decoding", "decoding")
    if "update" in total:
        figures |= {
            "update_tokens_per_second": tokens["update"] / total["update"],
            "update_to_bare_forward_backward": clock.ratio("bare_backward", "update"),
        }
    if "act" in total:
        figures["choosing_to_one_forward"] = clock.ratio("act", "one_forward")
    return figures | {f"{name}_tokens_per_episode": count / played for name, count in tokens.items()}


def decoding_ratio(
    writer: LoadedModel, prompts: Sequence[Sequence[int]], limits: Sequence[int], width: int = BATCH, rounds: int = 5
) -> float:
    """The speed of `decode` when sampling `limits` tokens after each prompt, as a fraction of `decoding_floor`: the
    median over alternating pairs.
    """
    return decoding_rounds(writer, prompts, limits, width, rounds).ratio("bare_decoding", "decoding")


def decoding_rounds(
    writer: LoadedModel, prompts: Sequence[Sequence[int]], limits: Sequence[int], width: int, rounds: int
) -> Clock:
    """The times of that many alternating pairs of `decode` ("decoding") and its floor ("bare_decoding")."""
    clock = Clock()
    for number in range(rounds + 1):  # the first one warms up
        _decoding_pair(writer, prompts, limits, width, clock)
        if number == 0:
            clock.seconds.clear()
    return clock


@torch.no_grad()
def decoding_floor(
    writer: LoadedModel, prompts: Sequence[Sequence[int]], lines: Sequence[Sequence[int]], width: int = BATCH
) -> int:
    """The model's own cached passes over the prompts and then over each line after its prompt, one token at a time.

    Batches of `width` in the given order, each with as many passes as its longest line has tokens; nothing is sampled
    or kept. Returns the tokens of the prompts and the lines.
    """
    device = next(writer.model.parameters()).device
    for start in range(0, len(prompts), width):
        step_ids, mask = left_pad(prompts[start : start + width], writer.pad_id, device)
        tokens_BT = right_pad(lines[start : start + width], writer.pad_id, device)
        positions, cache = position_ids(mask), None
        for step in range(tokens_BT.shape[1]):
            output = writer.model(
                input_ids=step_ids,
                attention_mask=mask,
                position_ids=positions,
                **{CACHE: cache},
                use_cache=True,
                logits_to_keep=1,
            )
            cache, step_ids = getattr(output, CACHE), tokens_BT[:, step : step + 1]
            mask = torch.cat([mask, torch.ones_like(step_ids)], dim=1)
            positions = (positions[:, -1:] + 1).clamp(max=writer.context - 1)  # including rows that have ended
    return sum(map(len, prompts)) + sum(map(len, lines))


def player(size: str, tasks: Sequence[Task], make: Callable[[], Env], seed: int, device: str = "cpu") -> LoadedModel:
    """A player of `size` with random weights, and a tokenizer of the env's first prompts that has every label. Its
    context is at least 1,024 tokens and four times the longest of these prompts.
    """
    env = make()
    seen = [result_of(env.reset(task, seed)) for task in tasks[:: max(1, len(tasks) // 50)]]
    texts = [policy_prompt(one) for one in seen] + [reflection_prompt(one) for one in seen]
    tokenizer = build_tokenizer(texts, [f" {label}" for label in LABELS], 1500)
    context = max(1024, 4 * max(len(prompt_ids(tokenizer, text)) for text in texts))
    if size == "tiny":
        return LoadedModel(build_model(tokenizer, context, seed).to(pick_device(device)), tokenizer, None)
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(GPT2Config(n_positions=context)).eval()  # 124 M parameters
    return LoadedModel(model.to(pick_device(device)), tokenizer, None)


def _round(
    policy: LoadedModel,
    reflector: LoadedModel,
    learner: LocalLearner,
    plays: list[Episode],
    make: Callable[[], Env],
    clock: Clock,
    bar: Bar,
) -> dict[str, int]:
    """One round of every measurement; returns the tokens of each of COUNTED."""
    agent = TwoPlayerAgent(LocalSampler(policy, batch=BATCH))
    with clock.measure("rollout"):
        played = rollout(plays, make, agent, width=BATCH)
    with clock.measure("bare_forward"):
        bare_tokens = _bare_play(policy, played)
    bar.advance()
    with _model_time(policy.model) as inside, clock.measure("watched_rollout"):
        rollout(plays, make, TwoPlayerAgent(LocalSampler(policy, batch=BATCH)), width=BATCH)
    clock.seconds.setdefault("rollout_model", []).append(sum(inside))
    bar.advance()

    commenting = Reflector(LocalSampler(reflector, frozen=True, rank=0, batch=BATCH), max_new_tokens=COMMENT_TOKENS)
    reflecting = TwoPlayerAgent(LocalSampler(policy, batch=BATCH), commenting)
    with clock.measure("reflecting_rollout"):
        commented = rollout(plays, make, reflecting, width=BATCH)
    bar.advance()
    turns = [turn for trajectory in commented for turn in trajectory.turns]
    asked = list(dict.fromkeys(reflection_prompt(turn.observation) for turn in turns))
    asked_ids = [tuple(prompt_ids(reflector.tokenizer, text)) for text in asked]
    asked_ids = [ids for ids in asked_ids if len(ids) + COMMENT_TOKENS <= reflector.context]
    with clock.measure("bare_reflecting"):
        reflecting_tokens = _bare_play(policy, commented)
        lines = [[reflector.pad_id] * COMMENT_TOKENS] * len(asked_ids)
        reflecting_tokens += decoding_floor(reflector, asked_ids, lines)
    bar.advance()

    texts = _texts(played)
    if texts:
        _decoding_pair(policy, [prompt for prompt, _ in texts], [len(line) for _, line in texts], BATCH, clock)
    elif asked_ids:
        _decoding_pair(reflector, asked_ids[: 2 * BATCH], [COMMENT_TOKENS] * len(asked_ids[: 2 * BATCH]), BATCH, clock)
    bar.advance()

    offered = {turn.observation.choices for trajectory in played for turn in trajectory.turns} - {()}
    trained = training_rows.trainable(played)
    estimates = AlgorithmConfig.from_flat(algo="reinforce").estimate(trained)
    labels = {choices: agent.labels(choices) for choices in offered}
    samples = training_rows.rows(trained, estimates.advantages, estimates.returns, labels)
    rows = sum(len(unit.tokens) for unit in units(samples))
    if samples:
        with clock.measure("update"):
            learner.update(samples, random.Random(0))
        with clock.measure("bare_backward"):
            _bare_backward(learner, samples)
    bar.advance()

    observations = [turn.observation for turn in turns if turn.observation.choices][:BATCH]
    if observations:
        fresh = TwoPlayerAgent(LocalSampler(policy, batch=BATCH))
        contexts = [Context(index, make()) for index in range(len(observations))]
        with clock.measure("act"):
            run_sync(_decide_all(fresh, observations, contexts))
        prompts = [tuple(prompt_ids(policy.tokenizer, policy_prompt(observation))) for observation in observations]
        with clock.measure("one_forward"):
            _bare_forward(policy, prompts)
    ours = agent.policy.tokens, reflecting.policy.tokens + commenting.sampler.tokens
    return dict(zip(COUNTED, (ours[0], bare_tokens, ours[1], reflecting_tokens, rows, rows), strict=True))


async def _decide_all(
    agent: TwoPlayerAgent, observations: Sequence[Observation], contexts: Sequence[Context]
) -> list[Decision]:
    return await asyncio.gather(*map(agent.decide, observations, contexts))


@contextmanager
def _model_time(model: Any) -> Iterator[list[float]]:
    """Seconds of each forward pass of the model's trunk while the context is open."""
    spent: list[float] = []
    trunk = getattr(model, model.base_model_prefix)
    hooks = [
        trunk.register_forward_pre_hook(lambda *_: spent.append(-wall())),
        trunk.register_forward_hook(lambda *_: spent.append(spent.pop() + wall())),
    ]
    try:
        yield spent
    finally:
        for hook in hooks:
            hook.remove()


def _decoding_pair(
    writer: LoadedModel, prompts: Sequence[Sequence[int]], limits: Sequence[int], width: int, clock: Clock
) -> None:
    """Sample `limits` tokens after each prompt, then make the bare passes over them."""
    with clock.measure("decoding"):
        written = decode(
            writer.model,
            prompts,
            pad_id=writer.pad_id,
            stop_ids=frozenset(),
            max_new_tokens=limits,
            temperature=1.0,
            seeds=range(len(prompts)),
            width=width,
        )
    with clock.measure("bare_decoding"):
        decoding_floor(writer, prompts, [line.token_ids for line in written], width)


def _texts(played: Sequence[Trajectory]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(prompt, tokens written after it) of each decision without choices."""
    turns = [turn for trajectory in played for turn in trajectory.turns if not turn.observation.choices]
    return [(turn.decision.prompt_ids, turn.decision.token_ids) for turn in turns if turn.decision.token_ids]


def _bare_play(reader: LoadedModel, played: Sequence[Trajectory]) -> int:
    """One forward over each distinct prompt that was answered with a choice, and cached decoding of the texts. Returns
    the tokens.
    """
    turns = [turn for trajectory in played for turn in trajectory.turns if turn.observation.choices]
    prompts = list(dict.fromkeys(turn.decision.prompt_ids for turn in turns))
    _bare_forward(reader, prompts)
    texts = _texts(played)
    return sum(map(len, prompts)) + decoding_floor(reader, [prompt for prompt, _ in texts], [line for _, line in texts])


def _batches(rows: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


@torch.no_grad()
def _bare_forward(reader: LoadedModel, prompts: Sequence[Sequence[int]]) -> None:
    """The model's own forward over the prompts, with logits of the last position only."""
    for rows in _batches(prompts):
        input_ids, mask = left_pad(rows, reader.pad_id, next(reader.model.parameters()).device)
        reader.model(
            input_ids=input_ids, attention_mask=mask, position_ids=position_ids(mask), use_cache=False, logits_to_keep=1
        )


def _bare_backward(learner: LocalLearner, samples: Sequence[Sample]) -> None:
    """The model's own forward and backward over the same rows, each distinct prompt once, in equal batches."""
    parts = units(samples)
    for micro in packed(parts, BATCH * max(len(unit.tokens) for unit in parts)):
        for rows in _batches([unit.tokens for unit in micro]):
            bare_backward(learner.player, rows)
    learner.optimizer.zero_grad()


def bare_backward(reader: LoadedModel, rows: Sequence[Sequence[int]]) -> None:
    """The model's own forward and backward over a batch of rows, from the logits of the last position only."""
    input_ids, mask = left_pad(rows, reader.pad_id, next(reader.model.parameters()).device)
    output = reader.model(
        input_ids=input_ids, attention_mask=mask, position_ids=position_ids(mask), use_cache=False, logits_to_keep=1
    )
    output.logits.float().sum().backward()
