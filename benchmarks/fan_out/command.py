"""What replicas add to the search for a learning rate: N = 1, 2, 4, 8 on the same samples.

The batch is fixed and split over the replicas, which share the gradient; each probes samples of its own. The
yardstick is the tuned sweep of one model. What is run is in :mod:`benchmarks.fan_out.plan`, what follows in
:mod:`benchmarks.fan_out.analysis`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import cores as on_cores
from benchmarks import machine
from benchmarks.fan_out.analysis import METRICS, analyse
from benchmarks.fan_out.plan import Plan, Rows, planned, run_of
from benchmarks.fan_out.runs import BATCHES, SAMPLES, execute
from benchmarks.pool import Say
from benchmarks.rows import Row, six_digits
from benchmarks.workloads import WORKLOADS

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["COMPARED", "cells", "markdown", "recomputed", "run", "table"]

#: Small tasks without batch norm: two that are learned, one that is overfitted, one known in closed form.
COMPARED = ("digits-mlp", "quadratic", "charlm", "sentences")
_ROWS = Path("runs/fan-out.jsonl")
_TIMEOUT_SECONDS = 300.0
_QUICK = Plan(
    ("quadratic",),
    ("adamw",),
    seeds=1,
    sizes=(1, 2),
    steps=120,
    schedules=("wsd",),
    starts={"adamw": (-5, -4, -3)},
    extensions=0,
)
#: What the JSON file keeps of every run.
_HEADER = (
    *("workload", "optimizer", "arm", "replicas", "seed", "lr", "schedule"),
    *("init", "held_out", "chosen", "chosen_step", "diverged", "taken", "reached", "seconds"),
    *("windows", "progress_error", "decision_error"),
)


def run(
    quick: bool = False,
    device: str = "cpu",
    on_progress: Say | None = None,
    *,
    workloads: Sequence[str] | None = None,
    seeds: int = 3,
    rows: Path | None = None,
    processes: int | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Run what is not in ``rows`` yet, and make the table of all that is; the result is plain JSON.

    Args:
        quick: one tiny task, one and two replicas; kept in memory unless ``rows`` is given.
        workloads: names from :data:`benchmarks.workloads.WORKLOADS`; :data:`COMPARED` if None.
        seeds: how many.
        rows: the file that finished runs are appended to, ``runs/fan-out.jsonl`` if None.
        processes: how many replicas train at a time, as many as there are cores if None.
        minutes: after so long no further run is started.
    """
    if device != "cpu":
        raise ValueError(
            f"fan-out: device must be 'cpu', got {device!r}; its replicas are processes over gloo, and its "
            "models too small for an accelerator"
        )
    say = on_progress or (lambda _: None)
    plan = _QUICK if quick else Plan(_checked(workloads), seeds=seeds)
    done = Rows(rows if quick or rows is not None else _ROWS)
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    with on_cores.kept_processes(execute, _TIMEOUT_SECONDS) as work:
        on_cores.complete(
            lambda: planned(plan, done.finished),
            done,
            work,
            cores=processes or os.cpu_count() or 1,
            deadline=deadline,
            say=say,
            told=_told,
        )
    about = machine.about("fan-out", quick=quick, device=device)
    if not quick:
        about["command"] += f" --workloads {','.join(plan.workloads)}" if plan.workloads != COMPARED else ""
        about["command"] += f" --seeds {seeds}" if seeds != 3 else ""
    return _result(plan, done, about)


def _checked(workloads: Sequence[str] | None) -> tuple[str, ...]:
    names = COMPARED if workloads is None else tuple(workloads)
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown or not names:
        raise ValueError(
            f"workloads must be some of {', '.join(WORKLOADS)}, got {', '.join(names) or 'none'}"
        )
    return names


def _told(row: Row) -> str:
    if row.get("error"):
        return f"{run_of(row)}: {row['error'].partition(chr(10))[0]}"
    end = "diverged" if row["diverged"] else f"{row['held_out']:.4f}"
    return f"{run_of(row)}: {end} in {row['seconds']:.1f} s"


# ---------------------------------------------------------------------- result


def _result(plan: Plan, done: Rows, about: dict[str, Any]) -> dict[str, Any]:
    kept = [[row.get(name) for name in _HEADER] for one, row in done.finished.items() if plan.holds(one)]
    caveats = dict.fromkeys(WORKLOADS[name]().caveat for name in plan.workloads)
    result = {
        **about,
        "settings": {
            "seeds": plan.seeds,
            "probe_batches_per_replica": BATCHES,
            "samples_per_probe_batch": SAMPLES,
        },
        "caveats": [caveat for caveat in caveats if caveat],
        "missing_runs": sum(one not in done.finished for one in planned(plan, done.finished)),
        "failed": [
            f"{one}: {row['error'].partition(chr(10))[0]}"
            for one, row in done.failed.items()
            if plan.holds(one)
        ],
        "runs": {
            "header": list(_HEADER),
            "rows": six_digits(sorted(kept, key=lambda row: [str(value) for value in row[:7]])),
        },
    }
    return recomputed(result)


def recomputed(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result with everything that follows from its runs computed anew."""
    runs = result["runs"]
    rows = [dict(zip(runs["header"], row, strict=True)) for row in runs["rows"]]
    found: dict[str, Any] = machine.rounded(analyse(rows))
    return {**{name: value for name, value in result.items() if name != "runs"}, **found, "runs": runs}


_HEADINGS = (
    *("N", "runs", "error of progress, N = 1 is 1", "error of Δ log η"),
    *("regret of the end, %", "and from N = 1", "regret as chosen, %", "and from N = 1"),
)


def cells(line: Mapping[str, Any]) -> list[str]:
    """One line of the table."""
    lost = f" ({line['diverged']} diverged)" if line["diverged"] else ""
    noise = [_number(line[what], ".3g") for what in _NOISE]
    regret = []
    for metric in METRICS:
        found = line[metric]
        regret.append(_interval(found["regret"], found["regret_half_width"], ".2f"))
        regret.append(_interval(found.get("difference"), found.get("difference_half_width"), "+.2f"))
    return [str(line["replicas"]), f"{line['runs']}{lost}", *noise, *regret]


_NOISE = ("progress_error_ratio", "decision_error")


def _number(value: float | None, digits: str) -> str:
    return "–" if value is None else format(value, digits)


def _interval(mean: float | None, half: float | None, digits: str) -> str:
    return _number(mean, digits) + ("" if mean is None or half is None else f" ± {half:.2f}")


def markdown(result: dict[str, Any]) -> str:
    """The same for a document."""
    rows = [_HEADINGS, ["---"] * len(_HEADINGS), *map(cells, result["lines"])]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    s = result["settings"]
    notes = (
        f"Each replica has its N-th of the batch and {s['probe_batches_per_replica']} probe batches of "
        f"{s['samples_per_probe_batch']} samples of its own; {_seeds(result)}. Regret: 0 is the best of a "
        "sweep of half-decades and two schedules, 100 the untrained model; intervals are over all workloads, "
        "optimizers and seeds, those from N = 1 over pairs of runs."
    )
    if result["missing_runs"]:
        notes += f" {result['missing_runs']} runs are missing."
    said = [f"- {sentence}" for sentence in result["follows"]]
    return "\n".join([*lines, "", " ".join([notes, *result["caveats"]]), "", *said])


def _seeds(result: Mapping[str, Any]) -> str:
    seeds = result["settings"]["seeds"]
    return f"{seeds} seed{'s' if seeds > 1 else ''}"


def table(result: dict[str, Any]) -> Group:
    """A line for each N; each workload's regrets at the largest N; what follows."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    missing = f"; {result['missing_runs']} runs are still missing" if result["missing_runs"] else ""
    title = f"What replicas add to the search: {_seeds(result)}, 95 % intervals{missing}"
    view = Table(*_HEADINGS, title=title)
    for line in result["lines"]:
        view.add_row(*cells(line))
    notes = [*result["follows"], *(f"failed: {one}" for one in result["failed"]), *result["caveats"]]
    return Group(view, _of_workloads(result), *map(escape, notes))


def _of_workloads(result: Mapping[str, Any]) -> Any:
    from rich.table import Table

    largest = max((line["replicas"] for line in result["lines"]), default=1)
    shown = sorted({1, largest})
    names = [f"N = {size}" for size in shown]
    view = Table("workload, optimizer", "tuned", *names, title="Regret of the end, %; as chosen in brackets")
    for pair in result["pairs"]:
        found = {one["replicas"]: one for one in pair["arms"]}
        best = pair["tuned_held_out"]
        at = "–" if best is None else f"{best['loss']:.4g} @ {best['lr']:.2g} {best['schedule']}"
        view.add_row(
            f"{pair['workload']} {pair['optimizer']}", at, *(_both(found.get(size)) for size in shown)
        )
    return view


def _both(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "–"
    end, chosen = (_interval(found[m]["regret"], found[m]["regret_half_width"], ".2f") for m in METRICS)
    return f"{end} ({chosen})"
