"""A replica that is always worse, or better, is told; one that is so by chance is not."""

from __future__ import annotations

import math
import random

import pytest

from hdet.tuning.standing import Standing


def said(rows: list[list[float]]) -> list[str]:
    standing, told = Standing(), []
    for row in rows:
        standing, words = Standing.from_row(standing.to_row()).after(row)
        told.append(words)
    return told


@pytest.mark.parametrize(("replicas", "windows"), [(2, 25), (4, 9), (16, 8)])
def test_who_is_always_worse_is_told_once(replicas: int, windows: int) -> None:
    row = [0.1] * replicas
    row[1] = 0.3
    told = said([row] * 40)
    assert "replica 1 is worse than the others" in told[windows - 1] or replicas == 2
    assert sum(map(bool, told)) == 1
    assert told.index(next(filter(None, told))) == windows - 1


def test_better_is_told_too_and_neither_shift_nor_scale_count() -> None:
    rows = [[(0.2 * k, 0.2 * k - 0.1, 0.2 * k + 0.02)[r] * 10.0**k for r in range(3)] for k in range(40)]
    (words,) = filter(None, said(rows))
    assert words.startswith("replica 1 is better than the others, whatever its values, over ")


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_chance_is_hardly_ever_taken_for_it(replicas: int) -> None:
    """Of 400 runs of 40 windows, heavy tails and all."""
    draw = random.Random(replicas)
    runs = [
        [[draw.gauss(0, 1) / max(draw.random(), 0.05) for _ in range(replicas)] for _ in range(40)]
        for _ in range(400)
    ]
    assert sum(any(said(rows)) for rows in runs) <= 2


def test_what_cannot_be_compared_does_not_count() -> None:
    before, _ = Standing().after([1.0, 2.0])
    assert before.windows == 1
    for row in ([math.nan, 1.0], [1.0, math.inf], [1.0, 1.0], [2.0], [1.0, 1.0 + 1e-7]):
        assert before.after(row) == (before, "")
    fewer, _ = before.after([1.0, 2.0, 3.0])
    assert (fewer.windows, len(fewer.sums)) == (1, 3), "of another number of replicas nothing follows"
