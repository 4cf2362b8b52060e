"""Which replicas an optimizer has: rows in this process, the ranks of a group, several ranks each, or this
process alone; and the set-ups that raise because that is unknown, or because replicas could not diverge."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.replicas.base import AFTER_INIT, Replicas, SoloReplica
from hdet.replicas.processes import ProcessReplicas
from hdet.replicas.sharded import (
    Layout,
    ShardedReplicas,
    flat_modules,
    is_dtensor,
    is_flat,
    is_zero,
    layout_of,
)
from hdet.replicas.stacked.optimizer import StackedOptimizer

__all__ = [
    "ProcessGroup",
    "ddps",
    "find_replicas",
    "refuse_divergence",
    "refuse_flat_gradients",
    "refuse_wiring",
    "replicas_of",
]

if dist.is_available():
    from torch.distributed import ProcessGroup
else:  # a torch built without it still trains one replica

    class ProcessGroup:  # type: ignore[no-redef]
        """For annotations only."""


def replicas_of(
    caller: str,
    optimizer: Optimizer,
    *,
    model: nn.Module | None = None,
    process_group: ProcessGroup | Replicas | None = None,
) -> Replicas:
    """The replicas that train with an optimizer."""
    if isinstance(process_group, Replicas):
        return process_group
    if isinstance(optimizer, StackedOptimizer):
        if process_group is not None:
            raise ValueError(
                f"{caller}: process_group was given, but all replicas of this optimizer are in one process; "
                "leave it out"
            )
        return optimizer.replicas
    optimizers = getattr(optimizer, "optimizers", [optimizer])  # several may be wrapped as one
    if any(is_zero(one) and getattr(one, "_overlap_with_ddp", False) for one in optimizers):
        raise TypeError(
            f"{caller}: optimizer is a ZeroRedundancyOptimizer with overlap_with_ddp=True, which steps "
            "within the backward pass and reads no other learning rate; leave overlap_with_ddp out"
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return find_replicas(caller, parameters, model=model, process_group=process_group, optimizers=optimizers)


def find_replicas(
    caller: str,
    parameters: Iterable[Tensor] = (),
    *,
    model: nn.Module | None = None,
    process_group: ProcessGroup | None = None,
    device: torch.device | None = None,
    optimizers: Iterable[Optimizer] = (),
) -> Replicas:
    """The ranks of the given group, else those of the default one, else this process is alone.

    Ranks that hold shards of one model, or of one optimizer's state, are one replica. A group that has one
    rank of every replica (HSDP's replicate dimension) and one of all ranks mean the same.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return _alone(caller, process_group)
    parameters = list(parameters)
    device = device or (parameters[0].device if parameters else torch.device("cpu"))
    replicas = ProcessReplicas(process_group, device)
    if any(map(is_flat, parameters)) and not any(flat_modules(model)):
        raise TypeError(
            f"{caller}: the optimizer's parameters belong to FullyShardedDataParallel, and which ranks are "
            "replicas is not known without it; give model= (of a probe: Probe(model=)), the wrapped one. For "
            "replicas that diverge it must be HYBRID_SHARD, or DistributedDataParallel"
        )
    layout = layout_of(parameters, model, optimizers)
    if len(layout.ranks) > 1:
        return _sharded(caller, parameters, layout, replicas, process_group, device)
    return replicas if replicas.size > 1 else SoloReplica()


def _alone(caller: str, process_group: ProcessGroup | None) -> SoloReplica:
    """Raise where a launcher has started several processes that have no process group yet."""
    if process_group is not None:
        raise ValueError(
            f"{caller}: process_group was given, but torch.distributed is not initialised; call "
            "init_process_group first"
        )
    world = os.environ.get("WORLD_SIZE", "")
    if world.isdecimal() and int(world) > 1:
        raise RuntimeError(
            f"{caller}: the process group must exist before it is made, and WORLD_SIZE={world} says that "
            f"{world} processes train together, but torch.distributed is not initialised; build it "
            f"{AFTER_INIT}. To train each process by itself, take WORLD_SIZE out of os.environ first"
        )
    return SoloReplica(found=True)


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
    across: Replicas = SoloReplica()
    if len(inside) == 1:
        across = given if given.size > 1 else across
    elif len(inside) == len(layout.ranks):
        same_shards = _ranks_with_same_shards(caller, layout, given, members)
        if len(same_shards) > 1:
            across = _replicas_on(same_shards, layout, device)
    else:
        raise ValueError(
            f"{caller}: process_group must have all ranks of a sharded model or one, got {members}, of which "
            f"{inside} are among the ranks {list(layout.ranks)} of one replica; leave process_group out"
        )
    replicas = ShardedReplicas(across, _replicas_on(layout.ranks, layout, device), layout)
    # torch.load(weights_only=True) must read states that hold such shards. Torch before 2.13 knows all
    # placements but the one of a shard that is cut again.
    torch.serialization.add_safe_globals(
        [*{type(placement) for p in parameters if is_dtensor(p) for placement in p.placements}]
    )
    digest = zlib.crc32(repr([layout.shard_of(parameter) for parameter in parameters]).encode())
    rows = replicas.gather_ranks([float(digest)])
    if odd := [r for r, row in enumerate(rows) if row != rows[r % replicas.ranks_per_replica]]:
        raise RuntimeError(
            f"{caller}: the k-th rank of every replica must hold the same shards, and rank {odd[0]} (counted "
            "replica by replica) holds others than its like in the first replica; let the ranks of a mesh "
            "ascend"
        )
    return replicas


def _ranks_with_same_shards(
    caller: str, layout: Layout, given: ProcessReplicas, members: Sequence[int]
) -> list[int]:
    """One rank of every replica, found from what each rank takes for its own replica."""
    rows = given.gather([float(rank in layout.ranks) for rank in members])
    replicas = sorted({tuple(rank for rank, own in zip(members, row, strict=True) if own) for row in rows})
    if len({len(replica) for replica in replicas}) > 1 or sum(map(len, replicas)) != len(members):
        raise ValueError(
            f"{caller}: replicas must be sharded alike and have no rank in common, and lie on the ranks "
            f"{', '.join(str(list(replica)) for replica in replicas)}; shard the model in the same way "
            "everywhere, or give process_group"
        )
    at = layout.ranks.index(dist.get_rank())
    return [replica[at] for replica in replicas]


def _replicas_on(ranks: Sequence[int], layout: Layout, device: torch.device) -> ProcessReplicas:
    """These ranks, with the backend of an existing group of them if there is one."""
    for group in (dist.group.WORLD, *layout.groups):
        if dist.get_process_group_ranks(group) == list(ranks):
            return ProcessReplicas(group, device, ranks=ranks)
    return ProcessReplicas(None, device, ranks=ranks)


def refuse_divergence(caller: str, optimizers: Iterable[Optimizer], replicas: Replicas) -> None:
    """Raise TypeError where all ranks together hold one model, and replicas are to differ."""
    if replicas.size > 1 or replicas.ranks_per_replica == 1:
        return
    if any(map(is_zero, optimizers)):
        raise TypeError(
            f"{caller}: optimizer is a ZeroRedundancyOptimizer: it updates each parameter on one rank and "
            "broadcasts the result, so the replicas' learning rates never make them differ. "
            "Use the plain optimizer under DistributedDataParallel, or HSDP; AutoLR takes it"
        )
    raise TypeError(
        f"{caller}: replicas were to diverge, and all {replicas.world_size} ranks together hold one: each "
        "has a shard of the same model. Replicate it over a second mesh dimension (HSDP: fully_shard on a "
        "mesh of two dimensions, or HYBRID_SHARD), or use DistributedDataParallel; AutoLR trains "
        "one sharded model"
    )


def refuse_flat_gradients(caller: str, what: str, parameters: Iterable[Tensor]) -> None:
    """Raise TypeError for what reads the norm of a gradient of which every rank sees only its own shard."""
    if any(map(is_flat, parameters)):
        raise TypeError(
            f"{caller}: {what} is taken over the whole gradient, and a shard of FullyShardedDataParallel's "
            "has no norm of the whole; shard with fully_shard, whose gradients have one, or do not explore it"
        )


def ddps(model: nn.Module | None) -> list[nn.parallel.DistributedDataParallel]:
    """The parts of a model that share gradients; within ``no_sync`` none does."""
    ddp = nn.parallel.DistributedDataParallel
    every = () if model is None else model.modules()
    return [module for module in every if isinstance(module, ddp) and module.require_backward_grad_sync]


def refuse_wiring(caller: str, model: nn.Module, among: int, members: Sequence[int] | None = None) -> None:
    """Raise ValueError for a DDP that shares gradients among other ranks than ``gradients=`` says.

    ``among`` is how many they are, ``members`` which, where that is known. Within ``no_sync`` it shares none.
    """
    for module in ddps(model):
        wired = dist.get_process_group_ranks(module.process_group)
        if len(wired) != among or (members is not None and set(wired) != set(members)):
            raise ValueError(
                f"{caller}: gradients= says that {among} rank{'s share' if among > 1 else ' has'} a "
                f"gradient, and model is a DistributedDataParallel over {len(wired)}, {wired}; wrap it "
                "with hdet.Arms(count).wrap(model) and pass those arms as gradients"
            )
