"""Set-ups in which replicas cannot diverge, found before training and refused with the reason.

Nothing here imports a sharding library: if its user has not, nothing can be sharded by it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["is_wired", "refuse_sharded", "refuse_wiring"]

_WHY = (
    "every rank holds only a shard of the one model, so there are no replicas to diverge: each shard would "
    "train at another learning rate, and averaging would mix unrelated weights"
)


def refuse_sharded(
    caller: str,
    optimizer: Optimizer,
    model: nn.Module | None,
    group: dist.ProcessGroup | None,
) -> None:
    """Raise TypeError for ZeRO optimizers and for models sharded within ``group``."""
    for kind in type(optimizer).__mro__:
        if kind.__name__ in ("ZeroRedundancyOptimizer", "DeepSpeedZeroOptimizer"):
            raise TypeError(
                f"{caller}: optimizer is a {kind.__name__}: it updates each parameter on one rank and "
                "broadcasts the result, so the replicas' learning rates never make them differ. "
                "Use the plain optimizer under DistributedDataParallel"
            )
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    if model is not None and fsdp is not None:
        for module in model.modules():
            if isinstance(module, fsdp.FullyShardedDataParallel) and _shards(module):
                raise TypeError(
                    f"{caller}: model is wrapped in FullyShardedDataParallel: {_WHY}. "
                    "Use DistributedDataParallel"
                )
    for parameter in _parameters(optimizer, model):
        if hasattr(parameter, "_fsdp_flattened") or type(parameter).__name__ == "FlatParameter":
            raise TypeError(
                f"{caller}: the optimizer's parameters belong to FullyShardedDataParallel: {_WHY}. "
                "Use DistributedDataParallel"
            )
        _refuse_sharded_dtensor(caller, parameter, group)


def _shards(module: Any) -> bool:
    return getattr(module.sharding_strategy, "name", "") != "NO_SHARD"


def _parameters(optimizer: Optimizer, model: nn.Module | None) -> Iterable[Tensor]:
    for param_group in optimizer.param_groups:
        yield from param_group["params"]
    if model is not None:
        yield from model.parameters()


def _refuse_sharded_dtensor(caller: str, parameter: Tensor, group: dist.ProcessGroup | None) -> None:
    """A DTensor may be sharded over other ranks (HSDP's shard dimension), never within our group."""
    tensor: Any = sys.modules.get("torch.distributed.tensor")
    if tensor is None or not isinstance(parameter, tensor.DTensor):
        return
    ours = set(dist.get_process_group_ranks(group or dist.group.WORLD))
    mesh = parameter.device_mesh
    for dimension, placement in enumerate(parameter.placements):
        theirs = dist.get_process_group_ranks(mesh.get_group(dimension))
        if not placement.is_replicate() and len(ours.intersection(theirs)) > 1:
            raise TypeError(
                f"{caller}: a parameter is {placement} over ranks {theirs}: {_WHY}. Replicate the model "
                "over the group (DistributedDataParallel), or shard it over a second mesh dimension and pass "
                "the replicate dimension's group as process_group"
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
