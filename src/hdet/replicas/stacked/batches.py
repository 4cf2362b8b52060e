"""How a batch of any form is flattened into its tensors, divided among replicas, and rebuilt.

A pass sees tensors alone (``torch.vmap`` maps them, a CUDA graph copies them); the loss sees the batch as the
user's loader makes it, with other tensors in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

__all__ = ["FlatBatch", "divide", "flatten"]

#: What all replicas get unchanged.
_PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device)


class FlatBatch(NamedTuple):
    """The tensors of a batch, a function that makes the batch of other tensors, and ``form``, which holds the
    rest: for two batches of one form a recorded pass does the same."""

    tensors: list[Tensor]
    rebuild: Callable[[Sequence[Tensor]], Any]
    form: Hashable


def flatten(batch: Any) -> FlatBatch:
    """The tensors of a batch, in mappings, tuples, named tuples and lists as deep as they are."""
    if isinstance(batch, Tensor):
        return FlatBatch([batch], lambda tensors: tensors[0], Tensor)
    if isinstance(batch, _PLAIN):
        # 1, 1.0 and True are equal, and so are 0.0 and -0.0; a NaN equals nothing.
        exact = batch.hex() if isinstance(batch, float) else batch
        return FlatBatch([], lambda _: batch, (type(batch), exact))
    if isinstance(batch, Mapping):
        keys, items = tuple(batch), [batch[key] for key in batch]
    elif isinstance(batch, (tuple, list)) and not isinstance(batch, PackedSequence):
        keys, items = (), list(batch)
    else:
        raise TypeError(
            "StackedReplicas.losses: batch must be tensors, numbers and strings in tuples, lists or dicts, "
            f"so that each replica gets its part, got a {type(batch).__name__}; pass a dict of its tensors "
            "(torch.as_tensor makes one of an array)"
        )
    parts = [flatten(item) for item in items]

    def rebuild(tensors: Sequence[Tensor]) -> Any:
        built, start = [], 0
        for part in parts:
            end = start + len(part.tensors)
            built.append(part.rebuild(tensors[start:end]))
            start = end
        return _like(batch, dict(zip(keys, built, strict=True)) if isinstance(batch, Mapping) else built)

    form = (type(batch), keys, tuple(part.form for part in parts))
    return FlatBatch([tensor for part in parts for tensor in part.tensors], rebuild, form)


def divide(tensors: Sequence[Tensor], size: int) -> list[Tensor]:
    """Views with a first dimension for the replicas: replica r has the r-th of equal parts."""
    for tensor in tensors:
        if tensor.is_nested or tensor.layout != torch.strided:
            kind = "nested" if tensor.is_nested else str(tensor.layout)
            raise TypeError(
                f"StackedReplicas.losses: the tensors of batch must be dense, got a {kind} one; pad it, or "
                "call .to_dense()"
            )
        if tensor.dim() == 0 or len(tensor) % size or not len(tensor):
            raise ValueError(
                "StackedReplicas.losses: the first dimension of every tensor of batch must be a multiple of "
                f"the {size} replicas, got a shape of {tuple(tensor.shape)}"
            )
    return [tensor.view(size, len(tensor) // size, *tensor.shape[1:]) for tensor in tensors]


def _like(batch: Any, built: dict[Any, Any] | list[Any]) -> Any:
    """What was built, in the type of the batch."""
    kind = type(batch)
    try:
        if isinstance(batch, defaultdict):
            return kind(batch.default_factory, built)
        return kind._make(built) if hasattr(batch, "_fields") else kind(built)
    except TypeError as error:
        raise TypeError(
            f"StackedReplicas.losses: a {kind.__name__} must be made by a call with its items, so that each "
            f"replica gets one of its own ({error}); pass a dict or a list"
        ) from error
