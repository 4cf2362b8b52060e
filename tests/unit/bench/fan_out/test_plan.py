"""The runs of the fan-out benchmark: the sweep first, then seed after seed, one replica and then the most."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from hdet.bench.fan_out.plan import OWN, PROBES, SHARED, SWEEP, Plan, Rows, Run, planned, run_of
from hdet.bench.rows import Row

PLAN = Plan(
    ("quadratic",),
    ("sgd",),
    seeds=2,
    sizes=(1, 2, 4),
    spreads={PROBES: (0.0,), SHARED: (0.1,), OWN: (0.0, 0.3)},
    starts={"sgd": (-3, -2, -1)},
    schedules=("wsd",),
)


def swept(run: Run, best: float = 0.1) -> Row:
    """The nearer to the best learning rate, the lower the loss."""
    assert run.lr is not None
    off = abs(run.lr - best)
    return {**asdict(run), "held_out": 1 + off, "init": 3.0, "diverged": False}


def test_one_replica_has_one_arm_and_the_others_every_spread() -> None:
    arms = PLAN.arms
    assert [arm for arm in arms if arm[2] == 1] == [(PROBES, 0.0, 1)]
    assert [arm[:2] for arm in arms if arm[2] == 4] == [(PROBES, 0.0), (SHARED, 0.1), (OWN, 0.0), (OWN, 0.3)]
    assert [size for _, _, size in arms] == [1] + [4] * 4 + [2] * 4


def test_the_sweep_comes_first_and_goes_on_where_its_best_is_at_the_edge() -> None:
    first = planned(PLAN, {})
    kinds = [run.arm == SWEEP for run in first]
    assert kinds == sorted(kinds, reverse=True)
    assert {run.lr for run in first if run.arm == SWEEP} == {0.03162, 0.1, 0.3162}
    assert {run.replicas for run in first if run.arm == SWEEP} == {1}
    finished = {run: swept(run, best=1.0) for run in first if run.arm == SWEEP}
    assert 1.0 in {run.lr for run in planned(PLAN, finished)}


def test_what_is_far_behind_is_not_swept_with_other_seeds() -> None:
    first = [run for run in planned(PLAN, {}) if run.arm == SWEEP and run.seed == 0]
    finished = {
        run: {**swept(run), "held_out": 2.9 if run.lr == 0.3162 else swept(run)["held_out"]} for run in first
    }
    then = [run for run in planned(PLAN, finished) if run.arm == SWEEP and run.seed == 1]
    assert {run.lr for run in then} == {0.03162, 0.1}


def test_seed_after_seed_and_every_run_once() -> None:
    runs = [run for run in planned(PLAN, {}) if run.arm != SWEEP]
    assert len(runs) == len(set(runs)) == 2 * len(PLAN.arms)
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    assert all(PLAN.holds(run) for run in planned(PLAN, {}))


def test_what_another_plan_has_run_is_none_of_this_one() -> None:
    run = planned(PLAN, {})[-1]
    assert not PLAN.holds(replace(run, steps=10))
    assert not PLAN.holds(replace(run, seed=2))
    assert not PLAN.holds(replace(run, replicas=8))
    assert not PLAN.holds(replace(run, workload="charlm"))
    assert not replace(PLAN, spreads={PROBES: (0.0,)}).holds(replace(run, arm=OWN, replicas=2))


def test_rows_are_remembered(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "rows.jsonl"
    runs = planned(PLAN, {})
    done = Rows(path)
    done.add(swept(runs[0]))
    done.add({**asdict(runs[1]), "error": "it broke"})
    again = Rows(path)
    assert list(again.finished) == runs[:1]
    assert list(again.failed) == runs[1:2]
    assert run_of(again.finished[runs[0]]) == runs[0]
