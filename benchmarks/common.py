"""What all comparisons share: the players, our side of a round, the figures of a round, and the table.

A round is one update: episodes are played, then learnt from. Both sides have the same weights, environment, prompts and
tokens, and take turns in one process. On a CPU, with one thread, time is CPU time, so that other work on the machine
counts as little as possible; on a GPU it is wall time until the GPU has done its work, and memory is the GPU's. The
learning rate is 0: all the work of an update is done, and every round starts from the same weights.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
import torch

from benchmarks.rl import wall
from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.env import Env
from reflectkit.eventloop import run_sync
from reflectkit.models.labels import LabelPath
from reflectkit.models.load import LoadedModel
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.base import SampleOutput, Sampler, SampleRequest
from reflectkit.sampling.hf import LocalSampler
from reflectkit.seeding import derive
from reflectkit.train import training_rows
from reflectkit.train.algorithms import AlgorithmConfig
from reflectkit.train.learner import LearnerSettings
from reflectkit.train.local_learner import LocalLearner
from reflectkit.types import Sample, Task, Trajectory

PARTS = ("rollout", "update")
SIDES = ("theirs", "ours")


@dataclass
class Rounds:
    """What each part of each side took, one value a round.

    seconds: CPU seconds by side and part. peaks: bytes of memory at most, over what was resident before the part. bare:
    the time of bare passes over the same tokens, divided by ours, in some of the rounds. tokens: of the rows that are
    learnt. left_out: rounds without values, because the sides did not do the same.
    """

    seconds: dict[str, dict[str, list[float]]] = field(default_factory=lambda: _empty())
    peaks: dict[str, dict[str, list[float]]] = field(default_factory=lambda: _empty())
    bare: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})
    tokens: int = 0
    left_out: int = 0

    @contextlib.contextmanager
    def measure(self, side: str, part: str) -> Iterator[None]:
        """Add the CPU time and the peak memory of the block."""
        trim()
        before = resident()
        with Watch() as watch:
            started = now()
            yield
            self.seconds[side][part].append(now() - started)
        self.peaks[side][part].append(max(0, watch.highest - before))

    def compare(self, part: str, passes: Callable[[], None]) -> None:
        """Add the time of the bare `passes`, divided by ours of the last round."""
        trim()
        started = now()
        passes()
        self.bare[part].append((now() - started) / self.seconds["ours"][part][-1])

    def ratios(self, *parts: str) -> list[float]:
        """Their time divided by ours, in each round, over the sum of `parts`."""
        theirs, ours = (
            [sum(values) for values in zip(*(self.seconds[side][part] for part in parts), strict=True)]
            for side in SIDES
        )
        return [their / our for their, our in zip(theirs, ours, strict=True)]

    def leave_out(self) -> None:
        """Forget the values of the last round."""
        for table in (self.seconds, self.peaks):
            for parts in table.values():
                for values in parts.values():
                    del values[-1:]
        self.left_out += 1

    def clear(self) -> None:
        """Forget all rounds."""
        self.seconds, self.peaks, self.left_out = _empty(), _empty(), 0


def _empty() -> dict[str, dict[str, list[float]]]:
    return {side: {part: [] for part in PARTS} for side in SIDES}


@dataclass
class Ours:
    """Our side of the rounds: what `rlft` runs.

    width: episodes played at once; 0: all. max_tokens: of a micro-batch. max_new_tokens: of a text. server: who
    samples, if not this process.
    """

    policy: LoadedModel
    make: Callable[[], Env]
    width: int = 0
    max_tokens: int = 16384
    max_new_tokens: int = 64
    server: Sampler | None = None

    def __post_init__(self) -> None:
        settings = LearnerSettings(0.0, entropy=0.0, clip=0.2, max_grad_norm=0.3, max_tokens=self.max_tokens)
        self.learner = LocalLearner(self.policy, settings)
        self.sampler: Sampler = self.server or LocalSampler(self.policy)
        self.agent = TwoPlayerAgent(self.sampler, max_new_tokens=self.max_new_tokens)
        self.version = 0

    def play(self, episodes: Sequence[Episode]) -> list[Trajectory]:
        """Play `episodes` with weights that have just changed."""
        self.version += 1
        run_sync(self.sampler.publish(self.policy, self.version))
        return rollout(episodes, self.make, self.agent, width=self.width or len(episodes))

    def rows(self, played: Sequence[Trajectory]) -> list[Sample]:
        """The rows of `played`, with the mean return as their baseline."""
        estimates = AlgorithmConfig.from_flat(algo="reinforce", normalize=False).estimate(played)
        offered = {turn.observation.choices for trajectory in played for turn in trajectory.turns} - {()}
        labels = {choices: self.agent.labels(choices) for choices in offered}
        return training_rows.rows(played, estimates.advantages, estimates.returns, labels)

    def learn(self, played: Sequence[Trajectory]) -> list[Sample]:
        """One update by REINFORCE. Returns its rows."""
        samples = self.rows(played)
        self.learner.update(samples, random.Random(0))
        return samples


class Follower:
    """A sampler that samples, and then answers with the recorded tokens. taken: by the seed of the request."""

    def __init__(self, inner: Sampler, taken: dict[int, LabelPath]) -> None:
        self.inner, self.taken = inner, taken
        self.tokenizer, self.role, self.context = inner.tokenizer, inner.role, inner.context

    @property
    def tokens(self) -> int:
        """As of the sampler inside."""
        return self.inner.tokens

    async def sample(self, ask: SampleRequest) -> SampleOutput:
        """A label with its log-probability, or a text of the recorded length."""
        tokens = self.taken[ask.seed]
        if ask.labels:
            sampled = await self.inner.sample(ask)
            return replace(sampled, token_ids=tokens, logprobs=(sampled.label_logprobs[ask.labels.index(tokens)],))
        sampled = await self.inner.sample(replace(ask, max_new_tokens=len(tokens), stop_ids=frozenset()))
        return replace(sampled, token_ids=tokens)

    async def publish(self, weights: Any, version: int) -> None:
        """As of the sampler inside."""
        await self.inner.publish(weights, version)


def different_starts(
    ours: Ours, tasks: Sequence[Task], size: int, count: int, seed: int, multiple: int
) -> list[list[Episode]]:
    """`count` batches of `size` episodes of different tasks, all with the same number of turns, a multiple of
    `multiple`: a trainer with a fixed number of rows per update can be given exactly these.

    Episodes do not depend on each other, so batches are picked from a pool whose lengths are known.
    """
    chance = random.Random(seed)
    picked = chance.sample(list(tasks), min(len(tasks), 4 * size))
    pool = [Episode(task, derive(seed, task.id), task.id) for task in picked]
    turns = {episode.seed: len(played.turns) for episode, played in zip(pool, ours.play(pool), strict=True)}
    found: dict[int, list[list[Episode]]] = {}
    for _ in range(100_000):
        drawn = chance.sample(pool, size)
        total = sum(turns[episode.seed] for episode in drawn)
        if total and total % multiple == 0:
            found.setdefault(total, []).append(drawn)
            if len(found[total]) == count:
                return found[total]
    raise SystemExit(f"no {count} batches of {size} episodes have the same number of turns")


def one_group(ours: Ours, tasks: Sequence[Task], size: int, seed: int, multiple: int, turns: float) -> list[Episode]:
    """`size` episodes from the same start, of `turns` turns or more on average, in all a multiple of `multiple`."""
    chance = random.Random(seed)
    for attempt in range(400):
        task = chance.choice(tasks)
        drawn = [Episode(task, derive(seed, attempt, index), task.id, start=attempt) for index in range(size)]
        total = sum(len(trajectory.turns) for trajectory in ours.play(drawn))
        if total >= turns * size and total % multiple == 0:
            return drawn
    raise SystemExit(
        f"no group of {size} episodes has {turns} turns or more on average, in all a multiple of {multiple}"
    )


def now() -> float:
    """CPU seconds of this process and of a server that it has started; where it uses a GPU, seconds on the clock when
    all work given to it is done.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        served = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
        return time.process_time() + float(sum(times.user + times.system for times in served))
    return wall()


def resident() -> int:
    """Bytes of this process in memory; where it uses a GPU, of its tensors there."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.memory_allocated()
    return int(psutil.Process().memory_info().rss)


def trim() -> None:
    """Give freed memory back to the system, so that what is resident is in use."""
    with contextlib.suppress(OSError, AttributeError):  # only the GNU C library has it
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class Watch:
    """Looks at the memory every 10 ms while the context is open. highest: the most that was seen, in bytes; a GPU's
    peak is known.
    """

    def __enter__(self) -> Watch:
        self.highest, self._over = 0, threading.Event()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.reset_peak_memory_stats()
        self._looks = threading.Thread(target=self._look, daemon=True)
        self._looks.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._looks.join()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self.highest = torch.cuda.max_memory_allocated()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self.highest = max(self.highest, resident())


COLUMNS = (
    "theirs / ours", "rollout", "update", "both", "seconds a round", "tokens/s", "peak memory, MiB",
    "bare passes / our rollout", "bare passes / our update",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def row(name: str, rounds: Rounds) -> str:
    """A line of the table: median (lowest to highest) of each ratio; empty for what was not measured."""
    if rounds.left_out:
        name = f"{name}; left out: {rounds.left_out} rounds that were not played alike"
    parts = [part for part in PARTS if rounds.seconds["ours"][part]]
    if not parts:
        return f"| {name} |{' |' * (len(COLUMNS) - 1)}"
    cells = [_cell(rounds.ratios(part)) if part in parts else "" for part in PARTS]
    cells.append(_cell(rounds.ratios(*PARTS)) if len(parts) == len(PARTS) else "")
    seconds = [
        statistics.median(map(sum, zip(*(rounds.seconds[side][part] for part in parts), strict=True))) for side in SIDES
    ]
    cells.append(" / ".join(f"{value:.2f}" for value in seconds))
    cells.append(" / ".join(f"{rounds.tokens / value:.0f}" for value in seconds) if rounds.tokens else "")
    peaks = [max(statistics.median(rounds.peaks[side][part]) for part in parts) for side in SIDES]
    cells.append(" / ".join(f"{value / 2**20:.0f}" for value in peaks))
    for part in PARTS:
        bare = rounds.bare[part]
        cells.append(f"{statistics.median(bare):.0%} ({min(bare):.0%} to {max(bare):.0%})" if bare else "")
    return f"| {name} | {' | '.join(cells)} |"


def _cell(ratios: Sequence[float]) -> str:
    """The median of some ratios, and the lowest and highest."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
