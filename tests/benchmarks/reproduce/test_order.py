"""The order of parameter groups, and how likely it is by chance."""

from __future__ import annotations

import itertools
import math

import pytest

from benchmarks.reproduce.order import binomial_tail, friedman, friedman_p, order, ranks
from benchmarks.reproduce.plan import Row
from tests.benchmarks.reproduce.rows import GROUPS


def brute_force_p(ranked: list[tuple[float, ...]]) -> float:
    seen = friedman(ranked)
    orders = itertools.product(*(list(itertools.permutations(row)) for row in ranked))
    found = [friedman(list(rows)) >= seen - 1e-9 for rows in orders]
    return sum(found) / len(found)


def test_friedman_counts_all_orders() -> None:
    for values in [
        [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]],
        [[1, 2, 3, 4], [4, 3, 2, 1], [2, 1, 4, 3]],
        [[1, 2, 3, 4], [1, 2, 4, 3], [2, 1, 3, 4]],
        [[1, 1, 3, 4], [1, 2, 2, 2], [5, 5, 5, 5]],
    ]:
        ranked = [ranks(row) for row in values]
        assert friedman_p(ranked) == pytest.approx(brute_force_p(ranked), abs=1e-12)
        assert friedman_p(ranked[:1]) == 1


def test_friedman_statistic() -> None:
    # Three rows that agree: 12/(3·4·5) · 3² · (1.5² + 0.5² + 0.5² + 1.5²) = 9, the largest there is.
    agreed = [ranks([1, 2, 3, 4])] * 3
    assert friedman(agreed) == pytest.approx(9)
    assert friedman_p(agreed) == pytest.approx(24 / 24**3)
    assert friedman([(1, 2, 3, 4), (4, 3, 2, 1)]) == 0


def test_binomial_tail_by_enumeration() -> None:
    for successes in range(5):
        ways = [
            math.prod(1 / 12 if hit else 11 / 12 for hit in hits)
            for hits in itertools.product([False, True], repeat=4)
            if sum(hits) >= successes
        ]
        assert binomial_tail(successes, 4, 1 / 12) == pytest.approx(sum(ways))


def with_factors(seed: int, **late: float) -> Row:
    """Two syncs before the second half of the controlled part, two in it."""
    factors = {group: [1.0, 5.0, late[group] * 0.5, late[group] * 2] for group in GROUPS}
    lrs = {group: [0.1] * 4 for group in GROUPS}
    return {"seed": seed, "lr_steps": [10, 59, 61, 80], "factors": factors, "lrs": lrs}


def test_order_of_groups_against_the_published_one() -> None:
    as_published = [
        with_factors(seed, embedding=1.0 + 0.01 * seed, no_decay=1.2, non_embedding=1.02, transformer=0.8)
        for seed in range(3)
    ]
    found = order(as_published, control_from=40, steps=80)
    assert found is not None
    assert found["by_seed"][0] == ["transformer", "embedding", "non_embedding", "no_decay"]
    assert found["mean_factors"][1]["transformer"] == pytest.approx(0.8)
    published = found["published"]
    assert (published["both"], published["of"], published["p"]) == (3, 3, pytest.approx(12**-3))
    assert found["median_abs_log_factor"]["no_decay"] == pytest.approx(math.log(1.2))
    assert "3 of 3 seeds" in found["sentence"]
    assert "no residual rate can be left" in found["sentence"]
    literal = order(as_published, control_from=40, steps=80, decay="literal")
    assert literal is not None
    assert "ended at 1 to 1 of their peak (decay='literal')" in literal["sentence"]

    reverse = [with_factors(0, embedding=1.0, no_decay=0.9, non_embedding=1.0, transformer=1.1)]
    other = order(reverse, control_from=40, steps=80)
    assert other is not None
    assert (other["published"]["both"], other["published"]["p"]) == (0, pytest.approx(1))
