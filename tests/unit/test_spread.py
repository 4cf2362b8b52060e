"""Eq. 1 and Eq. 9."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdet.spread import assignment, multipliers, permutation


@given(st.integers(1, 300), st.floats(0, 1, exclude_max=True))
def test_ladder_is_equation_1(size: int, spread: float) -> None:
    ladder = multipliers(size, spread)
    delta = max(Fraction(size - 1, 2), Fraction(1, 2))
    exact = [1 + Fraction(spread) * (r - Fraction(size - 1, 2)) / delta for r in range(size)]
    assert ladder == pytest.approx([float(x) for x in exact], rel=1e-12)
    assert math.fsum(ladder) == pytest.approx(size)
    assert min(ladder) >= 1 - spread - 1e-15
    assert max(ladder) <= 1 + spread + 1e-15
    assert min(ladder) > 0


def test_the_papers_ladder() -> None:
    assert [round(9e-4 * rho, 7) for rho in multipliers(8, 1 / 9)][::7] == [8e-4, 1e-3]


@given(st.integers(1, 64), st.integers(0, 2**40), st.integers(0, 10**6), st.text(max_size=8))
def test_assignment_is_a_permutation_that_any_rank_can_repeat(
    size: int, seed: int, round: int, name: str
) -> None:
    once = permutation(size, seed=seed, round=round, name=name)
    assert sorted(once) == list(range(size))
    assert once == permutation(size, seed=seed, round=round, name=name)
    values = assignment(size, 0.25, seed=seed, round=round, name=name)
    assert sorted(values) == sorted(multipliers(size, 0.25))


def test_round_zero_is_equation_1_as_it_stands() -> None:
    assert assignment(4, 0.3, seed=9, round=0, name="lr/0") == multipliers(4, 0.3)


def test_permutations_are_uniform_and_independent() -> None:
    """24 permutations of 4 over 4,800 rounds, and the pair of two hyperparameters' first elements."""
    rounds = range(1, 4801)
    counts = Counter(permutation(4, seed=0, round=k, name="a") for k in rounds)
    assert len(counts) == 24
    # χ² with 23 degrees of freedom stays under 50 with probability 0.999
    assert sum((n - 200) ** 2 / 200 for n in counts.values()) < 50
    pairs = Counter(
        (permutation(4, seed=0, round=k, name="a")[0], permutation(4, seed=0, round=k, name="b")[0])
        for k in rounds
    )
    assert sum((n - 300) ** 2 / 300 for n in pairs.values()) < 38  # 15 degrees of freedom


@pytest.mark.parametrize(("size", "spread"), [(0, 0.1), (-1, 0.1), (2, -0.1), (2, 1.0), (2, math.nan)])
def test_bad_input(size: int, spread: float) -> None:
    with pytest.raises(ValueError, match=r"multipliers: (size|spread) must be"):
        multipliers(size, spread)
