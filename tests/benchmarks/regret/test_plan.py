"""The order of runs, and how far a sweep goes."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from benchmarks.regret.plan import ARMS, Plan, Row, Run, next_half_decade, planned


def test_a_sweep_goes_on_at_its_edges_alone() -> None:
    assert next_half_decade({-2: 3.0, -1: 1.0, 0: 2.0}) is None
    assert next_half_decade({-2: 1.0, -1: 2.0, 0: 3.0}) == -3
    assert next_half_decade({-2: 3.0, -1: 2.0, 0: 1.0}) == 1
    assert next_half_decade({-1: 2.0, 0: math.inf}) == -2
    assert next_half_decade({-1: math.inf, 0: math.inf}) == -2


def finished(plan: Plan, loss_at: Any, seeds: range) -> dict[Run, Row]:
    """Do what the plan asks for, seed by seed, until it asks for nothing new."""
    done: dict[Run, Row] = {}
    while new := [run for run in planned(plan, done) if run not in done and run.seed in seeds]:
        for run in new:
            loss = loss_at(run)
            diverged = loss == math.inf
            end = {"held_out": None if diverged else loss, "diverged": diverged}
            done[run] = {**asdict(run), "init": 9.0, **end}
    return done


def rates(done: dict[Run, Row]) -> list[float]:
    return sorted({run.lr for run in done if run.arm == "sweep" and run.lr is not None})


def test_the_order_starts_with_the_sweep_of_the_first_seed() -> None:
    plan = Plan(("quadratic", "digits-mlp"))
    runs = planned(plan, {})
    assert len(set(runs)) == len(runs)
    assert {(run.arm, run.seed) for run in runs[:40]} == {("sweep", 0)}
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    for seed in (0, 1):
        assert {run.arm for run in runs if run.seed == seed} == {"sweep", *ARMS}
    assert not [run for run in runs if run.arm == "prodigy" and run.optimizer == "sgd"]


def test_a_learning_rate_far_behind_waits_for_its_other_seeds() -> None:
    plan = Plan(("quadratic",), ("adamw",), seeds=3)

    def loss(run: Run) -> float:
        return 0.1 if run.arm != "sweep" else abs(math.log10(run.lr or 1) + 2)

    done = finished(plan, loss, range(1))
    others = [run for run in planned(plan, done) if run.seed > 0]
    assert len(others) == len(set(others)) == 2 * (2 * len(rates(done)) + len(ARMS))
    far = [run.arm == "sweep" and run.lr in (0.1, 0.001) for run in others]
    assert far.index(True) == len(far) - sum(far) == len(far) - 2 * 2 * 2
    # Where all diverge none is ahead, and still each is run once.
    everywhere = planned(plan, finished(plan, lambda run: math.inf, range(3)))
    assert len(set(everywhere)) == len(everywhere)
