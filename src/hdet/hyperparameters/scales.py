"""The coordinate along which a hyperparameter is spread and moved, and its bounds; all of it pure.

Half a unit of weight decay is nothing at 10 and everything at 0.01; half a unit of its logarithm means the
same anywhere. A scale is a monotone map from values to coordinates and back.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LogScale", "Scale", "check_bounds", "spread_of_each"]

_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Scale:
    """Bounds, and the linear coordinate ``u(v) = v``.

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
        """The value ``by`` further along the coordinate, within the bounds. By 0 is exactly ``value``."""
        if by == 0:
            return self.clip(value)
        try:
            # Clipped first: someone else may have written a value that has no coordinate.
            return self.clip(self.value(self.coordinate(self.clip(value)) + by))
        except OverflowError:
            return self.clip(math.inf if by > 0 else -math.inf)

    def offset(self, start: float, end: float) -> float:
        """The distance from ``start`` to ``end`` along the coordinate."""
        return self.coordinate(self.clip(end)) - self.coordinate(self.clip(start))

    def contains(self, value: float) -> bool:
        """Whether a value is within the bounds, up to float32 rounding."""
        slack = _ROUNDING * abs(value)
        return self.lowest - slack <= value <= self.highest + slack


@dataclass(frozen=True, slots=True)
class LogScale(Scale):
    """Spread and moved by multiplying, ``u(v) = log(v + unit)``.

    Well above ``unit`` this is the logarithm; well below it is linear, so a value can start at 0 and leave
    it. A unit of 0 is the pure logarithm. ``mirrored`` measures 1 − v instead, as suits a momentum: from 0.9
    to 0.99 is as far as from 0.99 to 0.999.

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


def check_bounds(name: str, bounds: object, within: str) -> tuple[float, float]:
    """The two numbers of ``bounds=``, or ValueError if they are not in order or not ``within`` an interval.

    >>> check_bounds("Dropout", (0, 0.9), "[0, 1)")
    (0.0, 0.9)
    """
    try:
        low, high = map(float, bounds)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        low = high = math.nan
    least, most = map(float, within[1:-1].split(","))
    low_fits = least < low if within[0] == "(" else least <= low
    high_fits = high < most if within[-1] == ")" else high <= most
    if not (low_fits and high_fits and low < high):
        raise ValueError(
            f"{name}: bounds must be two numbers in {within}, the lower one first, got {bounds!r}"
        )
    return low, high


def spread_of_each(name: str, spread: float | Sequence[float], count: int) -> list[float]:
    """One spread for all groups, or one for each."""
    spreads = list(spread) if isinstance(spread, Sequence) else [spread] * count
    if len(spreads) != count:
        raise ValueError(
            f"{name}: spread must be one number, or one for each of the {count} explored groups, got "
            f"{len(spreads)}"
        )
    return spreads
