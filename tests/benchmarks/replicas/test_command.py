"""What more replicas buy: the plan, the arithmetic, the memory, and one small run."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replicas import command as replicas
from benchmarks.replicas.command import Plan, analyse, planned, tuned_lr
from benchmarks.replicas.runs import ARMS, Run
from benchmarks.rows import Row

PLAN = Plan(sizes=(2, 4), seeds=2, steps=40, exponents=(-4, -2))


def made_up(run: Run, held_out: float | None = None) -> Row:
    """The sweep is won at 0.01; who starts at a tenth ends at 1.3 and 1.5."""
    losses = {0.01: 1.0, 0.1: 1.4, 0.001: 1.3, None: 1.05}
    loss = losses[run.lr] + 0.2 * run.seed if held_out is None else held_out
    decisions = [[0.01, 0.02], [0.03, 0.02]] if run.arm.startswith("published") else []
    return {**asdict(run), "held_out": loss, "init": 2.0 + 0.2 * run.seed, "decisions": decisions}


def all_done(plan: Plan) -> dict[Run, Row]:
    finished: dict[Run, Row] = {}
    while todo := [run for run in planned(plan, finished) if run not in finished]:
        finished |= {run: made_up(run) for run in todo}
    return finished


# ---------------------------------------------------------------------- the plan


def test_the_sweep_comes_first_and_the_others_start_at_a_tenth_of_its_winner() -> None:
    first = planned(PLAN, {})
    assert {(run.arm, run.lr) for run in first} == {("plain", 0.01), ("plain", 0.1), ("AutoLR", None)}
    assert [run.replicas for run in first] == [4] * 6 + [2] * 6, "the largest first"
    # What one N has found says nothing about another.
    half = {run: made_up(run) for run in first if run.replicas == 4}
    then = [run for run in planned(PLAN, half) if run not in first]
    assert {(run.arm, run.replicas, run.lr) for run in then} == {(arm, 4, 0.001) for arm in ARMS[:3]}
    runs = planned(PLAN, all_done(PLAN))
    assert len(runs) == len(set(runs)) == 2 * 2 * (2 + 1 + 3)


def test_the_tuned_learning_rate_is_that_of_the_lowest_mean_of_all_seeds() -> None:
    finished = all_done(PLAN)
    assert tuned_lr(PLAN, finished, 2) == 0.01
    one, other = PLAN.over_seeds("plain", 2, 0.01)
    assert tuned_lr(PLAN, {**finished, other: made_up(other, held_out=2.2)}, 2) == 0.1
    diverged = {**made_up(other), "held_out": None}
    assert tuned_lr(PLAN, {**finished, other: diverged}, 2) == 0.1
    assert tuned_lr(PLAN, {run: row for run, row in finished.items() if run != one}, 2) is None


# ---------------------------------------------------------------------- the arithmetic


def test_regret_is_the_share_of_what_the_tuned_run_gained() -> None:
    finished = all_done(PLAN)
    for seed, run in enumerate(PLAN.over_seeds("published", 2, 0.001)):
        finished[run] = made_up(run, held_out=1.1)
        # The controller's doing: one sync in the second seed, three in the first.
        finished[run]["decisions"] = [[0.0, 0.0]] if seed else [[0.01, 0.02], [0.03, 0.02], [0.05, 0.02]]
    gone = PLAN.over_seeds("published, σ auto", 2, 0.001)[0]
    finished[gone] = {**finished[gone], "held_out": None}
    row, other = analyse(PLAN, finished)["rows"]
    # Held out 1.0 and 1.2, untrained 2.0 and 2.2: the tuned run has gained 1.0 and has 1.1.
    assert (row["replicas"], row["tuned_lr"], row["tuned_loss"]) == (2, 0.01, 1.1)
    regret = row["regret_percent"]
    # 1.3 and 1.5 are 20 and 40 %; t of one degree of freedom is 12.706.
    assert regret["plain"] == {"mean": 30.0, "half_width": pytest.approx(127.06, rel=1e-4), "seeds": 2}
    assert regret["published"] == {"mean": 0.0, "half_width": 0.0, "seeds": 2}
    assert regret["published, σ auto"] == {"mean": None, "half_width": None, "seeds": 2}
    assert regret["AutoLR"]["mean"] == pytest.approx(5.0)
    # (0.09 + 0.06 + 0)/8; differences 0.02, 0.02, 0, 0: √(0.0002/2) = 0.01.
    decision = row["decision"]["published"]
    assert decision == {"mean_percent": pytest.approx(1.875), "deviation_percent": pytest.approx(1.0)}
    assert other["replicas"] == 4


def test_the_deviation_of_a_decision_is_its_noise_and_not_its_trend() -> None:
    draw = random.Random(0)
    plan = replace(PLAN, sizes=(2,), seeds=1)
    finished = all_done(plan)
    (run,) = plan.over_seeds("published", 2, 0.001)
    finished[run]["decisions"] = [[step / 2000 + draw.gauss(0, 0.01)] for step in range(2000)]
    decision = analyse(plan, finished)["rows"][0]["decision"]["published"]
    assert decision["deviation_percent"] == pytest.approx(1.0, rel=0.05)
    assert decision["mean_percent"] == pytest.approx(50, rel=0.01)


# ---------------------------------------------------------------------- memory


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """To start a process takes longer than the runs."""
    monkeypatch.setattr(replicas, "workers", lambda *_: ThreadPoolExecutor(1))


def test_stopped_and_started_again_nothing_is_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_this_process: None
) -> None:
    asked: list[Run] = []
    raises = [3, 5]

    def work(run: Run) -> Row:
        asked.append(run)
        if len(asked) in raises:
            raise KeyboardInterrupt
        return made_up(run)

    def start() -> dict[str, Any]:
        return replicas.run(quick=True, processes=1, rows=tmp_path / "kept" / "rows.jsonl")

    monkeypatch.setattr(replicas, "execute", work)
    monkeypatch.setattr(replicas, "cost", lambda *_, **__: 1.0)
    for _ in raises:
        with pytest.raises(KeyboardInterrupt):
            start()
    result = start()
    assert (result["missing_runs"], len(set(asked))) == (0, 6)
    assert len(asked) == 6 + len(raises), "only what was interrupted is run again"
    again = start()
    assert len(asked) == 6 + len(raises)
    assert again["rows"] == result["rows"]


# ---------------------------------------------------------------------- for real


@pytest.fixture(scope="module")
def result(small: None) -> dict[str, Any]:
    return replicas.run(quick=True, processes=1)


def test_a_quick_run_fills_every_cell(result: dict[str, Any]) -> None:
    assert (result["missing_runs"], result["failed"]) == (0, 0)
    assert result["command"] == "python -m benchmarks replicas --quick"
    (row,) = result["rows"]
    assert (row["replicas"], row["tuned_lr"]) == (2, 0.01)
    regret = {arm: row["regret_percent"][arm]["mean"] for arm in ARMS}
    # A tenth of the best learning rate is too little in so few steps, whoever controls it.
    assert regret["plain"] > 10 > regret["AutoLR"]
    assert regret["published"] == pytest.approx(regret["plain"], abs=2)
    assert regret["published, σ auto"] == pytest.approx(regret["plain"], abs=2)
    assert all(row["decision"][arm]["deviation_percent"] > 0 for arm in ARMS[1:3])
    assert all(ms > 0 for ms in row["step_ms"])
    json.dumps(result, allow_nan=False)
