"""How levels are dealt: Eq. 1 and Eq. 9, and designs that tell hyperparameters apart."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdet.loop.levels import hadamard, levels, orthogonal, permutation, permuted
from tests.fakes import multipliers

few = settings(max_examples=25)


@few
@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_ladder_is_equation_1(size: int, spread: float) -> None:
    ladder = multipliers(size, spread)
    delta = max(Fraction(size - 1, 2), Fraction(1, 2))
    exact = [1 + Fraction(spread) * (r - Fraction(size - 1, 2)) / delta for r in range(size)]
    assert ladder == pytest.approx([float(x) for x in exact], rel=1e-12)
    assert math.fsum(ladder) == pytest.approx(size)
    assert min(ladder) >= 1 - spread - 1e-15
    assert max(ladder) <= 1 + spread + 1e-15
    assert min(ladder) > 0


@few
@given(st.integers(1, 64), st.integers(0, 2**40), st.integers(0, 10**6), st.text(max_size=8))
def test_assignment_is_a_permutation_that_any_rank_can_repeat(
    size: int, seed: int, round: int, name: str
) -> None:
    once = permutation(size, seed=seed, round=round, name=name)
    assert sorted(once) == list(range(size))
    assert once == permutation(size, seed=seed, round=round, name=name)
    (dealt,) = permuted(size, [name], seed=seed, round=round)
    assert sorted(dealt) == list(levels(size))


def test_the_papers_ladder_is_round_zero_as_it_stands() -> None:
    assert [round(9e-4 * rho, 7) for rho in multipliers(8, 1 / 9)][::7] == [8e-4, 1e-3]
    assert permuted(4, ["lr/0", "lr/1"], seed=9, round=0) == [levels(4), levels(4)]


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


def test_bad_input() -> None:
    for size in (3, 6, 10, 28, 52):
        with pytest.raises(ValueError, match=f"multiple of 4 .* got {size}; use (2|4|8|24|48) replicas"):
            hadamard(size)
    with pytest.raises(ValueError, match="at most 3 hyperparameters, got 4; explore fewer, or use more"):
        orthogonal(4, list("abcd"), seed=0, round=0)


def test_hadamard_matrices_have_orthogonal_columns() -> None:
    for size in (1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 44, 48, 64):
        matrix = hadamard(size)
        assert {entry for row in matrix for entry in row} <= {-1, 1}
        assert all(row[0] == 1 for row in matrix)
        columns = list(zip(*matrix, strict=True))
        for i, a in enumerate(columns):
            for j, b in enumerate(columns[: i + 1]):
                assert sum(x * y for x, y in zip(a, b, strict=True)) == (size if i == j else 0)


@few
@given(st.sampled_from([2, 4, 8, 12, 16]), st.integers(0, 10**6), st.integers(0, 10**6), st.data())
def test_an_orthogonal_design_balances_every_hyperparameter_and_every_pair(
    size: int, seed: int, round: int, data: st.DataObject
) -> None:
    names = [f"h{i}" for i in range(data.draw(st.integers(1, size - 1)))]
    dealt = orthogonal(size, names, seed=seed, round=round)
    for i, a in enumerate(dealt):
        assert sum(a) == 0
        for b in dealt[:i]:
            assert sum(x * y for x, y in zip(a, b, strict=True)) == 0
    # Whoever registers in another order is dealt the same.
    backwards = orthogonal(size, names[::-1], seed=seed, round=round)
    assert backwards == dealt[::-1]


KINDS = ("weight_decay", "dropout", "label_smoothing", "temperature", "gradient_clip", "momentum", "beta2")


def test_removing_a_hyperparameter_changes_nothing_for_the_others() -> None:
    """Of the kinds that hdet has, from 8 replicas on; of 4, the usual three."""
    for size, kinds in ((4, KINDS[:3]), (8, KINDS), (12, KINDS)):
        for round in range(1, 6):
            every = dict(zip(kinds, orthogonal(size, kinds, seed=3, round=round), strict=True))
            for removed in kinds:
                kept = [name for name in kinds if name != removed]
                for name, row in zip(kept, orthogonal(size, kept, seed=3, round=round), strict=True):
                    assert row == every[name]


@few
@given(st.sets(st.text("abcd", min_size=1, max_size=3), min_size=2, max_size=7), st.integers(0, 50))
def test_whatever_its_name_at_most_those_after_it_change(names: set[str], round: int) -> None:
    """Two names may like one column best: there are more names than columns."""
    first, *others = sorted(names, reverse=True)
    every = dict(zip(sorted(names), orthogonal(8, sorted(names), seed=0, round=round), strict=True))
    for name, row in zip(others, orthogonal(8, others, seed=0, round=round), strict=True):
        assert row == every[name], f"without {first}, the last by the alphabet"


def test_an_orthogonal_design_gives_every_replica_both_levels_in_turn() -> None:
    rounds = [orthogonal(8, ["a", "b", "c"], seed=1, round=k) for k in range(400)]
    for h in range(3):
        for r in range(8):
            assert abs(sum(dealt[h][r] for dealt in rounds)) < 4 * 400**0.5
