"""Islands against plain data parallelism: the plan, the arithmetic, and one small run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hdet.bench.islands import command
from hdet.bench.islands.analysis import analyse, best_rate
from hdet.bench.islands.plan import ARMS, ISLANDS, PLAIN, Plan, Run, planned, run_of
from hdet.bench.rows import Row
from tests.unit.bench.screen import shown

PLAN = Plan(("digits-mlp",), seeds=2, arms={100: (PLAIN, "mean", "outer, int8")}, exponents=(-4, -2))


def made_up(run: Run) -> Row:
    """DDP has 1.0 and 1.2, the mean 10 % more at its best rate, and all others twice as much."""
    loss = {PLAIN: 1.0, "mean": 1.1}.get(run.arm, 2.0) * (1 + 0.2 * run.seed) * (1 if run.lr == 0.01 else 1.5)
    sent = 100.0 if run.arm == PLAIN else 6.0
    return {**asdict(run), "init": 9.0, "held_out": loss, "sent_bytes": sent, "values": {}, "seconds": 1.0}


def finished(plan: Plan = PLAN) -> dict[Run, Row]:
    return {run: made_up(run) for run in planned(plan)}


def test_every_arm_has_the_same_rates_seeds_and_lengths() -> None:
    runs = planned(PLAN)
    assert len(runs) == len(set(runs)) == 3 * 2 * 2
    assert {run.replicas for run in runs if run.arm == "outer, int8"} == {ISLANDS}
    assert {run.replicas for run in runs if run.arm != "outer, int8"} == {1}, "rows of one process"
    assert all(run_of(json.loads(json.dumps(made_up(run)))) == run for run in runs)
    whole = Plan(("digits-mlp",))
    assert all(arms[0] == PLAIN and set(arms) <= set(ARMS) for arms in whole.arms.values())


def test_each_is_measured_at_its_best_rate_against_ddp_of_the_same_seed() -> None:
    result = analyse(PLAN, finished())
    plain, mean, packed = result["lines"]
    assert (plain["lr"], plain["excess_percent"], plain["sent_share"]) == (0.01, 0.0, 1.0)
    assert mean["excess_percent"] == pytest.approx(10.0)
    assert mean["excess_half_width"] == pytest.approx(0.0, abs=1e-9)
    assert (packed["excess_percent"], packed["sent_share"]) == (100.0, 0.06)
    assert result["missing_runs"] == 0


def test_a_line_needs_all_of_its_runs_and_one_that_diverged_has_no_part() -> None:
    done = finished()
    first = next(run for run in done if run.arm == "mean" and run.lr == 0.01)
    done[first] = {**done[first], "held_out": None}
    assert best_rate(PLAN, done, "digits-mlp", 100, "mean") == 0.1
    del done[first]
    assert [line["arm"] for line in analyse(PLAN, done)["lines"]] == [PLAIN, "outer, int8"]
    assert analyse(PLAN, done)["missing_runs"] == 1


def test_a_small_run(tmp_path: Path) -> None:
    kept = tmp_path / "rows.jsonl"
    said: list[str] = []
    result = command.run(quick=True, on_progress=said.append, rows=kept)
    assert result["failed"] == 0, kept.read_text()
    assert [line["arm"] for line in result["lines"]] == ["DDP", "outer explored", "outer explored, int8"]
    assert all(line["held_out"] > 0 for line in result["lines"])
    exact, packed = (line["sent_share"] for line in result["lines"][1:])
    assert packed < exact < 1, "fewer bits of the weights; the optimizer's state as it is"
    assert set(result["lines"][1]["values"]) == {"outer_lr", "outer_momentum"}
    again: Any = command.run(quick=True, rows=kept)
    assert again["lines"] == result["lines"], "nothing is run again"
    assert "outer explored, int8" in shown(command.table(result))
    assert "| quadratic, 2 | DDP | 0.01 |" in command.markdown(result)
    with pytest.raises(ValueError, match="device must be 'cpu'"):
        command.run(device="cuda")
