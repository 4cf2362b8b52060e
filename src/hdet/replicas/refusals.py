"""Set-ups in which replicas cannot diverge, or nothing can be found out, refused with the reason.

Nothing here imports a sharding library: if its user has not, nothing can be sharded by it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.replicas.base import Replicas
from hdet.replicas.layout import flat_modules, is_flat
from hdet.replicas.zero import is_zero

__all__ = [
    "is_wired",
    "refuse_divergence",
    "refuse_flat_gradients",
    "refuse_late_group",
    "refuse_missing_group",
    "refuse_overlap",
    "refuse_unknown_shards",
    "refuse_wiring",
]


#: Where a framework has made its process group.
_AFTER = (
    "after torch.distributed.init_process_group (Transformers: after TrainingArguments; Accelerate: after "
    "Accelerator(); Lightning: in configure_optimizers)"
)


def refuse_missing_group(caller: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raise RuntimeError where a launcher has started several processes that have not met yet: each would
    take itself for the only one, explore nothing and decide alone."""
    told = environment.get("WORLD_SIZE", "")
    if told.isdecimal() and int(told) > 1:
        raise RuntimeError(
            f"{caller}: the process group must exist before it is made, and WORLD_SIZE={told} says that "
            f"{told} processes train together, but torch.distributed is not initialised; build it {_AFTER}. "
            "To train each process by itself, take WORLD_SIZE out of os.environ first"
        )


def refuse_late_group(caller: str) -> None:
    """Raise RuntimeError where a process that was found alone has met others before its first step."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise RuntimeError(
            f"{caller}: the process group must exist before it is made; it was made for one process alone, "
            f"and now there are {dist.get_world_size()}; build it {_AFTER}"
        )


def refuse_unknown_shards(caller: str, parameters: Iterable[Tensor], model: nn.Module | None) -> None:
    """Raise TypeError for FullyShardedDataParallel's parameters without the model, which knows its groups."""
    if any(map(is_flat, parameters)) and not any(flat_modules(model, every=True)):
        raise TypeError(
            f"{caller}: the optimizer's parameters belong to FullyShardedDataParallel, and which ranks are "
            "replicas is not known without it; give model= (of a probe: Probe(model=)), the wrapped one. For "
            "replicas that diverge it must be HYBRID_SHARD, or DistributedDataParallel"
        )


def refuse_overlap(caller: str, optimizers: Iterable[Optimizer]) -> None:
    """Raise TypeError for an optimizer that steps within the backward pass, where no hook sees it."""
    if any(is_zero(one) and getattr(one, "_overlap_with_ddp", False) for one in optimizers):
        raise TypeError(
            f"{caller}: optimizer is a ZeroRedundancyOptimizer with overlap_with_ddp=True, which steps "
            "within the backward pass and reads no other learning rate; leave overlap_with_ddp out"
        )


def refuse_divergence(caller: str, optimizers: Iterable[Optimizer], replicas: Replicas) -> None:
    """Raise TypeError where all ranks together hold the one model, and somebody wants replicas to differ."""
    if replicas.size > 1 or replicas.parts == 1:
        return
    if any(map(is_zero, optimizers)):
        raise TypeError(
            f"{caller}: optimizer is a ZeroRedundancyOptimizer: it updates each parameter on one rank and "
            "broadcasts the result, so the replicas' learning rates never make them differ. "
            "Use the plain optimizer under DistributedDataParallel, or HSDP; AutoLR without a spread takes it"
        )
    raise TypeError(
        f"{caller}: replicas were to diverge, and all {replicas.parts} ranks together hold one: each has "
        "a shard of the same model. Replicate it over a second mesh dimension (HSDP: fully_shard on a "
        "mesh of two dimensions, or HYBRID_SHARD), or use DistributedDataParallel; AutoLR without a "
        "spread trains one sharded model"
    )


def refuse_flat_gradients(caller: str, what: str, parameters: Iterable[Tensor]) -> None:
    """Raise TypeError for what reads the norm of a gradient of which every rank sees its own part alone."""
    if any(map(is_flat, parameters)):
        raise TypeError(
            f"{caller}: {what} is taken over the whole gradient, and a part of FullyShardedDataParallel's "
            "has no norm of the whole; shard with fully_shard, whose gradients have one, or do not explore it"
        )


def is_wired(model: nn.Module | None) -> bool:
    """Whether ranks share the gradient of a model: it is wrapped in DistributedDataParallel."""
    return isinstance(model, nn.parallel.DistributedDataParallel)


def refuse_wiring(caller: str, model: nn.Module, among: int, members: Sequence[int] | None = None) -> None:
    """Raise ValueError for a DDP that shares gradients among other ranks than ``gradients=`` says.

    ``among`` is how many they are, ``members`` who, where that is known.
    """
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            wired = dist.get_process_group_ranks(module.process_group)
            if len(wired) != among or (members is not None and set(wired) != set(members)):
                raise ValueError(
                    f"{caller}: gradients= says that {among} rank{'s share' if among > 1 else ' has'} a "
                    f"gradient, and model is a DistributedDataParallel over {len(wired)}, {wired}; wrap it "
                    "with hdet.Arms(count).wrap(model) and pass those arms as gradients"
                )
