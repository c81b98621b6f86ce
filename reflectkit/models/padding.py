"""Rows of tokens as tensors, padded on the left or on the right."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def right_pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> torch.Tensor:
    """`rows` as one tensor (B, T), padded on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows], device=device)


def left_pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(input_ids_BT, attention_mask_BT) of `rows`, padded on the left: every row's last token is in the last column."""
    width = max(map(len, rows))
    input_ids_BT = torch.full((len(rows), width), pad_id, dtype=torch.long)
    attention_mask_BT = torch.zeros((len(rows), width), dtype=torch.long)
    for index, row in enumerate(rows):
        input_ids_BT[index, width - len(row) :] = torch.tensor(row, dtype=torch.long)
        attention_mask_BT[index, width - len(row) :] = 1
    return input_ids_BT.to(device), attention_mask_BT.to(device)


def position_ids(attention_mask_BT: torch.Tensor) -> torch.Tensor:
    """Each token's position in its row, from 0; padding is at 0. Without it, left padding would shift positions."""
    return (attention_mask_BT.cumsum(dim=1) - 1).clamp(min=0)
