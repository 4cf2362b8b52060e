"""The space that all searches look in."""

from __future__ import annotations

from dataclasses import asdict

from benchmarks.autotune.space import RANGES, at, sobol


def test_the_corners_are_the_bounds() -> None:
    assert asdict(at([0.0] * 4)) == {name: known.low for name, known in RANGES.items()}
    assert asdict(at([1.0] * 4)) == {name: known.high for name, known in RANGES.items()}


def test_the_sweep_fills_the_space_evenly() -> None:
    """Of the first 16 points of a Sobol sequence, 8 lie in each half of each axis."""
    settings = [sobol(number) for number in range(16)]
    middle = at([0.5] * 4)
    for name in RANGES:
        assert sum(getattr(one, name) < getattr(middle, name) for one in settings) == 8
    assert sobol(5) == settings[5]
