"""Every arm: its budget, and what it may not see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.autotune import arms, plan
from benchmarks.autotune.arms import execute, unavailable
from benchmarks.autotune.plan import ARMS, AUTOTUNE, PB2, PBT, SWEEP, TPE_HYPERBAND, Plan, Run
from benchmarks.workloads import Workload

pytestmark = pytest.mark.filterwarnings("ignore")  # of what peers import
PLAN = Plan(("digits",), seeds=1, members=3, swept=2, steps=20)
SPENDING = [arm for arm in (*ARMS, SWEEP) if arm != AUTOTUNE]


@pytest.mark.parametrize("arm", SPENDING)
def test_every_arm_spends_its_budget_exactly(arm: str) -> None:
    if why := unavailable(arm):
        pytest.skip(why)
    runs = PLAN.runs("digits", arm, 0) if arm != SWEEP else [PLAN.run("digits", SWEEP, 0, n) for n in (0, 1)]
    rows = [execute(0, run) for run in runs]
    assert sum(row["samples"] for row in rows if row) == PLAN.budget("digits", arm)


@pytest.mark.parametrize("arm", SPENDING)
def test_no_choice_has_seen_the_tests_samples(
    arm: str, tiny: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other test samples an arm tries the same settings, and chooses the same weights by the probe."""
    if why := unavailable(arm):
        pytest.skip(why)
    row = execute(0, tiny(arm))
    known = plan.workload

    def with_others(*given: str) -> Workload:
        work = known(*given)
        return replace(work, held_out=tuple((images * 0, labels) for images, labels in work.held_out))

    monkeypatch.setattr(plan, "workload", with_others)
    other = execute(0, tiny(arm))
    assert row is not None
    assert other is not None
    assert row["test"] != other["test"]
    for same in ("trials", "probe", "setting", "samples"):
        assert row[same] == other[same]
    assert [point[:2] for point in row["points"]] == [point[:2] for point in other["points"]]


def test_an_arm_that_cannot_be_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "find_spec", lambda package: None)
    assert unavailable(TPE_HYPERBAND) == "optuna is not installed: pip install -r benchmarks/requirements.txt"
    assert unavailable(PBT) == unavailable(PB2) == ""
