"""Speed of decoding against transformers' `generate`: both write 40 tokens behind each of 32 prompts, greedily.

The prompts are what a reflector sees of DangerousTaxi, each of another start; nothing ends a text early. Both sides
write one token a pass and must write the same texts, or the benchmark stops. What makes comments faster still is left
out: rows that end make room for others, and guessed tokens are read along.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.common import Rounds, row, timed
from reflectkit.core.eventloop import result_of
from reflectkit.core.prompts import reflection_prompt
from reflectkit.envs import env_class, make
from reflectkit.models.decoding import decode
from reflectkit.models.lean import in_place_gelu
from reflectkit.models.load import Player, load_player
from reflectkit.models.padding import left_pad
from reflectkit.models.tokens import prompt_ids

ROWS, TOKENS = 32, 40


def their_texts(player: Player, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """What `generate` writes behind each prompt."""
    input_ids, mask = left_pad(prompts, player.pad_id, torch.device("cpu"))
    config = copy.deepcopy(player.model.generation_config)
    config.eos_token_id, config.pad_token_id = None, player.pad_id
    config.do_sample, config.max_new_tokens = False, tokens
    with torch.no_grad():
        written = player.model.generate(input_ids=input_ids, attention_mask=mask, generation_config=config)
    texts: list[list[int]] = written[:, input_ids.shape[1] :].tolist()
    return texts


def our_texts(player: Player, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """What `decode` writes behind each prompt."""
    lines = decode(
        player.model, prompts, pad_id=player.pad_id, stop_ids=frozenset(), max_new_tokens=tokens, width=len(prompts)
    )
    return [line.token_ids for line in lines]


def measure(theirs: Player, ours: Player, prompts: Sequence[Sequence[int]], tokens: int, count: int) -> Rounds:
    """The times of `count` rounds, as rollouts; one more warms up. Raises SystemExit if the texts differ."""
    in_place_gelu(ours.model)  # as a sampler does
    rounds = Rounds()
    for number in range(count + 1):
        with timed(rounds.theirs["rollout"]):
            expected = their_texts(theirs, prompts, tokens)
        with timed(rounds.ours["rollout"]):
            written = our_texts(ours, prompts, tokens)
        if written != expected:
            raise SystemExit("a text was not written alike; the times would not be comparable")
        if number == 0:
            rounds.clear()
    return rounds


def lines(reflector: Path, rounds: int) -> Iterator[str]:
    """The line of the table."""
    kind = env_class("taxi")
    tasks = kind.tasks(kind.levels[-1])
    env = make("taxi")
    theirs, ours = (load_player(reflector, "reflection", device="cpu") for _ in range(2))
    seen = [result_of(env.reset(task, 0)) for task in tasks[:: len(tasks) // ROWS][:ROWS]]
    prompts = [prompt_ids(ours.tokenizer, reflection_prompt(one)) for one in seen]
    times = measure(theirs, ours, prompts, TOKENS, rounds)
    yield row(f"transformers' `generate`: {ROWS} texts of {TOKENS} tokens", times)
