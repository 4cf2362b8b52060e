"""A sweep as a curve, loss over log learning rate, and what can be read off it.

Between two rates that were tried the loss is taken to be linear in log rate. From there on everything is
exact: at which rates the curve reaches a given loss, and what the best of k rates drawn at random may be
expected to reach, whatever k is, a whole number or not.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

__all__ = ["Curve", "Off"]

_MOST_TRIALS = 1e6


@dataclass(frozen=True)
class Off:
    """By which factor a rate must be off to reach a loss; None where no rate of the sweep is as bad.

    Args:
        above: by so much too high, or None.
        below: by so much too low, or None.
        reach_above: how far above the best rate the sweep went.
        reach_below: how far below it.
    """

    above: float | None
    below: float | None
    reach_above: float
    reach_below: float

    @property
    def factor(self) -> float | None:
        """The smaller one of both, or None where neither is known."""
        return min((way for way in (self.above, self.below) if way is not None), default=None)

    @property
    def more_than(self) -> float | None:
        """Where a side is not known, and the sweep ended on it before the other one is as bad: what the true
        factor exceeds. With a factor, it lies between the two."""
        sides = ((self.above, self.reach_above), (self.below, self.reach_below))
        ended = min((reach for way, reach in sides if way is None), default=math.inf)
        return ended if ended < (math.inf if self.factor is None else self.factor) else None


@dataclass(frozen=True)
class Curve:
    """Finite losses by learning rate, two rates or more; ``best`` is the rate that one would have chosen."""

    losses: Mapping[float, float]
    best: float

    def __post_init__(self) -> None:
        if len(self.losses) < 2 or not all(map(math.isfinite, self.losses.values())):
            raise ValueError(f"a curve needs finite losses at two rates or more, got {dict(self.losses)}")
        if self.best not in self.losses:
            raise ValueError(f"the best rate must be one that was tried, got {self.best}")

    @cached_property
    def points(self) -> list[tuple[float, float]]:
        """(log rate, loss), from the lowest rate to the highest."""
        return [(math.log(rate), self.losses[rate]) for rate in sorted(self.losses)]

    def off(self, loss: float) -> Off:
        """By which factors a rate must be off to do as badly; 1 for a loss at or below that of the best.

        >>> Curve({0.01: 3.0, 0.1: 1.0, 1.0: 2.0}, best=0.1).off(2.0)
        Off(above=10.0, below=3.162..., reach_above=10.0, reach_below=10.0)
        """
        at = math.log(self.best)
        upwards = [point for point in self.points if point[0] >= at]
        downwards = [point for point in reversed(self.points) if point[0] <= at]
        above, below = (_first_reach(way, loss) for way in (upwards, downwards))
        return Off(
            None if above is None else _factor(above),
            None if below is None else _factor(below),
            _factor(upwards[-1][0] - at),
            _factor(at - downwards[-1][0]),
        )

    def best_of(self, trials: float) -> float:
        """The expected loss of the best of so many rates, drawn evenly in log rate over the swept range.

        E[min] is the lowest loss plus the integral of P(one rate is worse than t)^k over t.

        >>> Curve({0.01: 0.0, 1.0: 3.0}, best=0.01).best_of(2)
        1.0
        """
        total = self._levels[0]
        for low, high, worse, still_worse in self._tail:
            total += (high - low) * _mean_power(worse, still_worse, trials)
        return total

    def trials(self, loss: float) -> float:
        """How many random rates one must try to expect this loss; infinite at or below the lowest of all.

        >>> round(Curve({0.01: 0.0, 1.0: 3.0}, best=0.01).trials(1.0), 6)
        2.0
        """
        if loss <= self._levels[0]:
            return math.inf
        if loss >= self._levels[-1]:
            return 0.0
        low, high = 0.0, 1.0
        while self.best_of(high) > loss:
            low, high = high, 2 * high
            if high > _MOST_TRIALS:
                return math.inf
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.best_of(middle) > loss else (low, middle)
        return (low + high) / 2

    @cached_property
    def _levels(self) -> list[float]:
        """Every measured loss once, the lowest first; between two the share of worse rates is linear."""
        return sorted({loss for _, loss in self.points})

    @cached_property
    def _tail(self) -> list[tuple[float, float, float, float]]:
        """For each two neighbouring levels: both, and which share of rates is above either one.

        A stretch on which the curve is level jumps out of the share: what counts is the share just above the
        lower level, and the one just below the higher.
        """
        levels = self._levels
        length = self.points[-1][0] - self.points[0][0]
        #: By number of the interval between levels: length of log rate per unit of loss.
        density = [0.0] * (len(levels) - 1)
        flat = [0.0] * len(levels)
        for (x, loss), (next_x, next_loss) in zip(self.points, self.points[1:], strict=False):
            first, last = (bisect_left(levels, end) for end in sorted((loss, next_loss)))
            if first == last:
                flat[first] += next_x - x
            for number in range(first, last):
                density[number] += (next_x - x) / abs(next_loss - loss)
        tail = []
        worse = length
        for number, (low, high) in enumerate(itertools.pairwise(levels)):
            worse -= flat[number]
            still = worse - density[number] * (high - low)
            tail.append((low, high, max(0.0, worse / length), max(0.0, still / length)))
            worse = still
        return tail


def _first_reach(way: list[tuple[float, float]], loss: float) -> float | None:
    """How far along log rate from the first point the curve first is as high as ``loss``."""
    start = way[0]
    if loss <= start[1]:
        return 0.0
    for (x, low), (next_x, high) in itertools.pairwise(way):
        if high >= loss:
            return abs(x - start[0]) + abs(next_x - x) * (loss - low) / (high - low)
    return None


def _factor(distance: float) -> float:
    # exp(log(a) − log(b)) is a/b but for the last digits, which no rate has.
    return float(f"{math.exp(distance):.10g}")


def _mean_power(first: float, last: float, power: float) -> float:
    """The mean of s^power over s between two shares, ``first`` the larger one."""
    if first - last <= 1e-9 * first:
        return float(((first + last) / 2) ** power)
    return float((first ** (power + 1) - last ** (power + 1)) / ((power + 1) * (first - last)))
