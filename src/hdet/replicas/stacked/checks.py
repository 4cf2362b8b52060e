"""What cannot be one of N slices of one pass, and why: models, parameters, operations, later changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

__all__ = [
    "Layout",
    "check_index",
    "check_model",
    "check_parameters",
    "check_unchanged",
    "explained",
    "layout_of",
]

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")

#: By name, the parameters and buffers of a model and what must not change about them.
Layout = dict[str, tuple[Tensor, dict[str, Any]]]


def check_model(model: nn.Module) -> None:
    """Raise for models that are known beforehand not to work as slices of one pass."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"StackedReplicas: model must be a torch nn.Module, got {type(model).__name__}")
    lazy = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if is_lazy(tensor)]
    if lazy:
        raise ValueError(
            f"StackedReplicas: all parameters must have a shape, and {lazy[0]} of a lazy module has none "
            "yet; call the model once on a batch, then make the optimizer and stack"
        )
    _check_hooks("StackedReplicas", model)
    for name, module in model.named_modules():
        if why := _obstacle(module):
            kind = type(module).__name__
            raise TypeError(f"StackedReplicas: {name or 'the model itself'} is a {kind}, {why}")


def _obstacle(module: nn.Module) -> str:
    """Why a module cannot be stacked, and what to do; "" if nothing is known against it."""
    if type(module).__name__ in _WRAPPERS:
        return "and must be the bare module, since all replicas are in this process; pass what it wraps"
    if isinstance(module, nn.SyncBatchNorm):
        return (
            "which takes its statistics over processes, and there is one; use BatchNorm, whose statistics "
            "are each replica's own"
        )
    if isinstance(module, nn.RNNBase):
        return (
            "for which torch.vmap has no rule, nor for its cell; use one process per replica, or write its "
            "gates with nn.Linear"
        )
    if getattr(module, "sparse", False) or getattr(module, "max_norm", None) is not None:
        return (
            "with sparse gradients or max_norm, which torch.vmap has no rule for; use dense ones without, or "
            "one process per replica"
        )
    return ""


def _check_hooks(call: str, model: nn.Module) -> None:
    """Raise for backward hooks, which would never run: gradients pass through the replicas' rows."""
    # No public names, in torch 2.13 neither.
    modules = [
        f"{name or 'the model itself'} ({type(module).__name__})"
        for name, module in model.named_modules()
        if module._backward_hooks or module._backward_pre_hooks
    ]
    parameters = [
        name
        for name, parameter in model.named_parameters()
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks
    ]
    if found := modules + parameters:
        raise TypeError(
            f"{call}: hooks must be forward hooks, and {found[0]} has one on its gradient, which no replica "
            "would call; remove it, or use one process per replica"
        )


def check_parameters(trained: Sequence[Tensor], names: Mapping[int, str]) -> None:
    """Raise unless the trained parameters are the model's own (``names`` by id), real and on one device."""
    if not trained:
        raise ValueError("StackedReplicas: optimizer must have parameters to train, got none")
    unknown = [p for p in trained if id(p) not in names]
    if unknown:
        raise ValueError(
            f"StackedReplicas: optimizer must train the model's own parameters, got {len(unknown)} of "
            f"{len(trained)} that are not in it; build the optimizer from the model given"
        )
    numbers = [p for p in trained if p.is_complex()]
    if numbers:
        raise TypeError(
            f"StackedReplicas: parameters must be real, and {names[id(numbers[0])]} is {numbers[0].dtype}: "
            "Adam's rule for rows is written for real gradients, and would square a complex one where torch "
            "squares its two parts; keep those as the parameter (torch.view_as_real, and view_as_complex in "
            "the forward pass), or use one process per replica"
        )
    if len({p.device for p in trained}) > 1:
        raise ValueError(
            "StackedReplicas: all parameters must lie on one device, got "
            f"{', '.join(sorted({str(p.device) for p in trained}))}; use one process per replica"
        )


def layout_of(model: nn.Module) -> Layout:
    """What a model consists of now."""
    buffers: Layout = {
        name: (buffer, {"shape": tuple(buffer.shape)}) for name, buffer in model.named_buffers()
    }
    kept = ("requires_grad", "dtype", "device")
    return buffers | {
        name: (p, {"shape": tuple(p.shape), **{key: getattr(p, key) for key in kept}})
        for name, p in model.named_parameters()
    }


def check_unchanged(call: str, stacked: Layout, model: nn.Module, *, shapes_only: bool = False) -> None:
    """Raise for a model that is no longer the one that was stacked, or no longer has its shapes."""
    now, changes = layout_of(model), list[str]()
    for name in {**stacked, **now}:
        if name not in now or name not in stacked:
            changes.append(f"{name} is {'gone' if name in stacked else 'new'}")
            continue
        (before, facts), (tensor, others) = stacked[name], now[name]
        for key, value in facts.items():
            if others.get(key) != value and (key == "shape" or not shapes_only):
                changes.append(f"{name} has {key}={others.get(key)}, not {value}")
        if not shapes_only and isinstance(before, nn.Parameter) and tensor is not before:
            changes.append(f"{name} is another parameter")
    if changes:
        more = f", and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise RuntimeError(
            f"{call}: the model must stay as it was stacked, and {', '.join(changes[:3])}{more}; undo that, "
            "or stack again: write_() first, then change the model, then StackedReplicas with a new "
            "optimizer"
        )
    if not shapes_only:
        _check_hooks(call, model)


def check_index(call: str, replica: int, size: int) -> None:
    """Raise unless it is the index of a replica."""
    if isinstance(replica, bool) or not isinstance(replica, int) or not 0 <= replica < size:
        raise ValueError(
            f"{call}: replica must be an integer from 0 to {size - 1}, got {replica!r}; the mean of all is "
            "write_()"
        )


_NO_RULE = "it has an autograd.Function without a rule for torch.vmap, as activation checkpointing is"
#: Words of torch.vmap's errors, and what they mean.
_REASONS = {
    "Batching rule not implemented": "it uses an operation that torch.vmap has no rule for",
    "vmap: It looks like you're calling .item()": "it reads a value of a tensor (.item(), float(), int())",
    "Cannot access data pointer": "it reads the values of a tensor (.tolist(), .numpy())",
    "data-dependent control flow": "it decides by a value of a tensor (if, while, assert)",
    "vmap: inplace arithmetic": "it writes in place to a tensor that is not a replica's own",
    "vmap: aten::": "it writes in place, or to a shape that depends on values",
    "escaped from inside a function being vmapped": (
        "it uses a tensor of a pass after it (kept on self or in a list, or by activation checkpointing)"
    ),
    "torch.utils.checkpoint": "it recomputes in the backward pass (activation checkpointing)",
    "requires_grad_()": "it asks for a gradient within the pass (a gradient penalty; torch.func.grad can)",
    "dynamic": "it makes a tensor whose shape depends on values",
    "does not have vmap support": _NO_RULE,
    "autograd.Function": _NO_RULE,
    "Sparse": "it has sparse gradients",
}


@contextmanager
def explained(call: str, model: nn.Module) -> Iterator[None]:
    """Raise torch.vmap's errors with what they mean for a model and its loss; leave others as they are."""
    try:
        yield
    except RuntimeError as error:
        message = str(error)
        reason = next((why for words, why in _REASONS.items() if words in message), "")
        if not reason:
            raise
        raise TypeError(
            f"{call}: {type(model).__name__} and loss_fn cannot run as slices of one pass: {reason} "
            f"({message.splitlines()[0][:300]}); change that, or use one process per replica"
        ) from error
