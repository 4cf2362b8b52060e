"""What an optimizer's parameter groups hold beside the learning rate, and the norm that gradients are clipped
at.

Groups hold the base values; a replica's own value replaces them only during the optimizer's step. What
someone else writes into a group in between (a schedule of the momentum, say) becomes the base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hdet.hyperparameters.axis import Location, Rows, ScalarAxis
from hdet.hyperparameters.scales import LogScale, Scale, check_bounds, spread_of_each

__all__ = ["Betas", "GradientClip", "Momentum", "WeightDecay"]

#: A momentum closer to 1 forgets nothing within a run.
_HIGHEST_MOMENTUM = 0.9999
#: Where the logarithmic scale of a decay turns linear: a tenth of the usual values.
_DECOUPLED_UNIT, _COUPLED_UNIT = 1e-2, 1e-5
#: Optimizers whose decay does not pass through the gradient, and whose groups do not say so.
_DECOUPLED = ("AdamW", "Adafactor", "Lion", "Muon")


@dataclass(frozen=True, slots=True)
class WeightDecay:
    """Explore ``group["weight_decay"]``, on a logarithmic scale that can leave 0.

    Args:
        spread: replicas lie between base·e^−spread and base·e^spread.
        bounds: the lowest and the highest value allowed.
        groups: which parameter groups; by default those that decay, or all if none does.
        each: one hyperparameter for every group, instead of one for all; ``spread`` may then be a list.

    Decay acts on the weights, not through the gradient, so replicas may share gradients. Judge it by a probe:
    the training loss is lowest without it.
    """

    spread: float | Sequence[float] = 0.5
    bounds: tuple[float, float] = (0.0, 10.0)
    groups: Sequence[int] | None = None
    each: bool = False

    def bind(self, optimizer: Optimizer) -> list[ScalarAxis]:
        """One axis, or one for each group."""
        low, high = check_bounds("WeightDecay", self.bounds, "[0, inf]")
        groups = optimizer.param_groups
        chosen = _choose("WeightDecay", optimizer, "weight_decay", self.groups)
        if self.groups is None:
            chosen = [i for i in chosen if float(groups[i]["weight_decay"]) > 0] or chosen
        # Coupled decay passes through the gradient, and so through the optimizer's state.
        default = type(optimizer).__name__ in _DECOUPLED
        coupled = not all(groups[i].get("decoupled_weight_decay", default) for i in chosen)
        scale = LogScale(low, high, unit=_COUPLED_UNIT if coupled else _DECOUPLED_UNIT)
        return _axes(
            self, "weight_decay", optimizer, chosen, scale, "weight_decay", off=0.0, bends_state=coupled
        )


@dataclass(frozen=True, slots=True)
class Momentum:
    """Explore SGD's ``momentum``, or β₁ where groups have ``betas``, on a logarithmic scale of 1 − β.

    Args:
        spread: the replicas' 1 − β lie between (1 − base)·e^−spread and (1 − base)·e^spread.
        bounds: the lowest and the highest value allowed; above 0, since SGD without momentum has no buffer
            to average.
        groups: which parameter groups; by default all that have it.
        each: one hyperparameter for every group, instead of one for all; ``spread`` may then be a list.
    """

    spread: float | Sequence[float] = 0.5
    bounds: tuple[float, float] = (0.01, _HIGHEST_MOMENTUM)
    groups: Sequence[int] | None = None
    each: bool = False

    def bind(self, optimizer: Optimizer) -> list[ScalarAxis]:
        """One axis, or one for each group."""
        if any("betas" in group for group in optimizer.param_groups):
            return Betas(1, self.spread, self.bounds, self.groups, self.each).bind(optimizer, "Momentum")
        scale = LogScale(*check_bounds("Momentum", self.bounds, "(0, 1)"), mirrored=True)
        chosen = _choose("Momentum", optimizer, "momentum", self.groups)
        return _axes(self, "momentum", optimizer, chosen, scale, "momentum")


@dataclass(frozen=True, slots=True)
class Betas:
    """Explore one of Adam's ``betas``, on a logarithmic scale of 1 − β.

    Args:
        which: 1 for the mean of the gradient, 2 for that of its square.
        spread: the replicas' 1 − β lie between (1 − base)·e^−spread and (1 − base)·e^spread.
        bounds: the lowest and the highest value allowed.
        groups: which parameter groups; by default all that have it.
        each: one hyperparameter for every group, instead of one for all; ``spread`` may then be a list.
    """

    which: int = 2
    spread: float | Sequence[float] = 0.5
    bounds: tuple[float, float] = (0.0, _HIGHEST_MOMENTUM)
    groups: Sequence[int] | None = None
    each: bool = False

    def bind(self, optimizer: Optimizer, caller: str = "Betas") -> list[ScalarAxis]:
        """One axis, or one for each group; ``caller`` is the prefix of error messages."""
        scale = LogScale(*check_bounds(caller, self.bounds, "[0, 1)"), mirrored=True)
        chosen = _choose(caller, optimizer, "betas", self.groups)
        count = min(len(optimizer.param_groups[i]["betas"]) for i in chosen)
        if self.which not in range(1, count + 1):
            raise ValueError(f"Betas: which must be in 1…{count}, got {self.which!r}")
        return _axes(self, f"beta{self.which}", optimizer, chosen, scale, "betas", self.which - 1)


@dataclass(frozen=True, slots=True)
class GradientClip:
    """Clip the norm of the gradient before every optimizer step, and explore at what norm.

    hdet clips in the optimizer's pre-step hook, over all its parameters: take ``clip_grad_norm_`` out of the
    training loop. A gradient that GradScaler has yet to unscale is clipped at the scaled norm, which waits
    for the device. With :class:`~hdet.StackedReplicas` each replica's own norm is clipped, over all groups.
    Clipping ends with :meth:`Ensemble.detach`; :attr:`Ensemble.values` has the norm that was found.

    Args:
        max_norm: to start from.
        spread: replicas clip between max_norm·e^−spread and max_norm·e^spread.
        bounds: the lowest and the highest value allowed.
    """

    max_norm: float = 1.0
    spread: float = 0.5
    bounds: tuple[float, float] = (1e-4, 1e4)

    def bind(self, optimizer: Optimizer) -> list[ScalarAxis]:
        """One axis, whose value the hook reads."""
        scale = LogScale(*check_bounds("GradientClip", self.bounds, "(0, inf]"))
        clipper = _Clipper(self.max_norm)

        def on_rows(rows: Rows) -> Location:
            clipper.rows = rows
            return location

        location = Location(
            lambda: clipper.max_norm, lambda value: setattr(clipper, "max_norm", value), on_rows
        )
        axis = ScalarAxis("gradient_clip", [location], scale, self.spread, bends_state=True)
        # A compiled step must not look into it: it would be compiled again for every norm.
        hook = torch.compiler.disable(clipper.before_step)  # type: ignore[no-untyped-call]
        axis.on_close = optimizer.register_step_pre_hook(hook).remove
        return [axis]


class _Clipper:
    def __init__(self, max_norm: float) -> None:
        #: One, or one for each of the rows.
        self.max_norm: float | Tensor = max_norm
        #: The replicas, if the gradient is a matrix with a row for each.
        self.rows: Rows | None = None

    def before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Clip the gradient; given a closure, clip what it computes."""
        itself, *given = args
        if not any(map(callable, (*given, *kwargs.values()))):
            self._clip(optimizer)
            return None

        def clipping(value: Any) -> Any:
            def closure() -> Any:
                loss = value()
                self._clip(optimizer)
                return loss

            return closure if callable(value) else value

        return (itself, *map(clipping, given)), {name: clipping(value) for name, value in kwargs.items()}

    def _clip(self, optimizer: Optimizer) -> None:
        if self.rows is not None:
            self.rows.clip_grad_norm_(self.max_norm)
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        # A fused optimizer unscales in its own kernel, after this hook; GradScaler leaves the scale with it.
        scale = getattr(optimizer, "grad_scale", None)
        limit = float(self.max_norm) * (1.0 if scale is None else float(scale))
        torch.nn.utils.clip_grad_norm_(parameters, limit)


def _axes(
    item: WeightDecay | Momentum | Betas,
    name: str,
    optimizer: Optimizer,
    chosen: Sequence[int],
    scale: Scale,
    key: str,
    element: int | None = None,
    *,
    off: float | None = None,
    bends_state: bool = True,
) -> list[ScalarAxis]:
    """One axis over the chosen groups' ``key``, or one for each group."""
    names = {f"{name}/{i}": [i] for i in chosen} if item.each else {name: chosen}
    axes = []
    for (title, groups), spread in zip(
        names.items(), spread_of_each(name, item.spread, len(names)), strict=True
    ):
        locations = [_location(optimizer, i, key, element) for i in groups]
        held = [location.read() for location in locations]
        warning = f"{title} is a tensor: every step waits for the device to read it; give a float"
        waits = any(isinstance(value, Tensor) and not value.is_cpu for value in held)
        axes.append(
            ScalarAxis(
                title,
                locations,
                scale,
                spread,
                off=off,
                warning=warning if waits else "",
                acts_in_step=True,
                bends_state=bends_state,
            )
        )
    return axes


def _location(optimizer: Optimizer, index: int, key: str, element: int | None) -> Location:
    """``group[key]``, or one element of it."""

    # The group is looked up every time: Optimizer.load_state_dict replaces its dictionary.
    def read() -> Any:
        value = optimizer.param_groups[index][key]
        return value if element is None else value[element]

    def write(value: float | Tensor) -> None:
        group, held = optimizer.param_groups[index], read()
        # A tensor of several values is one of every replica's own, and is replaced.
        if isinstance(held, Tensor) and held.numel() == 1 and not isinstance(value, Tensor):
            held.fill_(value)
        elif element is None:
            group[key] = value
        else:
            group[key] = type(group[key])(value if i == element else b for i, b in enumerate(group[key]))

    return Location(read, write)


def _choose(name: str, optimizer: Optimizer, key: str, groups: Sequence[int] | None) -> list[int]:
    """The groups that ``groups=`` names, or all that have ``key``."""
    having = [i for i, group in enumerate(optimizer.param_groups) if group.get(key) is not None]
    if not having:
        raise ValueError(
            f"{name}: the optimizer's groups must have {key!r}, got {type(optimizer).__name__} with "
            f"{', '.join(sorted(set(optimizer.param_groups[0]) - {'params'}))}; leave {name} out"
        )
    if groups is None:
        return having
    if not isinstance(groups, Sequence) or not groups or not set(groups) <= set(having):
        raise ValueError(
            f"{name}: groups must be a list of some of {having}, those that have {key!r}, got {groups!r}"
        )
    return list(groups)
