"""--plan: sizes that agree with what torch holds, figures that follow the settings, and nothing on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.commands import rlft, sft
from reflectkit.console import Quiet
from reflectkit.models.load import LoadedModel
from reflectkit.models.tiny import END
from reflectkit.train import plan
from reflectkit.train.plan import activation_size, tokens_a_pass
from tests.rlft_runs import arguments
from tests.sft_runs import config, write_rows


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path)


def test_activations_by_hand(policy: LoadedModel) -> None:
    """17 hidden values a layer and token, and float32 logits with their gradient; recomputed, one, and one layer."""
    config, element = policy.model.config, 4
    width, layers, vocabulary = config.hidden_size, config.num_hidden_layers, config.vocab_size
    assert activation_size(policy.model, 10, 4, recompute=False) == 10 * 17 * width * layers * element + 32 * vocabulary
    kept = width * layers * element + 17 * width * element
    assert activation_size(policy.model, 10, 10, recompute=True) == 10 * (kept + 8 * vocabulary)


def test_sft_plans_without_writing(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    small, large = (sft.run(config(rows, results, plan=True, batch_size=n), Quiet()).figures for n in (2, 8))
    assert not results.exists()
    assert small["trained"] == small["weights"] // 4 == small["gradients"] // 4 == small["optimizer"] // 8
    assert small["memory"] == sum(small[name] for name in ("weights", "gradients", "optimizer", "activations"))
    assert large["activations"] == 4 * small["activations"]
    assert large["tokens_an_update"] == pytest.approx(4 * small["tokens_an_update"], abs=4)
    assert small["steps"] == 7
    assert small["stop_tokens"] == [END]
    assert sft.run(config(rows, results, plan=True, epochs=3), Quiet()).figures["steps"] == 9
    line = ["sft", "--env", "corridor", "--role", "plain", "--task-file", str(rows), "--results-dir", str(results)]
    assert main([*line, "--batch-size", "2", "--max-length", "64", "--plan"]) == 0
    assert "Plan of sft, estimated" in capsys.readouterr().out


def test_rlft_plans_without_writing(corridor_folder: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"results_dir": tmp_path / "results", "plan": True, "kl_coef": 0.1}
    given["reflector"] = corridor_folder / "reflection"
    report = rlft.run(rlft.RLConfig.from_flat(**arguments(corridor_folder, **given, episodes=96)), Quiet())
    figures = report.figures
    assert not (tmp_path / "results").exists()
    assert figures["frozen"] == 2 * figures["trained"], "the reflector and the reference"
    assert figures["episodes"] == 96 * 2


def test_a_pass_on_a_cpu_is_bounded_by_memory(policy: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tokens_a_pass(policy.model, recompute=False) == 16384
    monkeypatch.setattr(plan, "CPU_BYTES", 100 * activation_size(policy.model, 1, 0, recompute=False))
    assert tokens_a_pass(policy.model, recompute=False) == 100
    assert tokens_a_pass(policy.model, recompute=True) > 100
