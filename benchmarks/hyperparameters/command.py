"""Whether replicas find a hyperparameter while they train: HDET from both wrong ends of a grid.

The grid, of fixed values, is the truth. From either end, how much of the gap to the best of them does one
run with HDET recover (:mod:`benchmarks.hyperparameters.analysis`)? And does it find four at once? The
tasks are in :mod:`benchmarks.hyperparameters.tasks`, the order of the runs in
:mod:`benchmarks.hyperparameters.plan`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import cores as on_cores
from benchmarks import machine
from benchmarks.hyperparameters.analysis import analyse, grid, together
from benchmarks.hyperparameters.plan import Plan, Rows, Run, planned, read_start, written
from benchmarks.hyperparameters.runs import execute
from benchmarks.hyperparameters.tasks import LABEL_SMOOTHING, TASKS, workload
from benchmarks.pool import Say
from benchmarks.rows import Row, six_digits

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["complete", "recomputed", "run", "table"]

_ROWS = Path("runs/hyperparameters.jsonl")
_TIMEOUT_SECONDS = 600.0
#: One task that needs no file, tiny: to see that it works, not to learn anything.
_QUICK = Plan((LABEL_SMOOTHING,), seeds=1, replicas=2, sync_every=10, steps=40)
#: What the JSON file keeps of every run; the paths of those with HDET are kept beside it.
_HEADER = ("task", "arm", "start", "seed", "replicas", "steps", "held_out", "diverged", "seconds")


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
        quick: one task, tiny, to see that it works; kept in memory unless ``rows`` is given.
        rows: the file that finished runs are appended to, ``runs/hyperparameters.jsonl`` if None.
        processes: how many replicas train at a time, as many as there are cores if None.
        minutes: after so long no further run is started.
    """
    if device != "cpu":
        raise ValueError(
            f"hyperparameters: device must be 'cpu', got {device!r}; its replicas are processes over gloo, "
            "and its models too small for an accelerator"
        )
    say = on_progress or (lambda _: None)
    plan = _QUICK if quick else Plan(seeds=seeds)
    done = Rows(rows if quick or rows is not None else _ROWS)
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    # Before anything is run: a file that is missing is better missed now.
    caveats = dict.fromkeys(workload(task).caveat for task in plan.tasks)
    with on_cores.kept_processes(execute, _TIMEOUT_SECONDS) as work:
        complete(plan, done, work, cores=processes or os.cpu_count() or 1, deadline=deadline, say=say)
    about = machine.about("hyperparameters", quick=quick, device=device)
    about["command"] += f" --seeds {seeds}" if seeds != 3 and not quick else ""
    return _result(plan, done, {**about, "caveats": [caveat for caveat in caveats if caveat]})


def complete(
    plan: Plan,
    done: Rows,
    work: Callable[[Run], Row],
    *,
    cores: int,
    deadline: float,
    say: Say,
) -> None:
    """Do whatever the plan still lacks, in its order, a core for each replica, until ``deadline``.

    The plan is asked anew after every result, since some runs follow from others.
    """
    on_cores.complete(
        lambda: planned(plan, done.finished),
        done,
        work,
        cores=cores,
        deadline=deadline,
        say=say,
        told=_told,
    )


def _told(row: Row) -> str:
    if row.get("error"):
        end = row["error"].partition("\n")[0]
    else:
        end = "diverged" if row["diverged"] else f"{row['held_out']:.4f}"
        if row["paths"]:
            found = ", ".join(f"{values[-1]:.3g}" for values in row["paths"].values())
            end += f", found {found}"
        end += f" in {row['seconds']:.1f} s"
    return f"{row['task']}, {row['arm']} at {written(row['start'])}, seed {row['seed']}: {end}"


# ---------------------------------------------------------------------- result


def _result(plan: Plan, done: Rows, about: dict[str, Any]) -> dict[str, Any]:
    order = {task: place for place, task in enumerate(TASKS)}
    kept = sorted(
        (row for one, row in done.finished.items() if plan.holds(one)),
        key=lambda row: (order[row["task"]], row["arm"], row["start"], row["seed"]),
    )
    kept = [{**row, "start": written(row["start"])} for row in kept]
    paths = [
        {**{name: row[name] for name in _HEADER[:4]}, "explored": name, "values": values}
        for row in kept
        for name, values in row["paths"].items()
    ]
    failed = [
        {name: row[name] for name in (*_HEADER[:4], "error")} | {"start": written(row["start"])}
        for one, row in done.failed.items()
        if plan.holds(one)
    ]
    return recomputed(
        {
            **about,
            "sync_every": plan.sync_every,
            "missing_runs": sum(one not in done.finished for one in planned(plan, done.finished)),
            "failed": failed,
            "runs": {
                "header": list(_HEADER),
                "rows": six_digits([[row[name] for name in _HEADER] for row in kept]),
            },
            "paths": paths,
        }
    )


def recomputed(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result with everything that follows from its runs computed anew."""
    raw = ("runs", "paths")
    header = result["runs"]["header"]
    rows = [dict(zip(header, row, strict=True)) for row in result["runs"]["rows"]]
    found: dict[str, Any] = machine.rounded(analyse(_with_starts(rows), _with_starts(result["paths"])))
    rest = {name: value for name, value in result.items() if name not in raw}
    return {**rest, **found, **{name: result[name] for name in raw}}


def _with_starts(rows: Iterable[Row]) -> list[Row]:
    return [{**row, "start": read_start(row["start"])} for row in rows]


def table(result: dict[str, Any]) -> Group:
    """A line for each hyperparameter and start, those of all four at once, and what became of the goals."""
    from rich.console import Group
    from rich.table import Table

    missing = f"; {result['missing_runs']} runs are still missing" if result["missing_runs"] else ""
    views: list[Any] = []
    headings, lines = grid(result)
    view = Table(*headings, title=f"Held-out loss from a wrong start{missing}")
    for line in lines:
        view.add_row(*line)
    views.append(view)
    if result["four"]:
        headings, lines = together(result)
        view = Table(*headings, title="Four at once")
        for line in lines:
            view.add_row(*line)
        views.append(view)
    return Group(*views, *_notes(result))


def _notes(result: Mapping[str, Any]) -> Iterator[str]:
    from rich.markup import escape

    for name, goal in result["goals"].items():
        measured = "–" if goal["measured"] is None else f"{goal['measured']:g}"
        yield f"goal: {name}: {'met' if goal['met'] else 'missed'}: {measured} ≥ {goal['at_least']}"
    for row in result["failed"]:
        error = escape(row["error"].partition("\n")[0])
        yield f"failed: {row['task']} {row['arm']} at {row['start']}, seed {row['seed']}: {error}"
    yield from result["caveats"]
