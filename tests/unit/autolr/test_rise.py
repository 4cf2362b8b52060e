"""A rise that leads back is far beyond noise, and beyond half of what was gained."""

from __future__ import annotations

import math

import pytest

from hdet.autolr.rise import has_risen


@pytest.mark.parametrize("paired", [True, False])
def test_a_rise_is_judged_alike_whatever_the_unit_and_the_level(paired: bool) -> None:
    before, little, much = [1.0, 1.1, 1.2, 1.05], [1.2, 1.3, 1.1, 1.2], [3.0, 3.3, 3.1, 3.0]
    for scale in (1e-20, 1.0, 1e20):
        for level in (-10.0, 0.0, 10.0):
            a, b, c = ([scale * (x + level) for x in xs] for xs in (before, little, much))
            first = scale * (4 + level)
            assert not has_risen(first, a, b, paired=paired)
            assert has_risen(first, a, c, paired=paired)
            assert not has_risen(first, a, a, paired=paired)


def test_what_is_no_number_has_risen() -> None:
    for lost in (math.nan, math.inf):
        assert has_risen(4.0, [1.0, 1.1], [1.0, lost], paired=True)


def test_where_nothing_was_gained_noise_alone_does_not_lead_back() -> None:
    before = [1.0, 1.4, 0.6, 1.2, 0.8]
    assert not has_risen(1.0, before, [1.5, 1.4, 1.3, 1.2, 1.3], paired=False)
    assert has_risen(1.0, before, [2.5, 2.4, 2.3, 2.2, 2.3], paired=False)
