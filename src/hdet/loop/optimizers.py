"""What users call an optimizer: torch's own beneath a framework's wrapping, several of them as one, and what
they train."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hdet.replicas import is_flat, state_of

__all__ = [
    "JointOptimizer",
    "check_trains",
    "checksum",
    "describe",
    "every_parameter",
    "names_of",
    "outside",
    "parts_of",
    "trained_parameters",
    "unwrapped",
]

_EXACT_INTEGERS = 1 << 53
#: What wrappers (DDP, torch.compile, FSDP, activation checkpointing) put before the names of a model.
_WRAPPERS = re.compile(r"(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def unwrapped(caller: str, optimizer: object) -> Optimizer:
    """The torch optimizer itself, whose hooks are called whenever it steps.

    Wrappers (Accelerate's, Lightning's) keep it as ``.optimizer``, and some call themselves an Optimizer
    without having its hooks. Nothing can be compared among ranks before this is known.
    """
    found, seen = optimizer, set()
    while id(found) not in seen:
        seen.add(id(found))
        inner = None if isinstance(found, (LRScheduler, type)) else getattr(found, "optimizer", None)
        if inner is not None and (isinstance(inner, Optimizer) or hasattr(inner, "optimizer")):
            found = inner
    if not isinstance(found, Optimizer):
        raise TypeError(f"{caller}: optimizer must be a torch Optimizer, got {type(optimizer).__name__}")
    return found


class JointOptimizer(Optimizer):
    """Several optimizers, as the loop sees one: their groups and what they remember, in order.

    It is a view: nothing is kept here, and it does not step. Groups that are added later come last, whichever
    optimizer they were added to, so that a group keeps its number.

    Args:
        optimizers: no parameter may be in two of them.
    """

    def __init__(self, caller: str, optimizers: Sequence[Optimizer]) -> None:
        # Not Optimizer.__init__: the parameters are others' already.
        self.optimizers = list(optimizers)
        owners: dict[int, int] = {}
        for i, optimizer in enumerate(self.optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if owners.setdefault(id(parameter), i) != i:
                        raise ValueError(
                            f"{caller}: optimizers must train different parameters, and one of shape "
                            f"{tuple(parameter.shape)} is in optimizers {owners[id(parameter)]} and {i}; "
                            "leave it in one"
                        )
        #: How many groups each of them has.
        self.sizes = tuple(len(optimizer.param_groups) for optimizer in self.optimizers)
        self._known = [0 for _ in self.optimizers]
        self._places: list[tuple[int, int]] = []
        self.state = _States(self.optimizers)  # type: ignore[assignment]  # a view of them, too

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all; looked up every time, since ``load_state_dict`` replaces them."""
        for i, optimizer in enumerate(self.optimizers):
            count = len(optimizer.param_groups)
            if count > self._known[i]:
                self._places += [(i, k) for k in range(self._known[i], count)]
                self._known[i] = count
        return [self.optimizers[i].param_groups[k] for i, k in self._places]


class _States(Mapping[Tensor, Any]):
    """What several optimizers remember of their parameters."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers

    def __getitem__(self, parameter: Tensor) -> Any:
        for optimizer in self._optimizers:
            if parameter in state_of(optimizer):  # asked first: a state makes what it does not find
                return state_of(optimizer)[parameter]
        raise KeyError(parameter)

    def __iter__(self) -> Iterator[Tensor]:
        return (parameter for optimizer in self._optimizers for parameter in state_of(optimizer))

    def __len__(self) -> int:
        return sum(len(state_of(optimizer)) for optimizer in self._optimizers)


def parts_of(optimizer: Optimizer) -> list[Optimizer]:
    """Those that really step."""
    return optimizer.optimizers if isinstance(optimizer, JointOptimizer) else [optimizer]


# ---------------------------------------------------------------------- what they train


def every_parameter(optimizer: Optimizer) -> list[Tensor]:
    """The parameters of all groups, in order: their numbers, by which whatever is kept of them is known."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def trained_parameters(optimizer: Optimizer) -> list[list[Tensor]]:
    """The parameters of each group that are not frozen."""
    return [
        [parameter for parameter in group["params"] if parameter.requires_grad]
        for group in optimizer.param_groups
    ]


def check_trains(caller: str, optimizer: Optimizer, model: nn.Module) -> None:
    """Raise ValueError unless the optimizer trains this very model."""
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise ValueError(
            f"{caller}: the model's parameters must have their shapes, and some are lazy ones that have none "
            "yet; run one batch through the model first, then make the optimizer"
        )
    if len(outside(optimizer, model)) == sum(1 for _ in model.parameters()):
        raise ValueError(
            f"{caller}: the optimizer must train the model, and none of the {type(model).__name__}'s "
            "parameters are in its groups: it is a copy, the optimizer is another's, or it has partitions of "
            "its own (DeepSpeed, Megatron); make the optimizer of the model that is given here"
        )


def outside(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters that are in no group of the optimizer, by name."""
    held = {id(parameter) for parameter in every_parameter(optimizer)}
    return {name: p for name, p in model.named_parameters() if id(p) not in held}


def names_of(parameters: Iterable[Tensor], model: nn.Module | None) -> list[str]:
    """The model's names for them, however it is wrapped; "" for what it does not have."""
    named = {} if model is None else {id(p): _WRAPPERS.sub("", name) for name, p in model.named_parameters()}
    return [named.get(id(parameter), "") for parameter in parameters]


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
