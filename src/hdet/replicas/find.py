"""Who the replicas of an optimizer are: rows in this process, the ranks of a group, several ranks each, or
this process alone."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.replicas.base import Replicas
from hdet.replicas.layout import Layout, layout_of
from hdet.replicas.process import ProcessReplicas
from hdet.replicas.refusals import refuse_missing_group, refuse_overlap, refuse_unknown_shards
from hdet.replicas.sharded import ShardedReplicas
from hdet.replicas.shards import allow_placements
from hdet.replicas.solo import SoloReplica
from hdet.replicas.stacked.optimizer import StackedOptimizer
from hdet.replicas.zero import zero_groups

__all__ = ["ProcessGroup", "find_replicas", "replicas_of"]

if dist.is_available():
    from torch.distributed import ProcessGroup
else:  # a torch built without it still trains one replica

    class ProcessGroup:  # type: ignore[no-redef]
        """Stands in where there is nothing to group."""


def replicas_of(
    caller: str,
    optimizer: Optimizer,
    *,
    model: nn.Module | None = None,
    process_group: ProcessGroup | None = None,
) -> Replicas:
    """The replicas that train with an optimizer."""
    if isinstance(optimizer, StackedOptimizer):
        if process_group is not None:
            raise ValueError(
                f"{caller}: process_group was given, but all replicas of this optimizer are in one process; "
                "leave it out"
            )
        return optimizer.replicas
    every = getattr(optimizer, "optimizers", [optimizer])  # several may stand there as one
    refuse_overlap(caller, every)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return find_replicas(
        caller, parameters, model=model, process_group=process_group, sharing=zero_groups(every)
    )


def find_replicas(
    caller: str,
    parameters: Iterable[Tensor] = (),
    *,
    model: nn.Module | None = None,
    process_group: ProcessGroup | None = None,
    device: torch.device | None = None,
    sharing: Sequence[Any] = (),
) -> Replicas:
    """The ranks of the given group, else those of the default one, else this process is alone.

    Ranks that hold shards of one model are one replica. A group that has one rank of every replica (HSDP's
    replicate dimension) and one of all ranks mean the same. ``sharing`` are groups whose ranks are one
    replica although each holds all of it.
    """
    if not (dist.is_available() and dist.is_initialized()):
        if process_group is not None:
            raise ValueError(
                f"{caller}: process_group was given, but torch.distributed is not initialised; call "
                "init_process_group first"
            )
        refuse_missing_group(caller)
        return SoloReplica(found=True)
    every = list(parameters)
    device = device or (torch.device(every[0].device) if every else torch.device("cpu"))
    replicas = ProcessReplicas(process_group, device)
    refuse_unknown_shards(caller, every, model)
    layout = layout_of(every, model, sharing)
    if len(layout.ranks) > 1:
        return _sharded(caller, every, layout, replicas, process_group, device)
    return replicas if replicas.size > 1 else SoloReplica()


def _sharded(
    caller: str,
    parameters: Sequence[Tensor],
    layout: Layout,
    given: ProcessReplicas,
    group: ProcessGroup | None,
    device: torch.device,
) -> ShardedReplicas:
    members = dist.get_process_group_ranks(group or dist.group.WORLD)
    inside = [rank for rank in members if rank in layout.ranks]
    across: Replicas
    if len(inside) == 1:
        across = given if given.size > 1 else SoloReplica()
    elif len(inside) == len(layout.ranks):
        of_part = _same_part(caller, layout, given, members)
        across = SoloReplica()
        if len(of_part) > 1:
            across = _meeting(of_part, layout, device)
    else:
        raise ValueError(
            f"{caller}: process_group must have all ranks of a sharded model or one, got {members}, of which "
            f"{inside} are among the ranks {list(layout.ranks)} of one replica; leave process_group out"
        )
    within = _meeting(layout.ranks, layout, device)
    replicas = ShardedReplicas(across, within, layout)
    allow_placements(parameters)
    digest = zlib.crc32(repr([layout.shard_of(parameter) for parameter in parameters]).encode())
    if odd := replicas.unlike([float(digest)]):
        raise RuntimeError(
            f"{caller}: the same part of every replica must hold the same shards, and rank {odd[0]} (by "
            "replica, then part) holds others than that part of the first replica; let the ranks of a mesh "
            "ascend"
        )
    return replicas


def _same_part(caller: str, layout: Layout, given: ProcessReplicas, members: Sequence[int]) -> list[int]:
    """The ranks that hold this rank's part of every replica, from what each rank takes for its own."""
    rows = given.gather([float(rank in layout.ranks) for rank in members])
    replicas = sorted({tuple(rank for rank, own in zip(members, row, strict=True) if own) for row in rows})
    if len({len(replica) for replica in replicas}) > 1 or sum(map(len, replicas)) != len(members):
        raise ValueError(
            f"{caller}: replicas must be sharded alike and have no rank in common, and lie on the ranks "
            f"{', '.join(str(list(replica)) for replica in replicas)}; shard the model in the same way "
            "everywhere, or give process_group"
        )
    part = layout.ranks.index(dist.get_rank())
    return [replica[part] for replica in replicas]


def _meeting(ranks: Sequence[int], layout: Layout, device: torch.device) -> ProcessReplicas:
    """These ranks, like a group of them that exists, if there is one."""
    for group in (dist.group.WORLD, *layout.groups):
        if dist.get_process_group_ranks(group) == list(ranks):
            return ProcessReplicas(group, device, ranks=ranks)
    return ProcessReplicas(None, device, ranks=ranks)
