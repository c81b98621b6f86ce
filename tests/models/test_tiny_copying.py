"""A fresh tiny model that was taught copying goes on with passages that it never saw."""

from __future__ import annotations

import torch

from reflectkit.models.tiny import build_model, build_tokenizer, teach_copying


def test_what_is_taught_is_seeded_and_lowers_the_loss_on_what_is_new() -> None:
    torch.set_num_threads(1)
    tokenizer = build_tokenizer(["a b"], [], 300)
    model, same = (build_model(tokenizer, 64, seed=1, hybrid=True) for _ in range(2))
    losses: list[float] = []
    for one in (model, same):
        losses.clear()
        teach_copying(one, 260, 3, losses.append)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))
    assert len(losses) == 260
    passage = torch.randint(300, (8, 20), generator=torch.Generator().manual_seed(99))
    with torch.no_grad():
        logits = model(input_ids=torch.cat([passage, passage], dim=1)).logits[:, 20:-1]
    right = (logits.argmax(-1) == passage[:, 1:]).float().mean()
    assert right > 0.5  # chance is 1 in 300
