"""The only room that knows ``torch.distributed``."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from hdet.replicas.arms import Arms
from hdet.replicas.base import Mean, Replicas
from hdet.replicas.process import ProcessReplicas
from hdet.replicas.refusals import refuse_sharded, refuse_wiring
from hdet.replicas.solo import SoloReplica
from hdet.replicas.stacked import StackedOptimizer, StackedReplicas

__all__ = [
    "Arms",
    "Mean",
    "ProcessGroup",
    "ProcessReplicas",
    "Replicas",
    "SoloReplica",
    "StackedReplicas",
    "find_replicas",
    "local",
    "refuse_sharded",
    "refuse_wiring",
]

if dist.is_available():
    from torch.distributed import ProcessGroup
else:  # a torch built without it still trains one replica

    class ProcessGroup:  # type: ignore[no-redef]
        """Stands in where there is nothing to group."""


def find_replicas(
    caller: str,
    *,
    device: torch.device,
    process_group: ProcessGroup | None = None,
    optimizer: Optimizer | None = None,
) -> Replicas:
    """The replicas that an optimizer steps, else the given group, else the default one, else it is alone."""
    if isinstance(optimizer, StackedOptimizer):
        if process_group is not None:
            raise ValueError(
                f"{caller}: process_group was given, but all replicas of this optimizer are in one process; "
                "leave it out"
            )
        return optimizer.replicas
    if not (dist.is_available() and dist.is_initialized()):
        if process_group is not None:
            raise ValueError(
                f"{caller}: process_group was given, but torch.distributed is not initialised; call "
                "init_process_group first"
            )
        return SoloReplica()
    replicas = ProcessReplicas(process_group, device)
    return replicas if replicas.size > 1 else SoloReplica()


def local(tensor: Tensor) -> Tensor:
    """The part of a parameter that lies on this rank: itself, or a DTensor's local shard."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
