"""The coordinate in which a hyperparameter is spread and moved.

Half a unit of weight decay is nothing at 10 and everything at 0.01; half a unit of its logarithm means the
same anywhere. A scale is a monotone map from values to coordinates and back, and the bounds within which
values stay. Everything here is pure.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

__all__ = ["LinearScale", "LogScale", "Scale"]

_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Scale:
    """Bounds, and the coordinate ``u(v) = v``.

    >>> Scale(0.0, 1.0).moved(0.9, 0.5)
    1.0
    """

    lowest: float
    highest: float

    def coordinate(self, value: float) -> float:
        """u(v)."""
        return value

    def value(self, coordinate: float) -> float:
        """v(u)."""
        return coordinate

    def clip(self, value: float) -> float:
        """The nearest finite value within the bounds."""
        largest = sys.float_info.max
        return min(max(value, self.lowest, -largest), self.highest, largest)

    def moved(self, value: float, by: float) -> float:
        """The value that lies ``by`` further along the coordinate, within the bounds.

        Not to move gives the very same value, without a rounding error.
        """
        if by == 0:
            return self.clip(value)
        try:
            # Somebody else may have written what the coordinate is not defined for.
            return self.clip(self.value(self.coordinate(self.clip(value)) + by))
        except OverflowError:
            return self.clip(math.inf if by > 0 else -math.inf)

    def offset(self, start: float, end: float) -> float:
        """How far ``end`` lies from ``start`` along the coordinate."""
        return self.coordinate(self.clip(end)) - self.coordinate(self.clip(start))

    def contains(self, value: float) -> bool:
        """Whether a value lies within the bounds, but for what a float32 rounds."""
        slack = _ROUNDING * abs(value)
        return self.lowest - slack <= value <= self.highest + slack


#: Spread and moved by adding.
LinearScale = Scale


@dataclass(frozen=True, slots=True)
class LogScale(Scale):
    """Spread and moved by multiplying, ``u(v) = log(v + unit)``.

    Well above ``unit`` that is the logarithm. Well below it is linear, so that 0 is a value like any other
    and can be left; a unit of 0 is the pure logarithm, for what is never 0. ``mirrored`` measures from 1
    downwards, as a momentum wants it: 0.9 and 0.99 are as far apart as 0.99 and 0.999.

    >>> round(LogScale(0.0, 10.0, unit=0.01).moved(0.0, math.log(2)), 6)
    0.01
    >>> round(LogScale(0.0, 0.9999, mirrored=True).moved(0.9, math.log(10)), 6)
    0.99
    """

    unit: float = 0.0
    mirrored: bool = False

    def coordinate(self, value: float) -> float:
        if self.mirrored:
            return -math.log(1 - value + self.unit)
        return math.log(value + self.unit)

    def value(self, coordinate: float) -> float:
        if self.mirrored:
            return 1 + self.unit - math.exp(-coordinate)
        return math.exp(coordinate) - self.unit
