"""What a shard is a part of: where it lies in the whole tensor, and how a checkpoint is told so.

A checkpoint that may be resumed on other ranks (``torch.distributed.checkpoint``) needs every tensor as a
DTensor; what is kept beside the weights is put there as they are.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from hdet.replicas.layout import sharded_dimensions
from hdet.replicas.local import is_dtensor, local

__all__ = ["allow_placements", "place_of", "places", "ruler", "sharded_like"]

#: Marks on a ruler. Beyond so many parts the last ones have none, and are not told apart.
_MARKS = 1 << 14


def sharded_like(parameter: Tensor, shard: Tensor) -> Tensor:
    """``shard``, known as this rank's part of a tensor that is sharded as ``parameter`` is; not copied.

    So a checkpoint knows what it is a part of. What is not as large as this rank's shard stays as it is.
    """
    if not is_dtensor(parameter) or is_dtensor(shard) or shard.shape != local(parameter).shape:
        return shard
    return _as_dtensor(
        shard, parameter.device_mesh, parameter.placements, parameter.shape, parameter.stride()
    )


def ruler(parameters: Iterable[Tensor]) -> Tensor:
    """0, 1, 2, …, cut as finely as any of these parameters is, by the same ranks.

    Whoever holds the numbers that belong to its place holds its own shards, also after a checkpoint has cut
    everything anew; who was handed another rank's does not.
    """
    marks = torch.arange(_MARKS, dtype=torch.int32)
    sharded: list[Any] = [p for p in parameters if is_dtensor(p) and sharded_dimensions(p)]
    if not sharded:
        return marks
    finest = max(sharded, key=lambda p: math.prod(p.device_mesh.size(d) for d in sharded_dimensions(p)))
    mesh, dimensions = finest.device_mesh, sharded_dimensions(finest)
    here, tensor = mesh.get_coordinate(), _dtensors()
    for dimension in dimensions:
        pieces = marks.chunk(mesh.size(dimension))
        at = here[dimension] if here else 0
        marks = pieces[at] if at < len(pieces) else marks[:0]
    placements = [tensor.Shard(0) if d in dimensions else tensor.Replicate() for d in range(mesh.ndim)]
    return _as_dtensor(marks.clone(), mesh, placements, torch.Size([_MARKS]), (1,))


def place_of(parameter: Tensor) -> int | None:
    """Where in the whole tensor, flattened, this rank's shard begins; None if it lies there in pieces."""
    if not is_dtensor(parameter):
        return 0
    chunk = _chunk(parameter)
    if tuple(chunk.sizes[1:]) != tuple(parameter.shape[1:]):
        return None
    return int(chunk.offsets[0]) * math.prod(parameter.shape[1:]) if chunk.sizes else 0


def places(parameter: Tensor, start: int, stop: int, device: torch.device) -> Tensor:
    """Where the values ``start`` to ``stop`` of this rank's shard, flattened, lie in the whole, flattened."""
    at = torch.arange(start, stop, device=device)
    if not is_dtensor(parameter):
        return at
    chunk, stride, whole = _chunk(parameter), 1, torch.zeros_like(at)
    for size, offset, length in reversed(list(zip(chunk.sizes, chunk.offsets, parameter.shape, strict=True))):
        whole += (at % max(size, 1) + offset) * stride
        at //= max(size, 1)
        stride *= length
    return whole


def allow_placements(parameters: Iterable[Tensor]) -> None:
    """Let ``torch.load(weights_only=True)`` read states that hold such shards. Torch before 2.13 knows all
    placements but the one of a shard that is cut again."""
    kinds = {type(placement) for p in parameters if is_dtensor(p) for placement in _placements(p)}
    torch.serialization.add_safe_globals([*kinds])


def _placements(parameter: Any) -> Sequence[Any]:
    placements: Sequence[Any] = parameter.placements
    return placements


def _chunk(parameter: Any) -> Any:
    # The protocol by which torch's own checkpoints ask a DTensor where it lies, torch 2.6 to 2.13.
    (chunk,) = parameter.__create_chunk_list__()
    return chunk


def _dtensors() -> Any:
    return sys.modules["torch.distributed.tensor"]


def _as_dtensor(
    shard: Tensor, mesh: Any, placements: Any, shape: torch.Size, stride: tuple[int, ...]
) -> Tensor:
    kind = _dtensors().DTensor
    # from_local moves what lies with the host to the mesh's device, where there is no room for it: so it is
    # shown an empty one, and the shard takes that one's place by the protocol of wrapper subclasses.
    empty = shard if shard.device.type == mesh.device_type else torch.empty_like(shard, device="meta")
    made: Tensor = kind.from_local(empty, mesh, placements, run_check=False, shape=shape, stride=stride)
    if empty is not shard:
        (name,), context = made.__tensor_flatten__()  # type: ignore[attr-defined]
        made = kind.__tensor_unflatten__({name: shard}, context, made.size(), made.stride())
    return made
