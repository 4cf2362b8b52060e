"""Any other scalar, given by how to read it and how to write it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch.optim import Optimizer

from hdet.hyperparameters.axis import Location, ScalarAxis
from hdet.hyperparameters.scales import LogScale, Scale, check_bounds

__all__ = ["Hyperparameter"]

_UNIT_SHARE = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Hyperparameter:
    """Explore any scalar that leaves the architecture alone (Remark 1 of the paper).

    Args:
        name: in records, in errors, and as the key of its permutations.
        read: returns the current value.
        write: writes another one; what is written must be read back.
        scale: ``"linear"`` adds, ``"log"`` multiplies. A logarithmic scale with a lower bound of 0 turns
            linear below a thousandth of the upper bound, so that the value can leave 0.
        bounds: the lowest and the highest value allowed.
        spread: replicas lie between base − spread and base + spread, or between base·e^−spread and
            base·e^spread; by default a tenth of the bounds' width, or 0.5.
        off: for a regulariser, the value without effect: a probe measures with it.
        acts: ``"forward"`` if it acts through the gradient only, so that replicas must not share theirs;
            ``"step"`` if only the optimizer reads it, during its step.
            With :class:`~hdet.StackedReplicas` ``write`` then gets a tensor of every replica's value, and
            ``"forward"`` raises: ``write`` cannot be known to act on one replica only.

    Example::

        margin = hdet.Hyperparameter("margin", lambda: loss.margin, lambda v: setattr(loss, "margin", v),
                                     bounds=(0.0, 2.0))
    """

    name: str
    read: Callable[[], object] = field(repr=False)
    write: Callable[[float], object] = field(repr=False)
    scale: Literal["linear", "log"] = "linear"
    bounds: tuple[float, float] = (-math.inf, math.inf)
    spread: float | None = None
    off: float | None = None
    acts: Literal["forward", "step"] = "forward"

    def bind(self, optimizer: Optimizer) -> list[ScalarAxis]:
        """One axis."""
        caller = f"Hyperparameter {self.name!r}"
        for function, what in ((self.read, "read"), (self.write, "write")):
            if not callable(function):
                raise TypeError(f"{caller}: {what} must be a callable, got {type(function).__name__}")
        if self.acts not in ("forward", "step"):
            raise ValueError(f"{caller}: acts must be 'forward' or 'step', got {self.acts!r}")
        if self.scale not in ("linear", "log"):
            raise ValueError(f"{caller}: scale must be 'linear' or 'log', got {self.scale!r}")
        low, high = check_bounds(caller, self.bounds, "[0, inf]" if self.scale == "log" else "[-inf, inf]")
        scale, default = Scale(low, high), (high - low) / 10
        if self.scale == "log":
            if low == 0 and math.isinf(high):
                raise ValueError(
                    f"{caller}: a logarithmic scale from 0 needs an upper bound to know what is small, got "
                    f"bounds={self.bounds!r}; give one, or a lower bound above 0"
                )
            scale, default = LogScale(low, high, unit=0.0 if low > 0 else _UNIT_SHARE * high), 0.5
        elif self.spread is None and math.isinf(default):
            raise ValueError(
                f"{caller}: a linear scale without bounds has no default spread, got spread=None; give "
                "bounds or spread, in the hyperparameter's own units"
            )
        return [
            ScalarAxis(
                self.name,
                [Location(self.read, self.write)],
                scale,
                default if self.spread is None else self.spread,
                off=self.off,
                acts_in_step=self.acts == "step",
                needs_own_gradients=self.acts == "forward",
                bends_state=self.acts == "step",
            )
        ]
