"""When an update reads what rows begin with once."""

from __future__ import annotations

import pytest
import torch

from reflectkit.train import microbatch
from reflectkit.train.microbatch import Unit, saves
from tests.models.test_lora import adapted


@pytest.mark.parametrize(("is_compiled", "fewest"), [(False, 3), (True, 5)])
def test_a_large_model_reads_a_tree_if_it_saves_enough_tokens(
    monkeypatch: pytest.MonkeyPatch, is_compiled: bool, fewest: int
) -> None:
    """N rows of 100 tokens, the first 60 of them shared: a tree reads 100 + 40 (N − 1) tokens in two passes, instead of
    100 N in one.

    It saves 60 (N − 1), which must exceed 60. Against compiled layers, its tokens count 1.3 times, and 130 must be
    saved: 100 N − 1.3 (60 + 40 N) = 48 N − 78.
    """
    monkeypatch.setattr(microbatch, "LARGE_LAYER", 0)
    monkeypatch.setattr(microbatch, "compiles", lambda trunk: is_compiled)
    model = adapted(torch.bfloat16)

    def pays(count: int) -> bool:
        beginning = tuple(range(60))
        units = [Unit((*beginning, *(row + 100,) * 40), (), (row,)) for row in range(count)]
        return saves(model, units, 10_000)

    assert not pays(fewest - 1)
    assert pays(fewest)
