"""Fixtures that several files of stages share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reflectkit.data.trajectories import Record, record_to_json
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.jsonl import write_json
from reflectkit.models.load import LoadedModel, load_player, save_player, with_adapter
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.prompts import label, policy_prompt, reflection_prompt
from tests.command_lines import prepare


@pytest.fixture(scope="session")
def taxi_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the data stages on taxi."""
    return prepare(tmp_path_factory.mktemp("taxi"))


@pytest.fixture(scope="session")
def corridor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with untrained players of the corridor, adapters on one base, and problems of both levels."""
    folder = tmp_path_factory.mktemp("rlft")
    seen = [make("corridor").reset(task, 0) for level in Corridor.levels for task in Corridor.taskset.tasks(level)]
    texts = [policy_prompt(one, "Go right, 3 to go.") for one in seen] + [reflection_prompt(one) for one in seen]
    tokenizer = build_tokenizer(texts, [label(index) for index in range(2)])
    for number, role in enumerate(("policy", "reflection", "base")):
        save_player(
            folder / role, LoadedModel(build_model(tokenizer, 256, number), tokenizer, None if role == "base" else role)
        )
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
