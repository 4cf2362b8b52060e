"""What cannot be one of N slices of one pass, and why: models, parameters, operations, later changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

__all__ = [
    "Layout",
    "explained",
    "layout_of",
    "refuse_changes",
    "refuse_index",
    "refuse_model",
    "refuse_other_shapes",
    "refuse_parameters",
]


def refuse_model(model: nn.Module) -> None:
    """Models of which it is known beforehand that they cannot be slices of one pass."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"StackedReplicas: model must be a torch nn.Module, got {type(model).__name__}")
    lazy = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if is_lazy(tensor)]
    if lazy:
        raise ValueError(
            f"StackedReplicas: all parameters must have a shape, and {lazy[0]} of a lazy module has none "
            "yet; call the model once on a batch, then make the optimizer and stack"
        )
    _refuse_backward_hooks("StackedReplicas", model)
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


def _refuse_backward_hooks(call: str, model: nn.Module) -> None:
    """Hooks that nothing would call: gradients pass through the replicas' rows, not through the model."""
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
    numbers = [p for p in held if p.is_complex()]
    if numbers:
        raise TypeError(
            f"StackedReplicas: parameters must be real, and {names[id(numbers[0])]} is {numbers[0].dtype}: "
            "Adam's rule for rows is written for real gradients, and would square a complex one where torch "
            "squares its two parts; keep those as the parameter (torch.view_as_real, and view_as_complex in "
            "the forward pass), or use one process per replica"
        )
    if len({p.device for p in held}) > 1:
        raise ValueError(
            "StackedReplicas: all parameters must lie on one device, got "
            f"{', '.join(sorted({str(p.device) for p in held}))}; use one process per replica"
        )


class _Seen(NamedTuple):
    """A parameter of the model, and what was said of it."""

    parameter: Tensor
    facts: dict[str, Any]


class Layout(NamedTuple):
    """What a model consists of, for comparison with what it consisted of when it was stacked."""

    shapes: dict[str, torch.Size]
    parameters: dict[str, _Seen]


def layout_of(model: nn.Module) -> Layout:
    """What a model consists of now."""
    parameters = dict(model.named_parameters())
    shapes = {name: tensor.shape for name, tensor in (*parameters.items(), *model.named_buffers())}
    seen = {
        name: _Seen(p, {"requires_grad": p.requires_grad, "dtype": p.dtype, "device": p.device})
        for name, p in parameters.items()
    }
    return Layout(shapes, seen)


def _changed_shapes(stacked: Layout, now: Layout) -> list[str]:
    """Parameters and buffers that came, went or have another shape."""
    return [
        *(f"{name} is gone" for name in stacked.shapes if name not in now.shapes),
        *(f"{name} is new" for name in now.shapes if name not in stacked.shapes),
        *(
            f"{name} has the shape {tuple(now.shapes[name])}, not {tuple(shape)}"
            for name, shape in stacked.shapes.items()
            if now.shapes.get(name, shape) != shape
        ),
    ]


def _changed_tensors(stacked: Layout, now: Layout) -> list[str]:
    """Parameters that were frozen, moved or replaced by others."""
    changes = []
    for name, (parameter, facts) in stacked.parameters.items():
        if name not in now.parameters:
            continue
        other, others = now.parameters[name]
        changes += [
            f"{name} has {key}={others[key]}, not {facts[key]}" for key in facts if others[key] != facts[key]
        ]
        if other is not parameter:
            changes.append(f"{name} is another parameter")
    return changes


def refuse_changes(call: str, stacked: Layout, model: nn.Module) -> None:
    """A model that is no longer what its replicas are replicas of."""
    now = layout_of(model)
    _refuse(call, _changed_shapes(stacked, now) + _changed_tensors(stacked, now))
    _refuse_backward_hooks(call, model)


def refuse_other_shapes(call: str, stacked: Layout, model: nn.Module) -> None:
    """A model that its replicas cannot be written into."""
    _refuse(call, _changed_shapes(stacked, layout_of(model)))


def refuse_index(call: str, replica: int, size: int) -> None:
    """What is no index of a replica."""
    if isinstance(replica, bool) or not isinstance(replica, int) or not 0 <= replica < size:
        raise ValueError(
            f"{call}: replica must be an integer from 0 to {size - 1}, got {replica!r}; the mean of all is "
            "write_()"
        )


def _refuse(call: str, changes: Sequence[str]) -> None:
    if changes:
        more = f", and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise RuntimeError(
            f"{call}: the model must stay as it was stacked, and {', '.join(changes[:3])}{more}; take that "
            "back, or stack anew: write_() first, then change the model, then StackedReplicas with a new "
            "optimizer"
        )


#: What torch.vmap says of what it cannot do, and what that means.
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
    "autograd.Function": (
        "it has an autograd.Function without a rule for torch.vmap, as activation checkpointing is"
    ),
    "You tried to vmap over _NoopSaveInputs": (  # torch 2.6, where later ones fail in the backward pass
        "it recomputes in the backward pass (activation checkpointing)"
    ),
    "Sparse": "it has sparse gradients",
}


@contextmanager
def explained(call: str, model: nn.Module) -> Iterator[None]:
    """Says of torch.vmap's errors what they mean for a model and its loss; others stay as they are."""
    try:
        yield
    except RuntimeError as error:
        message = str(error)
        reason = next((why for said, why in _REASONS.items() if said in message), "")
        if not reason:
            raise
        raise TypeError(
            f"{call}: {type(model).__name__} and loss_fn cannot run as slices of one pass: {reason} "
            f"({message.splitlines()[0][:300]}); change that, or use one process per replica"
        ) from error
