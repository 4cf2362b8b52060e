"""PBT and PB2 as Ray Tune 2.60 does them in its synchronous mode, where nothing but torch is installed.

After each part of a run a twin says who becomes a copy of whom, and with which setting; a seed decides all
of it. :mod:`benchmarks.autotune.held_against_ray` holds both against Ray's own, and ``twins-ray.json`` is
what came out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import torch

from benchmarks.autotune.gaussian import Process, minimum
from benchmarks.autotune.space import Range

__all__ = ["PB2", "PBT", "Move", "Values", "quarters", "share_of", "value_at"]

Values = dict[str, float]
#: A member, whom it becomes a copy of, and the setting with which it goes on.
Move = tuple[int, int, Values]
_QUARTER, _RESAMPLED, _FACTORS = 0.25, 0.25, (1.2, 0.8)
_STARTS, _CAP, _TINY = 10, 2.0, 1e-8


def quarters(losses: Sequence[float]) -> tuple[list[int], list[int]]:
    """The worst and the best quarter, rounded up, the worst first; of equals the first is taken for worse.

    >>> quarters([2.0, 9.0, 1.0, 2.0, 3.0])
    ([1, 4], [3, 2])
    """
    order = sorted(range(len(losses)), key=lambda number: -losses[number])
    count = min(math.ceil(len(order) * _QUARTER), len(order) // 2)
    return order[:count], order[len(order) - count :]


class PBT:
    """Each of the worst quarter becomes a copy of one of the best, its values a step away or drawn anew."""

    def __init__(self, ranges: Mapping[str, Range], seed: int) -> None:
        self._ranges, self._random = ranges, random.Random(seed)

    def after(self, part: int, losses: Sequence[float], settings: Sequence[Values]) -> list[Move]:
        """Who becomes a copy of whom after this part, and the setting with which it goes on."""
        worst, best = quarters(losses)
        moves = []
        for number in worst:
            parent = self._random.choice(best)
            found = self._explored(number, parent, losses[parent], settings[parent])
            moves.append((number, parent, {name: self._ranges[name].clip(found[name]) for name in found}))
        return moves

    def _explored(self, number: int, parent: int, loss: float, setting: Values) -> Values:
        """The setting of a member that becomes a copy of ``parent``, whose loss and setting these are."""
        return {name: self._stepped(known, setting[name]) for name, known in self._ranges.items()}

    def _stepped(self, known: Range, value: float) -> float:
        if self._random.random() >= _RESAMPLED:
            return value * self._random.choice(_FACTORS)
        return value_at(known, self._random.uniform(0, 1))


class PB2(PBT):
    """The same copies; their setting is where a Gaussian process hopes for the largest gain (UCB).

    It knows of every part that a member began at a known loss: time, loss, setting, and what was gained.
    """

    def __init__(self, ranges: Mapping[str, Range], seed: int) -> None:
        super().__init__(ranges, seed)
        self._rows: list[list[float]] = []
        self._gains: list[float] = []
        #: Of each member, the loss that its next gain is counted from, and time and loss of its last row.
        self._began: dict[int, float] = {}
        self._last: dict[int, list[float]] = {}
        #: The points that were given to other members after this part.
        self._given: list[list[float]] = []

    def after(self, part: int, losses: Sequence[float], settings: Sequence[Values]) -> list[Move]:
        for number, (loss, setting) in enumerate(zip(losses, settings, strict=True)):
            if number in self._began:
                self._last[number] = [part, self._began[number]]
                self._rows.append([*self._last[number], *self._point(setting)])
                self._gains.append(self._began[number] - loss)
            self._began[number] = loss
        self._given = []
        return super().after(part, losses, settings)

    def _explored(self, number: int, parent: int, loss: float, setting: Values) -> Values:
        if parent in self._last:
            self._began[number] = loss
            self._given.append(self._hoped(self._last[parent]))
            return dict(zip(self._ranges, map(value_at, self._ranges.values(), self._given[-1]), strict=True))
        # Nothing is known of it yet: it is copied with its setting, and that gain is not counted.
        del self._began[number]
        self._given.append(self._point(setting))
        return setting

    def _hoped(self, last: list[float]) -> list[float]:
        """The point at which most is hoped for, of a copy of a member with this time and loss."""
        rows, gains = (torch.tensor(seen, dtype=torch.float64) for seen in (self._rows, self._gains))
        low, high = rows[:, :2].amin(0), rows[:, :2].amax(0)
        here = (rows.new_tensor(last) - low) / (high - low + _TINY)
        rows[:, :2] = (rows[:, :2] - low) / (high - low + _TINY)
        gains = ((gains - gains.mean()) / (gains.std(correction=0) + _TINY)).clamp(-_CAP, _CAP)
        expected = unknown = Process(rows, gains)
        if self._given:  # where others go from here less is unknown, whatever they will gain
            others = torch.tensor([[*here, *point] for point in self._given], dtype=torch.float64)
            unknown = Process(torch.cat((rows, others)), torch.cat((gains, gains.new_zeros(len(others)))))
        kappa = math.sqrt(0.2 + max(0.0, math.log(0.4 * len(gains))))

        def hopeless(point: torch.Tensor) -> torch.Tensor:
            row = torch.cat((here, point))
            return -expected.mean(row) - kappa * unknown.variance(row)

        ends = []
        for _ in range(_STARTS):
            start = rows.new_tensor([self._random.uniform(0, 1) for _ in self._ranges])
            ends.append(minimum(hopeless, start, torch.zeros_like(start), torch.ones_like(start)))
        return [float(share) for share in min(ends, key=lambda end: end[1])[0]]

    def _point(self, setting: Values) -> list[float]:
        return [share_of(known, setting[name]) for name, known in self._ranges.items()]


def value_at(known: Range, share: float) -> float:
    """The value that lies so far between the bounds, unrounded."""
    if known.log:
        return float(known.low * (known.high / known.low) ** share)
    return known.low + share * (known.high - known.low)


def share_of(known: Range, value: float) -> float:
    """How far a value lies between the bounds."""
    if known.log:
        return math.log(value / known.low) / math.log(known.high / known.low)
    return (value - known.low) / (known.high - known.low)
