"""Shared fixtures: one thread for torch, tiny players, and folders that all workers of a session build once."""

from __future__ import annotations

import gc
import os
import shutil
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from transformers import GPT2Config

from reflectkit.agents.two_player import Reflector
from reflectkit.console import Quiet
from reflectkit.data.problems import Record, record_to_json
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.envs.taxi import Taxi
from reflectkit.jsonl import write_json
from reflectkit.models import tiny
from reflectkit.models.load import LoadedModel, load_player, save_player, with_adapter
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.prompts import label, policy_prompt, reflection_prompt
from reflectkit.types import Observation
from tests.command_lines import prepare
from tests.train.training import favour

torch.set_num_threads(1)
Reflector.__init__.__kwdefaults__["max_new_tokens"] = 8  # an untrained one writes as many tokens as it may
tiny.GPT2Config = lambda **sizes: GPT2Config(**sizes | {"n_layer": 2})  # half the layers, in half the time
_frozen_at = 0  # modules that were imported when the memory was frozen


LONGEST = ("test_run.py", "test_docs.py", "test_app.py", "test_rlft.py", "test_lying_servers.py",
    "test_rlft_distill.py", "test_bad_values.py")  # fmt: skip
"""Files that take longest, in this order."""
SLOW = ("research", "benchmarks")
"""Folders whose tests are all slow: what they test is not part of the wheel."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the folders in `SLOW`, whose imports take seconds, where no slow test is run."""
    return True if config.option.markexpr == "not slow" and collection_path.name in SLOW else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests in `SLOW`, and start with the longest files, which one worker would otherwise end alone with.

    `--dist loadfile` keeps this order with `--no-loadscope-reorder`.
    """
    for item in items:
        if item.path.parent.name in SLOW:
            item.add_marker(pytest.mark.slow)
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


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


def built_once(tmp_path_factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """A copy, for this worker, of the folder that `build` fills: all workers of a session share one build."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"built-{name}"
    with FileLock(f"{shared}.lock"):
        if not shared.exists():
            build(partial := shared.with_suffix(".partial"))
            partial.rename(shared)
    return shutil.copytree(shared, tmp_path_factory.mktemp(name), dirs_exist_ok=True)


@pytest.fixture(scope="session")
def taxi_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the data commands on taxi: demonstrations, splits and SFT rows."""
    return built_once(tmp_path_factory, "taxi", prepare) / "data" / "taxi"


@pytest.fixture(scope="session")
def corridor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with untrained players of the corridor, adapters on one base, and problems of both levels."""
    folder = tmp_path_factory.mktemp("corridor")  # adapters name their base, so that a copy would not do
    seen = [make("corridor").reset(task, 0) for level in Corridor.levels for task in Corridor.taskset.tasks(level)]
    texts = [policy_prompt(one, "Go right, 3 to go.") for one in seen] + [reflection_prompt(one) for one in seen]
    tokenizer = build_tokenizer(texts, [label(index) for index in range(2)])
    for number, role in enumerate(("policy", "reflection", "base")):
        player = LoadedModel(build_model(tokenizer, 448, number), tokenizer, None if role == "base" else role)
        if role == "base":
            favour(player, ["\n"], 3.0)  # so that some comments end
        save_player(folder / role, player)
    for number, role in enumerate(("policy", "reflection")):
        base = load_player(folder / "base", device="cpu")
        adapted = with_adapter(LoadedModel(base.model, base.tokenizer, role), 4, 8, seed=number)
        with torch.no_grad():
            for name, weight in adapted.model.named_parameters():
                if "lora_B" in name:
                    weight.normal_(std=0.02, generator=torch.Generator().manual_seed(number))
        save_player(folder / f"{role}-adapter", adapted)
    records = [Record(task, ()) for level in Corridor.levels for task in Corridor.taskset.tasks(level)]
    write_json(folder / "train.json", [record_to_json(record) for record in records])
    return folder


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test works in a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def quiet() -> Quiet:
    """A progress that shows nothing."""
    return Quiet()
