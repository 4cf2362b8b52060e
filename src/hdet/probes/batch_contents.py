"""What a batch of any form contains: its tensors, its size, and whether two batches are the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["announced_size", "count_samples", "fingerprint", "not_among", "tensors_of"]


def tensors_of(batch: object) -> Iterator[Tensor]:
    """The tensors with a first dimension, in mappings, lists and tuples as deep as they are."""
    if isinstance(batch, Tensor):
        if batch.dim():
            yield batch
    elif isinstance(batch, (Mapping, list, tuple)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_of(part)


def count_samples(batch: object) -> int | None:
    """The length of the first tensor; None without one."""
    return next((len(tensor) for tensor in tensors_of(batch)), None)


def announced_size(batches: object) -> int | None:
    """The batch size, if it is known before anything is drawn."""
    if isinstance(batches, Sequence) and batches:
        return count_samples(batches[0])
    size = getattr(batches, "batch_size", None)
    return size if isinstance(size, int) else None


def fingerprint(batch: object) -> tuple[tuple[int, ...], str] | None:
    """Cheap, and different for batches that differ in their first tensor, but for rare coincidences."""
    tensor = next(tensors_of(batch), None)
    if tensor is None:
        return None
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    total = real.sum(dtype=torch.float32 if real.device.type == "mps" else torch.float64)
    return tuple(tensor.shape), float(total).hex()  # as text NaN equals NaN


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
