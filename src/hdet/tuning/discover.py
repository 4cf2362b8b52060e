"""``explore="auto"``: what a model, its optimizer and its loss have that can be explored.

Label smoothing must be that of the criterion which training calls, so only modules count that the probe's
loss function refers to, or a function that it names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from hdet.hyperparameters import Dropout, Explorable, LabelSmoothing, ScalarAxis, WeightDecay, has_dropout
from hdet.probes import Probe

__all__ = ["Discovered", "criteria_of", "discover"]

#: Decays e^±1.5 apart: at AdamW's 0.01 less is not felt within a window (docs/log.md, what of replicas pays).
_DECAYS = 1.5
_FUNCTIONS = (FunctionType, MethodType, functools.partial)


@dataclass(frozen=True)
class Discovered:
    """What is explored, and in words: from which values, and what was left out and why."""

    explore: list[Explorable]
    begins: list[str]
    left_out: list[str]

    def __str__(self) -> str:
        left_out = f"; left out: {', '.join(self.left_out)}" if self.left_out else ""
        return f"explores {', '.join(self.begins) or 'nothing'}{left_out}"


def discover(optimizer: Optimizer, probe: Probe, *, own_gradients: bool, most: int | None) -> Discovered:
    """Weight decay, then dropout, then label smoothing.

    Args:
        own_gradients: whether what acts through the gradient makes replicas differ.
        most: how many hyperparameters the replicas can tell apart; None for any number.
    """
    found = Discovered([], [], [])
    for item in _candidates(optimizer, probe):
        try:
            axes: list[ScalarAxis] = item.bind(optimizer)
        except (TypeError, ValueError, RuntimeError) as error:  # layers with different values, say
            found.left_out.append(str(error))
            continue
        (axis,) = axes
        if axis.needs_own_gradients and not own_gradients:
            found.left_out.append(f"{axis.name} (it acts through the gradient, which the replicas share)")
        elif most is not None and len(found.explore) >= most:
            found.left_out.append(f"{axis.name} ({most + 1} replicas tell {most} apart)")
        else:
            found.explore.append(item)
            found.begins.append(f"{axis.name} from {axis.base:g}")
    return found


def _candidates(optimizer: Optimizer, probe: Probe) -> Iterator[WeightDecay | Dropout | LabelSmoothing]:
    if any(group.get("weight_decay") is not None for group in optimizer.param_groups):
        yield WeightDecay(spread=_DECAYS)
    if has_dropout(probe.model):
        yield Dropout(probe.model)
    criteria = criteria_of(probe.model, probe.loss_fn)
    for number, criterion in enumerate(criteria):
        name = "label_smoothing" if len(criteria) == 1 else f"label_smoothing/{number}"
        yield LabelSmoothing(criterion, name=name)


def criteria_of(model: nn.Module, loss_fn: Any) -> list[nn.Module]:
    """The modules with a number ``label_smoothing`` in the model, and among what the loss refers to, or a
    function that it names.

    >>> criterion = nn.CrossEntropyLoss()
    >>> def loss_fn(batch):
    ...     return criterion(*batch)
    >>> criteria_of(nn.Linear(2, 2), loss_fn) == [criterion]
    True
    """
    found: dict[int, nn.Module] = {}
    named = list(_referred(loss_fn))
    within = [thing for one in named if isinstance(one, _FUNCTIONS) for thing in _referred(one)]
    for thing in (model, *named, *within):
        for module in thing.modules() if isinstance(thing, nn.Module) else ():
            if isinstance(getattr(module, "label_smoothing", None), (int, float)):
                found[id(module)] = module
    return list(found.values())


def _referred(function: Any) -> Iterator[Any]:
    """What a function is bound to, encloses, or names."""
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from _referred(function.func)
    elif isinstance(function, MethodType):
        yield from (function.__self__, *_attributes(function.__self__).values())
        yield from _referred(function.__func__)
    elif isinstance(function, FunctionType):
        names = function.__code__.co_names
        for thing in (*_enclosed(function), *(function.__globals__.get(name) for name in names)):
            yield thing
            # As in task.criterion(…), where the function names both.
            yield from (value for name, value in _attributes(thing).items() if name in names)
    else:  # an object that is called
        yield from (function, *_attributes(function).values())


def _enclosed(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a variable that has no value yet
            yield cell.cell_contents


def _attributes(thing: object) -> Mapping[str, Any]:
    return getattr(thing, "__dict__", {})
