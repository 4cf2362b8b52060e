"""Replicas that lie on several ranks each: HSDP, tensor parallelism beside data parallelism, one sharded
model alone, ZeroRedundancyOptimizer.

Weights are averaged over the ranks that hold the same shards of every replica; a number about a replica is
taken over its own ranks. Every decision is taken from the rows of all ranks. This file imports no sharding
library: if the user has not imported it, nothing can be sharded by it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.replicas.base import Mean, Replicas
from hdet.replicas.processes import ProcessReplicas, agree_among

__all__ = [
    "Layout",
    "ShardedReplicas",
    "drop_gathered",
    "flat_modules",
    "is_dtensor",
    "is_flat",
    "is_zero",
    "layout_of",
    "local",
    "ruler",
    "shard_offset",
    "shard_positions",
    "sharded_like",
    "state_of",
]

T = TypeVar("T")
#: Numbers on a ruler. Beyond so many ranks the last ones have none, and cannot be distinguished.
_MARKS = 1 << 14


class ShardedReplicas(Replicas):
    """Replicas on several ranks each.

    Args:
        across: the ranks that hold these shards of every replica; one process if there is one replica.
        within: the ranks of this replica.
        layout: where parameters lie.
    """

    def __init__(self, across: Replicas, within: ProcessReplicas, layout: Layout) -> None:
        self.rank, self.size = across.rank, across.size
        self.rank_in_replica, self.ranks_per_replica = within.rank, within.size
        self._across, self._within, self._layout = across, within, layout
        self.can_reshard = layout.can_reshard
        # FSDP shares gradients over all replicas.
        self.gradients = "all" if self.size > 1 and layout.wired == self.size else None

    def about_to(self, doing: str) -> None:
        self._within.about_to(doing)
        self._across.about_to(doing)

    def gather_ranks(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        width = len(row)
        of_replica = [value for own in self._within.gather(row) for value in own]
        rows = [value for replica in self._across.gather(of_replica) for value in replica]
        return [rows[at * width : (at + 1) * width] for at in range(self.world_size)]

    def gather(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        return self.by_replica(self.gather_ranks(row))

    def shard_of(self, parameter: Tensor) -> tuple[int, int]:
        return self._layout.shard_of(parameter)

    def replica_norms(self, norms: Sequence[float]) -> list[float]:
        if not norms:
            return []
        # In the same order on every rank, so that all have the same number to the last bit.
        return [math.hypot(*column) for column in zip(*self._within.gather(norms), strict=True)]

    def replica_sum(self, tensor: Tensor) -> Tensor:
        return self._within.sum_of(tensor)

    def parts_of(self, parameter: Tensor) -> list[Tensor]:
        # Of FullyShardedDataParallel's flat parameter, torch 2.6 to 2.13; the others have no such thing.
        within = getattr(parameter, "_shard_param_infos", None)
        if within is None or parameter.dim() != 1:
            return [parameter]
        spans = [(info.offset_in_shard or 0, info.numel_in_shard or 0) for info in within]
        return [parameter.detach()[start : start + count] for start, count in spans]

    def agree(self, caller: str, facts: Mapping[str, str]) -> None:
        agree_among(caller, facts, self._all_gather)

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        of_replica = torch.stack(self._within.all_gather(tensor))
        if not isinstance(self._across, ProcessReplicas):
            return list(of_replica)
        return [row for replica in self._across.all_gather(of_replica) for row in replica]

    def attempt(self, what: str, act: Callable[[], T]) -> tuple[T, None]:
        """Raise at once where it fails, without asking the others: they may be in the middle of a forward
        pass that needs this rank's shards, and would not come. They end when this process does."""
        try:
            return act(), None
        except Exception as error:
            raise RuntimeError(
                f"{what} raised on rank {self.rank_in_replica} of the {self.ranks_per_replica} of replica "
                f"{self.rank} ({error!r}); the others may wait for its shards in a forward pass: let this "
                "process end, and start all again from a checkpoint"
            ) from error

    def together(self, what: str, act: Callable[[], T]) -> T:
        return self.attempt(what, act)[0]

    def plan_mean(self, tensors: Sequence[Tensor], buffers: Sequence[Tensor] = ()) -> Mean:
        return self._across.plan_mean(tensors, buffers)


# ---------------------------------------------------------------------- on which ranks a replica lies


@dataclass(frozen=True, slots=True)
class Layout:
    """Where this rank's replica lies.

    Args:
        ranks: the global ranks of this replica, in ascending order; this one alone if nothing is sharded.
        wired: how many replicas share their gradients by the model itself; 1 if it does not say.
        flat: shard and number of shards of FullyShardedDataParallel's parameters, by id.
        groups: process groups that exist already, to be used again.
        can_reshard: whether a state can be cut otherwise: DTensors say what they are a shard of, flat
            parameters and the state of a ZeroRedundancyOptimizer do not.
    """

    ranks: tuple[int, ...]
    wired: int
    flat: dict[int, tuple[int, int]]
    groups: tuple[Any, ...]
    can_reshard: bool

    def shard_of(self, parameter: Tensor) -> tuple[int, int]:
        """Which shard lies on this rank, and how many there are."""
        if not is_dtensor(parameter):
            return self.flat.get(id(parameter), (0, 1))
        mesh = parameter.device_mesh
        coordinate = mesh.get_coordinate() or [0] * mesh.ndim
        index, count = 0, 1
        for dimension in _sharded_dimensions(parameter):
            index = index * mesh.size(dimension) + coordinate[dimension]
            count *= mesh.size(dimension)
        return index, count


def layout_of(
    parameters: Iterable[Tensor], model: nn.Module | None, optimizers: Iterable[Optimizer] = ()
) -> Layout:
    """The layout of a model, or of parameters whose model is not known: read off the tensors themselves.

    A DTensor says over which dimensions of its mesh it is sharded, FullyShardedDataParallel over which group.
    A ZeroRedundancyOptimizer updates each parameter on one rank of its group and broadcasts it. The ranks of
    all such groups that have ranks in common are one replica; what is replicated beyond them is another one.
    """
    me = dist.get_rank()
    every = {id(p): p for p in (*parameters, *(() if model is None else model.parameters()))}
    meshes: dict[Any, None] = {}
    for parameter in every.values():
        if is_dtensor(parameter):
            meshes[parameter.device_mesh, tuple(_sharded_dimensions(parameter))] = None
    zero = [one.process_group for one in optimizers if is_zero(one)]  # type: ignore[attr-defined]
    flat: dict[int, tuple[int, int]] = {}
    wired = 1
    groups = [*zero, *(mesh.get_group(d) for mesh, _ in meshes for d in range(mesh.ndim))]
    together = [set(dist.get_process_group_ranks(group)) for group in zero]
    for mesh, dimensions in meshes:
        others = [d for d in range(mesh.ndim) if d not in dimensions]
        width = math.prod(mesh.size(d) for d in dimensions)
        together += map(set, mesh.mesh.permute(*others, *dimensions).reshape(-1, width).tolist())
    for module in flat_modules(model):
        if module.sharding_strategy.name == "NO_SHARD":
            continue
        together.append(set(dist.get_process_group_ranks(module.process_group)))
        groups.append(module.process_group)
        between = getattr(module, "_inter_node_pg", None)  # no public name, torch 2.6 to 2.13
        if between is not None:
            groups.append(between)
            wired = max(wired, dist.get_world_size(between))
        shard = dist.get_rank(module.process_group), dist.get_world_size(module.process_group)
        flat |= {id(p): shard for p in module.parameters() if is_flat(p)}
    ranks = _connected(me, together)
    for mesh, _ in meshes:
        members = set(mesh.mesh.flatten().tolist())
        if me in members:
            wired = max(wired, len(members) // len(members & ranks))
    return Layout(tuple(sorted(ranks)), wired, flat, tuple(groups), can_reshard=not flat and not zero)


def _connected(rank: int, together: list[set[int]]) -> set[int]:
    """All ranks that are connected to one by a chain of sets.

    >>> sorted(_connected(0, [{0, 1}, {2, 3}, {1, 2}, {4, 5}]))
    [0, 1, 2, 3]
    """
    ranks: set[int] = {rank}
    before: set[int] = set()
    while ranks != before:
        before = ranks
        ranks = ranks.union(*(group for group in together if group & ranks))
    return ranks


def _sharded_dimensions(parameter: Any) -> list[int]:
    """The dimensions of its mesh over which a DTensor is sharded, with more than one rank."""
    return [
        dimension
        for dimension, placement in enumerate(parameter.placements)
        if not placement.is_replicate() and parameter.device_mesh.size(dimension) > 1
    ]


# ---------------------------------------------------------------------- FSDP and ZeRO


def flat_modules(model: nn.Module | None) -> Iterator[Any]:
    """The modules of FullyShardedDataParallel."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    if model is not None and fsdp is not None:
        yield from (m for m in model.modules() if isinstance(m, fsdp.FullyShardedDataParallel))


def is_flat(parameter: Tensor) -> bool:
    """Whether it is FullyShardedDataParallel's: a flat parameter, or an original one within it."""
    return hasattr(parameter, "_fsdp_flattened") or type(parameter).__name__ == "FlatParameter"


def drop_gathered(model: nn.Module | None) -> None:
    """Let FSDP gather its weights again in the next forward pass.

    After a forward pass without a backward pass its root keeps them, and so do all its modules if they are
    told to: they would not see weights that are changed in between.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # torch imports it by itself, too
    if model is None or fsdp is None or not dist.is_initialized():
        return
    module: Any
    for module in model.modules():
        if isinstance(module, fsdp.FSDPModule):
            module.reshard()
        elif isinstance(module, fsdp.FullyShardedDataParallel):
            # torch 2.6 to 2.13 has no public call but summon_full_params, which would gather them first.
            handle = module._handle
            if handle is not None and handle.uses_sharded_strategy and not handle.needs_unshard():
                handle.reshard(True)
                handle.post_reshard()
                handle._prefetched = False


def is_zero(optimizer: Optimizer) -> bool:
    """Whether it is a ZeroRedundancyOptimizer, whose state for a parameter lies on one rank."""
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__)


def state_of(optimizer: Optimizer) -> Any:
    """The optimizer's state, of the parameters that this rank updates."""
    return optimizer.optim.state if is_zero(optimizer) else optimizer.state  # type: ignore[attr-defined]


# ---------------------------------------------------------------------- shards of tensors


def is_dtensor(tensor: Tensor) -> TypeGuard[Any]:
    """Whether a tensor is spread over a mesh of ranks, as torch's DTensor."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The shard of a tensor that lies on this rank: itself, or a DTensor's local shard, without a graph."""
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():  # else a view with a history, into which nothing can be written
        shard: Tensor = tensor.to_local()
    return shard


def sharded_like(parameter: Tensor, shard: Tensor) -> Tensor:
    """``shard`` as a DTensor that is sharded as ``parameter`` is; not copied.

    So ``torch.distributed.checkpoint`` knows what it is a shard of, and can load it on other ranks. What is
    not as large as this rank's shard stays as it is.
    """
    if not is_dtensor(parameter) or is_dtensor(shard) or shard.shape != local(parameter).shape:
        return shard
    return _as_dtensor(
        shard, parameter.device_mesh, parameter.placements, parameter.shape, parameter.stride()
    )


def ruler(parameters: Iterable[Tensor]) -> Tensor:
    """0, 1, 2, …, cut as finely as any of these parameters is, by the same ranks.

    A rank that finds its own numbers in a state has its own shards, also after a checkpoint has resharded
    everything; a rank that loaded another rank's state finds that rank's numbers.
    """
    marks = torch.arange(_MARKS, dtype=torch.int32)
    sharded: list[Any] = [p for p in parameters if is_dtensor(p) and _sharded_dimensions(p)]
    if not sharded:
        return marks
    finest = max(sharded, key=lambda p: math.prod(p.device_mesh.size(d) for d in _sharded_dimensions(p)))
    mesh, dimensions = finest.device_mesh, _sharded_dimensions(finest)
    coordinate, module = mesh.get_coordinate() or [0] * mesh.ndim, sys.modules["torch.distributed.tensor"]
    for dimension in dimensions:
        pieces = marks.chunk(mesh.size(dimension))
        at = coordinate[dimension]
        marks = pieces[at] if at < len(pieces) else marks[:0]
    placements = [module.Shard(0) if d in dimensions else module.Replicate() for d in range(mesh.ndim)]
    return _as_dtensor(marks.clone(), mesh, placements, torch.Size([_MARKS]), (1,))


def shard_offset(parameter: Tensor) -> int | None:
    """Where in the whole tensor, flattened, this rank's shard begins; None if it lies there in pieces."""
    if not is_dtensor(parameter):
        return 0
    chunk = _chunk(parameter)
    if tuple(chunk.sizes[1:]) != tuple(parameter.shape[1:]):
        return None
    return int(chunk.offsets[0]) * math.prod(parameter.shape[1:]) if chunk.sizes else 0


def shard_positions(parameter: Tensor, start: int, stop: int, device: torch.device) -> Tensor:
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


def _chunk(parameter: Any) -> Any:
    # The protocol by which torch's own checkpoints ask a DTensor where it lies, torch 2.6 to 2.13.
    (chunk,) = parameter.__create_chunk_list__()
    return chunk


def _as_dtensor(
    shard: Tensor, mesh: Any, placements: Any, shape: torch.Size, stride: tuple[int, ...]
) -> Tensor:
    kind: Any = sys.modules["torch.distributed.tensor"].DTensor
    # from_local would move a shard on the host to the mesh's device, which may be full. So it gets an empty
    # tensor, which the protocol of wrapper subclasses replaces by the shard.
    empty = shard if shard.device.type == mesh.device_type else torch.empty_like(shard, device="meta")
    made: Tensor = kind.from_local(empty, mesh, placements, shape=shape, stride=stride)
    if empty is not shard:
        (name,), context = made.__tensor_flatten__()  # type: ignore[attr-defined]
        made = kind.__tensor_unflatten__({name: shard}, context, made.size(), made.stride())
    return made
