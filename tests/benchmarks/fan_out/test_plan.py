"""The runs of the fan-out benchmark: the sweep first, then seed after seed, one replica and then the most."""

from __future__ import annotations

from dataclasses import asdict

from benchmarks.fan_out.plan import SWEEP, Plan, Run, planned
from benchmarks.rows import Row

PLAN = Plan(
    ("quadratic",),
    ("sgd",),
    seeds=2,
    sizes=(1, 2, 4),
    starts={"sgd": (-3, -2, -1)},
    schedules=("wsd",),
)


def swept(run: Run, best: float = 0.1) -> Row:
    """The nearer to the best learning rate, the lower the loss."""
    assert run.lr is not None
    off = abs(run.lr - best)
    return {**asdict(run), "held_out": 1 + off, "init": 3.0, "diverged": False}


def test_the_sweep_comes_first_and_goes_on_where_its_best_is_at_the_edge() -> None:
    first = planned(PLAN, {})
    kinds = [run.arm == SWEEP for run in first]
    assert kinds == sorted(kinds, reverse=True)
    assert {run.lr for run in first if run.arm == SWEEP} == {0.03162, 0.1, 0.3162}
    assert {run.replicas for run in first if run.arm == SWEEP} == {1}
    finished = {run: swept(run, best=1.0) for run in first if run.arm == SWEEP}
    assert 1.0 in {run.lr for run in planned(PLAN, finished)}


def test_seed_after_seed_and_every_run_once() -> None:
    runs = [run for run in planned(PLAN, {}) if run.arm != SWEEP]
    assert len(runs) == len(set(runs)) == 2 * 3
    assert [run.replicas for run in runs[:3]] == [1, 4, 2]
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    assert all(PLAN.holds(run) for run in planned(PLAN, {}))
