"""What more replicas buy: how sure the published controller's decision is, what is lost by it, and its cost.

Every number of replicas N trains the small model of the synthetic feed, each replica on batches of its own of
one size, so that N replicas see N times the samples. A plain sweep at the same batch says what could be had;
the others start at a tenth of the learning rate that wins it.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import machine
from benchmarks.pool import Say, complete, workers
from benchmarks.regret.analysis import interval
from benchmarks.regret.arms import prepare
from benchmarks.regret.plan import learning_rate
from benchmarks.replicas.runs import (
    ARMS,
    BATCH,
    CONTROL_AFTER,
    SIGMA,
    SPREAD,
    STEPS,
    SYNC_EVERY,
    Run,
    cost,
    execute,
)
from benchmarks.rows import KeptRows, Row, six_digits
from benchmarks.workloads import feedstream

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Plan", "analyse", "markdown", "planned", "run", "table", "tuned_lr"]

#: Who is given a learning rate starts at this share of the tuned one.
_START = 0.1
#: Of √10: from 1e-3 to 1.
_EXPONENTS = range(-6, 1)
_SIZES = {"cpu": (2, 4, 8, 16), "cuda": (2, 4, 8, 16, 64, 256)}


@dataclass(frozen=True)
class Plan:
    """Which numbers of replicas are compared, over how many seeds."""

    sizes: Sequence[int]
    seeds: int
    steps: int = STEPS
    device: str = "cpu"
    exponents: Sequence[int] = _EXPONENTS

    def over_seeds(self, arm: str, replicas: int, lr: float | None) -> list[Run]:
        """One run for each seed."""
        return [Run(arm, replicas, lr, seed, self.steps, self.device) for seed in range(self.seeds)]


def run(
    quick: bool = False,
    device: str = "cpu",
    on_progress: Say | None = None,
    *,
    seeds: int = 3,
    rows: Path | None = None,
    processes: int | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Run what is not in ``rows`` yet, and make the table of all that is; the result is plain JSON.

    Args:
        quick: two replicas, one seed, a few steps; kept in memory unless ``rows`` is given.
        seeds: how many.
        rows: the file that finished runs are appended to, ``runs/replicas-<device>.jsonl`` if None.
        processes: how many runs go on at a time, as many as there are cores if None.
        minutes: after so long no further run is started.
    """
    say = on_progress or (lambda _: None)
    plan = Plan(_SIZES["cuda" if torch.device(device).type == "cuda" else "cpu"], seeds, device=device)
    if quick:
        plan = Plan((2,), 1, steps=40, device=device, exponents=(-4, -2))
    elif rows is None:
        rows = Path("runs") / f"replicas-{device}.jsonl"
    done: KeptRows[Run] = KeptRows(rows, _run_of)
    at_once = processes or os.cpu_count() or 1
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    with workers(device, at_once, say, prepare) as pool:
        complete(
            lambda: planned(plan, done.finished),
            done,
            pool,
            execute,
            at_once=at_once,
            deadline=deadline,
            say=say,
            told=_told,
        )
    say("the cost of a step")
    about = machine.about("replicas", quick=quick, device=device)
    about["command"] += f" --seeds {seeds}" if seeds != 3 and not quick else ""
    result = {**about, **analyse(plan, done.finished), "failed": len(done.failed)}
    for row in result["rows"]:
        # All replicas stacked, and for comparison one model on all their samples.
        costs = [
            cost(arm, row["replicas"], device, blocks=1 if quick else 5) for arm in ("published", "plain")
        ]
        row["step_ms"] = six_digits(costs)
    return result


def planned(plan: Plan, finished: Mapping[Run, Row]) -> list[Run]:
    """For every N the sweep and, once it is known who wins it, those that start at a tenth of that."""
    runs = []
    # The largest first: they take longest.
    for size in sorted(plan.sizes, reverse=True):
        runs += [run for lr in _swept(plan) for run in plan.over_seeds("plain", size, lr)]
        runs += plan.over_seeds("AutoLR", size, None)
        tuned = tuned_lr(plan, finished, size)
        if tuned is not None:
            runs += [run for arm in ARMS[:3] for run in plan.over_seeds(arm, size, _tenth(tuned))]
    return list(dict.fromkeys(runs))


def tuned_lr(plan: Plan, finished: Mapping[Run, Row], size: int) -> float | None:
    """The learning rate of the lowest mean held-out loss; None while the sweep goes on, or if all diverge."""
    means = {}
    for lr in _swept(plan):
        rows = [finished.get(run) for run in plan.over_seeds("plain", size, lr)]
        if any(row is None for row in rows):
            return None
        losses = [row["held_out"] for row in rows if row is not None]
        if None not in losses:
            means[lr] = statistics.fmean(losses)
    return min(means, key=lambda lr: means[lr], default=None)


def _swept(plan: Plan) -> list[float]:
    return [learning_rate(exponent) for exponent in plan.exponents]


def _tenth(lr: float) -> float:
    return float(f"{_START * lr:.4g}")


def _run_of(row: Row) -> Run:
    return Run(**{part.name: row[part.name] for part in fields(Run)})


def _told(row: Row) -> str:
    return f"{_run_of(row)}: {row.get('error') or row['held_out']}"


# ---------------------------------------------------------------------- what it comes to


#: What the JSON file keeps of every run.
_HEADER = ("arm", "replicas", "lr", "seed", "held_out", "init")


def analyse(plan: Plan, finished: Mapping[Run, Row]) -> dict[str, Any]:
    """One line for each number of replicas."""
    lines = []
    for size in plan.sizes:
        tuned = tuned_lr(plan, finished, size)
        if tuned is not None:
            lines.append(_line(plan, finished, size, tuned))
    settings = {
        "steps": plan.steps,
        "batch_per_replica": BATCH,
        "sync_every": SYNC_EVERY,
        "control_after": CONTROL_AFTER,
        "start": _START,
        "spread": SPREAD,
        "sigma": SIGMA,
        "seeds": plan.seeds,
    }
    asked_for = planned(plan, finished)
    kept = [six_digits([finished[run][part] for part in _HEADER]) for run in asked_for if run in finished]
    return {
        "settings": settings,
        "rows": six_digits(lines),
        "runs": {"header": list(_HEADER), "rows": kept},
        "missing_runs": len(asked_for) - len(kept),
        "caveats": [feedstream.CAVEAT],
    }


def _line(plan: Plan, finished: Mapping[Run, Row], size: int, tuned: float) -> dict[str, Any]:
    def rows_of(arm: str, lr: float | None) -> list[Row]:
        return [finished[run] for run in plan.over_seeds(arm, size, lr) if run in finished]

    best = rows_of("plain", tuned)
    loss = statistics.fmean(row["held_out"] for row in best)
    gained = statistics.fmean(row["init"] for row in best) - loss
    regret = {}
    for arm in ARMS:
        rows = rows_of(arm, None if arm == "AutoLR" else _tenth(tuned))
        losses = [row["held_out"] for row in rows]
        known = bool(losses) and None not in losses
        mean, half = interval([100 * (x - loss) / gained for x in losses]) if known else (None, None)
        regret[arm] = {"mean": mean, "half_width": half, "seeds": len(rows)}
    return {
        "replicas": size,
        "tuned_lr": tuned,
        "tuned_loss": loss,
        "regret_percent": regret,
        "decision": {arm: _decisions(rows_of(arm, _tenth(tuned))) for arm in ARMS[1:3]},
    }


def _decisions(rows: Sequence[Row]) -> dict[str, float | None]:
    """Δ/η of all groups and syncs, in %: its mean, and its deviation from one sync to the next.

    The latter is taken from differences of neighbours, so that a mean which moves slowly does not count.
    """
    values: list[float] = []
    differences: list[float] = []
    for row in rows:
        for series in zip(*row["decisions"], strict=True):
            values += series
            differences += [b - a for a, b in pairwise(series)]
    if not differences:
        return {"mean_percent": None, "deviation_percent": None}
    deviation = math.sqrt(statistics.fmean(d * d for d in differences) / 2)
    return {"mean_percent": 100 * statistics.fmean(values), "deviation_percent": 100 * deviation}


_HEADINGS = [
    "N",
    "tuned: loss @ LR",
    *(f"{arm}: regret, %" for arm in ("plain at a tenth", *ARMS[1:])),
    "decision Δ/η, %",
    "with σ auto",
    "ms a step, recorded (one model, not recorded)",
]


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        str(row["replicas"]),
        f"{row['tuned_loss']:.4f} @ {row['tuned_lr']:g}",
        *(_interval(row["regret_percent"][arm]) for arm in ARMS),
        *(_decision(row["decision"][arm]) for arm in ARMS[1:3]),
        " (".join(f"{ms:.1f}" for ms in row["step_ms"]) + ")",
    ]


def _interval(found: Mapping[str, Any]) -> str:
    if found["mean"] is None:
        return "–"
    half = "" if found["half_width"] is None else f" ± {found['half_width']:.1f}"
    return f"{found['mean']:.1f}{half}"


def _decision(found: Mapping[str, Any]) -> str:
    if found["mean_percent"] is None:
        return "–"
    return f"{found['mean_percent']:+.3f} (deviation {found['deviation_percent']:.3f})"


def table(result: dict[str, Any]) -> Table:
    """One line for each number of replicas."""
    from rich.table import Table

    view = Table(*_HEADINGS, title="What more replicas buy")
    for row in result["rows"]:
        view.add_row(*_cells(row))
    return view


def markdown(result: dict[str, Any]) -> str:
    """The same for a document."""
    lines = [f"| {' | '.join(_HEADINGS)} |", "|---" * len(_HEADINGS) + "|"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in result["rows"]]
    s = result["settings"]
    seeds = f"{s['seeds']} seed{'' if s['seeds'] == 1 else 's'}"
    notes = (
        f"{s['steps']:,} steps, {s['batch_per_replica']} samples a replica, a sync every {s['sync_every']} "
        f"steps, {seeds}. Regret of the held-out loss: 0 is the best of the sweep at the same "
        "batch, 100 the untrained model. `decision` is the mean of Δ/η (Eq. 6) over syncs and groups and, in "
        "brackets, its deviation from sync to sync."
    )
    if result["missing_runs"]:
        notes += f" {result['missing_runs']} runs are missing."
    return "\n".join([*lines, "", " ".join([notes, *result["caveats"]])])
