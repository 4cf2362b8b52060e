"""What a learning rate that nobody gave costs: AutoLR and others beside a tuned sweep, on small real tasks.

Hundreds of short runs, each of which is written down when it is done, so that the benchmark can be stopped
and started again. The measures are normalised regret (:mod:`benchmarks.regret.analysis`) and excess
(:mod:`benchmarks.regret.excess`); what is run is in :mod:`benchmarks.regret.plan`, how in
:mod:`benchmarks.regret.arms`.
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
from benchmarks.regret.analysis import LOOKED_AT, analyse, grid, misled
from benchmarks.regret.arms import RANKS, execute, execute_published, failure, prepare
from benchmarks.regret.chart import chart
from benchmarks.regret.excess import compare
from benchmarks.regret.plan import OPTIMIZERS, USUAL, Plan, Row, Rows, Run, planned, published
from benchmarks.regret.tables import detail, leading, matrix, unpaired_note
from benchmarks.rows import six_digits
from benchmarks.workloads import WORKLOADS, feedstream, newsfeed
from hdet.replicas.launch import LocalProcesses, ReplicaError

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["chart", "complete", "recomputed", "run", "table"]

_CAVEATS = {
    "newsfeed": newsfeed.CAVEAT,
    "newsfeed-stream": feedstream.CAVEAT,
    "ratings": newsfeed.CAVEAT,
    "charlm-long": "charlm-long was not looked at, but has the text and kind of model of charlm, which was.",
}
_PUBLISHED_TIMEOUT_SECONDS = 600.0
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
    arms=("default", "autolr"),
    misled=(),
    schedules=("wsd",),
    starts={"adamw": (-5, -4, -3)},
    extensions=0,
    steps=60,
)

#: The tasks of the table.
COMPARED = (
    *("digits-mlp", "digits-cnn", "quadratic", "charlm", "images", "newsfeed"),
    *("sentences", "bikes", "ratings", "wordlm", "charlm-long", "few-images", "diffusion", "vae"),
    *("charlm-tuned", "charlm-lora"),
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
    with_published: bool = False,
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
        with_published: also the published controller, each of whose runs takes four processes.
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
    if with_published:
        _run_published(plan, done, deadline, say)
    about = machine.about("regret", quick=quick, device=device)
    about["command"] += _options(plan, quick, with_published)
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


def _run_published(plan: Plan, done: Rows, deadline: float, say: Say) -> None:
    with LocalProcesses(RANKS) as ranks:
        for one in published(plan):
            if one in done.finished or time.monotonic() >= deadline:
                continue
            try:
                row = ranks.run(execute_published, one, timeout=_PUBLISHED_TIMEOUT_SECONDS)[0]
            except (ReplicaError, TimeoutError) as error:
                row = failure(one, error)
            done.add(row)
            say(_told(row))


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


def _options(plan: Plan, quick: bool, with_published: bool) -> str:
    """The part of the command that :func:`benchmarks.machine.about` does not know."""
    given = "" if (plan.scale == "gpu") == (plan.device != "cpu") else f" --scale {plan.scale}"
    if not quick:
        if plan.workloads != COMPARED:
            given += f" --workloads {','.join(plan.workloads)}"
        if plan.optimizers != USUAL:
            given += f" --optimizers {','.join(plan.optimizers)}"
        given += f" --seeds {plan.seeds}" if plan.seeds != 3 else ""
    return given + (" --published" if with_published else "")


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
    found: dict[str, Any] = machine.rounded(analyse(rows, result["failed"]))
    found["excess"] = machine.rounded(compare(rows, result["failed"]))
    runs = result["runs"]
    return {**{name: value for name, value in result.items() if name != "runs"}, **found, "runs": runs}


def table(result: dict[str, Any], kind: str = "regret") -> Group:
    """In per cent, a line for each workload and optimizer, and what became of the goals.

    ``kind`` is ``"regret"`` or ``"excess"``; the latter has a second table, of AutoLR in detail.
    """
    from rich.console import Group
    from rich.table import Table

    def bold(text: str) -> str:
        return f"[bold]{text}[/bold]"

    missing = f"; {result['missing_runs']} runs are still missing" if result["missing_runs"] else ""
    if kind == "excess":
        found = result["excess"]
        title = (
            "Excess over the tuned sweep, %, chosen over chosen (in brackets: both as they end)"
            if leading(found) == "chosen"
            else "Excess over the tuned sweep, %, both as they end"
        )
        grids = {title + missing: matrix(found, bold), "AutoLR in detail": detail(found)}
    else:
        found = result
        grids = {f"Normalised regret of the final held-out loss, %{missing}": grid(result, bold)}
    views = []
    for title, (headings, lines) in grids.items():
        views.append(Table(*headings, title=title))
        for place, line in enumerate(lines):
            views[-1].add_row(*line, end_section=place == len(found["pairs"]) - 1)
    unpaired = unpaired_note(found) if kind == "excess" else ""
    return Group(*views, *([unpaired] if unpaired else []), *_notes(result, found["goals"]))


def _notes(result: Mapping[str, Any], goals: Mapping[str, Any]) -> Iterator[str]:
    for rate, over in misled(result).items():
        value = "∞" if over["mean"] is None else f"mean {over['mean']}, worst {over['worst']}"
        yield f"AutoLR with an optimizer built at {rate}, one seed, regret: {value}"
    for name, goal in goals.items():
        of = f" of {goal['of']}" if "of" in goal else ""
        where = f" ({'; '.join(goal['behind'])})" if goal.get("behind") else ""
        measured = f"{goal['measured']}{of} ≤ {goal['at_most']}{where}"
        yield f"goal: {name}: {'met' if goal['met'] else 'missed'}: {measured}"
    kinds = Counter((row["workload"], row["arm"].partition("@")[0], row["error"]) for row in result["failed"])
    for (workload, arm, error), count in kinds.items():
        yield f"failed: {workload} {arm}, {count} runs: {error.replace('[', '(')}"
    yield from result["caveats"]
