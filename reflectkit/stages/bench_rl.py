"""What `bench rl` measures: how far rollouts and updates are from the bare passes of the model over the same tokens.

Each round plays, learns, and then makes the bare passes in the same process, so that the ratios hold on a busy machine too.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.core.console import Bar
from reflectkit.core.prompts import LABELS, policy_prompt, reflection_prompt
from reflectkit.core.protocols import Context, Env
from reflectkit.core.rollout import Episode, rollout
from reflectkit.core.seeding import derive
from reflectkit.core.types import Sample, Task
from reflectkit.models.load import Player
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.models.tokens import label_ids, left_pad, position_ids
from reflectkit.rl import batch
from reflectkit.rl.credit import Rule, judge
from reflectkit.rl.learner import Learner, Settings
from reflectkit.rl.logprobs import packed, units

BATCH = 32
COMMENT_TOKENS = 16  # an untrained reflector never stops by itself
SIZES = ("tiny", "gpt2-small")


@dataclass
class Clock:
    """Seconds by name, a value a round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Adds one value to `name`."""
        started = time.perf_counter()
        yield
        self.seconds.setdefault(name, []).append(time.perf_counter() - started)

    def ratio(self, part: str, whole: str) -> float:
        """Median over the rounds of `part` divided by `whole`."""
        return statistics.median(one / other for one, other in zip(self.seconds[part], self.seconds[whole], strict=True))


def measure(
    size: str, tasks: Sequence[Task], make: Callable[[], Env], episodes: int, rounds: int, seed: int, bar: Bar
) -> dict[str, float]:
    """The figures for a model of `size` (one of SIZES) with random weights: rates, shares and ratios to the bare passes."""
    policy = player(size, tasks, make, seed)
    reflector = player(size, tasks, make, seed + 1)
    clock, counts = Clock(), {"episodes": 0, "read": 0, "commented": 0, "rows": 0}
    learner = Learner(policy, Settings(learning_rate=0.0, minibatch=BATCH))
    for number in range(rounds + 1):  # the first one warms up
        chosen = [tasks[(number * episodes + index) % len(tasks)] for index in range(episodes)]
        plays = [Episode(task, derive(seed, "bench", number, index)) for index, task in enumerate(chosen)]
        samples, read, commented = _round(policy, reflector, learner, plays, make, clock)
        if number == 0:
            clock.seconds.clear()
        else:
            counts = {
                "episodes": counts["episodes"] + episodes,
                "read": counts["read"] + read,
                "commented": counts["commented"] + commented,
                "rows": counts["rows"] + sum(len(unit.tokens) for unit in units(samples, range(len(samples)))),
            }
        bar.advance()
    total = {name: sum(values) for name, values in clock.seconds.items()}
    return {
        "rollout_episodes_per_second": counts["episodes"] / total["rollout"],
        "rollout_tokens_per_second": counts["read"] / total["rollout"],
        "rollout_to_bare_forward": clock.ratio("bare_forward", "rollout"),
        "rollout_share_in_model": clock.ratio("rollout_model", "rollout"),
        "reflecting_rollout_episodes_per_second": counts["episodes"] / total["reflecting_rollout"],
        "reflecting_rollout_tokens_per_second": counts["commented"] / total["reflecting_rollout"],
        "reflecting_rollout_to_bare_passes": clock.ratio("bare_reflecting", "reflecting_rollout"),
        "update_tokens_per_second": counts["rows"] / total["update"],
        "update_to_bare_forward_backward": clock.ratio("bare_backward", "update"),
        "choosing_to_one_forward": clock.ratio("act", "one_forward"),
    }


def player(size: str, tasks: Sequence[Task], make: Callable[[], Env], seed: int) -> Player:
    """A player of `size` with random weights and a tokenizer of the env's first prompts."""
    env = make()
    seen = [env.reset(task, seed) for task in tasks[:: max(1, len(tasks) // 50)]]
    texts = [policy_prompt(one) for one in seen] + [reflection_prompt(one) for one in seen]
    widest = max(len(one.choices) for one in seen)
    tokenizer = build_tokenizer(texts, [f" {label}" for label in LABELS[: 2 * widest]], 1500)
    if size == "tiny":
        return Player(build_model(tokenizer, 1024, seed), tokenizer, None)
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Player(GPT2LMHeadModel(GPT2Config()).eval(), tokenizer, None)  # 124 M parameters


def _round(
    policy: Player, reflector: Player, learner: Learner, plays: list[Episode], make: Callable[[], Env], clock: Clock
) -> tuple[list[Sample], int, int]:
    """One round of every measurement; (rows, tokens that the rollout read, the same with comments)."""
    agent = TwoPlayerAgent(policy, batch=BATCH)
    with _model_time(policy.model) as inside, clock.measure("rollout"):
        played = rollout(plays, make, agent, width=BATCH)
    clock.seconds.setdefault("rollout_model", []).append(sum(inside))
    prompts = list(dict.fromkeys(turn.decision.prompt_ids for trajectory in played for turn in trajectory.turns))
    with clock.measure("bare_forward"):
        _bare_forward(policy, prompts)

    reflecting = TwoPlayerAgent(policy, Reflector(reflector, max_new_tokens=COMMENT_TOKENS, batch=BATCH), batch=BATCH)
    assert reflecting.reflector is not None
    with clock.measure("reflecting_rollout"):
        commented = rollout(plays, make, reflecting, width=BATCH)
    turns = [turn for trajectory in commented for turn in trajectory.turns]
    asked = list(dict.fromkeys(reflection_prompt(turn.observation) for turn in turns))
    answered = list(dict.fromkeys(turn.decision.prompt_ids for turn in turns))
    asked_ids = [tuple(reflector.tokenizer(text)["input_ids"]) for text in asked]
    with clock.measure("bare_reflecting"):
        _bare_forward(policy, answered)
        _bare_decoding(reflector, asked_ids)

    counts = {len(turn.observation.choices) for trajectory in played for turn in trajectory.turns}
    judged = judge(played, [], [], Rule("reinforce"))
    labels = {count: label_ids(policy.tokenizer, count) for count in counts}
    samples = batch.rows(played, judged.advantages, judged.returns, labels)
    with clock.measure("update"):
        learner.update(samples, random.Random(0))
    with clock.measure("bare_backward"):
        _bare_backward(learner, samples)

    observations = [turn.observation for turn in turns[:BATCH]]
    fresh = TwoPlayerAgent(policy, batch=BATCH)
    contexts = [Context(index, make()) for index in range(len(observations))]
    with clock.measure("act"):
        fresh.act(observations, contexts)
    chosen = [fresh._ids(policy_prompt(observation)) for observation in observations]
    with clock.measure("one_forward"):
        _bare_forward(policy, chosen)
    return samples, agent.tokens, reflecting.tokens + reflecting.reflector.tokens + sum(map(len, asked_ids))


@contextmanager
def _model_time(model: Any) -> Iterator[list[float]]:
    """Seconds of each forward pass of the model's trunk, while the context is open."""
    spent: list[float] = []
    trunk = getattr(model, model.base_model_prefix)
    hooks = [
        trunk.register_forward_pre_hook(lambda *_: spent.append(-time.perf_counter())),
        trunk.register_forward_hook(lambda *_: spent.append(spent.pop() + time.perf_counter())),
    ]
    try:
        yield spent
    finally:
        for hook in hooks:
            hook.remove()


def _batches(rows: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


@torch.no_grad()
def _bare_forward(reader: Player, prompts: Sequence[Sequence[int]]) -> None:
    """The model's own forward over the prompts, logits of the last position alone."""
    for rows in _batches(prompts):
        input_ids, mask = left_pad(rows, reader.pad_id, torch.device("cpu"))
        reader.model(
            input_ids=input_ids, attention_mask=mask, position_ids=position_ids(mask), use_cache=False, logits_to_keep=1
        )


@torch.no_grad()
def _bare_decoding(writer: Player, prompts: Sequence[Sequence[int]]) -> None:
    """The model's own cached greedy decoding of COMMENT_TOKENS tokens behind each prompt."""
    for rows in _batches(prompts):
        step_ids, mask = left_pad(rows, writer.pad_id, torch.device("cpu"))
        positions, cache = position_ids(mask), None
        for _ in range(COMMENT_TOKENS):
            output = writer.model(
                input_ids=step_ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache, step_ids = output.past_key_values, output.logits[:, -1].argmax(-1, keepdim=True)
            mask, positions = torch.cat([mask, torch.ones_like(step_ids)], dim=1), positions[:, -1:] + 1


def _bare_backward(learner: Learner, samples: Sequence[Sample]) -> None:
    """The model's own forward and backward over the same rows, each distinct prompt once, in batches of the same size."""
    parts = units(samples, range(len(samples)))
    for micro in packed(parts, BATCH * max(len(unit.tokens) for unit in parts)):
        for rows in _batches([unit.tokens for unit in micro]):
            input_ids, mask = left_pad(rows, learner.player.pad_id, torch.device("cpu"))
            output = learner.player.model(
                input_ids=input_ids, attention_mask=mask, position_ids=position_ids(mask), use_cache=False, logits_to_keep=1
            )
            output.logits.sum().backward()
    learner.shards.forget()
