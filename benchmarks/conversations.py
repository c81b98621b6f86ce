"""What a rollout of the service desk gains by keeping what was read: the cache of `sampling.decoding` on against off.

    python -m benchmarks.conversations --policy CHECKPOINT --reflector CHECKPOINT   # of `run support-tiny`

Both sides play the same episodes, in groups from one start, and take turns in one process with one thread; they must
sample the same tokens, or the benchmark stops. A ratio is the CPU time without divided by that with it. Tokens are
those of all passes with more than one new token a row, padding included.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.problems import problems_of
from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.console import Quiet
from reflectkit.envs import env_class, make
from reflectkit.models.hub import silence_libraries
from reflectkit.models.load import LoadedModel, load_player
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling import decoding
from reflectkit.sampling.hf import LocalSampler
from reflectkit.seeding import derive
from reflectkit.types import Decision, Task

REPEATS = 8
"""Episodes of a group."""


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Read every prompt anew while the context is open."""
    before, decoding.LONG = decoding.LONG, sys.maxsize
    try:
        yield
    finally:
        decoding.LONG = before


@contextmanager
def read_tokens(players: Sequence[LoadedModel]) -> Iterator[list[int]]:
    """The tokens of each pass of prompts while the context is open."""
    sizes: list[int] = []

    def note(module: Any, given: tuple[Any, ...], output: Any) -> None:
        if given[0].shape[1] > 1:
            sizes.append(given[0].numel())

    hooks = [player.model.get_input_embeddings().register_forward_hook(note) for player in players]
    try:
        yield sizes
    finally:
        for hook in hooks:
            hook.remove()


def played(
    policy: LoadedModel, reflector: LoadedModel, tasks: Sequence[Task], number: int, given: Any
) -> list[Decision]:
    """The decisions of round `number`, by new samplers."""
    agent = TwoPlayerAgent(
        LocalSampler(policy),
        Reflector(LocalSampler(reflector, frozen=True, rank=0), max_new_tokens=given.comment_tokens),
        max_new_tokens=48,
    )
    episodes = [
        Episode(tasks[(number * given.groups + group) % len(tasks)], derive(number, group, one), str(group),
                start=derive(number, group))
        for group in range(given.groups) for one in range(REPEATS)
    ]  # fmt: skip
    trajectories = rollout(episodes, lambda: make("support", given.horizon, brief=True), agent, width=64)
    return [turn.decision for trajectory in trajectories for turn in trajectory.turns]


def measure(policy: LoadedModel, reflector: LoadedModel, tasks: Sequence[Task], given: Any) -> dict[str, list[float]]:
    """Of each round: seconds and tokens without ("afresh", "read afresh") and with it ("kept", "read kept"); "turns".

    Raises SystemExit if the two sides sample different tokens.
    """
    figures: dict[str, list[float]] = {}
    for number in range(given.rounds + 1):
        sides: dict[str, list[Decision]] = {}
        for name in ("afresh", "kept") if number % 2 else ("kept", "afresh"):
            with read_tokens((policy, reflector)) as sizes:
                started = time.process_time()
                if name == "kept":
                    sides[name] = played(policy, reflector, tasks, number, given)
                else:
                    with nothing_kept():
                        sides[name] = played(policy, reflector, tasks, number, given)
                figures.setdefault(name, []).append(time.process_time() - started)
            figures.setdefault(f"read {name}", []).append(sum(sizes))
        if len({tuple(one.token_ids for one in side) for side in sides.values()}) > 1:
            raise SystemExit("the two sides sampled different tokens; the times would not be comparable")
        figures.setdefault("turns", []).append(len(sides["kept"]))
    return {name: values[1:] for name, values in figures.items()}  # the first one warms up


def main() -> None:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conversations", description=__doc__)
    parser.add_argument("--policy", type=Path, required=True, help="checkpoint of the policy")
    parser.add_argument("--reflector", type=Path, required=True, help="checkpoint of the reflector")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds")
    parser.add_argument("--groups", type=int, default=2, help=f"starts in a round, of {REPEATS} episodes each")
    parser.add_argument("--horizon", type=int, default=10, help="most turns of an episode")
    parser.add_argument("--comment-tokens", type=int, default=40, help="most tokens of a comment")
    given = parser.parse_args()
    torch.set_num_threads(1)
    silence_libraries()
    logging.disable(logging.WARNING)
    policy = load_player(given.policy, "policy", device="cpu")
    reflector = load_player(given.reflector, "reflection", device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        tasks, _ = problems_of(env_class("support"), Path(folder), 0, 0, Quiet())
    figures = measure(policy, reflector, tasks, given)
    ratios = [afresh / kept for afresh, kept in zip(figures["afresh"], figures["kept"], strict=True)]
    middle = {name: statistics.median(values) for name, values in figures.items()}
    print(
        f"{middle['turns']:.0f} turns; CPU seconds {middle['afresh']:.2f} -> {middle['kept']:.2f}, ratio"
        f" {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); tokens read"
        f" {middle['read afresh']:,.0f} -> {middle['read kept']:,.0f}"
    )


if __name__ == "__main__":
    main()
