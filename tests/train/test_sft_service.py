"""sft on a training service: the steps of TRL's trainer here, resuming, refusals, and what plays it afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit.commands import evaluate, rlft, sft
from reflectkit.console import Quiet
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.errors import ConfigError
from reflectkit.jsonl import read_jsonl, write_jsonl
from reflectkit.models.load import load_player
from reflectkit.prompts import label, policy_prompt, reflection_prompt
from reflectkit.runs.run import checkpoints
from reflectkit.sampling import service as sampling_service
from reflectkit.sampling.service_interface import LostWeightsError
from reflectkit.train import build
from reflectkit.train.sft import on_service
from tests.train.fake_service import ALPHA, FakeAdapter, FakeService

COMMENT = "Go right, 3 to go."


@pytest.fixture
def service(corridor_folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeService:
    """A service with the corridor's policy as its base, at any address."""
    fake = FakeService(corridor_folder / "policy")
    for module in (build, on_service, sampling_service):
        monkeypatch.setattr(module, "open_service", lambda name, settings, notify=None: fake)
    return fake


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A folder with rows of both players: in each state, right is right."""
    states = [make("corridor").reset(task, 0) for level in Corridor.levels for task in Corridor.taskset.tasks(level)]
    policy = [{"prompt": policy_prompt(state, COMMENT), "completion": label(1)} for state in states]
    reflector = [{"prompt": reflection_prompt(state), "completion": f" {COMMENT}"} for state in states]
    write_jsonl(tmp_path / "sft_policy.jsonl", policy)
    write_jsonl(tmp_path / "sft_reflection.jsonl", reflector)
    return tmp_path


def arguments(folder: Path, rows: Path, **settings: Any) -> dict[str, Any]:
    role = settings.get("role", "policy")
    return {
        "env": "corridor",
        "role": role,
        "task_file": rows / f"sft_{role}.jsonl",
        "model": str(folder / "policy"),
        "engine": "tinker:http://fake",
        "lora_r": 4,
        "max_steps": 4,
        "batch_size": 2,
        "hold_out": 0,
        "learning_rate": 1e-2,
        "save_steps": 1,
        "results_dir": rows / "results",
        "name": "there",
        **settings,
    }


def train(folder: Path, rows: Path, **settings: Any) -> Path:
    return sft.run(sft.SFTConfig.from_flat(**arguments(folder, rows, **settings)), Quiet()).folder


@pytest.mark.parametrize("role", ["policy", "reflection"])
def test_steps_there_are_those_of_the_trainer_here(
    corridor_folder: Path, service: FakeService, rows: Path, role: str
) -> None:
    """Batches of all rows, as both sides draw their own order."""
    alike: dict[str, Any] = {
        "role": role, "batch_size": 64, "schedule": "constant", "warmup_steps": 0, "weight_decay": 0.0,
        "model": str(corridor_folder / "base"), "max_steps": 20,
    }  # fmt: skip
    service.folder = corridor_folder / "base"
    there = train(corridor_folder, rows, **alike)
    local: dict[str, Any] = {"engine": "local", "name": "here", "lora_alpha": ALPHA, "lora_targets": "c_attn,c_fc"}
    here = train(corridor_folder, rows, **alike, **local)
    losses = [[row["loss"] for _, row in read_jsonl(folder / "metrics.jsonl")] for folder in (there, here)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    (path,) = [path for path in service.states if path.endswith("-20")]
    weights = service.states[path][0]
    player = load_player(checkpoints(here)[-1], device="cpu")
    trained = [weight for name, weight in player.model.named_parameters() if "lora_" in name]
    assert len(weights) == len(trained)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(weights, trained, strict=True))


def test_a_killed_run_goes_on_from_the_saved_state(
    corridor_folder: Path, service: FakeService, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(corridor_folder, rows, name="whole", max_steps=5, hold_out=0.4, validate_steps=2)

    class Killed(BaseException):
        pass

    step = FakeAdapter.step
    steps = []

    async def killed(self: FakeAdapter, *more: Any) -> Any:
        steps.append(1)
        if len(steps) == 4:
            raise Killed
        return await step(self, *more)

    monkeypatch.setattr(FakeAdapter, "step", killed)
    same: dict[str, Any] = {"name": "broken", "max_steps": 5, "hold_out": 0.4, "validate_steps": 2}
    with pytest.raises(Killed):
        train(corridor_folder, rows, **same)
    broken = train(corridor_folder, rows, **same)
    assert len(steps) == 6  # the one that was killed is made again
    assert (broken / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()
    last = json.loads((checkpoints(broken)[-1] / "reflectkit.json").read_text())
    assert last["service"]["state"] in service.states
    assert last["role"] == "policy"
    assert not list(broken.glob("*/*model*.safetensors"))


def test_both_players_learn_there_and_play(
    corridor_folder: Path, service: FakeService, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy from the reflector's weights, rlft from the policy's, and evaluate."""
    reflector = train(corridor_folder, rows, role="reflection", name="reflector", max_steps=10)
    policy = train(corridor_folder, rows, model=str(reflector), lora_r=0, name="policy", max_steps=30)
    loaded = []
    load = FakeAdapter.load

    async def seen(self: FakeAdapter, path: str) -> None:
        loaded.append(path)
        await load(self, path)

    monkeypatch.setattr(FakeAdapter, "load", seen)
    run = rlft.run(
        rlft.RLConfig.from_flat(
            env="corridor", task_file=corridor_folder / "train.json", policy=str(policy), engine="tinker:http://fake",
            reflector=str(reflector), algo="reinforce", max_steps=1, episodes=4, validate_problems=0,
            results_dir=rows / "results",
        ),
        Quiet(),
    )  # fmt: skip
    states = [json.loads((checkpoints(f)[-1] / "reflectkit.json").read_text()) for f in (policy, reflector)]
    assert {record["service"]["state"] for record in states} <= {*loaded}
    assert checkpoints(run.folder)
    report = evaluate.run(
        evaluate.CONFIG.from_flat(
            env="corridor", task_file=corridor_folder / "train.json", policy=(f"pair={policy}+{reflector}",),
            results_dir=rows / "results",
        ),
        Quiet(),
    )  # fmt: skip
    (pair,) = report.figures["rows"]
    assert pair["success"] == 1.0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model": "tiny"}, "random weights"),
        ({"lora_r": 0}, "--lora-r"),
        ({"processes": 2}, "--processes"),
        ({"quantize": "8bit"}, "--quantize"),
        ({"lora_alpha": 8}, "--lora-alpha"),
        ({"share_prefixes": True}, "--share-prefixes"),
        ({"max_cost_usd": 1.0}, "--price-trained"),
        ({"service_model": "other"}, "name one of these"),
    ],
)
def test_what_a_service_cannot_do_is_refused_before_anything_is_asked(
    corridor_folder: Path, service: FakeService, rows: Path, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        train(corridor_folder, rows, **settings)
    assert not service.calls


def test_the_budget_is_not_exceeded_and_a_higher_one_goes_on(
    corridor_folder: Path, service: FakeService, rows: Path
) -> None:
    prices: dict[str, Any] = {"price_read": 10.0, "price_trained": 10.0}
    plan = sft.run(sft.SFTConfig.from_flat(**arguments(corridor_folder, rows, plan=True, **prices)), Quiet())
    assert not service.calls
    cost = plan.figures["usd"]
    with pytest.raises(Exception, match="--max-cost-usd"):
        train(corridor_folder, rows, max_cost_usd=cost / 2, **prices)
    steps = [name for name, _ in service.calls].count("step")
    assert 0 < steps < 4
    train(corridor_folder, rows, max_cost_usd=2 * cost, **prices)
    assert [name for name, _ in service.calls].count("step") == 4


def test_weights_that_the_service_lost_are_told(corridor_folder: Path, service: FakeService, rows: Path) -> None:
    policy = train(corridor_folder, rows)
    service.states.clear()
    with pytest.raises(LostWeightsError, match="does not give out"):
        train(corridor_folder, rows, model=str(policy), lora_r=0, name="next")
