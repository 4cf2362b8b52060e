"""What stands in an optimizer's parameter groups, beside the learning rate, and the norm of the gradient.

Groups hold the base values, as they do for the learning rate: a replica's own stands there only while the
optimizer steps. Whoever writes a group in between (a schedule of the momentum, say) sets the base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hdet.hyperparameters.base import Rows
from hdet.hyperparameters.checks import check_bounds, spread_of_each
from hdet.hyperparameters.scalar import Place, ScalarAxis
from hdet.hyperparameters.scales import LogScale, Scale

__all__ = ["Betas", "GradientClip", "Momentum", "WeightDecay"]

#: A momentum closer to 1 than this forgets nothing within a run.
_HIGHEST_MOMENTUM = 0.9999
#: Where the logarithmic scale of a decay turns linear: a tenth of what people usually set.
_DECOUPLED_UNIT, _COUPLED_UNIT = 1e-2, 1e-5
#: Optimizers whose decay does not pass through the gradient, and whose groups do not say so.
_DECOUPLED = ("AdamW", "Adafactor", "Lion", "Muon")


@dataclass(frozen=True, slots=True)
class WeightDecay:
    """Explore ``group["weight_decay"]``: on a logarithmic scale that can leave 0.

    Args:
        spread: replicas lie between base·e^−spread and base·e^spread.
        bounds: values never leave them.
        groups: which parameter groups. By default those that decay; all of them if none does.
        each: one hyperparameter for every group, instead of one for all; ``spread`` may then be a list.

    Decay acts on the weights, not through the gradient, so replicas may share theirs. Judge it by a probe:
    the training loss is lowest without it.
    """

    spread: float | Sequence[float] = 0.5
    bounds: tuple[float, float] = (0.0, 10.0)
    groups: Sequence[int] | None = None
    each: bool = False

    def bind(self, optimizer: Optimizer) -> list[ScalarAxis]:
        """One axis, or one for each group."""
        low, high = check_bounds("WeightDecay", self.bounds, least=0.0)
        chosen = _choose("WeightDecay", optimizer, "weight_decay", self.groups)
        if self.groups is None:
            chosen = [i for i in chosen if float(optimizer.param_groups[i]["weight_decay"]) > 0] or chosen
        # Adam's decay is decoupled in AdamW alone; coupled, it passes through the optimizer's state.
        coupled = not all(_decouples(optimizer, i) for i in chosen)
        unit = _COUPLED_UNIT if coupled else _DECOUPLED_UNIT
        return _axes(
            "weight_decay",
            optimizer,
            chosen,
            LogScale(low, high, unit=unit),
            self.spread,
            key="weight_decay",
            each=self.each,
            off=0.0,
            bends_state=coupled,
        )


@dataclass(frozen=True, slots=True)
class Momentum:
    """Explore SGD's ``momentum``, or β₁ where a group has ``betas``: on a logarithmic scale of 1 − β.

    Args:
        spread: the replicas' 1 − β lie between (1 − base)·e^−spread and (1 − base)·e^spread.
        bounds: values never leave them. Without momentum SGD keeps no buffer, which could then not be
            averaged: start above 0.
        groups: which parameter groups; all that have it by default.
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
        low, high = check_bounds("Momentum", self.bounds, above=0.0, below=1.0)
        chosen = _choose("Momentum", optimizer, "momentum", self.groups)
        scale = LogScale(low, high, mirrored=True)
        return _axes(
            "momentum",
            optimizer,
            chosen,
            scale,
            self.spread,
            key="momentum",
            each=self.each,
            bends_state=True,
        )


@dataclass(frozen=True, slots=True)
class Betas:
    """Explore one of Adam's ``betas``, on a logarithmic scale of 1 − β.

    Args:
        which: 1 for the mean of the gradient, 2 for that of its square.
        spread: the replicas' 1 − β lie between (1 − base)·e^−spread and (1 − base)·e^spread.
        bounds: values never leave them.
        groups: which parameter groups; all that have it by default.
        each: one hyperparameter for every group, instead of one for all; ``spread`` may then be a list.
    """

    which: int = 2
    spread: float | Sequence[float] = 0.5
    bounds: tuple[float, float] = (0.0, _HIGHEST_MOMENTUM)
    groups: Sequence[int] | None = None
    each: bool = False

    def bind(self, optimizer: Optimizer, caller: str = "Betas") -> list[ScalarAxis]:
        """One axis, or one for each group; ``caller`` is what errors begin with."""
        low, high = check_bounds(caller, self.bounds, least=0.0, below=1.0)
        chosen = _choose(caller, optimizer, "betas", self.groups)
        count = min(len(optimizer.param_groups[i]["betas"]) for i in chosen)
        if self.which not in range(1, count + 1):
            raise ValueError(f"Betas: which must be in 1…{count}, got {self.which!r}")
        return _axes(
            f"beta{self.which}",
            optimizer,
            chosen,
            LogScale(low, high, mirrored=True),
            self.spread,
            key="betas",
            element=self.which - 1,
            each=self.each,
            bends_state=True,
        )


@dataclass(frozen=True, slots=True)
class GradientClip:
    """Clip the norm of the gradient before every optimizer step, and explore at what norm.

    hdet does the clipping, in the optimizer's pre-step hook, over all its parameters: take
    ``clip_grad_norm_`` out of the training loop. A gradient that GradScaler has yet to unscale is clipped at
    the scaled norm, which waits for the device. Of :class:`~hdet.StackedReplicas` each one's own norm is
    clipped, over all groups. Clipping ends with :meth:`Ensemble.detach`;
    :attr:`Ensemble.values` has the norm that was found.

    Args:
        max_norm: to start from.
        spread: replicas clip between max_norm·e^−spread and max_norm·e^spread.
        bounds: values never leave them.
    """

    max_norm: float = 1.0
    spread: float = 0.5
    bounds: tuple[float, float] = (1e-4, 1e4)

    def bind(self, optimizer: Optimizer) -> list[ScalarAxis]:
        """One axis; what it moves is the norm at which the hook clips."""
        low, high = check_bounds("GradientClip", self.bounds, above=0.0)
        clipper = _Clipper(optimizer, self.max_norm)

        def write(value: float | Tensor) -> None:
            clipper.max_norm = value

        def on_rows(rows: Rows) -> Place:
            clipper.rows = rows
            return place

        place = Place(lambda: clipper.max_norm, write, on_rows=on_rows)
        try:
            axis = ScalarAxis(
                "gradient_clip",
                [place],
                LogScale(low, high),
                self.spread,
                bends_state=True,
                on_close=clipper.remove,
            )
        except Exception:
            clipper.remove()
            raise
        return [axis]


class _Clipper:
    def __init__(self, optimizer: Optimizer, max_norm: float) -> None:
        #: One, or one for each of the rows.
        self.max_norm: float | Tensor = max_norm
        #: The replicas, where the gradient is a matrix with a row for each.
        self.rows: Rows | None = None
        # Not for torch.compile to look into: a compiled step would be compiled anew for every norm.
        hook = torch.compiler.disable(self._before_step)  # type: ignore[no-untyped-call]
        self.remove = optimizer.register_step_pre_hook(hook).remove

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Clip what there is; with a closure, whatever that computes."""
        closures = [value for value in (*args[1:], *kwargs.values()) if callable(value)]
        if not closures:
            self._clip(optimizer)
            return None

        def clipped(closure: Any) -> Any:
            def compute() -> Any:
                loss = closure()
                self._clip(optimizer)
                return loss

            return compute

        return (
            tuple(clipped(value) if value in closures else value for value in args),
            {name: clipped(value) if value in closures else value for name, value in kwargs.items()},
        )

    def _clip(self, optimizer: Optimizer) -> None:
        if self.rows is not None:
            self.rows.clip_grad_norm_(self.max_norm)
            return
        gradients = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        # A fused optimizer unscales in its own kernel, after this hook; GradScaler leaves the scale with it.
        scale = getattr(optimizer, "grad_scale", None)
        limit = float(self.max_norm) * (1.0 if scale is None else float(scale))
        torch.nn.utils.clip_grad_norm_(gradients, limit)


def _axes(
    name: str,
    optimizer: Optimizer,
    chosen: Sequence[int],
    scale: Scale,
    spread: float | Sequence[float],
    *,
    key: str,
    element: int | None = None,
    each: bool = False,
    off: float | None = None,
    bends_state: bool = False,
) -> list[ScalarAxis]:
    """One axis over all chosen groups, or one for each of them."""

    def axis(title: str, groups: Sequence[int], width: float) -> ScalarAxis:
        held = [_held(optimizer, i, key, element) for i in groups]
        doubt = ""
        if any(isinstance(value, Tensor) and not value.is_cpu for value in held):
            doubt = f"{title} is a tensor: every step waits for the device to read it; give a float"
        return ScalarAxis(
            title,
            [_place(optimizer, i, key, element) for i in groups],
            scale,
            width,
            doubt=doubt,
            off=off,
            acts_in_step=True,
            bends_state=bends_state,
        )

    if not each:
        return [axis(name, chosen, spread_of_each(name, spread, 1)[0])]
    widths = spread_of_each(name, spread, len(chosen))
    return [axis(f"{name}/{i}", [i], width) for i, width in zip(chosen, widths, strict=True)]


def _place(optimizer: Optimizer, index: int, key: str, element: int | None) -> Place:
    def read() -> Any:
        return _held(optimizer, index, key, element)

    def write(value: float | Tensor) -> None:
        group = optimizer.param_groups[index]
        held = read()
        # A tensor of several values is one of every replica's own, and goes as it came.
        if isinstance(held, Tensor) and held.numel() == 1 and not isinstance(value, Tensor):
            held.fill_(value)
        elif element is None:
            group[key] = value
        else:
            group[key] = type(group[key])(value if i == element else b for i, b in enumerate(group[key]))

    return Place(read, write)


def _held(optimizer: Optimizer, index: int, key: str, element: int | None) -> Any:
    # The group is looked up every time: Optimizer.load_state_dict replaces its dictionary.
    value = optimizer.param_groups[index][key]
    return value if element is None else value[element]


def _choose(name: str, optimizer: Optimizer, key: str, groups: Sequence[int] | None) -> list[int]:
    """The groups that were asked for, if they have what is to be explored."""
    count = len(optimizer.param_groups)
    having = [i for i, group in enumerate(optimizer.param_groups) if group.get(key) is not None]
    if not having:
        raise ValueError(
            f"{name}: the optimizer's groups must have {key!r}, got {type(optimizer).__name__} with "
            f"{', '.join(sorted(set(optimizer.param_groups[0]) - {'params'}))}; leave {name} out"
        )
    if groups is None:
        return having
    if not isinstance(groups, Sequence):
        raise TypeError(
            f"{name}: groups must be some of {having}, in a list, got {groups!r}; write [{groups!r}]"
        )
    wrong = [i for i in groups if i not in having]
    if wrong or not groups:
        raise ValueError(
            f"{name}: groups must be some of {having}, those of the optimizer's {count} that have {key!r}, "
            f"got {list(groups)}"
        )
    return list(groups)


def _decouples(optimizer: Optimizer, index: int) -> bool:
    group = optimizer.param_groups[index]
    return bool(group.get("decoupled_weight_decay", type(optimizer).__name__ in _DECOUPLED))
