"""Made-up rows of the benchmark of hyperparameters, and what its table looks like."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import pytest
from rich.console import Console

from benchmarks.hyperparameters import command as hyperparameters
from benchmarks.hyperparameters.plan import FIXED, Plan, Rows, Run, planned
from benchmarks.hyperparameters.tasks import FOUR, TASKS
from benchmarks.rows import Row
from benchmarks.workloads import data_file

SINGLES = tuple(task for task in TASKS if task != FOUR)
BEST = {"weight decay": 3.0, "dropout": 0.2, "label smoothing": 0.1, "attention temperature": 1.0}


def bowl(run: Run) -> float:
    """The loss that fixed values have: 1 at the best, more with the square of the decades from there."""
    names = TASKS[run.task].explored
    away = [math.log10((value + 1e-3) / BEST[name]) for name, value in zip(names, run.start, strict=True)]
    return 1 + sum(distance**2 for distance in away) + 0.01 * run.seed


def row_of(run: Run, loss: Callable[[Run], float] = bowl) -> Row:
    """A run with HDET comes nine tenths of the way to a loss of 1, in four syncs."""
    names = TASKS[run.task].explored
    paths = {} if run.arm == FIXED else {n: [s, s, BEST[n]] for n, s in zip(names, run.start, strict=True)}
    held_out = loss(run) if run.arm == FIXED else 0.1 * loss(run) + 0.9 * (1 + 0.01 * run.seed)
    end = {"held_out": held_out, "diverged": False, "seconds": 1.0, "paths": paths}
    # As it comes back from its file.
    return json.loads(json.dumps({**asdict(run), **end}))


def all_done(plan: Plan) -> Rows:
    done = Rows(None)
    while todo := [run for run in planned(plan, done.finished) if run not in done.finished]:
        for run in todo:
            done.add(row_of(run))
    return done


def needs_data() -> None:
    try:
        data_file("tinyshakespeare.txt")
        data_file("kuairand_feed.tsv")
    except FileNotFoundError as error:
        pytest.skip(str(error))


def with_loss(rows: list[Row], loss: float | None, **of: Any) -> list[Row]:
    changed = {"held_out": loss, "diverged": loss is None}
    return [{**row, **(changed if of.items() <= row.items() else {})} for row in rows]


def text_of(result: Mapping[str, Any]) -> str:
    console = Console(width=170, file=io.StringIO())
    with console.capture() as shown:
        console.print(hyperparameters.table(dict(result)))
    return shown.get()
