"""When a run has crashed, at which step, and what the plan makes of it."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict

import pytest

from benchmarks.reproduce.crash import crash_step, judged
from benchmarks.reproduce.plan import PLAIN, Plan, Row, Run, crash_lr, planned, sweep, tuned_lr

PLAN = Plan("feed", "cpu", seeds=3)
POINTS = range(15, 3001, 15)
#: The losses of who knows the base rates alone, and of the best plain run: 0.2 is what there is to learn.
BLIND, REFERENCE = 1.3, 1.1
Curve = Callable[[float], float]


def drawn(curve: Curve, noise: float = 0.01) -> list[float | None]:
    """What ``curve`` makes of the share of the run that is over, at every point, with noise of its own."""
    draw = random.Random(1)
    return [curve(step / POINTS[-1]) + draw.gauss(0, noise) for step in POINTS]


def row_of(run: Run, losses: list[float | None]) -> Row:
    """As a run leaves it: the final loss is the mean of the last twentieth."""
    last = losses[-len(losses) // 20 :]
    train = None if None in last else sum(loss for loss in last if loss is not None) / len(last)
    return {**asdict(run), "train": train, "loss_steps": list(POINTS), "loss": losses}


def crash(losses: list[float | None], lr: float = 0.1) -> int | None:
    """Held against a plain run that learns, at 0.01."""
    best = row_of(PLAN.run(PLAIN, 0.01, 0), drawn(learning))
    return crash_step(row_of(PLAN.run("HDET (full)", lr, 0), losses), best, BLIND)


def learning(at: float) -> float:
    """From 2.1 by way of the base rates to the reference."""
    return max(REFERENCE, 2.1 - 4 * at)


def wrecked(at: float) -> float:
    """Learns, is thrown off at 0.6 and anneals back to the base rates."""
    return learning(at) if at < 0.6 else BLIND + 20 * math.exp(-40 * (at - 0.6))


@pytest.mark.parametrize(
    "curve",
    [
        pytest.param(learning, id="learns"),
        pytest.param(lambda at: 30 if 0.4 < at < 0.6 else learning(at), id="comes back"),
        pytest.param(lambda at: learning(at) + 0.09 * (at > 0.5), id="loses less than half"),
    ],
)
def test_no_crash(curve: Curve) -> None:
    assert crash(drawn(curve)) is None


@pytest.mark.parametrize(
    "curve",
    [
        pytest.param(lambda at: 2.1 - 0.3 * at, id="still falling, above everybody"),
        pytest.param(lambda at: 2.1, id="learns nothing"),
        pytest.param(lambda at: max(BLIND, 2.1 - 4 * at), id="comes to rest at the base rates from above"),
    ],
)
def test_who_has_learnt_nothing_is_slow_below_the_best_learning_rate_and_has_crashed_above(
    curve: Curve,
) -> None:
    assert crash(drawn(curve), lr=0.001) is None
    assert crash(drawn(curve), lr=0.01) is None
    assert crash(drawn(curve), lr=0.1) is not None


@pytest.mark.parametrize(
    ("curve", "at"),
    [
        pytest.param(wrecked, 0.6, id="wrecked, and annealed back to the base rates"),
        pytest.param(lambda at: learning(at) if at < 0.6 else BLIND, 0.6, id="base rates again"),
        pytest.param(lambda at: learning(at) + 0.12 * (at > 0.5), 0.5, id="loses more than half"),
        pytest.param(lambda at: learning(at) if at < 0.3 else 300, 0.3, id="explodes"),
        pytest.param(
            lambda at: 40 if 0.4 < at < 0.5 else wrecked(at), 0.6, id="came back from the first of two"
        ),
    ],
)
def test_a_crash_is_where_the_loss_rose_for_good(curve: Curve, at: float) -> None:
    assert crash(drawn(curve)) == pytest.approx(at * POINTS[-1], abs=POINTS[-1] // 50)


def test_a_loss_that_is_not_finite_is_a_crash_at_that_point() -> None:
    for lr in [0.001, 0.1]:
        losses = drawn(learning)
        losses[40], losses[60:] = None, [None] * len(losses[60:])
        assert crash(losses, lr) == POINTS[40]
        # The mean over the last steps may hold what the mean of a point does not.
        row = {**row_of(PLAN.run(PLAIN, lr, 0), drawn(learning)), "train": None}
        assert crash_step(row, None, BLIND) == POINTS[-1]


@pytest.mark.parametrize("lr", [0.001, 0.1])
def test_who_ends_far_above_the_base_rates_has_crashed_whatever_was_learnable(lr: float) -> None:
    run = PLAN.run(PLAIN, lr, 0)
    exploded = row_of(run, drawn(lambda at: 2.1 if at < 0.3 else 121))
    nothing_learnt = row_of(PLAN.run(PLAIN, 0.01, 0), drawn(lambda at: 2.1))
    for best in (None, nothing_learnt, exploded):
        step = crash_step(exploded, best, BLIND)
        assert step == pytest.approx(0.3 * POINTS[-1], abs=POINTS[-1] // 50)
    # Who has not moved yet has not crashed.
    assert crash_step({**nothing_learnt, "lr": lr}, None, BLIND) is None


def judged_curves(curves: Mapping[tuple[str, float, int], Curve]) -> dict[tuple[str, float, int], bool]:
    """Who of these (configuration, learning rate, seed) has crashed."""
    runs = {key: PLAN.run(*key) for key in curves}
    found = judged({run: row_of(run, drawn(curves[key])) for key, run in runs.items()}, BLIND)
    return {key: found[run]["crashed"] for key, run in runs.items()}


@pytest.mark.parametrize("more", [-0.3, 0.4])
def test_a_drift_that_lifts_all_runs_of_a_seed_is_no_crash(more: float) -> None:
    lifted: dict[tuple[str, float, int], Curve] = {
        (PLAIN, 1e-3, 0): lambda at: learning(at) + more * (at > 0.6),
        (PLAIN, 1e-2, 0): lambda at: learning(at) + 0.01 + more * (at > 0.6),
        ("HDET (full)", 1e-2, 0): lambda at: learning(at) + 0.005 + more * (at > 0.6),
    }
    assert not any(judged_curves(lifted).values())


def test_a_run_is_held_against_the_best_plain_run_of_its_own_seed() -> None:
    def lost(at: float) -> float:
        return 1.27 if at > 0.5 else max(1.2, 2.1 - 4 * at)

    curves: dict[tuple[str, float, int], Curve] = {
        (PLAIN, 1e-3, 0): learning,
        (PLAIN, 1e-1, 0): lambda at: max(1.28, 2.1 - 4 * at),
        ("HDET (full)", 1e-1, 0): lost,
        # What there was to learn in the second seed it has kept, though one that is not plain had more.
        (PLAIN, 1e-3, 1): lambda at: max(1.26, 2.1 - 4 * at),
        ("HDET (full)", 1e-1, 1): lost,
        ("Warm-Init", 1e-1, 1): learning,
    }
    crashed = judged_curves(curves)
    assert [key for key, gone in crashed.items() if gone] == [(PLAIN, 1e-1, 0), ("HDET (full)", 1e-1, 0)]


def test_rows_are_judged_anew_and_left_as_they_were() -> None:
    rows = {
        run: {**row_of(run, drawn(curve)), "init": 2.1, "seconds": 3.0}
        for run, curve in ((PLAN.run(PLAIN, 1e-3, 0), learning), (PLAN.run(PLAIN, 0.1, 0), wrecked))
    }
    before = copy.deepcopy(rows)
    found = judged(rows, BLIND)
    assert rows == before
    assert [row["crashed"] for row in found.values()] == [False, True]
    verdict = {"crashed", "crash_step"}
    assert {run: {k: row[k] for k in row if k not in verdict} for run, row in found.items()} == before
    # A verdict that stands in a row, by whatever rule, is of no account.
    stale = {run: {**row, "crashed": not row["crashed"], "crash_step": 7} for run, row in found.items()}
    assert judged(stale, BLIND) == judged(found, BLIND) == found


@pytest.mark.parametrize(("seeds_lost", "highest"), [(1, 1.0), (2, 0.1)])
def test_the_sweep_of_judged_runs_ends_where_most_seeds_crash(seeds_lost: int, highest: float) -> None:
    """At 0.1 in some seeds, at 1 in all; below, a seed is at most worse than another."""

    def trained(run: Run) -> Row:
        rate = run.lr or 1e-3
        crashes = rate >= 1 or (rate >= 0.1 and run.seed < seeds_lost)
        behind = 0.01 * run.seed + 0.005 * abs(math.log10(rate) + 2)
        return row_of(run, drawn(wrecked if crashes else lambda at: learning(at) + behind))

    plan = Plan("feed", "cpu", seeds=3, lines=("Baseline-High",), exponents=(-8, -4, -2, 0, 2))
    rows: dict[Run, Row] = {}
    while todo := [run for run in planned(plan, judged(rows, BLIND)) if run not in rows]:
        rows[todo[0]] = trained(todo[0])
    finished = judged(rows, BLIND)
    assert (crash_lr(plan, finished), sweep(plan, finished)[-1]) == (highest, highest)
    assert tuned_lr(plan, finished) == 0.01
    assert max(run.lr or 0 for run in rows) == highest, "nothing above was run"
