"""On which ranks one replica lies, and who holds which shard of a parameter: read off the model itself.

A DTensor says over which dimensions of its mesh it is sharded, FullyShardedDataParallel over which group. The
ranks of all such groups that hang together are one replica. What is replicated beyond them is another one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from hdet.replicas.local import is_dtensor

__all__ = ["Layout", "flat_modules", "is_flat", "layout_of", "sharded_dimensions"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where this rank's replica lies.

    Args:
        ranks: the global ranks of this replica, in ascending order; this one alone if nothing is sharded.
        wired: how many replicas share their gradients by the model itself; 1 if it does not say.
        flat: shard and number of shards of FullyShardedDataParallel's parameters, by id.
        groups: process groups that exist already, to be used again.
        reshards: whether what lies here could be cut otherwise: DTensors say what they are a part of, flat
            parameters and the state of a ZeroRedundancyOptimizer do not.
    """

    ranks: tuple[int, ...]
    wired: int = 1
    flat: dict[int, tuple[int, int]] = field(default_factory=dict)
    groups: tuple[Any, ...] = ()
    reshards: bool = True

    def shard_of(self, parameter: Tensor) -> tuple[int, int]:
        """Which shard lies on this rank, and how many there are."""
        if not is_dtensor(parameter):
            return self.flat.get(id(parameter), (0, 1))
        here, mesh = parameter.device_mesh.get_coordinate(), parameter.device_mesh
        index, count = 0, 1
        for dimension in sharded_dimensions(parameter):
            index = index * mesh.size(dimension) + (here[dimension] if here else 0)
            count *= mesh.size(dimension)
        return index, count


def layout_of(parameters: Iterable[Tensor], model: nn.Module | None, sharing: Sequence[Any] = ()) -> Layout:
    """The layout of a model, or of parameters whose model is not known.

    ``sharing`` are groups of ranks that share the work on one replica all the same.
    """
    me = dist.get_rank()
    every = {id(p): p for p in (*parameters, *(() if model is None else model.parameters()))}
    meshes: dict[Any, None] = {}
    for parameter in every.values():
        if is_dtensor(parameter):
            meshes[parameter.device_mesh, tuple(sharded_dimensions(parameter))] = None
    flat: dict[int, tuple[int, int]] = {}
    together = [group for mesh, dimensions in meshes for group in _groups(mesh, dimensions)]
    together += [set(dist.get_process_group_ranks(group)) for group in sharing]
    known = [*sharing, *(mesh.get_group(d) for mesh, _ in meshes for d in range(mesh.ndim))]
    wired = 1
    for module in flat_modules(model):
        together.append(set(dist.get_process_group_ranks(module.process_group)))
        known.append(module.process_group)
        between = getattr(module, "_inter_node_pg", None)  # no public name, torch 2.6 to 2.13
        if between is not None:
            known.append(between)
            wired = max(wired, dist.get_world_size(between))
        here = dist.get_rank(module.process_group), dist.get_world_size(module.process_group)
        flat |= {id(p): here for p in module.parameters() if is_flat(p)}
    ranks = _closure({me}, together)
    for mesh, _ in meshes:
        everybody = set(mesh.mesh.flatten().tolist())
        if me in everybody:
            wired = max(wired, len(everybody) // len(everybody & ranks))
    return Layout(tuple(sorted(ranks)), wired, flat, tuple(known), reshards=not flat and not sharing)


def flat_modules(model: nn.Module | None, *, every: bool = False) -> Iterator[Any]:
    """The modules of FullyShardedDataParallel that do shard, or every one."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    if model is None or fsdp is None:
        return
    for module in model.modules():
        if isinstance(module, fsdp.FullyShardedDataParallel) and (
            every or module.sharding_strategy.name != "NO_SHARD"
        ):
            yield module


def is_flat(parameter: Tensor) -> bool:
    """Whether it is FullyShardedDataParallel's: a flat parameter, or an original one within it."""
    return hasattr(parameter, "_fsdp_flattened") or type(parameter).__name__ == "FlatParameter"


def sharded_dimensions(parameter: Any) -> list[int]:
    """The dimensions of its mesh over which a DTensor is sharded, with more than one rank."""
    return [
        dimension
        for dimension, placement in enumerate(parameter.placements)
        if not placement.is_replicate() and parameter.device_mesh.size(dimension) > 1
    ]


def _groups(mesh: Any, dimensions: tuple[int, ...]) -> list[set[int]]:
    """The ranks of a mesh that hold the shards of one copy, for every copy."""
    others = [d for d in range(mesh.ndim) if d not in dimensions]
    width = math.prod(mesh.size(d) for d in dimensions)
    ranks = mesh.mesh.permute(*others, *dimensions).reshape(-1, width)
    return [set(group) for group in ranks.tolist()]


def _closure(ranks: set[int], together: list[set[int]]) -> set[int]:
    """All ranks that hang together with some, by any group.

    >>> sorted(_closure({0}, [{0, 1}, {2, 3}, {1, 2}, {4, 5}]))
    [0, 1, 2, 3]
    """
    before: set[int] = set()
    while ranks != before:
        before = ranks
        ranks = ranks.union(*(group for group in together if group & ranks))
    return ranks
