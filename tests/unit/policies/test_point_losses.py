"""What every rank measured, in one row each, comes apart into the points it was measured at."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from hdet.policies.clock import Clock
from hdet.policies.point_losses import PointLosses
from hdet.schedules import Windows

RANKS, BATCHES = 2, 4
REMEMBERED = [0.5] * (RANKS * BATCHES)


def at(point: str, rank: int, count: int) -> list[float]:
    """The losses of one rank at a point: every one a number of its own."""
    base = 1000.0 * ["m", "p0", "p1", "e0", "e1", "chosen", "chosen end"].index(point)
    return [base + 100 * rank + k for k in range(count)]


def of_all(point: str, count: int) -> list[float]:
    return [loss for rank in range(RANKS) for loss in at(point, rank, count)]


def row(rank: int, *, scopes: int, few: int, apart: bool, ends: bool, remembers: bool) -> list[float]:
    """As a replica measures it, point after point."""
    measured = at("m", rank, BATCHES)
    for scope in range(scopes):
        if not remembers:
            measured += at(f"p{scope}", rank, few)
        measured += at(f"e{scope}", rank, few)
    measured += [0.1 * (scope + 1) + 0.01 * rank for scope in range(scopes)]
    if apart and ends:
        measured += at("chosen end", rank, BATCHES)
    if apart:
        measured += at("chosen", rank, BATCHES)
    return measured


@pytest.mark.parametrize(
    ("remembers", "scopes", "apart", "ends"),
    list(product([True, False], [1, 2], [True, False], [True, False])),
)
@pytest.mark.parametrize("few", [2, BATCHES])
def test_every_combination_comes_apart(
    remembers: bool, scopes: int, apart: bool, ends: bool, few: int
) -> None:
    rows = [
        row(rank, scopes=scopes, few=few, apart=apart, ends=ends, remembers=remembers)
        for rank in range(RANKS)
    ]
    losses = PointLosses(
        rows,
        measured=True,
        judged=True,
        scopes=scopes,
        batches=BATCHES,
        few=few,
        apart=apart,
        ends=ends,
        remembers=remembers,
        previous=REMEMBERED if remembers else None,
    )
    before = BATCHES if remembers else few
    assert losses.measured
    assert losses.mean() == of_all("m", before)
    assert losses.mean_there() == of_all("m", few)
    for scope in range(scopes):
        assert losses.before(scope) == (REMEMBERED if remembers else of_all(f"p{scope}", few))
        assert losses.end(scope) == of_all(f"e{scope}", few)
        assert losses.displacement(scope) == pytest.approx(0.1 * (scope + 1) + 0.005)
        assert len(losses.before(scope)) == len(losses.mean())
        assert len(losses.end(scope)) == len(losses.mean_there())
    assert losses.chosen == of_all("chosen" if apart else "m", BATCHES)
    if apart and ends:
        assert losses.chosen_end == of_all("chosen end", BATCHES)
    elif ends and scopes == 1:
        assert losses.chosen_end == of_all("e0", few)


SETTINGS: dict[str, Any] = {"scopes": 1, "batches": BATCHES, "few": 2, "ends": False, "remembers": True}


@pytest.mark.parametrize("scopes", [1, 2])
@pytest.mark.parametrize("apart", [True, False])
def test_before_weights_have_moved_points_have_displacements_alone(scopes: int, apart: bool) -> None:
    rows: Sequence[Sequence[float]] = [[0.1, 0.5][:scopes], [0.3, 0.7][:scopes]]
    settings = {**SETTINGS, "scopes": scopes, "remembers": False}
    losses = PointLosses(rows, measured=False, judged=False, apart=apart, previous=None, **settings)
    assert not losses.measured
    assert [losses.displacement(k) for k in range(scopes)] == pytest.approx([0.2, 0.6][:scopes])
    assert [losses.before(0), losses.mean(), losses.mean_there(), losses.end(0)] == [[]] * 4
    assert [losses.chosen, losses.chosen_end] == [[]] * 2


@pytest.mark.parametrize("apart", [True, False])
def test_before_weights_have_moved_a_path_shows_where_it_began(apart: bool) -> None:
    rows = [
        at("m", rank, BATCHES) + [0.2] + (at("chosen", rank, BATCHES) if apart else []) for rank in (0, 1)
    ]
    losses = PointLosses(rows, measured=True, judged=False, apart=apart, previous=None, **SETTINGS)
    assert losses.mean() == of_all("m", BATCHES)
    assert losses.displacement(0) == pytest.approx(0.2)
    assert losses.chosen == of_all("chosen" if apart else "m", BATCHES)
    assert [losses.before(0), losses.end(0), losses.chosen_end] == [[]] * 3


def test_windows_are_timed_from_where_the_search_began() -> None:
    clock = Clock(Windows(), total_steps=1000, origin=400)
    clock.begin(500)
    rows = [row(rank, scopes=1, few=2, apart=False, ends=False, remembers=True) for rank in range(RANKS)]
    losses = PointLosses(rows, measured=True, judged=True, apart=False, previous=REMEMBERED, **SETTINGS)
    (seen,) = losses.windows(clock, 520, [490.5], [0.25] * 8, 0.5)
    assert (seen.step, seen.next_step, seen.total_steps) == (120, 144, 600)
    assert (seen.apart, seen.rise) == (510.5 - 490.5, 0.5)
    assert (seen.previous, seen.best) == (REMEMBERED, [0.25] * 8)
    assert (seen.mean, seen.end, seen.mean_there) == (of_all("m", 4), of_all("e0", 2), of_all("m", 2))


def test_what_is_remembered_cannot_be_changed_through_it() -> None:
    remembered = list(REMEMBERED)
    rows = [row(rank, scopes=1, few=2, apart=False, ends=False, remembers=True) for rank in range(RANKS)]
    losses = PointLosses(rows, measured=True, judged=True, apart=False, previous=remembered, **SETTINGS)
    losses.before(0).clear()
    assert remembered == REMEMBERED
