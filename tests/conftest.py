"""Shared fixtures: one thread for torch, and tiny players made offline once a session."""

from __future__ import annotations

import gc
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest
import torch

from reflectkit.console import Quiet
from reflectkit.envs.taxi import Taxi
from reflectkit.models.load import LoadedModel, save_player
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.prompts import label, policy_prompt, reflection_prompt
from reflectkit.types import Observation

torch.set_num_threads(1)
_frozen_at = 0  # modules that were imported when the memory was frozen


LONGEST = ("test_run.py", "test_rlft_killed.py", "test_bench_gpu.py", "test_rlft_processes.py",
    "test_memory_pipeline.py", "test_explore_pipeline.py", "test_tutorial.py")  # fmt: skip
"""Files of half a minute and more, the longest first."""


SLOW = ("research", "benchmarks")
"""Folders whose tests are all slow: what they test is not part of the wheel."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests in `SLOW` are slow. Among several workers, long files go first, so that none is left alone at the end.

    `--dist loadfile` keeps this order with `--no-loadscope-reorder`; otherwise the files with the fewest tests come
    last, and these are the long ones.
    """
    for item in items:
        if item.path.parent.name in SLOW:
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        places = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: (places.get(item.path.name, len(places)), item.path.parent.name != "stages"))


def pytest_runtest_setup() -> None:
    """Freeze what imports have left: a training collects garbage at its end, which takes 0.3 s of going through it, and
    forks would copy it.
    """
    global _frozen_at
    if len(sys.modules) > _frozen_at + 300:
        gc.collect()
        gc.freeze()
        _frozen_at = len(sys.modules)


@pytest.fixture(scope="session")
def observations() -> list[Observation]:
    """A few taxi observations of different states, one of them after a move, so that prompts differ in length."""
    env = Taxi()
    seen = [env.reset(task, 0) for task in Taxi.taskset.tasks("full")[::40]]
    seen.append(env.step(env.teacher().action()).observation)
    return seen


def make_player(observations: list[Observation], role: str | None, seed: int = 0) -> LoadedModel:
    texts = [policy_prompt(seen, "Go east.") for seen in observations] + [
        reflection_prompt(seen) for seen in observations
    ]
    tokenizer = build_tokenizer(texts, [label(index) for index in range(6)])
    return LoadedModel(build_model(tokenizer, 256, seed), tokenizer, role)


@pytest.fixture
def policy(observations: list[Observation]) -> LoadedModel:
    """An untrained policy; a fresh one for each test, since tests train it."""
    return make_player(observations, "policy")


@pytest.fixture(scope="session")
def reflector_player(observations: list[Observation]) -> LoadedModel:
    """An untrained reflector."""
    return make_player(observations, "reflection", seed=1)


@pytest.fixture(scope="session")
def checkpoints(observations: list[Observation], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved untrained players by role."""
    folder = tmp_path_factory.mktemp("players")
    for role in ("policy", "reflection", "plain"):
        save_player(folder / role, make_player(observations, role))
    return {role: folder / role for role in ("policy", "reflection", "plain")}


@pytest.fixture
def quiet() -> Quiet:
    """A progress that shows nothing."""
    return Quiet()
