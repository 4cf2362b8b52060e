"""One run that tunes everything, against searches at the same budget of training samples.

AutoTune's N replicas see as many samples as N single runs. So many are given to random search, to Optuna's
TPE with Hyperband, to twins of Ray's PBT and PB2, and to one large batch. The truth is the best of a sweep
with ten times the budget. All choose by the probe's samples and are reported on those of
the test. What is run is in :mod:`benchmarks.autotune.plan`, what follows in
:mod:`benchmarks.autotune.analysis`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import cores as on_cores
from benchmarks import machine
from benchmarks.autotune.analysis import analyse
from benchmarks.autotune.arms import execute, unavailable
from benchmarks.autotune.plan import ARMS, RATES, SEGMENTS, SWEEP, Plan, Rows, planned, run_of
from benchmarks.autotune.population import GIVEN
from benchmarks.autotune.space import DEFAULTS, RANGES
from benchmarks.autotune.tables import HEADINGS, cells, said, title
from benchmarks.autotune.tasks import TASKS
from benchmarks.autotune.trials import PRUNER, STARTUP
from benchmarks.pool import Say, shared_gpu
from benchmarks.rows import Row, six_digits

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["recomputed", "run", "table"]

_TIMEOUT_SECONDS = 3600.0
_QUICK = Plan(("digits",), seeds=1, members=4, swept=4, confirmed=0, steps=60)
_SETTING = tuple(RANGES)
#: What the JSON file keeps of every run.
_HEADER = (
    *("task", "arm", "number", "seed", "probe", "test", "init", "samples", "seconds", "cores"),
    *(*_SETTING, "trials", "pruned", "points"),
)


def run(
    quick: bool = False,
    device: str = "cpu",
    on_progress: Say | None = None,
    *,
    scale: str | None = None,
    problems: Sequence[str] | None = None,
    seeds: int = 3,
    rows: Path | None = None,
    processes: int | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Run what is not in ``rows`` yet, and make the table of all that is; the result is plain JSON.

    Args:
        quick: one task, four members, tiny; kept in memory unless ``rows`` is given.
        scale: ``"cpu"`` or ``"gpu"``, the size of the tasks; that of the device if None.
        problems: names from :data:`benchmarks.autotune.tasks.TASKS`; all if None.
        seeds: how many.
        rows: the file that finished runs are appended to, ``runs/autotune-<scale>-<device>.jsonl`` if None.
        processes: how many runs, or replicas, train at a time, as many as there are cores if None.
        minutes: after so long no further run is started; 0 makes the table of what there is.
    """
    say = on_progress or (lambda _: None)
    scale = scale or ("gpu" if torch.device(device).type == "cuda" else "cpu")
    left_out = {arm: why for arm in ARMS if (why := unavailable(arm))}
    for arm, why in left_out.items():
        say(f"without {arm}: {why}")
    plan = _QUICK if quick else Plan(_checked(problems), seeds=seeds)
    plan = replace(
        plan, scale=scale, device=device, arms=tuple(arm for arm in plan.arms if arm not in left_out)
    )
    if rows is None and not quick:
        rows = Path("runs") / f"autotune-{scale}-{device}.jsonl"
    done = Rows(rows)
    _complete(plan, done, processes or os.cpu_count() or 1, minutes, say)
    about = machine.about("autotune", quick=quick, device=device)
    about["command"] += _options(plan, quick)
    return _result(plan, done, {**about, "left_out": left_out})


def _complete(plan: Plan, done: Rows, cores: int, minutes: float | None, say: Say) -> None:
    """Do whatever the plan still lacks; on a GPU all share it at the same time, if they can."""
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    with ExitStack() as stack:
        if torch.device(plan.device).type == "cuda":
            stack.enter_context(shared_gpu(say))
        work = stack.enter_context(on_cores.kept_processes(execute, _TIMEOUT_SECONDS))
        on_cores.complete(
            lambda: planned(plan, done.finished),
            done,
            work,
            cores=cores,
            deadline=deadline,
            say=say,
            told=_told,
        )


def _checked(problems: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(TASKS) if problems is None else tuple(problems)
    if not names or any(name not in TASKS for name in names):
        raise ValueError(
            f"autotune: problems must be some of {', '.join(TASKS)}, got {', '.join(names) or 'none'}"
        )
    return names


def _told(row: Row) -> str:
    if row.get("error"):
        return f"{run_of(row)}: {row['error'].partition(chr(10))[0]}"
    return f"{run_of(row)}: {row['test']:.4f} in {row['seconds']:.1f} s"


def _options(plan: Plan, quick: bool) -> str:
    """The part of the command that :func:`benchmarks.machine.about` does not know."""
    given = "" if (plan.scale == "gpu") == (plan.device != "cpu") else f" --scale {plan.scale}"
    if not quick:
        given += f" --problems {','.join(plan.tasks)}" if plan.tasks != tuple(TASKS) else ""
        given += f" --seeds {plan.seeds}" if plan.seeds != 3 else ""
    return given


# ---------------------------------------------------------------------- result


def _result(plan: Plan, done: Rows, about: dict[str, Any]) -> dict[str, Any]:
    mine = [(one, row) for one, row in done.finished.items() if plan.holds(one)]
    mine.sort(key=lambda pair: (plan.tasks.index(pair[0].task), pair[0].arm, pair[0].seed, pair[0].number))
    kept = [[_shown(row)[name] for name in _HEADER] for _, row in mine]
    caveats = dict.fromkeys(plan.run(task, SWEEP, 0).workload.caveat for task in plan.tasks)
    caveats |= dict.fromkeys(_several_machines([row for _, row in mine]))
    return recomputed(
        {
            **about,
            "settings": _settings(plan),
            "caveats": [caveat for caveat in caveats if caveat],
            "missing_runs": sum(one not in done.finished for one in planned(plan, done.finished)),
            "failed": [
                f"{one}: {row['error'].partition(chr(10))[0]}"
                for one, row in done.failed.items()
                if plan.holds(one)
            ],
            "runs": {"header": list(_HEADER), "rows": six_digits(kept)},
        }
    )


def _several_machines(rows: Sequence[Row]) -> Iterator[str]:
    """Who was run where, if not all on as many cores."""
    arms: dict[int, dict[str, None]] = {}
    for row in rows:
        arms.setdefault(row["processors"], {})[row["arm"]] = None
    if len(arms) > 1:
        where = "; ".join(
            f"{', '.join(names)} on a machine of {n} cores" for n, names in sorted(arms.items())
        )
        yield f"Run on several machines, whose core-seconds cannot be compared: {where}."


def _shown(row: Row) -> Row:
    """A row as the JSON file keeps it; the sweep's way is of no interest."""
    trials = row["trials"]
    return {
        **row,
        **(row["setting"] or dict.fromkeys(_SETTING)),
        "cores": min(run_of(row).replicas, row["processors"]),
        "trials": len(trials),
        "pruned": sum(bool(trial.get("pruned")) for trial in trials),
        "points": None if row["arm"] == SWEEP else row["points"],
    }


def _settings(plan: Plan) -> dict[str, Any]:
    return {
        "seeds": plan.seeds,
        "members": plan.members,
        "swept": plan.swept,
        "parts_of_a_run": SEGMENTS,
        "single_run_samples": {task: plan.single(task) for task in plan.tasks},
        "space": {name: asdict(known) for name, known in RANGES.items()},
        "defaults": asdict(DEFAULTS),
        "optimizer": "AdamW",
        "schedule": "OneCycleLR's curve, all arms but AutoTune",
        "given": {
            "random": "settings drawn evenly, all runs whole",
            "TPE": f"TPESampler(n_startup_trials={STARTUP}), one trial after another; {PRUNER}",
            "large batch, tuned": f"the best by the probe of the learning rates {RATES}, a run each",
            **GIVEN,
        },
    }


def recomputed(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result with everything that follows from its runs computed anew."""
    runs = result["runs"]
    rows = [dict(zip(runs["header"], row, strict=True)) for row in runs["rows"]]
    found: dict[str, Any] = six_digits(analyse(rows, result["settings"]["single_run_samples"]))
    return {**{name: value for name, value in result.items() if name != "runs"}, **found, "runs": runs}


def table(result: dict[str, Any]) -> Group:
    """A table for each task, and what became of the question."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    views: list[Any] = []
    for task in result["tasks"]:
        views.append(Table(*HEADINGS, title=title(task)))
        for line in task["arms"]:
            views[-1].add_row(*cells(line))
    notes = [*said(result["verdicts"])]
    notes += [f"without {arm}: {why}" for arm, why in result["left_out"].items()]
    if result["missing_runs"]:
        notes.append(f"{result['missing_runs']} runs are still missing.")
    notes += [f"failed: {one}" for one in result["failed"]]
    return Group(*views, *map(escape, [*notes, *result["caveats"]]))
