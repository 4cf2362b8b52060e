"""What an optimizer trains and where it lies: the facts on which all ranks must agree."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.replicas import is_flat

__all__ = ["checksum", "describe", "every_parameter", "trained_parameters"]

_EXACT_INTEGERS = 1 << 53


def every_parameter(optimizer: Optimizer) -> list[Tensor]:
    """The parameters of all groups, in order: their numbers, by which whatever is kept of them is known."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def trained_parameters(optimizer: Optimizer) -> list[list[Tensor]]:
    """The parameters of each group that are not frozen."""
    return [
        [parameter for parameter in group["params"] if parameter.requires_grad]
        for group in optimizer.param_groups
    ]


def checksum(tensors: Iterable[Tensor]) -> float:
    """A sum of the bits of tensors, the same in any order of adding, exact as a float. Waits for the
    device."""
    sums: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        sums.setdefault(tensor.device, []).append(_bits(tensor.detach()))
    return float(sum(sum(torch.stack(own).tolist()) for own in sums.values()) % _EXACT_INTEGERS)


def _bits(tensor: Tensor) -> Tensor:
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.contiguous().view(whole[real.element_size()]).sum(dtype=torch.int64)


def describe(optimizer: Optimizer, model: nn.Module | None) -> dict[str, str]:
    """What must be the same on all ranks for replicas to be averaged: groups, shapes, types, strides
    and, by the model, names: tensors of one shape in another order would be averaged crosswise."""
    names = {} if model is None else {id(p): f"{name}, " for name, p in model.named_parameters()}
    facts = {"number of parameter groups": str(len(optimizer.param_groups))}
    for g, group in enumerate(optimizer.param_groups):
        settings = {k: v for k, v in group.items() if isinstance(v, (bool, int, float, str, tuple))}
        facts[f"settings of group {g}"] = repr(settings)
        for p, parameter in enumerate(group["params"]):
            facts[f"parameter {p} of group {g}"] = names.get(id(parameter), "") + _describe(parameter)
    for name, buffer in model.named_buffers() if model is not None else ():
        facts[f"buffer {name}"] = _describe(buffer)
    return facts


def _describe(tensor: Tensor) -> str:
    trained = ", trained" if tensor.requires_grad else ""
    if is_flat(tensor):  # the shape is that of this rank's part, and another one's is another
        return f"{tensor.dtype}, a part of FullyShardedDataParallel's{trained}"
    return f"{tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}{trained}"
