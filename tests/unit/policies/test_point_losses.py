"""What every rank measured, in one row each, comes apart into the points it was measured at."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest

from hdet.policies.point_losses import PointLosses

RANKS, BATCHES = 2, 4
REMEMBERED = [0.5] * (RANKS * BATCHES)


def at(point: str, rank: int, count: int) -> list[float]:
    """The losses of one rank at a point: every one a number of its own."""
    base = 1000.0 * ["m", "p0", "p1", "e0", "e1", "chosen", "chosen end"].index(point)
    return [base + 100 * rank + k for k in range(count)]


def of_all(point: str, count: int) -> list[float]:
    return [loss for rank in range(RANKS) for loss in at(point, rank, count)]


def row(
    rank: int, *, scopes: int, few: int, apart: bool, ends: bool, remembered: bool, remembers: bool
) -> list[float]:
    """As a replica measures it, point after point."""
    measured = at("m", rank, BATCHES)
    for scope in range(scopes):
        if not remembered:
            measured += at(f"p{scope}", rank, BATCHES if remembers else few)
        measured += at(f"e{scope}", rank, few)
    measured += [0.1 * (scope + 1) + 0.01 * rank for scope in range(scopes)]
    if apart and ends:
        measured += at("chosen end", rank, BATCHES)
    if apart:
        measured += at("chosen", rank, BATCHES)
    return measured


@pytest.mark.parametrize(
    ("remembered", "remembers", "scopes", "apart", "ends"),
    [
        case
        for case in product([True, False], [True, False], [1, 2], [True, False], [True, False])
        if case[1] or not case[0]  # what is not comparable is not remembered
    ],
)
@pytest.mark.parametrize("few", [2, BATCHES])
def test_every_combination_comes_apart(
    remembered: bool, remembers: bool, scopes: int, apart: bool, ends: bool, few: int
) -> None:
    rows = [
        row(
            rank,
            scopes=scopes,
            few=few,
            apart=apart,
            ends=ends,
            remembered=remembered,
            remembers=remembers,
        )
        for rank in range(RANKS)
    ]
    losses = PointLosses(
        rows,
        scopes=scopes,
        batches=BATCHES,
        few=few,
        apart=apart,
        ends=ends,
        previous=REMEMBERED if remembered else None,
        remembers=remembers,
    )
    before = BATCHES if remembers else few
    assert losses.measured
    assert losses.mean() == of_all("m", before)
    assert losses.mean_there() == of_all("m", few)
    for scope in range(scopes):
        assert losses.before(scope) == (REMEMBERED if remembered else of_all(f"p{scope}", before))
        assert losses.end(scope) == of_all(f"e{scope}", few)
        assert losses.displacement(scope) == pytest.approx(0.1 * (scope + 1) + 0.005)
        assert len(losses.before(scope)) == len(losses.mean())
        assert len(losses.end(scope)) == len(losses.mean_there())
    assert losses.previous == losses.before(0)
    assert losses.chosen == of_all("chosen" if apart else "m", BATCHES)
    if apart and ends:
        assert losses.chosen_end == of_all("chosen end", BATCHES)
    elif ends and scopes == 1:
        assert losses.chosen_end == of_all("e0", few)


@pytest.mark.parametrize("scopes", [1, 2])
@pytest.mark.parametrize("apart", [True, False])
def test_before_weights_have_moved_there_are_displacements_alone(scopes: int, apart: bool) -> None:
    rows: Sequence[Sequence[float]] = [[0.1, 0.5][:scopes], [0.3, 0.7][:scopes]]
    losses = PointLosses(
        rows,
        scopes=scopes,
        batches=BATCHES,
        few=2,
        apart=apart,
        ends=False,
        previous=None,
        remembers=scopes == 1,
    )
    assert not losses.measured
    assert [losses.displacement(k) for k in range(scopes)] == pytest.approx([0.2, 0.6][:scopes])
    assert [losses.before(0), losses.mean(), losses.mean_there(), losses.end(0)] == [[]] * 4
    assert [losses.chosen, losses.chosen_end, losses.previous] == [[]] * 3


def test_what_is_remembered_cannot_be_changed_through_it() -> None:
    remembered = list(REMEMBERED)
    settings = {"scopes": 1, "few": 2, "apart": False, "ends": False, "remembers": True}
    rows = [row(rank, remembered=True, **settings) for rank in range(RANKS)]  # type: ignore[arg-type]
    losses = PointLosses(rows, batches=BATCHES, previous=remembered, **settings)  # type: ignore[arg-type]
    losses.before(0).clear()
    losses.previous.clear()
    assert remembered == REMEMBERED
