"""What a learning rate that nobody gave costs: AutoLR and others beside a tuned sweep, on small real tasks.

Hundreds of short runs, each of which is written down when it is done, so that the benchmark can be stopped
and started again. The measure is excess (:mod:`benchmarks.regret.excess`); what is run is in
:mod:`benchmarks.regret.plan`, how in :mod:`benchmarks.regret.arms`.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import machine
from benchmarks import pool as pool_of_runs
from benchmarks.pool import Say
from benchmarks.regret.analysis import LOOKED_AT
from benchmarks.regret.arms import execute, prepare
from benchmarks.regret.excess import compare
from benchmarks.regret.plan import OPTIMIZERS, USUAL, Plan, Row, Rows, Run, planned
from benchmarks.regret.tables import detail, matrix, unpaired_note
from benchmarks.rows import six_digits
from benchmarks.workloads import WORKLOADS, feedstream, newsfeed

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["complete", "recomputed", "run", "table"]

_CAVEATS = {
    "newsfeed": newsfeed.CAVEAT,
    "newsfeed-stream": feedstream.CAVEAT,
    "ratings": newsfeed.CAVEAT,
    "charlm-long": "charlm-long was not looked at, but has the text and kind of model of charlm, which was.",
}
#: What the JSON file keeps of every run.
_HEADER = (
    *("workload", "optimizer", "arm", "lr", "schedule", "seed"),
    *("held_out", "train", "init", "init_train", "seconds", "reached", "diverged"),
    *("chosen", "chosen_step", "chosen_kind", "estimate", "taken"),
)
_QUICK = Plan(
    workloads=("digits-mlp", "quadratic"),
    optimizers=("adamw",),
    seeds=1,
    arms=("default-onecycle", "autolr"),
    schedules=("wsd",),
    starts={"adamw": (-5, -4, -3)},
    extensions=0,
    steps=60,
)

#: The tasks of the table.
COMPARED = (
    *("sentences", "bikes", "ratings", "wordlm", "few-images", "vae"),
    *("charlm", "charlm-tuned", "charlm-lora", "diffusion"),
)


def run(
    quick: bool = False,
    device: str = "cpu",
    on_progress: Say | None = None,
    *,
    scale: str | None = None,
    workloads: Sequence[str] | None = None,
    optimizers: Sequence[str] = USUAL,
    seeds: int = 3,
    rows: Path | None = None,
    merge: Sequence[Path] = (),
    processes: int | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Run what is not in ``rows`` yet, and make the table of all that is; the result is plain JSON.

    Args:
        quick: two tiny tasks and few arms, to see that it works; kept in memory unless ``rows`` is given.
        scale: ``"cpu"`` or ``"gpu"``, the size of the tasks; that of the device if None.
        workloads: names from :data:`benchmarks.workloads.WORKLOADS`; those of the table if None.
        optimizers: names from :data:`benchmarks.regret.plan.OPTIMIZERS`.
        rows: the file that finished runs are appended to, ``runs/regret-<scale>-<device>.jsonl`` if None.
        merge: further files of finished runs, which are only read; a run that ``rows`` has counts as there.
        processes: how many runs go on at a time, as many as there are cores if None.
        minutes: after so long no further run is started; 0 makes the table of what there is.
    """
    say = on_progress or (lambda _: None)
    scale = scale or ("gpu" if torch.device(device).type == "cuda" else "cpu")
    names = _checked("workloads", COMPARED if workloads is None else workloads, WORKLOADS)
    kinds = _checked("optimizers", optimizers, OPTIMIZERS)
    plan = Plan(names, kinds, seeds=seeds, scale=scale, device=device)
    if quick:
        plan = replace(_QUICK, scale=scale, device=device)
    elif rows is None:
        rows = Path("runs") / f"regret-{scale}-{device}.jsonl"
    done = Rows(rows)
    for other in merge:
        say(f"{done.merge(other)} finished runs from {other}")
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    at_once = processes or os.cpu_count() or 1
    if time.monotonic() < deadline:
        with pool_of_runs.workers(device, at_once, say, prepare) as pool:
            complete(plan, done, pool, execute, at_once=at_once, deadline=deadline, say=say)
    about = machine.about("regret", quick=quick, device=device)
    about["command"] += _options(plan, quick)
    return _result(plan, done, about)


def complete(
    plan: Plan,
    done: Rows,
    pool: Executor,
    work: Callable[[Run], Row],
    *,
    at_once: int,
    deadline: float,
    say: Say,
) -> None:
    """Have the pool do whatever the plan still lacks, in the plan's order, until ``deadline``.

    The plan is asked anew after every result, since a sweep goes on where its best is at the edge.
    """
    pool_of_runs.complete(
        lambda: planned(plan, done.finished),
        done,
        pool,
        work,
        at_once=at_once,
        deadline=deadline,
        say=say,
        told=_told,
    )


def _told(row: Row) -> str:
    end = row.get("error") or ("diverged" if row["diverged"] else f"{row['held_out']:.4f}")
    took = f" in {row['seconds']:.1f} s" if "seconds" in row else ""
    parts = (str(row[name]) for name in ("workload", "optimizer", "arm", "lr", "schedule", "seed"))
    return f"{' '.join(parts)}: {end}{took}"


def _checked(what: str, given: Sequence[str], known: Iterable[str]) -> tuple[str, ...]:
    known = tuple(known)
    if not given or any(name not in known for name in given):
        raise ValueError(f"{what} must be some of {', '.join(known)}, got {', '.join(given) or 'none'}")
    return tuple(given)


# ---------------------------------------------------------------------- result


def _options(plan: Plan, quick: bool) -> str:
    """The part of the command that :func:`benchmarks.machine.about` does not know."""
    given = "" if (plan.scale == "gpu") == (plan.device != "cpu") else f" --scale {plan.scale}"
    if not quick:
        if plan.workloads != COMPARED:
            given += f" --workloads {','.join(plan.workloads)}"
        if plan.optimizers != USUAL:
            given += f" --optimizers {','.join(plan.optimizers)}"
        given += f" --seeds {plan.seeds}" if plan.seeds != 3 else ""
    return given


def _result(plan: Plan, done: Rows, about: dict[str, Any]) -> dict[str, Any]:
    mine = [[row.get(name) for name in _HEADER] for run, row in done.finished.items() if plan.holds(run)]
    kept = sorted(mine, key=lambda row: [str(value) for value in row[:6]])
    failed = [
        {name: row[name] for name in (*_HEADER[:6], "error")}
        for run, row in done.failed.items()
        if plan.holds(run)
    ]
    missing = sum(run not in done.finished for run in planned(plan, done.finished))
    result = {
        **about,
        "scale": plan.scale,
        "looked_at": [name for name in LOOKED_AT if name in plan.workloads],
        "confirmed_on": [name for name in plan.workloads if name not in LOOKED_AT],
        "caveats": [*dict.fromkeys(text for name, text in _CAVEATS.items() if name in plan.workloads)],
        "missing_runs": missing,
        "failed": failed,
        "runs": {"header": list(_HEADER), "rows": six_digits(kept)},
    }
    return recomputed(result)


def recomputed(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result with everything that follows from its runs computed anew."""
    header = result["runs"]["header"]
    order = {name: place for place, name in enumerate(WORKLOADS)}
    rows = [dict(zip(header, row, strict=True)) for row in result["runs"]["rows"]]
    rows.sort(key=lambda row: (order.get(row["workload"], len(order)), row["optimizer"]))
    found = machine.rounded(compare(rows, result["failed"]))
    rest = {name: value for name, value in result.items() if name not in ("excess", "runs")}
    return {**rest, "excess": found, "runs": result["runs"]}


def table(result: dict[str, Any]) -> Group:
    """In per cent, a line for each workload and optimizer, AutoLR in detail, and what became of the goals."""
    from rich.console import Group
    from rich.table import Table

    found = result["excess"]
    missing = f"; {result['missing_runs']} runs are still missing" if result["missing_runs"] else ""
    title = f"Excess over the tuned sweep, %, chosen over chosen (in brackets: both as they end){missing}"
    views = []
    for heading, (headings, lines) in {
        title: matrix(found, lambda text: f"[bold]{text}[/bold]"),
        "AutoLR in detail": detail(found),
    }.items():
        views.append(Table(*headings, title=heading))
        for place, line in enumerate(lines):
            views[-1].add_row(*line, end_section=place == len(found["pairs"]) - 1)
    unpaired = unpaired_note(found)
    return Group(*views, *([unpaired] if unpaired else []), *_notes(result, found["goals"]))


def _notes(result: Mapping[str, Any], goals: Mapping[str, Any]) -> Iterator[str]:
    for name, goal in goals.items():
        of = f" of {goal['of']}" if "of" in goal else ""
        where = f" ({'; '.join(goal['behind'])})" if goal.get("behind") else ""
        measured = f"{goal['measured']}{of} ≤ {goal['at_most']}{where}"
        yield f"goal: {name}: {'met' if goal['met'] else 'missed'}: {measured}"
    kinds = Counter((row["workload"], row["arm"], row["error"]) for row in result["failed"])
    for (workload, arm, error), count in kinds.items():
        yield f"failed: {workload} {arm}, {count} runs: {error.replace('[', '(')}"
    yield from result["caveats"]
