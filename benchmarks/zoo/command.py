"""The zoo's command: run what is missing, then make the table of all that is there."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from benchmarks import machine
from benchmarks.pool import Say, complete, workers
from benchmarks.regret.arms import prepare
from benchmarks.rows import KeptRows, Row
from benchmarks.show import as_json
from benchmarks.zoo.analysis import MEASURES, analyse
from benchmarks.zoo.catalogue import TASKS, cells
from benchmarks.zoo.chart import chart
from benchmarks.zoo.data import missing
from benchmarks.zoo.families import FAMILIES, PARTS
from benchmarks.zoo.plan import DEFAULT_RATES, METHODS, Cell, Plan, Run, planned, run_of
from benchmarks.zoo.runs import execute

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["can_run", "chart", "in_words", "run", "run_missing", "table", "write_table"]

_Job = TypeVar("_Job", bound=Hashable)

#: Quick runs need no data.
_QUICK = "linear-layers-full-batch"


def run(
    quick: bool = False,
    device: str = "cpu",
    on_progress: Say | None = None,
    *,
    part: str | None = None,
    methods: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    seeds: int | None = None,
    rows: Path | None = None,
    processes: int | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Run what is not in ``rows`` yet, and make the table of all that is; the result is plain JSON.

    Args:
        quick: one task and one seed; kept in memory unless ``rows`` is given.
        part: fit, dev or test; all cells if None.
        methods: some of :data:`~benchmarks.zoo.plan.METHODS`; all if None.
        tasks: names, all of the part if None.
        seeds: how many, 3 if None.
        rows: the file that finished runs are appended to, ``runs/zoo-<device>.jsonl`` if None.
        processes: how many runs go on at a time, as many as there are cores if None.
        minutes: after so long no further run is started.
    """
    say = on_progress or (lambda _: None)
    tasks = [_QUICK] if quick and tasks is None else tasks
    plan = Plan(
        _cells(part, tasks), _checked("methods", methods, METHODS), seeds or (1 if quick else 3), device
    )
    if rows is None and not quick:
        rows = Path("runs") / f"zoo-{device}.jsonl"
    done: KeptRows[Run] = KeptRows(rows, run_of)
    if minutes != 0:
        here = replace(plan, cells=can_run(plan.cells, say))
        run_missing(
            lambda: planned(here, done.finished),
            done,
            execute,
            in_words,
            device=device,
            processes=processes,
            minutes=minutes,
            say=say,
        )
    lacking = [one for one in planned(plan, done.finished) if one not in done.finished]
    errors = {
        f"{one.task} {one.optimizer}: {done.failed[one]['error']}" for one in lacking if one in done.failed
    }
    return {
        **machine.about("zoo", quick=quick, device=device),
        "settings": {"cells": len(plan.cells), "methods": list(plan.methods), "seeds": plan.seeds},
        "missing_runs": len(lacking),
        "errors": sorted(errors),
        **analyse(plan, done.finished),
    }


def run_missing(
    planned: Callable[[], Sequence[_Job]],
    done: KeptRows[_Job],
    work: Callable[[_Job], Row],
    told: Callable[[Row], str],
    *,
    device: str,
    processes: int | None,
    minutes: float | None,
    say: Say,
) -> None:
    """Whatever the plan still lacks; None as in :func:`run`."""
    at_once = processes or os.cpu_count() or 1
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    with workers(device, at_once, say, prepare) as pool:
        complete(planned, done, pool, work, at_once=at_once, deadline=deadline, say=say, told=told)


def can_run(cells: Sequence[Cell], say: Say) -> list[Cell]:
    """Those whose data are here, and their optimizer: torch has Muon since 2.9."""
    left_out = {family.name: lack for family in FAMILIES if (lack := missing(family))}
    for lack in left_out.values():
        say(f"left out: {lack}")
    optimizers = [name for name in DEFAULT_RATES if name != "muon" or hasattr(torch.optim, "Muon")]
    return [cell for cell in cells if TASKS[cell[0]].family not in left_out and cell[1] in optimizers]


def _cells(part: str | None, tasks: Sequence[str] | None) -> list[Cell]:
    _checked("part", part and [part], PARTS)
    names = _checked("tasks", tasks, tuple(TASKS))
    return [cell for cell in cells(part) if cell[0] in names]


def _checked(what: str, given: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(given or known)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{what} must be some of {', '.join(known)}, got {', '.join(unknown)}")
    return names


def in_words(row: Row) -> str:
    """The losses of a run, or its error."""
    if "error" in row:
        return f"{run_of(row)}: {row['error']}"
    losses = ", ".join("not finite" if row[name] is None else f"{row[name]:.4g}" for name in MEASURES)
    return f"{run_of(row)}: {losses}, {row['seconds']:.1f} s"


def table(result: dict[str, Any]) -> Group:
    """Every cell, then every part; against the sweep as it ends, and with the same choice of weights."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    missing = f"; {result['missing_runs']} runs are still missing" if result["missing_runs"] else ""
    per_cell = Table(
        *("task", "optimizer", "part", "best rate", "default, %", "AutoLR, %"), title=f"The zoo{missing}"
    )
    for line in result["cells"]:
        best = line["sweep"]["test"]
        shown = [line["task"], line["optimizer"], line["part"], f"{best['rate']:g} {best['schedule']}"]
        per_cell.add_row(*map(Text, [*shown, _pair(line["default"]), _pair(line["autolr"])]))
    headings = (
        "part",
        "method",
        "cells",
        "mean, %",
        "median, %",
        "nine of ten, %",
        "worst, %",
        "lost",
        "ahead",
    )
    per_part = Table(*headings)
    for part, methods in result["summary"].items():
        for method, told in methods.items():
            if not told["cells"]:
                continue
            numbers = [
                ", ".join(f"{100 * told[measure][name]:+.1f}" for measure in MEASURES)
                for name in ("mean", "median", "nine_of_ten", "worst")
            ]
            ahead = (
                f"{told['test_chosen']['ahead_of_default']} of {told['cells']}" if method != "default" else ""
            )
            per_part.add_row(
                *map(
                    Text,
                    [part, method, str(told["cells"]), *numbers, f"{told['lost']} of {told['runs']}", ahead],
                )
            )
    return Group(per_cell, per_part, *map(Text, result["errors"]))


def _pair(found: dict[str, Any] | None) -> str:
    if found is None:
        return "–"
    return ", ".join(f"{100 * found[f'excess_{measure}']:+.1f}" for measure in MEASURES)


def write_table(
    name: str,
    parser: argparse.ArgumentParser,
    run: Callable[..., dict[str, Any]],
    rows: Path,
    chart: Callable[[dict[str, Any]], str] | None = None,
) -> None:
    """A command with rows of its own: the options that all of them have, and the JSON file that it writes."""
    parser.add_argument("--processes", type=int, help="runs at a time, one on each core unless given")
    parser.add_argument(
        "--minutes", type=float, help="after so long start no further run; 0: the table alone"
    )
    parser.add_argument("--rows", type=Path, default=rows, help="finished runs, which are not run again")
    parser.add_argument(
        "--output", type=Path, default=Path("docs/evidence") / f"{name}.json", help="to write"
    )
    given = vars(parser.parse_args())
    output = given.pop("output")
    result = run(**given)
    output.write_text(as_json(result), encoding="utf-8")
    if chart is not None:
        output.with_suffix(".svg").write_text(chart(result), encoding="utf-8")
    print(f"Written to {output}")
