"""What a batch of any form contains: its tensors, its size, and whether two batches are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["announced_size", "count_samples", "fingerprint", "not_among", "tensors_of"]


def tensors_of(batch: object) -> list[Tensor]:
    """The tensors with a first dimension, in order, in mappings, lists and tuples at any depth."""
    found: list[Tensor] = []
    remaining = [batch]
    while remaining:
        part = remaining.pop()
        if isinstance(part, Tensor):
            found += [part] if part.dim() else []
        elif isinstance(part, (Mapping, list, tuple)):
            remaining += reversed([*part.values()] if isinstance(part, Mapping) else part)
    return found


def count_samples(batch: object) -> int | None:
    """The length of the first tensor; None without one."""
    tensors = tensors_of(batch)
    return len(tensors[0]) if tensors else None


def announced_size(batches: object) -> int | None:
    """The batch size, if it is known before anything is drawn."""
    if isinstance(batches, Sequence) and batches:
        return count_samples(batches[0])
    size = getattr(batches, "batch_size", None)
    return size if isinstance(size, int) else None


def fingerprint(batch: object) -> tuple[tuple[int, ...], str] | None:
    """Cheap, and different for batches that differ in their first tensor, but for rare coincidences."""
    tensors = tensors_of(batch)
    if not tensors:
        return None
    first = torch.view_as_real(tensors[0]) if tensors[0].is_complex() else tensors[0]
    total = first.sum(dtype=torch.float32 if first.device.type == "mps" else torch.float64)
    return tuple(tensors[0].shape), float(total).hex()  # as text NaN equals NaN


def not_among(batches: Sequence[Any], known: Sequence[object]) -> list[Any]:
    """The batches that differ from every ``known`` one."""
    return [batch for batch in batches if not any(_same(batch, other) for other in known)]


def _same(batch: object, other: object) -> bool:
    """Whether two batches hold the same numbers. What cannot be compared counts as different, and so does
    None: a loss that is given nothing draws its own samples."""
    if batch is other:
        return batch is not None
    if isinstance(batch, Tensor) and isinstance(other, Tensor):
        return batch.shape == other.shape and batch.dtype == other.dtype and torch.equal(batch, other)
    if type(batch) is not type(other):
        return False
    if isinstance(batch, Mapping) and isinstance(other, Mapping):
        return batch.keys() == other.keys() and all(_same(batch[key], other[key]) for key in batch)
    if isinstance(batch, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(batch) == len(other) and all(map(_same, batch, other))
    return isinstance(batch, (int, float, str, bytes)) and batch == other
