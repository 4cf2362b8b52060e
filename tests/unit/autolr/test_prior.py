"""The rate that is usual: a power law of the pace."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hdet.autolr.prior import fine_tuning, usual_rate

paces = st.floats(min_value=0, exclude_min=True, allow_infinity=False)


@given(paces)
def test_every_pace_has_a_rate(pace: float) -> None:
    assert 0 < usual_rate(pace) < math.inf


@given(st.floats(-100, 100), st.floats(-100, 100))
def test_it_is_a_power_law(a: float, b: float) -> None:
    """The same ratio of paces is the same ratio of rates, wherever it is."""
    one, ratio, there, both = (usual_rate(10**x) for x in (0.0, a, b, a + b))
    assert both * one == pytest.approx(ratio * there, rel=1e-9)


@given(paces, paces)
def test_it_falls_with_the_pace_and_by_less_than_in_proportion(a: float, b: float) -> None:
    slow, fast = sorted((a, b))
    assume(fast / slow > 1 + 1e-9)
    fall = math.log(usual_rate(slow)) - math.log(usual_rate(fast))
    assert 0 < fall < math.log(fast) - math.log(slow)


shares = st.floats(0, 1)
counts = st.floats(0, 1e13)


@given(counts, counts, shares, shares)
def test_more_trained_weights_want_less_and_new_ones_all_of_it(
    few: float, many: float, a: float, b: float
) -> None:
    assert fine_tuning(many, 0.0) == 1.0
    (few, many), (a, b) = sorted((few, many)), sorted((a, b))
    assert 0 < fine_tuning(many, b) <= fine_tuning(few, a) <= 1


@given(st.floats(1e5, 1e10))
def test_four_times_the_weights_want_half_the_rate(trained: float) -> None:
    assert fine_tuning(4 * trained, 1.0) == pytest.approx(fine_tuning(trained, 1.0) / 2)
