"""Checksums of tensors, computed where the tensors lie, in whole numbers: the same on every device.

Every eight bytes are a number, multiplied by an odd one that follows from its place; the sum is taken modulo
2⁶⁴. Whatever changes within eight bytes is found for certain, and what changes elsewhere, or changes places,
with a chance of 2⁻⁶⁴ to be missed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hdet.replicas import local

__all__ = ["sums_of"]

#: So many numbers at a time: what is computed beside them stays small.
_AT_ONCE = 1 << 20


@torch.no_grad()
def sums_of(tensors: Mapping[str, Tensor]) -> dict[str, list[object]]:
    """Type, shape and checksum of each, of a sharded one of this rank's part. Waits once for each device."""
    parts = {key: _plain(local(tensor).detach()) for key, tensor in tensors.items()}
    pending: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for key, plain in parts.items():
        for part in plain:
            pending.setdefault(part.device, []).append((key, _sum(part)))
    totals = dict.fromkeys(parts, 0)
    for found in pending.values():
        numbers = torch.stack([total for _, total in found]).tolist()
        for (key, _), number in zip(found, numbers, strict=True):
            totals[key] = (3 * totals[key] + number) % (1 << 64)
    return {
        key: [str(tensor.dtype), list(local(tensor).shape), f"{totals[key]:016x}"]
        for key, tensor in tensors.items()
    }


def _plain(tensor: Tensor) -> list[Tensor]:
    """What it is made of: quantised state is several tensors."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in _plain(getattr(tensor, name))]


def _sum(tensor: Tensor) -> Tensor:
    bytes_ = tensor.contiguous().reshape(-1).view(torch.uint8)
    if missing := -bytes_.numel() % 8:
        bytes_ = torch.cat([bytes_, bytes_.new_zeros(missing)])
    if bytes_.storage_offset() % 8:  # eight bytes are read as one number where they lie at its borders alone
        bytes_ = bytes_.clone()
    words = bytes_.view(torch.int64)
    odd = torch.arange(1, 2 * min(_AT_ONCE, words.numel()) + 1, 2, device=words.device)
    total = words.new_zeros(())
    for n, part in enumerate(torch.split(words, _AT_ONCE)):
        total += (2 * n + 1) * (part * odd[: part.numel()]).sum()
    return total
