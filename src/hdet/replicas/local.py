"""This rank's part of tensors that are sharded, and the weights that FSDP has gathered from all parts.

Nothing here imports a sharding library: if its user has not, nothing can be sharded by it.
"""

from __future__ import annotations

import sys
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

__all__ = ["give_up_gathered", "is_dtensor", "local"]


def is_dtensor(tensor: Tensor) -> TypeGuard[Any]:
    """Whether a tensor is spread over a mesh of ranks, by torch's own means."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies on this rank: itself, or a DTensor's local shard, without a graph."""
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():  # else a view with a history, into which nothing can be written
        shard: Tensor = tensor.to_local()
    return shard


def give_up_gathered(model: nn.Module | None) -> None:
    """Let FSDP gather its weights anew in the next forward pass.

    After a forward pass without a backward pass its root keeps them, and so do all its modules if they are
    told to: weights that are moved in between would not be seen.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    if model is None or fsdp is None:
        return
    second: Any = getattr(fsdp, "FSDPModule", ())  # not before torch 2.6
    for module in model.modules():
        if isinstance(module, fsdp.FullyShardedDataParallel):
            _give_up_flat(module)
        elif isinstance(module, second):
            module.reshard()


def _give_up_flat(module: Any) -> None:
    # torch 2.6 to 2.13 has no public call for it but summon_full_params, which would gather them first.
    handle = module._handle
    if handle is not None and handle.uses_sharded_strategy and not handle.needs_unshard():
        handle.reshard(True)
        handle.post_reshard()
        handle._prefetched = False
