"""Anything else: a scalar of the user's own, given by how to read it and how to write it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch.optim import Optimizer

from hdet.hyperparameters.checks import check_bounds
from hdet.hyperparameters.scalar import Place, ScalarAxis
from hdet.hyperparameters.scales import LinearScale, LogScale, Scale

__all__ = ["Hyperparameter"]

_UNIT_SHARE = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Hyperparameter:
    """Explore any scalar that leaves the architecture alone (Remark 1 of the paper).

    Args:
        name: in records, in errors, and as the key of its permutations.
        read: gives the value as it stands.
        write: puts another one there; what is written must be read back.
        scale: ``"linear"`` adds, ``"log"`` multiplies. A logarithmic scale whose lower bound is 0 turns
            linear below a thousandth of the upper bound, so that 0 can be left.
        bounds: values never leave them.
        spread: replicas lie between base − spread and base + spread, or between base·e^−spread and
            base·e^spread; by default a tenth of the bounds' width, or 0.5.
        off: the value without effect, for a regulariser: a probe measures with it.
        acts: ``"forward"`` where it acts through the gradient alone, so that replicas must not share theirs;
            ``"step"`` where the optimizer reads it, and its value may stand while the optimizer steps alone.
            With :class:`~hdet.StackedReplicas` ``write`` is then given a tensor of every replica's value, and
            ``"forward"`` is refused: nobody knows whether what ``write`` does reaches a row alone.

    Example::

        margin = hdet.Hyperparameter("margin", lambda: loss.margin, lambda v: setattr(loss, "margin", v),
                                     bounds=(0.0, 2.0))
    """

    name: str
    read: Callable[[], object]
    write: Callable[[float], object]
    scale: Literal["linear", "log"] = "linear"
    bounds: tuple[float, float] = (-math.inf, math.inf)
    spread: float | None = None
    off: float | None = None
    acts: Literal["forward", "step"] = "forward"

    def __repr__(self) -> str:
        return (
            f"Hyperparameter(name={self.name!r}, scale={self.scale!r}, bounds={self.bounds!r}, "
            f"spread={self.spread!r}, off={self.off!r}, acts={self.acts!r})"
        )

    def bind(self, optimizer: Optimizer) -> list[ScalarAxis]:
        """One axis."""
        caller = f"Hyperparameter {self.name!r}"
        for function, what in ((self.read, "read"), (self.write, "write")):
            if not callable(function):
                raise TypeError(f"{caller}: {what} must be a callable, got {type(function).__name__}")
        if self.acts not in ("forward", "step"):
            raise ValueError(f"{caller}: acts must be 'forward' or 'step', got {self.acts!r}")
        scale = self._scale(caller)
        if self.spread is None and self.scale == "linear" and math.isinf(scale.highest - scale.lowest):
            raise ValueError(
                f"{caller}: a linear scale without bounds gives no idea of a spread, got spread=None; give "
                "bounds or spread, in the hyperparameter's own units"
            )
        width = 0.5 if self.scale == "log" else (scale.highest - scale.lowest) / 10
        return [
            ScalarAxis(
                self.name,
                [Place(self.read, self.write)],
                scale,
                width if self.spread is None else self.spread,
                off=self.off,
                acts_in_step=self.acts == "step",
                needs_own_gradients=self.acts == "forward",
                bends_state=self.acts == "step",
            )
        ]

    def _scale(self, caller: str) -> Scale:
        if self.scale == "linear":
            return LinearScale(*check_bounds(caller, self.bounds))
        if self.scale != "log":
            raise ValueError(f"{caller}: scale must be 'linear' or 'log', got {self.scale!r}")
        low, high = check_bounds(caller, self.bounds, least=0.0)
        if low == 0 and math.isinf(high):
            raise ValueError(
                f"{caller}: a logarithmic scale from 0 on needs an upper bound to know what is small, got "
                f"bounds={self.bounds!r}; give one, or a lower bound above 0"
            )
        return LogScale(low, high, unit=0.0 if low > 0 else _UNIT_SHARE * high)
