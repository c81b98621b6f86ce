"""A cache layer with room for the next tokens holds what one without holds."""

from __future__ import annotations

import torch
from transformers import DynamicCache

from reflectkit.sampling.decoding import ROOM, reserve


def cache_of(rows: int, columns: int) -> DynamicCache:
    cache = DynamicCache()
    cache.update(torch.randn(rows, 4, columns, 8), torch.randn(rows, 4, columns, 8), 0)
    return cache


def test_a_reserved_cache_grows_like_a_plain_one() -> None:
    """Through several reallocations, and after its rows were replaced."""
    torch.manual_seed(0)
    plain, reserved = DynamicCache(), cache_of(2, 4)
    plain.update(reserved.layers[0].keys, reserved.layers[0].values, 0)
    reserve(reserved)
    for step in range(2 * ROOM + 3):
        if step == 5:  # a row has left
            for cache in (plain, reserved):
                layer = cache.layers[0]
                layer.keys, layer.values = layer.keys[:1], layer.values[:1]
        new = torch.randn(2 if step < 5 else 1, 4, 1, 8)
        ours, theirs = (cache.update(new, 2 * new, 0) for cache in (reserved, plain))
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
