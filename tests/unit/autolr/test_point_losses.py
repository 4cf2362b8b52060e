"""What every rank measured, in one row each, comes apart into the points it was measured at."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from hdet.autolr.clock import Clock
from hdet.autolr.policy import PointLosses
from hdet.autolr.rule import Window
from hdet.loop.windows import Windows

RANKS, BATCHES = 2, 4
PREVIOUS = [0.5] * (RANKS * BATCHES)


def at(point: str, rank: int, count: int) -> list[float]:
    """The losses of one rank at a point: every one a number of its own."""
    base = 1000.0 * ["m", "e", "chosen", "chosen end"].index(point)
    return [base + 100 * rank + k for k in range(count)]


def of_all(point: str, count: int) -> list[float]:
    return [loss for rank in range(RANKS) for loss in at(point, rank, count)]


def row(rank: int, *, factors: int, few: int, apart: bool, ends: bool, judged: bool = True) -> list[float]:
    """As a replica measures it, point after point."""
    measured = at("m", rank, BATCHES) + (at("e", rank, few) if judged else [])
    measured += [0.1 * (factor + 1) + 0.01 * rank for factor in range(factors)]
    if apart and ends and judged:
        measured += at("chosen end", rank, BATCHES)
    if apart:
        measured += at("chosen", rank, BATCHES)
    return measured


def losses_of(few: int, judged: bool = True, **settings: Any) -> PointLosses:
    rows = [row(rank, few=few, judged=judged, **settings) for rank in range(RANKS)]
    previous = PREVIOUS if judged else None
    return PointLosses(rows, judged=judged, batches=BATCHES, few=few, previous=previous, **settings)


def windows_of(losses: PointLosses, factors: int = 1) -> list[Window]:
    clock = Clock(Windows(), total_steps=1000, origin=400)
    clock.begin(500)
    return losses.windows(clock, 520, [490.5] * factors, [0.25] * 8, 0.5)


@pytest.mark.parametrize(
    ("factors", "apart", "ends", "few"), list(product([1, 2], [True, False], [True, False], [2, BATCHES]))
)
def test_every_combination_comes_apart(factors: int, apart: bool, ends: bool, few: int) -> None:
    losses = losses_of(few, factors=factors, apart=apart, ends=ends)
    assert losses.mean == of_all("m", BATCHES)
    assert losses.displacements == pytest.approx([0.105, 0.205][:factors])
    for seen in windows_of(losses, factors):
        assert (seen.previous, seen.mean) == (PREVIOUS, of_all("m", BATCHES))
        assert (seen.end, seen.mean_there) == (of_all("e", few), of_all("m", few))
    assert losses.chosen == of_all("chosen" if apart else "m", BATCHES)
    if ends:
        assert losses.chosen_end == (of_all("chosen end", BATCHES) if apart else of_all("e", few))


@pytest.mark.parametrize("apart", [True, False])
def test_before_weights_have_moved_it_shows_where_training_began(apart: bool) -> None:
    losses = losses_of(2, judged=False, factors=1, apart=apart, ends=False)
    (seen,) = windows_of(losses)
    assert losses.mean == of_all("m", BATCHES)
    assert losses.displacements == pytest.approx([0.105])
    assert losses.chosen == of_all("chosen" if apart else "m", BATCHES)
    assert [seen.previous, seen.end, losses.chosen_end] == [[]] * 3
    assert seen.best == ()


def test_windows_are_timed_from_where_the_search_began() -> None:
    (seen,) = windows_of(losses_of(2, factors=1, apart=False, ends=False))
    assert (seen.step, seen.next_step, seen.total_steps) == (120, 144, 600)
    assert (seen.apart, seen.rise) == (510.5 - 490.5, 0.5)
    assert seen.best == [0.25] * 8
