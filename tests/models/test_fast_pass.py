"""Training passes in bfloat16 on a CPU: eager attention and compiled layers, and when each is taken."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from reflectkit.models import fast_pass
from reflectkit.models.fast_pass import SHORT, SHORT_COMPILED, can_compile
from reflectkit.models.load import checkpoint_gradients
from reflectkit.models.lora import join_products
from reflectkit.models.rows import Row, pass_arguments
from tests.models.test_lora import adapted, difference, gradients

CPU = torch.device("cpu")


@pytest.fixture
def matrix_unit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU on which layers are compiled, whatever this one is, also those of small models."""
    monkeypatch.setattr(fast_pass, "LARGE", 0)
    monkeypatch.setattr(fast_pass, "has_matrix_unit", lambda: True)
    can_compile.cache_clear()
    yield
    can_compile.cache_clear()
    fast_pass._compiled.cache_clear()
    torch._dynamo.reset()


def taken(model: Any, rows: list[Row], past: int = 0) -> tuple[str, int]:
    """The attention of a pass over `rows`, and the number of layers that are compiled for it. After it, neither is."""
    trunk = model.base_model.model.model
    with fast_pass.fast_pass(trunk, pass_arguments(rows, 0, CPU), past):
        attention = str(trunk.config._attn_implementation)
        compiled = sum("forward" in vars(layer) for layer in trunk.layers)
    assert trunk.config._attn_implementation == "sdpa"
    assert not any("forward" in vars(layer) for layer in trunk.layers)
    return attention, compiled


def test_short_rows_in_bfloat16_have_eager_attention_while_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_pass, "can_compile", lambda: False)
    half = adapted(torch.bfloat16)
    short = Row([1] * SHORT)
    assert taken(half, [short]) == ("eager", 0)
    assert taken(half, [Row([1])], SHORT - 1) == ("eager", 0)
    assert taken(half, [Row([1])], SHORT) == ("sdpa", 0)
    assert taken(half, [Row([1] * (SHORT + 1))] * 2) == ("sdpa", 0)
    assert taken(half, [Row([1], [[2], [3]])]) == ("sdpa", 0)
    assert taken(adapted(torch.float32), [short]) == ("sdpa", 0)
    with torch.no_grad():
        assert taken(half, [short]) == ("sdpa", 0)
    checkpoint_gradients(half)
    assert taken(half, [short]) == ("sdpa", 0)


@pytest.mark.usefixtures("matrix_unit")
def test_layers_are_compiled_for_batches_in_bfloat16_with_gradients() -> None:
    half = adapted(torch.bfloat16)
    batch = [Row([1] * SHORT_COMPILED)] * 2
    assert taken(half, batch) == ("eager", 2)
    assert taken(half, [Row([1] * (SHORT_COMPILED + 1))] * 2) == ("sdpa", 0)
    # One row would be compiled apart, as would one with a past
    assert taken(half, batch[:1]) == ("sdpa", 0)
    assert taken(half, [Row([1], past=SHORT_COMPILED)] * 2, SHORT_COMPILED) == ("sdpa", 0)
    assert taken(adapted(torch.float32), batch) == ("sdpa", 0)
    with torch.no_grad():
        assert taken(half, batch) == ("sdpa", 0)
    trunk = half.base_model.model.model
    trunk.config.sliding_window = 4
    assert taken(half, batch) == ("sdpa", 0)
    trunk.config.sliding_window = None
    trunk.layers[0].mlp.up_proj.base_layer.weight.data = torch.zeros(64, 32, dtype=torch.int8)
    assert taken(half, batch) == ("sdpa", 0)


@pytest.mark.usefixtures("matrix_unit")
@pytest.mark.parametrize("variable", fast_pass.TURNED_OFF)
def test_compiling_is_turned_off_by_torchs_own_variable(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    assert not can_compile()


@pytest.mark.usefixtures("matrix_unit")
def test_nothing_is_compiled_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not can_compile()


def check_gradients() -> None:
    """The gradients of compiled layers are as exact as without. One compilation is enough for all batches, also of as
    many rows as there are heads, or as long as these are wide.
    """
    counts = torch._dynamo.utils.counters
    counts.clear()
    batches = [
        [[*range(1, 20), last, last + 1] for last in (30, 35, 40)],
        [[1, 2, 3, last, 5, 6, 7, 8] for last in (30, 35, 40, 41)],
    ]
    graphs = []
    for rows in batches:
        model, peft = adapted(torch.bfloat16), adapted(torch.bfloat16)
        join_products(model)
        expected = gradients(adapted(torch.bfloat16).float(), rows)
        ours = difference(gradients(model, rows), expected)
        graphs.append(counts["stats"]["unique_graphs"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fast_pass, "can_compile", lambda: False)
            theirs = difference(gradients(peft, rows), expected)
        assert ours < 0.02
        assert ours < 1.5 * theirs
    first, second = graphs
    assert first == second > 0
    assert not counts["graph_break"]


@pytest.mark.slow
@pytest.mark.usefixtures("matrix_unit")
def test_gradients_of_layers_that_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as they are to be compiled, and then computed by torch's own steps, without a compiler."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    check_gradients()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling takes a C++ compiler")
@pytest.mark.usefixtures("matrix_unit")
def test_gradients_of_compiled_layers() -> None:
    check_gradients()


@pytest.mark.slow
@pytest.mark.usefixtures("matrix_unit")
def test_a_compiler_that_fails_does_no_harm(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The layers are then computed as they are."""
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    rows = [[*range(1, 20), last] for last in (30, 35, 40)]
    model = adapted(torch.bfloat16)
    join_products(model)
    expected = gradients(adapted(torch.bfloat16).float(), rows)
    assert difference(gradients(model, rows), expected) < 0.02
