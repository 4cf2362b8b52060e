"""The space that all searches look in."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice

import pytest

from hdet.bench.autotune.space import RANGES, Setting, at, clipped, drawn, sobol


def test_the_corners_are_the_bounds() -> None:
    assert asdict(at([0.0] * 4)) == {name: known.low for name, known in RANGES.items()}
    assert asdict(at([1.0] * 4)) == {name: known.high for name, known in RANGES.items()}


def test_a_seed_decides_what_is_drawn() -> None:
    first = list(islice(drawn(3, "digits"), 8))
    assert first == list(islice(drawn(3, "digits"), 8))
    assert len({*first, *islice(drawn(4, "digits"), 8), *islice(drawn(3, "charlm"), 8)}) == 24
    assert all(setting == clipped(setting) for setting in first)


def test_the_sweep_fills_the_space_evenly() -> None:
    """Of the first 16 points of a Sobol sequence, 8 lie in each half of each axis."""
    settings = [sobol(number) for number in range(16)]
    middle = at([0.5] * 4)
    for name in RANGES:
        assert sum(getattr(one, name) < getattr(middle, name) for one in settings) == 8
    assert sobol(5) == settings[5]


def test_what_left_the_bounds_is_put_back() -> None:
    assert clipped(Setting(1e-9, 3.0, 0.7, 0.1)) == Setting(1e-5, 1.0, 0.6, 0.1)


@pytest.mark.parametrize("name", RANGES)
def test_values_are_even_on_their_own_scale(name: str) -> None:
    low, middle, high = (RANGES[name].at(share) for share in (0.25, 0.5, 0.75))
    assert (middle**2 if RANGES[name].log else 2 * middle) == pytest.approx(
        low * high if RANGES[name].log else low + high, rel=1e-2
    )
