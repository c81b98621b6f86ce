"""Speed of decoding against transformers' `generate`: both write 40 tokens behind each of 32 prompts, greedily.

The prompts are what a reflector sees of DangerousTaxi, each of another start; nothing ends a text early. Both sides
write one token a pass and should write the same texts. Two tokens whose logits differ by less than NEAR_TIE are both
right, since sums are rounded in another order on another machine; the table says how many texts part there, and how
many differ otherwise. Left out: rows that end make room for others, which makes comments faster still.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.common import Rounds, row, timed
from reflectkit.envs import env_class, make
from reflectkit.eventloop import result_of
from reflectkit.models.load import LoadedModel, load_player
from reflectkit.models.tokens import prompt_ids
from reflectkit.prompts import reflection_prompt
from reflectkit.sampling.decoding import decode, left_pad

ROWS, TOKENS = 32, 40
NEAR_TIE = 1e-3  # logits; float32 sums over a thousand terms, in another order, differ by up to 1e-4


@dataclass
class Partings:
    """The places of the texts that were not written alike. near: at a near tie. wrong: elsewhere."""

    near: set[int] = field(default_factory=set)
    wrong: set[int] = field(default_factory=set)

    def find(
        self,
        player: LoadedModel,
        prompts: Sequence[Sequence[int]],
        theirs: Sequence[Sequence[int]],
        ours: Sequence[Sequence[int]],
    ) -> None:
        """Add what differs between `theirs` and `ours`. player: whose logits decide what a near tie is."""
        for place, (prompt, *texts) in enumerate(zip(prompts, theirs, ours, strict=True)):
            for number, tokens in enumerate(zip(*texts, strict=True)):
                if tokens[0] != tokens[1]:
                    before = torch.tensor([[*prompt, *texts[0][:number]]])
                    with torch.no_grad():
                        logits_V = player.model(input_ids=before, use_cache=False).logits[0, -1]
                    near = logits_V.max() - logits_V[list(tokens)].min() < NEAR_TIE
                    (self.near if near else self.wrong).add(place)
                    break

    def __str__(self) -> str:
        said = f"; {len(self.near)} texts part at a near tie" if self.near else ""
        return said + (f"; {len(self.wrong)} texts differ, so do not compare" if self.wrong else "")


def their_texts(player: LoadedModel, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """What `generate` writes behind each prompt."""
    input_ids, mask = left_pad(prompts, player.pad_id, torch.device("cpu"))
    config = player.model.generation_config  # a copy would get its empty `eos_token_id` from the model's again
    config.eos_token_id, config.pad_token_id = None, player.pad_id
    config.do_sample, config.max_new_tokens = False, tokens
    with torch.no_grad():
        written = player.model.generate(input_ids=input_ids, attention_mask=mask)
    texts: list[list[int]] = written[:, input_ids.shape[1] :].tolist()
    return texts


def our_texts(player: LoadedModel, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """What `decode` writes behind each prompt."""
    lines = decode(
        player.model, prompts, pad_id=player.pad_id, stop_ids=frozenset(), max_new_tokens=tokens, width=len(prompts)
    )
    return [line.token_ids for line in lines]


def measure(
    theirs: LoadedModel, ours: LoadedModel, prompts: Sequence[Sequence[int]], tokens: int, count: int
) -> tuple[Rounds, Partings]:
    """The times of `count` rounds, as rollouts, and what differs in any of them; one more round warms up."""
    rounds, partings = Rounds(), Partings()
    for number in range(count + 1):
        with timed(rounds.theirs["rollout"]):
            expected = their_texts(theirs, prompts, tokens)
        with timed(rounds.ours["rollout"]):
            written = our_texts(ours, prompts, tokens)
        partings.find(ours, prompts, expected, written)
        if number == 0:
            rounds.clear()
    return rounds, partings


def lines(reflector: Path, rounds: int) -> Iterator[str]:
    """The line of the table."""
    kind = env_class("taxi")
    tasks = kind.taskset.tasks(kind.levels[-1])
    env = make("taxi")
    theirs, ours = (load_player(reflector, "reflection", device="cpu") for _ in range(2))
    seen = [result_of(env.reset(task, 0)) for task in tasks[:: len(tasks) // ROWS][:ROWS]]
    prompts = [prompt_ids(ours.tokenizer, reflection_prompt(one)) for one in seen]
    times, partings = measure(theirs, ours, prompts, TOKENS, rounds)
    yield row(f"transformers' `generate`: {ROWS} texts of {TOKENS} tokens{partings}", times)
