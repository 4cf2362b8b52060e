"""What follows from the runs: every arm at its best rate, seed by seed against plain data parallelism."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hdet.bench.islands.plan import PLAIN, Plan, Run, planned
from hdet.bench.regret.analysis import interval
from hdet.bench.rows import Row, six_digits

__all__ = ["HEADER", "analyse", "best_rate"]

#: What the JSON file keeps of every run.
HEADER = ("workload", "steps", "arm", "lr", "seed", "init", "held_out", "sent_bytes", "values", "seconds")


def best_rate(plan: Plan, finished: Mapping[Run, Row], workload: str, steps: int, arm: str) -> float | None:
    """The learning rate of the lowest mean held-out loss; None while runs are missing, or if all diverge."""
    means = {}
    for lr in plan.rates():
        rows = [finished.get(run) for run in plan.over_seeds(workload, steps, arm, lr)]
        if any(row is None for row in rows):
            return None
        losses = [row["held_out"] for row in rows if row is not None]
        if None not in losses:
            means[lr] = statistics.fmean(losses)
    return min(means, key=lambda lr: means[lr], default=None)


def analyse(plan: Plan, finished: Mapping[Run, Row]) -> dict[str, Any]:
    """A line for every task, length and arm."""
    lines = []
    for workload, (steps, arms) in itertools.product(plan.workloads, plan.arms.items()):
        plain = _at_best(plan, finished, workload, steps, PLAIN)
        lines += [_line(plan, finished, workload, steps, arm, plain) for arm in arms]
    asked_for = planned(plan)
    kept = [[finished[run][part] for part in HEADER] for run in asked_for if run in finished]
    return {
        "lines": six_digits([line for line in lines if line is not None]),
        "runs": {"header": list(HEADER), "rows": six_digits(kept)},
        "missing_runs": len(asked_for) - len(kept),
    }


def _at_best(plan: Plan, finished: Mapping[Run, Row], workload: str, steps: int, arm: str) -> list[Row]:
    lr = best_rate(plan, finished, workload, steps, arm)
    return [] if lr is None else [finished[run] for run in plan.over_seeds(workload, steps, arm, lr)]


def _line(
    plan: Plan, finished: Mapping[Run, Row], workload: str, steps: int, arm: str, plain: Sequence[Row]
) -> dict[str, Any] | None:
    rows = _at_best(plan, finished, workload, steps, arm)
    if not rows or not plain:
        return None
    loss, loss_half = interval([row["held_out"] for row in rows])
    excess = [100 * (row["held_out"] / one["held_out"] - 1) for row, one in zip(rows, plain, strict=True)]
    mean, half = interval(excess)
    names = rows[0]["values"]
    return {
        "workload": workload,
        "steps": steps,
        "arm": arm,
        "lr": rows[0]["lr"],
        "held_out": loss,
        "held_out_half_width": loss_half,
        "excess_percent": mean,
        "excess_half_width": half,
        "sent_share": rows[0]["sent_bytes"] / plain[0]["sent_bytes"],
        "values": {name: statistics.fmean(row["values"][name] for row in rows) for name in names},
        "seeds": len(rows),
    }
