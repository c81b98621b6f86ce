"""Where the time of an update goes: the shares of matrix products, attention and the rest, by torch's profiler.

    make bench-peers ARGS=--profile

One update of our side in the scenes of the table in which prompts differ, after one that warms up. An operation counts
by its own time, without those that it calls. Layer normalisation and GELU include their gradients; GPT-2's GELU is told
from other arithmetic by the width of its input. What is not inside an operation (Python, the profiler itself) is
"everything else".
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.common import Ours, different_starts
from benchmarks.trl_peer import EPISODES, MICRO
from reflectkit.envs import env_class, make
from reflectkit.models.load import load_player
from reflectkit.rollouts.episode import Episode
from reflectkit.seeding import derive
from reflectkit.types import Trajectory

PRODUCTS, ATTENTION, NORMS, STEP, REST = (
    "matrix products", "attention", "layer norm and GELU", "optimizer and clipping", "everything else",
)  # fmt: skip
SHARES = (PRODUCTS, ATTENTION, NORMS, STEP, REST)
PRODUCT_NAMES = ("aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm")
ORIGINAL = 16
"""Episodes of the published code's larger batches."""


def kind_of(event: Any, width: int) -> str:
    """Which of SHARES an operation of the profile belongs to. width: of what goes into GELU."""
    parent = event
    while parent is not None:
        if parent.name == STEP:
            return STEP
        parent = parent.cpu_parent
    if event.name in PRODUCT_NAMES:
        return PRODUCTS
    if "attention" in event.name:
        return ATTENTION
    wide = any(shape and shape[-1] == width for shape in event.input_shapes)
    if "layer_norm" in event.name or (wide and event.name.startswith("aten::")):
        return NORMS
    return REST


def shares(ours: Ours, played: Sequence[Trajectory]) -> tuple[dict[str, float], float]:
    """(each share of the time of one update from `played`, the CPU seconds of one without the profiler)."""
    ours.learn(played)
    started = time.process_time()
    ours.learn(played)
    plain = time.process_time() - started
    step = ours.learner.optimizer.step

    def recorded() -> Any:
        with record_function(STEP):
            return step()

    ours.learner.optimizer.step = recorded  # type: ignore[method-assign]
    try:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
            started = time.perf_counter()
            ours.learn(played)
            whole = time.perf_counter() - started
    finally:
        ours.learner.optimizer.step = step  # type: ignore[method-assign]
    width = 4 * ours.policy.model.config.n_embd
    seconds = dict.fromkeys(SHARES, 0.0)
    for event in profiled.events() or ():
        seconds[kind_of(event, width)] += event.self_cpu_time_total / 1e6
    seconds[REST] = whole - sum(value for name, value in seconds.items() if name != REST)
    return {name: value / whole for name, value in seconds.items()}, plain


def scenes(ours: Ours, seed: int) -> Iterator[tuple[str, list[Episode]]]:
    """(name, episodes) of the updates."""
    kind = env_class("taxi")
    tasks = kind.taskset.tasks(kind.levels[-1])
    yield "8 different starts", different_starts(ours, tasks, EPISODES, 1, seed, MICRO)[0]
    chosen = random.Random(seed).sample(tasks, ORIGINAL)
    yield f"batch of {ORIGINAL}", [Episode(task, derive(seed, 0, task.id)) for task in chosen]


def lines(policy: Path, seed: int) -> Iterator[str]:
    """The table."""
    kind = env_class("taxi")
    ours = Ours(load_player(policy, "policy", device="cpu"), None, lambda: make("taxi", kind.horizons[kind.levels[-1]]))
    yield f"| an update of ours | {' | '.join(SHARES)} | CPU seconds |"
    yield "|---" * (len(SHARES) + 2) + "|"
    for name, episodes in scenes(ours, seed):
        played = ours.play(episodes)
        parts, seconds = shares(ours, played)
        cells = " | ".join(f"{100 * parts[share]:.0f} %" for share in SHARES)
        yield f"| {name}, {sum(len(one.turns) for one in played)} turns | {cells} | {seconds:.2f} |"
