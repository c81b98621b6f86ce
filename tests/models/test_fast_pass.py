"""Passes in bfloat16: eager attention on a CPU, compiled layers, and when each is taken."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from reflectkit.models import fast_pass, scoring
from reflectkit.models.architecture import trunk_of
from reflectkit.models.fast_pass import SHORT, SHORT_COMPILED, can_compile
from reflectkit.models.load import checkpoint_gradients
from reflectkit.models.lora import join_products, roundings
from reflectkit.models.rows import Row, pass_arguments
from reflectkit.models.scoring import choice_logprobs
from tests.models.test_lora import adapted, difference, gradients

CPU = torch.device("cpu")
BATCHES = [
    [[*range(1, 20), last, last + 1] for last in (30, 35, 40)],
    [[1, 2, 3, last, 5, 6, 7, 8] for last in (30, 35, 40, 41)],
]


@pytest.fixture
def matrix_unit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU on which layers are compiled, whatever this one is, also those of small models."""
    monkeypatch.setattr(fast_pass, "LARGE", 0)
    monkeypatch.setattr(fast_pass, "has_matrix_unit", lambda: True)
    can_compile.cache_clear()
    yield
    can_compile.cache_clear()
    fast_pass.compiled_forward.cache_clear()
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
    graphs = []
    for rows in BATCHES:
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


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Models on a CPU are taken for models on a GPU, where small ones are compiled, too, after three passes."""
    monkeypatch.setattr(fast_pass, "LARGE", 0)
    monkeypatch.setattr(fast_pass, "PASSES_BEFORE", 3)
    monkeypatch.setattr(fast_pass, "_passes_of", {})
    monkeypatch.setattr(fast_pass, "can_compile_for_gpu", lambda: True)
    half_on = fast_pass._is_half_on
    monkeypatch.setattr(fast_pass, "_is_half_on", lambda model, device: device == "cuda" and half_on(model, "cpu"))
    yield
    fast_pass.compiled_forward.cache_clear()
    torch._dynamo.reset()


@pytest.mark.usefixtures("as_on_gpu")
def test_layers_are_compiled_on_a_gpu_after_some_passes() -> None:
    half = adapted(torch.bfloat16)
    batch = [Row([1] * 700)] * 2
    branches = [Row([1], [[2], [3]])] * 2
    assert [taken(half, batch) for _ in range(3)] == [("sdpa", 0)] * 3
    assert taken(half, batch) == ("sdpa", 2)
    assert taken(half, branches) == ("sdpa", 2)
    with torch.no_grad():
        assert taken(half, branches) == ("sdpa", 2)
    assert taken(half, batch[:1]) == ("sdpa", 0)
    assert taken(adapted(torch.float32), batch) == ("sdpa", 0)
    assert fast_pass.compile_notice(half).startswith("after 3 passes on this GPU")
    checkpoint_gradients(half)
    assert taken(half, batch) == ("sdpa", 0)
    with torch.no_grad():
        assert taken(half, batch) == ("sdpa", 2)


@pytest.mark.slow
@pytest.mark.usefixtures("as_on_gpu")
def test_scores_of_layers_that_are_traced_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of texts with gradients, and of choices, whose rows have masks of pairs; one trace for each of both."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(fast_pass, "PASSES_BEFORE", 0)
    monkeypatch.setattr(scoring, "reads_branches", lambda model: True)
    torch._dynamo.utils.counters.clear()
    for rows in BATCHES:
        labels = [((1, 2), (1, 3, 4), (5, 6))] * len(rows)
        found = []
        for is_compiled in (True, False):
            monkeypatch.setattr(fast_pass, "can_compile_for_gpu", lambda on=is_compiled: on)
            model = adapted(torch.bfloat16)
            join_products(model)
            slopes = gradients(model, rows)
            with torch.no_grad():
                scores = choice_logprobs(model, rows, labels, pad_id=0)[0]
            found.append((slopes, scores))
        (slopes, scores), (expected_slopes, expected_scores) = found
        assert difference(slopes, expected_slopes) < 0.01
        torch.testing.assert_close(scores, expected_scores, atol=0.01, rtol=0)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.slow
def test_layers_without_gradients_are_traced_whole_and_follow_their_adapters() -> None:
    """One trace for all layers. Adapters are rounded before it, which is no part of it."""
    model = adapted(torch.bfloat16).eval()
    join_products(model)
    trunk = trunk_of(model)
    ids = torch.tensor(BATCHES[1])
    traced = torch.compile(type(trunk.layers[0]).forward, dynamic=True, backend="aot_eager", fullgraph=True)
    torch._dynamo.utils.counters.clear()
    for scale in (1.0, 2.0):
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight.mul_(scale)
            expected = trunk(input_ids=ids, use_cache=False).last_hidden_state
            roundings(trunk)
            with fast_pass.compiling(), pytest.MonkeyPatch.context() as patch:
                for layer in trunk.layers:
                    patch.setattr(layer, "forward", partial(traced, layer))
                assert torch.equal(trunk(input_ids=ids, use_cache=False).last_hidden_state, expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU on which layers are compiled at once, also those of small models."""
    monkeypatch.setattr(fast_pass, "LARGE", 0)
    monkeypatch.setattr(fast_pass, "PASSES_BEFORE", 0)
    yield
    fast_pass.compiled_forward.cache_clear()
    torch._dynamo.reset()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("gpu")
def test_compiled_layers_on_a_gpu() -> None:
    """Gradients, and log-probabilities of choices, which have masks, are as exact as without compiling. One compilation
    is enough for each of: gradients, none, masks.
    """
    counts = torch._dynamo.utils.counters
    counts.clear()
    graphs = []
    for rows in BATCHES:
        models = [adapted(torch.bfloat16).to("cuda") for _ in range(2)]
        for model in models:
            join_products(model)
        exact = adapted(torch.bfloat16).to("cuda").float()
        labels = [((1, 2), (1, 3, 4), (5, 6))] * len(rows)
        expected, expected_scores = gradients(exact, rows), choice_logprobs(exact, rows, labels, pad_id=0)[0]
        found = []
        for turned_off, model in zip((False, True), models, strict=True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(fast_pass, "can_compile_for_gpu", lambda off=turned_off: not off)
                slopes = difference(gradients(model, rows), expected)
                with torch.no_grad():
                    scores = choice_logprobs(model, rows, labels, pad_id=0)[0]
                found.append((slopes, float((scores - expected_scores).abs().max())))
        graphs.append(counts["stats"]["unique_graphs"])
        (ours, our_scores), (theirs, their_scores) = found
        assert ours < max(0.02, 1.5 * theirs)
        assert our_scores < max(0.03, 1.5 * their_scores)
    first, second = graphs
    assert first == second > 0
    assert not counts["graph_break"]
