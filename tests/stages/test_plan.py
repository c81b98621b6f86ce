"""--plan: sizes that agree with what torch holds, figures that follow the settings, and nothing on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit.cli.main import main
from reflectkit.core.console import Quiet
from reflectkit.core.errors import ConfigError
from reflectkit.models import measure
from reflectkit.models.load import Player, with_adapter
from reflectkit.models.measure import PeakMemory, count, optimizer_size, size, split_parameters
from reflectkit.models.training import new_optimizer
from reflectkit.rl.processes import Processes
from reflectkit.stages import rlft, sft
from reflectkit.stages.tuning import rlft_plan
from reflectkit.stages.tuning.estimate import shown_bytes
from tests.rlft_runs import arguments
from tests.sft_runs import config, write_rows


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path)


def test_peak_memory_by_hand() -> None:
    """In squares of 1,000 floats: x; then y = xw, whose storage the view shares; the gradient of w while y lives."""
    w = torch.randn(1000, 1000, requires_grad=True)
    square = w.numel() * w.element_size()
    with PeakMemory() as memory:
        x = torch.randn(1000, 1000)
        assert memory.live == square
        y = x @ w
        view = y.view(-1)[10:]
        assert memory.live == memory.peak == 2 * square
        y.backward(torch.zeros(1, 1).expand(1000, 1000))
        assert memory.live >= 3 * square
        del x, y, view
        assert memory.live < 1.01 * square
        w.grad.add_(1)  # type: ignore[union-attr]
        assert memory.live < 1.01 * square
    assert 3 * square <= memory.peak <= 4.01 * square


def test_peak_memory_holds_all_that_backward_needs(policy: Player) -> None:
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    ids = torch.arange(40).reshape(2, 20)
    earlier = {one.untyped_storage()._cdata for one in (*policy.model.parameters(), *policy.model.buffers(), ids)}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), PeakMemory() as memory:
        loss = policy.model(input_ids=ids, labels=ids).loss
    activations = sum(nbytes for key, nbytes in saved.items() if key not in earlier)
    assert activations <= memory.live <= memory.peak <= 1.5 * activations
    del loss


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "sgd"])
def test_the_optimizers_size_is_that_of_its_state(policy: Player, optimizer: str) -> None:
    trained, frozen = split_parameters([policy.model, policy.model])
    assert frozen == []
    made = new_optimizer(optimizer, trained, 1e-3, 0.0)
    for weight in trained:
        weight.grad = torch.ones_like(weight)
    made.step()
    held = [value for state in made.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    assert optimizer_size(optimizer, trained) == size(value for value in held if value.ndim)


def test_sft_plans_without_writing(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    small, large = (sft.run(config(rows, results, plan=True, batch_size=n), Quiet()).figures for n in (2, 8))
    assert not results.exists()
    assert small["trained"] == small["weights"] // 4 == small["gradients"] // 4 == small["optimizer"] // 8
    assert small["memory"] == sum(small[name] for name in ("weights", "gradients", "optimizer", "activations"))
    assert large["activations"] > 2 * small["activations"]
    assert large["tokens"] == pytest.approx(4 * small["tokens"], rel=0.2)
    assert small["steps"] == 7
    assert sft.run(config(rows, results, plan=True, epochs=3), Quiet()).figures["steps"] == 9
    line = ["sft", "--env", "corridor", "--role", "plain", "--task-file", str(rows), "--results-dir", str(results)]
    assert main([*line, "--batch-size", "2", "--max-length", "64", "--plan"]) == 0
    shown = capsys.readouterr().out
    assert "Plan of sft, estimated" in shown
    assert "processes" not in shown


def test_sft_plans_a_batch_that_does_not_fit(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little free memory, fewer rows than a batch has are measured, and what they take is scaled up."""
    given = config(rows, tmp_path / "results", plan=True, batch_size=16)
    whole = sft.run(given, Quiet()).figures
    assert "three steps of 16 rows of" in whole["calibration"]
    assert "fit" not in whole["calibration"]
    free = whole["gradients"] + whole["optimizer"] + whole["activations"] // 2
    monkeypatch.setattr(measure, "free_memory", lambda device: free)
    part = sft.run(given, Quiet()).figures
    measured = int(part["calibration"].split()[3])
    assert 1 < measured < 16
    assert part["calibration"].endswith(f"; 16 would not fit into the {shown_bytes(free)} that were free")
    assert part["activations"] == pytest.approx(whole["activations"], rel=0.3)


def test_free_memory_ends_at_the_containers_limit(tmp_path: Path) -> None:
    """A limit of 9 MB, of which 5 are used and 2 could be dropped; "max" is none."""
    cpu = torch.device("cpu")
    for name, text in (("max", "9000000\n"), ("current", "5000000\n"), ("stat", "anon 1\ninactive_file 2000000\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert measure.free_memory(cpu, tmp_path) == 6_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert measure.free_memory(cpu, tmp_path) > 6_000_000
    assert measure.free_memory(cpu, tmp_path / "none") > 6_000_000


def test_sft_plans_an_adapter_on_a_frozen_base(corridor_folder: Path, rows: Path, tmp_path: Path) -> None:
    model = {"model": str(corridor_folder / "base"), "max_length": 128, "lora_r": 2}
    plan = sft.run(config(rows, tmp_path / "results", plan=True, **model), Quiet()).figures
    assert 0 < plan["trained"] < plan["frozen"] / 10
    recomputed = sft.run(config(rows, tmp_path / "r", plan=True, gradient_checkpointing=True, **model), Quiet()).figures
    assert recomputed["activations"] < plan["activations"]


def test_rlft_plans_without_writing(corridor_folder: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"results_dir": tmp_path / "results", "plan": True, "kl": 0.1}
    given["reflect_load_dir"] = corridor_folder / "reflection"
    report = rlft.run(rlft.RLConfig.from_flat(**arguments(corridor_folder, **given, episodes=96)), Quiet())
    figures = report.figures
    assert not (tmp_path / "results").exists()
    assert figures["frozen"] == 2 * figures["trained"], "the reflector and the reference"
    assert figures["seconds"] > 0
    assert "64 of the 96 episodes" in figures["calibration"]
    whole, several = report.tables
    assert dict(whole.rows)["trainable parameters"] == f"{figures['trained']:,}"
    assert [row[0] for row in several.rows] == ["1", "2", "4", "8"]
    assert several.rows[0][1] == several.rows[0][2]


def test_the_plan_counts_what_several_models_share_once(policy: Player) -> None:
    whole = count(policy.model.parameters())
    adapted = with_adapter(policy, 2, 4, 0).model
    trained, frozen = split_parameters([adapted, policy.model])
    assert count(frozen) == whole
    assert 0 < count(trained) < whole


def test_rlft_plans_in_one_process_only(corridor_folder: Path, tmp_path: Path) -> None:
    processes = Processes()
    processes.count = 2
    with pytest.raises(ConfigError, match="--plan runs in one process"):
        rlft_plan.plan_of(rlft.RLConfig.from_flat(**arguments(corridor_folder, plan=True)), [], processes, Quiet())
