"""What stands in modules and is read in the forward pass: dropout, label smoothing, attention temperature.

It acts through the gradient alone: replicas that share theirs never come to differ by it, so these want
``gradients="none"`` or :class:`~hdet.Arms`. A replica's own value stands from one sync to the next; of
:class:`~hdet.StackedReplicas` only within their pass, as a tensor.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd  # no public name covers all dropout layers
from torch.optim import Optimizer

from hdet.hyperparameters.base import Rows
from hdet.hyperparameters.checks import check_bounds
from hdet.hyperparameters.scalar import Place, ScalarAxis
from hdet.hyperparameters.scales import LogScale

__all__ = ["Dropout", "LabelSmoothing", "Temperature"]

#: How often torch compiles a function anew: its name, and that in torch 2.6.
_RECOMPILE_LIMITS = ("recompile_limit", "cache_size_limit")


@dataclass(frozen=True, slots=True, eq=False)
class Dropout:
    """Explore the probability of dropout: every dropout layer of a model, and attention's own.

    Args:
        model: all its dropout layers, and the ``dropout`` of attention and of stacked recurrent layers.
        spread: on the scale log(p + 0.1), on which 0 is a value like any other.
        bounds: values never leave them.
        layers: names of some of the layers, as ``model.named_modules()`` has them, instead of all.
        attribute: for functional dropout, the name of the attribute that modules keep its probability in,
            as in ``F.dropout(x, self.drop_rate, self.training)``.
        name: in records; one of several needs one of its own.

    In a model under ``torch.compile`` every new probability compiles it anew. Where compiled code does not
    follow what is written (Python 3.13.0), it is refused.
    """

    model: nn.Module
    spread: float = 0.5
    bounds: tuple[float, float] = (0.0, 0.9)
    layers: Sequence[str] | None = None
    attribute: str | None = None
    name: str = "dropout"

    def __repr__(self) -> str:
        return _describe(self)

    def bind(self, optimizer: Optimizer) -> list[ScalarAxis]:
        """One axis over all layers."""
        low, high = check_bounds("Dropout", self.bounds, least=0.0, below=1.0)

        def attribute_of(module: nn.Module) -> str | None:
            if self.attribute is not None:
                return self.attribute if hasattr(module, self.attribute) else None
            if isinstance(module, _DropoutNd):
                return "p"
            # A recurrent layer drops between its layers, where there are several.
            between = isinstance(module, nn.RNNBase) and module.num_layers > 1
            return "dropout" if between or isinstance(module, nn.MultiheadAttention) else None

        kind = "dropout layers" if self.attribute is None else f"attribute {self.attribute!r}"
        places = _find("Dropout", self.model, self.layers, attribute_of, kind)
        doubt = ""
        if _is_compiled(self.model):
            config = torch._dynamo.config
            limit = next(name for name in _RECOMPILE_LIMITS if hasattr(config, name))
            doubt = (
                f"{self.name}: the model is compiled: each new probability compiles it anew, and after "
                f"torch._dynamo.config.{limit} = {getattr(config, limit)} of them "
                "torch runs it uncompiled. Raise that limit, or leave dropout out of what is compiled"
            )
        scale = LogScale(low, high, unit=0.1)
        return [
            ScalarAxis(self.name, places, scale, self.spread, off=0.0, doubt=doubt, needs_own_gradients=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class LabelSmoothing:
    """Explore the label smoothing of a criterion.

    Args:
        criterion: an ``nn.CrossEntropyLoss``, or whatever reads its attribute ``label_smoothing``.
        spread: on the scale log(smoothing + 0.02), on which 0 is a value like any other.
        bounds: values never leave them.
        name: in records; one of several needs one of its own.
    """

    criterion: Any
    spread: float = 0.5
    bounds: tuple[float, float] = (0.0, 0.9)
    name: str = "label_smoothing"

    def __repr__(self) -> str:
        return _describe(self)

    def bind(self, optimizer: Optimizer) -> list[ScalarAxis]:
        """One axis."""
        low, high = check_bounds("LabelSmoothing", self.bounds, least=0.0, below=1.0)
        if not hasattr(self.criterion, "label_smoothing"):
            raise ValueError(
                "LabelSmoothing: criterion must have an attribute label_smoothing, got "
                f"{type(self.criterion).__name__}; use nn.CrossEntropyLoss, or an object of your own whose "
                "label_smoothing the loss reads"
            )
        places = [_place("LabelSmoothing", self.criterion, "label_smoothing")]
        scale = LogScale(low, high, unit=0.02)
        return [ScalarAxis(self.name, places, scale, self.spread, off=0.0, needs_own_gradients=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Temperature:
    """Explore the temperature of attention: the number by which modules multiply, or divide, their logits.

    Args:
        model: where to look.
        attribute: the name under which attention modules keep it: a float, or a tensor with one element that
            is not trained. A tensor is written in place; a float under ``torch.compile`` compiles once more.
        spread: replicas lie between base·e^−spread and base·e^spread.
        bounds: values never leave them.
        layers: names of some modules, as ``model.named_modules()`` has them, instead of all.
        name: in records; one of several needs one of its own.

    It is part of the model, not a regulariser: a probe measures each replica at its own temperature.
    """

    model: nn.Module
    attribute: str = "scale"
    spread: float = 0.5
    bounds: tuple[float, float] = (1e-4, 1e4)
    layers: Sequence[str] | None = None
    name: str = "temperature"

    def __repr__(self) -> str:
        return _describe(self)

    def bind(self, optimizer: Optimizer) -> list[ScalarAxis]:
        """One axis over all modules that have the attribute."""
        low, high = check_bounds("Temperature", self.bounds, above=0.0)

        def attribute_of(module: nn.Module) -> str | None:
            return self.attribute if hasattr(module, self.attribute) else None

        places = _find("Temperature", self.model, self.layers, attribute_of, f"attribute {self.attribute!r}")
        return [ScalarAxis(self.name, places, LogScale(low, high), self.spread, needs_own_gradients=True)]


def _find(
    caller: str,
    model: nn.Module,
    layers: Sequence[str] | None,
    attribute_of: Callable[[nn.Module], str | None],
    kind: str,
) -> list[Place]:
    """The places in the modules named, or in all that have what is looked for."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller}: model must be a torch nn.Module, got {type(model).__name__}")
    modules = {name: module for name, module in model.named_modules() if attribute_of(module) is not None}
    if not modules:
        raise ValueError(
            f"{caller}: the model must have {kind}, got {type(model).__name__} without; "
            f"name the attribute that holds the value: {caller}(model, attribute=...)"
        )
    if isinstance(layers, str):
        raise TypeError(f"{caller}: layers must be a list of names, got {layers!r}; write [{layers!r}]")
    chosen = list(modules) if layers is None else list(layers)
    unknown = [name for name in chosen if name not in modules]
    if unknown or not chosen:
        raise ValueError(f"{caller}: layers must be some of {', '.join(map(repr, modules))}, got {chosen!r}")
    places = [(modules[name], str(attribute_of(modules[name]))) for name in chosen]
    numbers = [place for place in places if not isinstance(getattr(*place), Tensor)]
    if numbers and _is_compiled(model) and not _compiled_code_follows():
        owner, attribute = numbers[0]
        raise RuntimeError(
            f"{caller}: compiled code must follow what is written to {type(owner).__name__}.{attribute}, and "
            f"Python {platform.python_version()} with torch {torch.__version__} keeps the first value; "
            "use another Python (3.13.0 is known for it), or leave the model uncompiled"
        )
    return [_place(caller, owner, attribute) for owner, attribute in places]


def _place(caller: str, owner: Any, attribute: str) -> Place:
    held = getattr(owner, attribute)
    where = f"{type(owner).__name__}.{attribute}"
    if isinstance(held, nn.Parameter) and held.requires_grad:
        raise TypeError(
            f"{caller}: {attribute} must not be trained, got an nn.Parameter in {type(owner).__name__} that "
            "is; register it as a buffer"
        )
    if isinstance(getattr(type(owner), attribute, None), property):
        raise TypeError(
            f"{caller}: the attribute must be one that can be written, got {where}, a property; name the "
            "attribute it is computed from"
        )

    @torch.no_grad()
    def write(value: float) -> None:
        now = getattr(owner, attribute)
        if isinstance(now, Tensor):
            now.fill_(value)
        else:
            setattr(owner, attribute, value)

    def read() -> Any:
        return getattr(owner, attribute)

    def on_rows(rows: Rows) -> Place:
        """The attribute holds the base, and only within a pass a replica's own."""
        stand_in = rows.stand_in(owner, attribute)

        def write_rows(value: float | Tensor) -> None:
            if isinstance(value, Tensor):
                stand_in.part_(value)
            else:
                write(value)
                stand_in.follow_()

        return Place(read, write_rows, settle=stand_in.follow_)

    return Place(read, write, on_rows=on_rows)


def _is_compiled(model: nn.Module) -> bool:
    """As far as can be seen: ``torch.compile(model)`` leaves no trace in the model it was given."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


@cache
def _compiled_code_follows() -> bool:
    """Whether compiled code reads an attribute that was written anew. Tried, once: of one Python it is known
    that it does not."""

    class Scaled(nn.Module):
        by = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.by

    module = Scaled()
    with torch.compiler.set_stance("default"):
        compiled = torch.compile(module, backend="eager")
        before = float(compiled(torch.ones(())))
        module.by = 2.0
        return before != float(compiled(torch.ones(())))


def _describe(item: Any) -> str:
    """As ranks compare it: without the model, whose layout is compared anyway."""
    settings = [name for name in item.__dataclass_fields__ if name not in ("model", "criterion")]
    return f"{type(item).__name__}({', '.join(f'{name}={getattr(item, name)!r}' for name in settings)})"
