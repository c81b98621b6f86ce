"""Recorded passes have the log-probabilities of the passes themselves, for rows of any number and length."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model

from reflectkit.models import recording, scoring
from reflectkit.models.architecture import trunk_of
from reflectkit.models.lora import join_products
from reflectkit.models.recording import ROWS, SEEN_BEFORE, Memory, Weights, active_adapters, recorded_hidden
from reflectkit.models.scoring import choice_logprobs
from tests.models.test_lora import adapted

ONE_TOKEN = ((7,), (8,), (9,))
SEVERAL_TOKENS = ((7, 8), (7, 9, 10), (11, 12))


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Recordings of all models, also on a CPU, which makes the passes each time, with filled up rows."""
    monkeypatch.setattr(recording, "is_on_gpu", lambda model: True)
    monkeypatch.setattr(recording, "SEEN_BEFORE", 0)
    monkeypatch.setattr(recording, "_reasons_to_stop", [])
    yield recording._RECORDERS
    recording._RECORDERS.clear()


def prompts(count: int, longest: int = 40) -> list[list[int]]:
    chance = random.Random(count)
    return [[chance.randrange(50) for _ in range(chance.randrange(1, longest))] for _ in range(count)]


def scores(model: Any, rows: list[list[int]], labels: Any) -> torch.Tensor:
    with torch.no_grad():
        return choice_logprobs(model, rows, [labels] * len(rows), pad_id=0)[0].cpu()


@pytest.mark.parametrize("labels", [ONE_TOKEN, SEVERAL_TOKENS])
def test_rows_are_filled_up(monkeypatch: pytest.MonkeyPatch, recorders: Any, labels: Any) -> None:
    monkeypatch.setattr(scoring, "reads_branches", lambda model: True)  # as on a GPU
    model = adapted(torch.float32).eval()
    expected = {}
    with monkeypatch.context() as patch:
        patch.setattr(recording, "is_on_gpu", lambda model: False)
        for count in (1, 3, 9, 33):
            expected[count] = scores(model, prompts(count), labels)
    assert trunk_of(model) not in recorders
    for count in (33, 9, 3, 1, 33):
        torch.testing.assert_close(scores(model, prompts(count), labels), expected[count])
    (recorder,) = recorders[trunk_of(model)].values()
    passes = recorder._passes
    assert {rows for rows, _, _ in passes} <= {*ROWS, 2 * ROWS[-1]}
    assert len(passes) > 2


def test_a_pass_is_recorded_when_it_has_recurred(monkeypatch: pytest.MonkeyPatch, recorders: Any) -> None:
    monkeypatch.setattr(recording, "SEEN_BEFORE", SEEN_BEFORE)
    trunk = trunk_of(adapted(torch.float32).eval())
    arguments = {"input_ids": torch.ones((3, 10), dtype=torch.long)}
    with torch.no_grad():
        found = [recorded_hidden(trunk, arguments) for _ in range(SEEN_BEFORE + 2)]
        assert [hidden is None for hidden in found] == [True] * SEEN_BEFORE + [False] * 2
        assert recorded_hidden(trunk, {"input_ids": torch.ones((4, 32), dtype=torch.long)}) is not None
        assert recorded_hidden(trunk, {"input_ids": torch.ones((5, 10), dtype=torch.long)}) is None
    assert recorded_hidden(trunk, arguments) is None  # it has gradients
    with torch.no_grad():
        assert recorded_hidden(trunk.train(), arguments) is None


def test_large_passes_are_not_recorded(monkeypatch: pytest.MonkeyPatch, recorders: Any) -> None:
    trunk = trunk_of(adapted(torch.float32).eval())
    arguments = {"input_ids": torch.ones((3, 10), dtype=torch.long)}
    weights = sum(weight.numel() for weight in trunk.parameters())
    with torch.no_grad():
        monkeypatch.setattr(recording, "MOST_WORK", 4 * 32 * weights - 1)
        assert recorded_hidden(trunk, arguments) is None
        monkeypatch.setattr(recording, "MOST_WORK", 4 * 32 * weights)
        assert recorded_hidden(trunk, arguments) is not None


def test_memory_is_given_back(monkeypatch: pytest.MonkeyPatch, recorders: Any) -> None:
    trunk = trunk_of(adapted(torch.float32).eval())
    each = 4 * 32 * (32 * 4 + 32)  # rows, tokens; bytes of a hidden state and of a row of the mask
    monkeypatch.setattr(Memory, "of", classmethod(lambda cls, device: Memory(2 * each, 2 * each)))
    with torch.no_grad():
        for rows in (3, 2, 3, 1):
            assert recorded_hidden(trunk, {"input_ids": torch.ones((rows, 10), dtype=torch.long)}) is not None
        assert recorded_hidden(trunk, {"input_ids": torch.ones((12, 10), dtype=torch.long)}) is None
    assert sum(one.size for each in recorders[trunk].values() for one in each._passes.values()) <= 2 * each


def test_a_pass_that_cannot_be_recorded_is_made(monkeypatch: pytest.MonkeyPatch, recorders: Any) -> None:
    """It is told once, and no other is tried."""
    model = adapted(torch.float32).eval()
    tries = []

    def fail(*arguments: Any) -> None:
        tries.append(arguments)
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr(recording, "_RecordedPass", fail)
    with pytest.warns(UserWarning, match="could not be recorded: operation not permitted; scoring"):
        found = scores(model, prompts(3), ONE_TOKEN)
    assert torch.equal(scores(model, prompts(3), ONE_TOKEN), found)
    assert len(tries) == 1
    assert not any(recording.HELD)


def test_angles_that_depend_on_positions_are_not_recorded(recorders: Any) -> None:
    trunk = trunk_of(adapted(torch.float32).eval())
    arguments = {"input_ids": torch.ones((3, 10), dtype=torch.long)}
    trunk.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    with torch.no_grad():
        assert recorded_hidden(trunk, arguments) is None


def test_a_common_beginning_is_read_once_where_the_pass_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch, recorders: Any
) -> None:
    model = adapted(torch.float32).eval()
    start = prompts(1, 300)[0]
    start = (start * 99)[:200]
    rows = [start + row for row in prompts(8)]
    read = []
    trunk_of(model).register_forward_pre_hook(
        lambda module, arguments, named: read.append(named["input_ids"].numel()), with_kwargs=True
    )
    for most, tokens in ((1e13, 8 * 256), (1.0, 200 + 8 * 40)):
        recorders.clear()
        read.clear()
        monkeypatch.setattr(recording, "MOST_WORK", most)
        scores(model, rows, ONE_TOKEN)
        assert sum(read) <= tokens


def test_recordings_end_with_the_places_of_weights() -> None:
    model = adapted(torch.bfloat16).eval()
    join_products(model)
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    weights = Weights(model)
    (kept, _) = layer.rounding()
    up = layer.lora_A["default"].weight
    with torch.no_grad():
        up.mul_(2)  # in place, as training does
    assert weights.are_in_place()
    assert layer.rounding()[0] is kept
    assert torch.equal(kept, up.bfloat16())
    up.data = up.data.clone()
    assert not weights.are_in_place()
    weights = Weights(model)
    base = layer.base_layer
    base.weight = torch.nn.Parameter(base.weight.data, requires_grad=False)
    assert not weights.are_in_place()
    weights = Weights(model)
    layer.base_layer = torch.nn.Linear(32, 32, bias=False)
    assert not weights.are_in_place()


def test_each_adapter_has_its_recordings(recorders: Any) -> None:
    """Those of a policy and a reflector on one base, which take turns, are kept."""
    model = adapted(torch.float32).eval()
    model.add_adapter("other", LoraConfig(r=2, lora_alpha=8, target_modules="all-linear"))
    for name, weight in model.named_parameters():
        if "lora_B.other" in name:
            torch.nn.init.normal_(weight, std=0.1)
    found = {}
    for name in ("default", "other", "default", "other"):
        model.set_adapter(name)
        found[name] = scores(model, prompts(3), ONE_TOKEN)
    assert not torch.equal(found["default"], found["other"])
    assert len(recorders[trunk_of(model)]) == 2
    kept = [each._passes for each in recorders[trunk_of(model)].values()]
    assert [len(passes) for passes in kept] == [1, 1]
    with model.disable_adapter():
        bare = scores(model, prompts(3), ONE_TOKEN)
    assert not torch.equal(bare, found["other"])


def test_adapters_of_any_kind_are_told_apart() -> None:
    base = adapted(torch.float32).unload()
    model = get_peft_model(base, IA3Config(target_modules=["k_proj"], feedforward_modules=[]))
    trunk = trunk_of(model)
    active = active_adapters(trunk)
    model.add_adapter("other", IA3Config(target_modules=["k_proj"], feedforward_modules=[]))
    model.set_adapter("other")
    other = active_adapters(trunk)
    with model.disable_adapter():
        none = active_adapters(trunk)
    assert len({active, other, none, ""}) == 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("labels", [ONE_TOKEN, SEVERAL_TOKENS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_repeats_what_it_would_compute(monkeypatch: pytest.MonkeyPatch, labels: Any, dtype: torch.dtype) -> None:
    """Also after the weights are trained in place."""
    monkeypatch.setattr(recording, "SEEN_BEFORE", 0)
    model = adapted(dtype).to("cuda").eval()
    join_products(model)
    for _ in range(2):
        for count in (3, 9, 33, 9):
            with monkeypatch.context() as patch:
                patch.setattr(recording, "is_on_gpu", lambda model: False)
                expected = scores(model, prompts(count), labels)
            found = scores(model, prompts(count), labels)
            assert float((found - expected).abs().max()) < (1e-4 if dtype == torch.float32 else 0.05)
        (recorder,) = recording._RECORDERS[trunk_of(model)].values()
        assert all(one.recording.graph for one in recorder._passes.values())
        assert recorder._passes
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.2)
