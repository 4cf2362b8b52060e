"""Scales: no move leaves the bounds, and none leads to infinity."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from hdet.hyperparameters import ScalarAxis
from hdet.hyperparameters.axis import Location
from hdet.hyperparameters.scales import LogScale, Scale
from hdet.loop.levels import levels


def random_scale(draw: random.Random) -> Scale:
    kind = draw.choice(["linear", "linear", "log with a unit", "log", "mirrored"])
    if kind == "linear":
        low = draw.uniform(-1, 1) * 10 ** draw.uniform(-3, 6)
        return Scale(low, low + 10 ** draw.uniform(-3, 6))
    if kind == "mirrored":
        low = draw.choice([0.0, draw.uniform(0, 0.9)])
        return LogScale(low, draw.uniform(low + 1e-3, 0.9999), mirrored=True)
    if kind == "log":
        low = 10 ** draw.uniform(-9, 3)
        return LogScale(low, low * 10 ** draw.uniform(0.01, 9))
    low = draw.choice([0.0, 10 ** draw.uniform(-9, 0)])
    high = low + 10 ** draw.uniform(-6, 3)
    return LogScale(low, high, unit=high * 10 ** draw.uniform(-5, 0))


def test_values_never_leave_their_bounds() -> None:
    """1,000 random rounds: spread, fanned out, restored and moved, wherever the base has got to."""
    draw = random.Random(4)
    rounds = 0
    while rounds < 1_000:
        scale = random_scale(draw)
        start = draw.choice([scale.lowest, scale.highest, draw.uniform(scale.lowest, scale.highest)])
        place = {"value": start}
        put: list[float] = []

        def write(value: float, place: dict[str, float] = place, put: list[float] = put) -> None:
            place["value"] = value
            put.append(value)

        axis = ScalarAxis("x", [Location(lambda place=place: place["value"], write)], scale, 0.5)
        for _ in range(5):
            rounds += 1
            axis.spread = draw.choice([0.0, 10 ** draw.uniform(-3, math.log10(50))])
            ladder = levels(draw.choice([1, 2, 3, 8]))
            base, values, offsets = axis.base, axis.values(ladder), axis.offsets(ladder)
            assert all(a <= b for a, b in pairwise(values)), "monotone in the level"
            for level, value, offset in zip(ladder, values, offsets, strict=True):
                by = axis.spread * level
                assert scale.moved(base, by) == value
                if scale.lowest < value < scale.highest:
                    assert offset == pytest.approx(by, rel=1e-6, abs=1e-9 + 1e-15 * abs(base))
                else:  # cut off: not further than asked, and not the other way
                    assert 0 <= offset * math.copysign(1, by) <= abs(by) * (1 + 1e-6) + 1e-9
            assert scale.moved(base, 0.0) == base, "not to move leaves every bit"
            level = draw.choice(ladder)
            axis.fan_out(level)
            assert place["value"] == axis.values([level])[0]
            axis.restore()
            assert place["value"] == base
            axis.shift(draw.choice([0.0, 1.0, -1.0]) * 10 ** draw.uniform(-3, math.log10(50)))
            put += values
        assert all(math.isfinite(value) and scale.contains(value) for value in put), (scale, put)


def test_an_open_scale_has_no_infinite_value() -> None:
    """A value that runs away on a scale without an upper bound stays a number."""
    for scale in (LogScale(1e-3, math.inf), Scale(-math.inf, math.inf)):
        value = 1.0
        for _ in range(30):
            value = scale.moved(value, 50.0 if isinstance(scale, LogScale) else 1e307)
        assert math.isfinite(value)
