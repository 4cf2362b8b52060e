"""Attributes of modules that the forward pass reads: dropout, label smoothing, attention temperature.

They act through the gradient only: replicas that share gradients never differ by them, so they need
``gradients="none"`` or :class:`~hdet.Arms`. A replica's own value is in the module from one sync to the next;
with :class:`~hdet.StackedReplicas` only during their pass, as a tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd  # no public name covers all dropout layers
from torch.optim import Optimizer

from hdet.hyperparameters.axis import Location, Rows, ScalarAxis
from hdet.hyperparameters.scales import LogScale, check_bounds

__all__ = ["Dropout", "LabelSmoothing", "Temperature", "has_dropout"]


@dataclass(frozen=True, slots=True, eq=False)
class Dropout:
    """Explore the probability of dropout: every dropout layer of a model, and attention's own.

    Args:
        model: all its dropout layers, and the ``dropout`` of attention and of stacked recurrent layers.
        spread: on the scale log(p + 0.1), which can leave 0.
        bounds: the lowest and the highest value allowed.
        layers: names of some of the layers, as in ``model.named_modules()``, instead of all.
        attribute: for functional dropout, the name of the attribute in which modules keep its probability,
            as in ``F.dropout(x, self.drop_rate, self.training)``.
        name: in records; give each of several another one.

    A model under ``torch.compile`` is compiled again for every new probability. On Python 3.13.0, where
    compiled code keeps the first value, a compiled model raises.
    """

    model: nn.Module = field(repr=False)  # ranks compare the repr, and the model's layout elsewhere
    spread: float = 0.5
    bounds: tuple[float, float] = (0.0, 0.9)
    layers: Sequence[str] | None = None
    attribute: str | None = None
    name: str = "dropout"

    def bind(self, optimizer: Optimizer) -> list[ScalarAxis]:
        """One axis over all layers."""
        scale = LogScale(*check_bounds("Dropout", self.bounds, "[0, 1)"), unit=0.1)

        found = _find("Dropout", self.model, self.layers, self.attribute)
        warning = (
            f"{self.name}: the model is compiled: each new probability compiles it again, and after "
            "torch._dynamo.config.recompile_limit of them (cache_size_limit in torch 2.6) torch runs it "
            "uncompiled. Raise that limit, or leave dropout out of what is compiled"
        )
        warning = warning if _is_compiled(self.model) else ""
        return [
            ScalarAxis(
                self.name, found, scale, self.spread, off=0.0, warning=warning, needs_own_gradients=True
            )
        ]


@dataclass(frozen=True, slots=True, eq=False)
class LabelSmoothing:
    """Explore the label smoothing of a criterion.

    Args:
        criterion: an ``nn.CrossEntropyLoss``, or whatever reads its attribute ``label_smoothing``.
        spread: on the scale log(smoothing + 0.02), which can leave 0.
        bounds: the lowest and the highest value allowed.
        name: in records; give each of several another one.
    """

    criterion: Any = field(repr=False)
    spread: float = 0.5
    bounds: tuple[float, float] = (0.0, 0.9)
    name: str = "label_smoothing"

    def bind(self, optimizer: Optimizer) -> list[ScalarAxis]:
        """One axis."""
        scale = LogScale(*check_bounds("LabelSmoothing", self.bounds, "[0, 1)"), unit=0.02)
        if not hasattr(self.criterion, "label_smoothing"):
            raise ValueError(
                "LabelSmoothing: criterion must have an attribute label_smoothing, got "
                f"{type(self.criterion).__name__}; use nn.CrossEntropyLoss, or an object of your own whose "
                "label_smoothing the loss reads"
            )
        locations = [_location("LabelSmoothing", self.criterion, "label_smoothing")]
        return [ScalarAxis(self.name, locations, scale, self.spread, off=0.0, needs_own_gradients=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Temperature:
    """Explore the temperature of attention: the number by which modules multiply, or divide, their logits.

    Args:
        model: where to look.
        attribute: the name under which attention modules keep it: a float, or a tensor of one element that
            is not trained. A tensor is written in place; a float under ``torch.compile`` compiles once more.
        spread: replicas lie between base·e^−spread and base·e^spread.
        bounds: the lowest and the highest value allowed.
        layers: names of some modules, as in ``model.named_modules()``, instead of all.
        name: in records; give each of several another one.

    It is part of the model, not a regulariser: a probe measures each replica at its own temperature.
    """

    model: nn.Module = field(repr=False)
    attribute: str = "scale"
    spread: float = 0.5
    bounds: tuple[float, float] = (1e-4, 1e4)
    layers: Sequence[str] | None = None
    name: str = "temperature"

    def bind(self, optimizer: Optimizer) -> list[ScalarAxis]:
        """One axis over all modules that have the attribute."""
        scale = LogScale(*check_bounds("Temperature", self.bounds, "(0, inf]"))

        found = _find("Temperature", self.model, self.layers, self.attribute)
        return [ScalarAxis(self.name, found, scale, self.spread, needs_own_gradients=True)]


def has_dropout(model: nn.Module) -> bool:
    """Whether ``Dropout(model)`` has layers to write to."""
    return any(_attribute_of(module, None) is not None for module in model.modules())


def _attribute_of(module: nn.Module, attribute: str | None) -> str | None:
    """Where a module keeps the value: under the given name, or where torch's layers keep their dropout."""
    if attribute is not None:
        return attribute if hasattr(module, attribute) else None
    if isinstance(module, _DropoutNd):
        return "p"
    # A recurrent layer drops between its layers, if there are several.
    between = isinstance(module, nn.RNNBase) and module.num_layers > 1
    return "dropout" if between or isinstance(module, nn.MultiheadAttention) else None


def _find(
    caller: str, model: nn.Module, layers: Sequence[str] | None, attribute: str | None
) -> list[Location]:
    """The locations in the modules named by ``layers=``, or in all that have the attribute."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller}: model must be a torch nn.Module, got {type(model).__name__}")
    found = {
        name: (module, its)
        for name, module in model.named_modules()
        if (its := _attribute_of(module, attribute)) is not None
    }
    if not found:
        kind = "dropout layers" if attribute is None else f"attribute {attribute!r}"
        raise ValueError(
            f"{caller}: the model must have {kind}, got {type(model).__name__} without; "
            f"name the attribute that holds the value: {caller}(model, attribute=...)"
        )
    if layers is not None:
        if isinstance(layers, str) or not layers or not set(layers) <= set(found):
            raise ValueError(
                f"{caller}: layers must be a list of some of {', '.join(map(repr, found))}, got {layers!r}"
            )
        found = {name: found[name] for name in layers}
    for owner, its in found.values():
        number = not isinstance(getattr(owner, its), Tensor)
        if number and sys.version_info[:3] == (3, 13, 0) and _is_compiled(model):
            raise RuntimeError(
                f"{caller}: compiled code must read {type(owner).__name__}.{its} again after it is "
                "written, and on Python 3.13.0 it keeps the first value; use another Python, or leave the "
                "model uncompiled"
            )
    return [_location(caller, owner, its) for owner, its in found.values()]


def _location(caller: str, owner: Any, attribute: str) -> Location:
    def read() -> Any:
        return getattr(owner, attribute)

    held = read()
    if isinstance(held, nn.Parameter) and held.requires_grad:
        raise TypeError(
            f"{caller}: {attribute} must not be trained, got an nn.Parameter in {type(owner).__name__} that "
            "is; register it as a buffer"
        )

    @torch.no_grad()
    def write(value: float) -> None:
        now = read()
        if isinstance(now, Tensor):
            now.fill_(value)
        else:
            setattr(owner, attribute, value)

    def on_rows(rows: Rows) -> Location:
        """The attribute holds the base; replicas have their own values only during a pass."""
        values = rows.values_of(owner, attribute)

        def write_rows(value: float | Tensor) -> None:
            if isinstance(value, Tensor):
                values.set_(value)
            else:
                write(value)
                values.reset_()

        return Location(read, write_rows)

    return Location(read, write, on_rows)


def _is_compiled(model: nn.Module) -> bool:
    """As far as it shows: ``torch.compile(model)`` leaves no trace in the model it was given."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
