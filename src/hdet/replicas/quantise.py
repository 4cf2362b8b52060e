"""Eight bits for a number: blocks of values, each with a scale of its own. Pure.

A block's largest value is ±127; what is in between is rounded to the nearest. A block that holds a value
which is not finite comes back as NaN, all of it: what is lost stays visible.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["BLOCK", "blocks_of", "dequantise", "quantise"]

#: Values that share a scale: its four bytes are then 0.4 % of what is sent.
BLOCK = 1024
_LARGEST = 127


def blocks_of(values: int, block: int = BLOCK) -> int:
    """How many scales a row of so many values has; its last block may be shorter."""
    return -(-values // block)


def quantise(rows: Tensor, block: int = BLOCK) -> tuple[Tensor, Tensor]:
    """Codes (int8, as many as values) and scales (float32, one a block) of every row of float32 values.

    >>> codes, scales = quantise(torch.tensor([[0.0, 1.0, -2.54]]))
    >>> codes.tolist(), round(scales.item(), 4)
    ([[0, 50, -127]], 0.02)
    """
    blocked = _in_blocks(rows, block)
    scales = blocked.abs().amax(-1) / _LARGEST
    # A block of zeros has a scale of 0. One that is not finite has codes of no meaning, and its scale tells.
    usable = torch.where(torch.isfinite(scales) & (scales > 0), scales, 1.0)
    codes = (blocked / usable.unsqueeze(-1)).nan_to_num(0.0, 0.0, 0.0).round_().clamp_(-_LARGEST, _LARGEST)
    return codes.to(torch.int8).flatten(1)[:, : rows.shape[1]].contiguous(), scales


def dequantise(codes: Tensor, scales: Tensor, block: int = BLOCK) -> Tensor:
    """The values that codes and scales stand for."""
    # Not finite times 0 is NaN, so a lost block is NaN throughout.
    lost = torch.where(torch.isfinite(scales), scales, torch.nan)
    blocked = _in_blocks(codes.float(), block) * lost.unsqueeze(-1)
    return blocked.flatten(1)[:, : codes.shape[1]].contiguous()


def _in_blocks(rows: Tensor, block: int) -> Tensor:
    count = blocks_of(rows.shape[1], block)
    padded = functional.pad(rows, (0, count * block - rows.shape[1]))
    return padded.view(rows.shape[0], count, block)
