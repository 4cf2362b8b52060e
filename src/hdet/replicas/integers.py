"""Integer buffers cannot be averaged: they become their maximum over the replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["maximum_"]


@torch.no_grad()
def maximum_(
    tensors: Sequence[Tensor], device: torch.device, reduce: Callable[[Tensor], None]
) -> tuple[str, ...]:
    """Let each be its maximum; max(x) + max(−x) = 0 tells whether all were equal.

    Args:
        tensors: what becomes its maximum, in place.
        device: where the message lies.
        reduce: takes the maximum of a message over the replicas, in place.
    """
    values = torch.cat([t.reshape(-1).to(device, torch.int64) for t in tensors])
    both = torch.cat([values, -values])
    reduce(both)
    maximum, negative = torch.split(both, values.numel())
    for tensor, new in zip(tensors, torch.split(maximum, [t.numel() for t in tensors]), strict=True):
        if 0 not in tensor.stride():  # an expanded buffer repeats its elements and cannot be written
            tensor.copy_(new.view(tensor.shape))
    differing = int((maximum + negative).count_nonzero())
    if differing:
        return (f"{differing} integer buffer values differed: the maximum was taken",)
    return ()
