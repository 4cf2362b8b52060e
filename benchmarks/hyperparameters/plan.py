"""Which runs the benchmark of hyperparameters is made of, the most telling first, and how one is remembered.

A prefix of the order is already a picture: of every task the two wrong ends, fixed and with HDET, come before
the rest of its grid, and seed 0 of everything before seed 1.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from pathlib import Path

from benchmarks.hyperparameters.tasks import FOUR, NEUTRAL, TASKS, Task
from benchmarks.rows import KeptRows, Row

__all__ = [
    "FIXED",
    "HDET",
    "IN_TURN",
    "Plan",
    "Rows",
    "Run",
    "best_alone",
    "planned",
    "read_start",
    "run_of",
    "written",
    "wrong_start",
]

#: The values stay where they start; all are looked for from first to last step; or each in its share of them.
FIXED, HDET, IN_TURN = "fixed", "hdet", "in turn"
SYNC_EVERY = 25


@dataclass(frozen=True, slots=True)
class Run:
    """One training run of several replicas: all that its result depends on.

    ``start`` holds a value for each hyperparameter that the task looks for, in its order.
    """

    task: str
    arm: str
    start: tuple[float, ...]
    seed: int
    replicas: int
    sync_every: int = SYNC_EVERY
    #: None are the workload's own.
    steps: int | None = None

    def __str__(self) -> str:
        return f"{self.task}: {self.arm} at {written(self.start)}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """What is to be compared; ``replicas``, ``steps`` of None are each task's own."""

    tasks: tuple[str, ...] = tuple(TASKS)
    seeds: int = 3
    replicas: int | None = None
    sync_every: int = SYNC_EVERY
    steps: int | None = None

    def run(self, task: str, arm: str, start: Iterable[float], seed: int) -> Run:
        """A run of this plan's size."""
        replicas = self.replicas or TASKS[task].replicas
        return Run(task, arm, tuple(start), seed, replicas, self.sync_every, self.steps)

    def holds(self, run: Run) -> bool:
        """Whether a run belongs to the table of this plan."""
        known = run.task in self.tasks and run.seed < self.seeds
        return known and run == self.run(run.task, run.arm, run.start, run.seed)


class Rows(KeptRows[Run]):
    """The results so far of this benchmark's runs."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path, run_of)


def run_of(row: Row) -> Run:
    """The run whose result ``row`` is."""
    known = {part.name: row[part.name] for part in fields(Run)}
    return Run(**{**known, "start": tuple(known["start"])})


def written(start: Iterable[float]) -> str:
    """A start on one line of the JSON file.

    >>> written((0.01, 3.0)), read_start("0.01, 3")
    ('0.01, 3', (0.01, 3.0))
    """
    return ", ".join(f"{value:g}" for value in start)


def read_start(text: str) -> tuple[float, ...]:
    """What :func:`written` wrote."""
    return tuple(map(float, text.split(", ")))


def planned(plan: Plan, finished: Mapping[Run, Row]) -> list[Run]:
    """Every run the plan asks for as far as can be known by now, in order.

    The run with each value at the best of its own grid is known once those grids are.
    """
    singles = [task for task in plan.tasks if task != FOUR]
    runs: list[Run] = []
    for seed in range(plan.seeds):
        each = [_single(plan, task, seed) for task in singles]
        runs += (run for turn in zip_longest(*each) for run in turn if run is not None)
        if FOUR in plan.tasks:
            wrong = wrong_start(TASKS[FOUR])
            runs += (plan.run(FOUR, arm, wrong, seed) for arm in (HDET, IN_TURN, FIXED))
    if FOUR in plan.tasks:
        runs += (run for grid in alone(plan).values() for run in grid)
        if (best := best_alone(plan, finished)) is not None:
            runs += (plan.run(FOUR, FIXED, best, seed) for seed in range(plan.seeds))
    return runs


def wrong_start(task: Task) -> tuple[float, ...]:
    """Where a run begins that looks for several, in the task's order."""
    return tuple(task.wrong[name] for name in task.explored)


def alone(plan: Plan) -> dict[str, list[Run]]:
    """On the task of all four, for each the grid of fixed values with the others neutral, one seed."""
    names = TASKS[FOUR].explored
    return {
        name: [
            plan.run(FOUR, FIXED, (value if other == name else NEUTRAL[other] for other in names), 0)
            for value in grid
        ]
        for name, grid in TASKS[FOUR].grids.items()
    }


def best_alone(plan: Plan, finished: Mapping[Run, Row]) -> tuple[float, ...] | None:
    """The best value of each such grid, in the task's order; None while any is not known."""
    best = []
    for place, runs in enumerate(alone(plan).values()):
        if not all(run in finished for run in runs):
            return None
        losses = {run: finished[run]["held_out"] for run in runs}
        known = {run: loss for run, loss in losses.items() if loss is not None}
        if not known:
            return None
        best.append(min(known, key=lambda run: known[run]).start[place])
    return tuple(best)


def _single(plan: Plan, task: str, seed: int) -> list[Run]:
    """One hyperparameter: both ends with HDET and fixed, then the grid from its middle outwards."""
    (grid,) = TASKS[task].grids.values()
    low, *inner, high = grid
    ends = [plan.run(task, arm, (value,), seed) for arm in (HDET, FIXED) for value in (low, high)]
    return ends + [plan.run(task, FIXED, (value,), seed) for value in _from_the_middle(inner)]


def _from_the_middle(values: Sequence[float]) -> list[float]:
    """The same values, those in the middle first: the best is likely to be there.

    >>> _from_the_middle([1, 2, 3, 4, 5])
    [3, 2, 4, 1, 5]
    """
    middle = statistics.mean(range(len(values))) if values else 0
    order = sorted(range(len(values)), key=lambda place: abs(place - middle))
    return [values[place] for place in order]
