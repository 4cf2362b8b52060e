"""The space that all searches look in."""

from __future__ import annotations

from dataclasses import asdict, replace

from benchmarks.autotune.space import DEFAULTS, RANGES, at, drawn, restricted, sobol


def test_the_corners_are_the_bounds() -> None:
    assert asdict(at([0.0] * 4)) == {name: known.low for name, known in RANGES.items()}
    assert asdict(at([1.0] * 4)) == {name: known.high for name, known in RANGES.items()}


def test_the_sweep_fills_the_space_evenly() -> None:
    """Of the first 16 points of a Sobol sequence, 8 lie in each half of each axis."""
    settings = [sobol(number, RANGES) for number in range(16)]
    middle = at([0.5] * 4)
    for name in RANGES:
        assert sum(getattr(one, name) < getattr(middle, name) for one in settings) == 8
    assert sobol(5, RANGES) == settings[5]


def test_what_is_not_tuned_is_as_torch_gives_it() -> None:
    some = next(drawn(0, "digits", ("lr",)))
    assert some == replace(DEFAULTS, lr=some.lr) != DEFAULTS
    assert sobol(3, ("lr", "dropout")) == restricted(sobol(3, RANGES), ("lr", "dropout"))
