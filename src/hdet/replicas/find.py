"""Who the replicas of an optimizer are: rows in this process, the ranks of a group, or this process alone."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.replicas.base import Replicas
from hdet.replicas.process import ProcessReplicas
from hdet.replicas.refusals import refuse_sharded
from hdet.replicas.solo import SoloReplica
from hdet.replicas.stacked.optimizer import StackedOptimizer

__all__ = ["ProcessGroup", "find_replicas", "local", "replicas_of"]

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
    """The replicas that train with an optimizer; set-ups in which they cannot diverge are refused."""
    if isinstance(optimizer, StackedOptimizer):
        if process_group is not None:
            raise ValueError(
                f"{caller}: process_group was given, but all replicas of this optimizer are in one process; "
                "leave it out"
            )
        return optimizer.replicas
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    first = next(parameters, None)
    device = torch.device("cpu") if first is None else torch.device(first.device)
    replicas = find_replicas(caller, device=device, process_group=process_group)
    if replicas.size > 1:
        for part in getattr(optimizer, "optimizers", [optimizer]):  # several may stand there as one
            refuse_sharded(caller, part, model, process_group)
    return replicas


def find_replicas(
    caller: str, *, device: torch.device, process_group: ProcessGroup | None = None
) -> Replicas:
    """The ranks of the given group, else those of the default one, else this process is alone."""
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
