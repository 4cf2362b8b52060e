"""What cannot be one of N slices of one pass, and why: models, parameters, operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

__all__ = ["refuse_model", "refuse_parameters", "why_not"]


def refuse_model(model: nn.Module) -> None:
    """Models of which it is known beforehand that they cannot be slices of one pass."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"StackedReplicas: model must be a torch nn.Module, got {type(model).__name__}")
    wrappers = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")
    for name, module in model.named_modules():
        where = f"{name or 'the model itself'} is a {type(module).__name__}"
        if type(module).__name__ in wrappers:
            raise TypeError(
                f"StackedReplicas: model must be the bare module, and {where}: all replicas are in this "
                "process; pass what it wraps"
            )
        if isinstance(module, nn.SyncBatchNorm):
            raise TypeError(
                f"StackedReplicas: {where}, which takes its statistics over processes, and there is one; use "
                "BatchNorm, whose statistics are each replica's own"
            )
        if isinstance(module, nn.RNNBase):
            raise TypeError(
                f"StackedReplicas: {where}, for which torch.vmap has no rule, nor for its cell; use one "
                "process per replica, or write its gates with nn.Linear"
            )
        if getattr(module, "sparse", False) or getattr(module, "max_norm", None) is not None:
            raise TypeError(
                f"StackedReplicas: {where} with sparse gradients or max_norm, which torch.vmap has no rule "
                "for; use dense ones without, or one process per replica"
            )


def refuse_parameters(held: Sequence[Tensor], names: Mapping[int, str]) -> None:
    """Parameters that are not the model's own, or lie here and there."""
    if not held:
        raise ValueError("StackedReplicas: optimizer must have parameters to train, got none")
    strangers = [p for p in held if id(p) not in names]
    if strangers:
        raise ValueError(
            f"StackedReplicas: optimizer must train the model's own parameters, got {len(strangers)} of "
            f"{len(held)} that are not in it; build the optimizer from the model given"
        )
    if len({p.device for p in held}) > 1:
        raise ValueError(
            "StackedReplicas: all parameters must lie on one device, got "
            f"{', '.join(sorted({str(p.device) for p in held}))}; use one process per replica"
        )


#: What torch.vmap says of what it cannot do, and what that means.
_REASONS = {
    "Batching rule not implemented": "it uses an operation that torch.vmap has no rule for",
    "vmap: It looks like you're calling .item()": "it reads a value of a tensor (.item(), float(), int())",
    "Cannot access data pointer": "it reads the values of a tensor (.tolist(), .numpy())",
    "data-dependent control flow": "it decides by a value of a tensor (if, while, assert)",
    "vmap: inplace arithmetic": "it writes in place to a tensor that is not a replica's own",
    "vmap: aten::": "it writes in place, or to a shape that depends on values",
    "dynamic": "it makes a tensor whose shape depends on values",
    "autograd.Function": "it has an autograd.Function without a rule for torch.vmap",
    "Sparse": "it has sparse gradients",
}


def why_not(message: str) -> str:
    """What an error of torch.vmap means for a model and its loss; nothing if it is none."""
    return next((why for said, why in _REASONS.items() if said in message), "")
