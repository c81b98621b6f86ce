"""How memory and time of one update grow with the episodes played and with the length of prompts.

    make bench-growth                                      # both tables (ten minutes)
    make bench-growth ARGS="--episodes 64 --prompts 500"

Each line is measured in a process of its own: an update of at most 8 episodes warms up, then one update is played and
learnt by REINFORCE, on DangerousTaxi with the built-in model of 1 M parameters and random weights. Memory is the
highest resident set of the process less what it was before that update, so models and libraries are not counted. Time
is CPU time of one thread. For the second table, 4 episodes of one turn are played, and each prompt begins with a line
of filler words of its own, so that it has about the given number of tokens and none can be shared.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import Ours, Watch, resident, trim
from benchmarks.rl import player
from reflectkit.env import StepResult, Wrapper
from reflectkit.envs import env_class, make
from reflectkit.eventloop import result_of
from reflectkit.models.hub import silence_libraries
from reflectkit.rollouts.episode import Episode
from reflectkit.seeding import derive
from reflectkit.types import Observation

EPISODES = (4, 16, 64, 256, 1024, 4096)
PROMPTS = (500, 1000, 2000, 4000, 8000, 16000)
FILLED = 4
"""Episodes of the second table."""
MAX_TOKENS = 8192
"""Tokens of a micro-batch."""
WIDTH = 64
"""Episodes played at once."""
WORDS = ("north", "south", "east", "west", "stand", "wall", "taxi", "passenger")


class Filled(Wrapper):
    """Begins each view with `words` words that no other view has in this order."""

    def __init__(self, env: Any, words: int) -> None:
        super().__init__(env)
        self.words, self.chance = words, random.Random()

    def reset(self, task: Any, seed: int) -> Observation:
        """The wrapped env's first view, filled."""
        self.chance.seed(seed)
        return self._filled(result_of(self.env.reset(task, seed)))

    def step(self, action: Any) -> StepResult:
        """The wrapped env's result, its view filled."""
        result: StepResult = result_of(self.env.step(action))
        return replace(result, observation=self._filled(result.observation))

    def _filled(self, seen: Observation) -> Observation:
        first, *others = seen.messages
        line = " ".join(self.chance.choices(WORDS, k=self.words))
        return replace(seen, messages=(replace(first, content=f"{line}\n{first.content}"), *others))


def measured(episodes: int, words: int) -> dict[str, float]:
    """One update of `episodes`, whose prompts have `words` words more than the env's."""
    kind = env_class("taxi")
    level = kind.levels[-1]
    tasks = kind.taskset.tasks(level)

    def new() -> Any:
        return Filled(make("taxi", 1), words) if words else make("taxi", kind.horizons[level])

    policy = player("tiny", tasks, new, seed=0)
    ours = Ours(policy, new, width=WIDTH, max_tokens=MAX_TOKENS)

    def update(count: int, version: int) -> dict[str, float]:
        started = time.process_time()
        chosen = [tasks[(7 * number) % len(tasks)] for number in range(count)]
        plays = [Episode(task, derive(0, version, number), str(number)) for number, task in enumerate(chosen)]
        played = ours.play(plays)
        between = time.process_time()
        samples = ours.learn(played)
        tokens = sum(len(sample.tokens) for sample in samples)
        return {
            "episodes": count,
            "rows": len(samples),
            "prompt": tokens / len(samples),
            "tokens": tokens,
            "rollout": between - started,
            "update": time.process_time() - between,
        }

    update(min(8, episodes), 0)
    trim()
    before = resident()
    with Watch() as watch:
        figures = update(episodes, 1)
    each = 1000 * (figures["rollout"] + figures["update"]) / figures["rows"]
    return figures | {"each": each, "memory": (watch.highest - before) / 2**20}


HEAD = (
    "| episodes | rows | tokens of a prompt | rollout, CPU s | update, CPU s | ms a row | memory, MiB |\n"
    "|---|---|---|---|---|---|---|"
)


def line(figures: dict[str, float]) -> str:
    """A row of the table."""
    return (
        f"| {figures['episodes']:,} | {figures['rows']:,} | {figures['prompt']:.0f} | {figures['rollout']:.1f} "
        f"| {figures['update']:.1f} | {figures['each']:.1f} | {figures['memory']:,.0f} |"
    )


def picture(tables: Sequence[Sequence[dict[str, float]]], out: Path) -> None:
    """Memory over episodes, and memory and time a row over the length of prompts, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    by_episodes, by_length = tables
    figure, panels = pyplot.subplots(1, 3, figsize=(10, 3))
    shown = (
        (by_episodes, "episodes", "episodes of an update", "memory", "memory, MiB"),
        (by_length, "prompt", "tokens of a prompt", "memory", "memory, MiB"),
        (by_length, "prompt", "tokens of a prompt", "each", "CPU time, ms a row"),
    )
    for panel, (table, across, across_label, up, up_label) in zip(panels, shown, strict=True):
        panel.plot([one[across] for one in table], [one[up] for one in table], marker="o")
        panel.set(xscale="log", xlabel=across_label, ylabel=up_label)
        panel.set(**{"yscale": "log"} if up == "each" else {"ylim": (0, 1.1 * max(one[up] for one in table))})
        ticks = [one[across] for one in table]
        panel.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(out, metadata={"Software": None})


def main() -> None:
    """Both tables, each line as it is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--episodes", type=int, nargs="*", default=EPISODES, help="of the first table")
    parser.add_argument("--prompts", type=int, nargs="*", default=PROMPTS, help="tokens, of the second table")
    parser.add_argument("--out", type=Path, help="draw both tables as a PNG")
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)  # one line, in a process of its own
    given = parser.parse_args()
    torch.set_num_threads(1)
    silence_libraries()
    logging.disable(logging.WARNING)
    if given.one:
        print(json.dumps(measured(*given.one)))
        return
    tables: list[list[dict[str, float]]] = []
    for points in ([(count, 0) for count in given.episodes], [(FILLED, length) for length in given.prompts]):
        tables.append([])
        if points:
            print(HEAD, flush=True)
        for point in points:
            command = [sys.executable, "-m", "benchmarks.growth", "--one", *map(str, point)]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            tables[-1].append(json.loads(told))
            print(line(tables[-1][-1]), flush=True)
    if given.out:
        picture(tables, given.out)


if __name__ == "__main__":
    main()
