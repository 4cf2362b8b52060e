"""Which runs the benchmark is made of, in which order, and how much each arm may spend.

Arms are compared at the samples of ``members`` single runs, and beside them stand the same samples as one
large batch: with AutoLR, and at the best of a few rates, which takes as many times the samples.

A run is whatever depends on no other run: one training at a fixed setting, or a whole search, whose later
trainings follow from earlier ones. The budget of every arm but the truth is counted in training samples:
those of ``members`` single runs. The order is that of seeds; the sweep of the first one comes after its
arms, and the best of it are confirmed by the other seeds when all of it is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from benchmarks.autotune.tasks import TASKS, batch_size, workload
from benchmarks.rows import KeptRows, Row
from benchmarks.workloads import Workload

__all__ = [
    "ARMS",
    "AUTOTUNE",
    "AVERAGED",
    "DEFAULT",
    "LARGE",
    "LARGE_TUNED",
    "MEMBERS",
    "PB2",
    "PBT",
    "RANDOM",
    "RATES",
    "SEARCHES",
    "SEGMENTS",
    "SWEEP",
    "SWEPT",
    "TPE_HYPERBAND",
    "TWICE",
    "Plan",
    "Rows",
    "Run",
    "planned",
    "run_of",
]

AUTOTUNE, RANDOM, TPE_HYPERBAND = "AutoTune", "random", "TPE, Hyperband"
#: AutoTune on twice the replicas, and so twice the samples; replicas on data of their own, nothing explored.
TWICE, AVERAGED = "AutoTune, twice", "averaging"
#: A batch as large as those of all replicas together: with AutoLR, and at each of :data:`RATES`.
LARGE, LARGE_TUNED = "large batch, AutoLR", "large batch, tuned"
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
PBT, PB2 = "PBT", "PB2"
#: A single run at torch's defaults.
DEFAULT = "defaults"
#: The truth: many single runs.
SWEEP = "sweep"
SEARCHES = (RANDOM, TPE_HYPERBAND, PBT, PB2)
ARMS = (DEFAULT, *SEARCHES, LARGE, LARGE_TUNED, AVERAGED, AUTOTUNE, TWICE)

#: How many single runs' worth of samples an arm may spend, and how many replicas or members there are.
MEMBERS = 4
#: Runs of the sweep.
SWEPT = 40
#: In so many parts of a single run a pruner, or a population's scheduler, is asked.
SEGMENTS = 10


@dataclass(frozen=True, slots=True)
class Run:
    """One run: all that its result depends on.

    ``number`` is that of a single run among those of its arm, ``steps`` of None are the workload's own.
    """

    task: str
    arm: str
    number: int
    seed: int
    members: int = MEMBERS
    scale: str = "cpu"
    device: str = "cpu"
    steps: int | None = None

    def __str__(self) -> str:
        which = f" {self.number}" if self.arm in (RANDOM, LARGE_TUNED, SWEEP) else ""
        return f"{self.task} {self.arm}{which} seed {self.seed}"

    @property
    def replicas(self) -> int:
        """How many processes it takes."""
        return {AUTOTUNE: 1, AVERAGED: 1, TWICE: 2}.get(self.arm, 0) * self.members or 1

    @property
    def workload(self) -> Workload:
        """The task at its scale, of this run's length."""
        made = workload(self.task, self.scale, self.device)
        made = made if self.steps is None else replace(made, steps=self.steps)
        if made.steps % SEGMENTS:
            raise ValueError(f"{self.task}: steps must be a multiple of {SEGMENTS}, got {made.steps}")
        return made


@dataclass(frozen=True)
class Plan:
    """What is to be compared. ``confirmed`` of the sweep's best are run with the other seeds too."""

    tasks: tuple[str, ...] = tuple(TASKS)
    seeds: int = 3
    arms: tuple[str, ...] = ARMS
    members: int = MEMBERS
    swept: int = SWEPT
    confirmed: int = 4
    scale: str = "cpu"
    device: str = "cpu"
    steps: int | None = None

    def run(self, task: str, arm: str, seed: int, number: int = 0) -> Run:
        """A run of this plan's size."""
        return Run(task, arm, number, seed, self.members, self.scale, self.device, self.steps)

    def runs(self, task: str, arm: str, seed: int) -> list[Run]:
        """All runs of an arm: random search has as many as the budget, a large batch one for each rate, each
        of the others one."""
        count = {RANDOM: self.members, LARGE_TUNED: len(RATES)}.get(arm, 1)
        return [self.run(task, arm, seed, number) for number in range(count)]

    def single(self, task: str) -> int:
        """Samples of a single run."""
        work = self.run(task, DEFAULT, 0).workload
        return work.steps * batch_size(work)

    def budget(self, task: str, arm: str) -> int:
        """Samples that an arm spends, exactly."""
        several = {DEFAULT: 1, SWEEP: self.swept, TWICE: 2 * self.members}
        several[LARGE_TUNED] = len(RATES) * self.members
        return several.get(arm, self.members) * self.single(task)

    def holds(self, run: Run) -> bool:
        """Whether a run belongs to the table of this plan."""
        known = run.task in self.tasks and run.seed < self.seeds and run.arm in (*self.arms, SWEEP)
        return known and run == self.run(run.task, run.arm, run.seed, run.number)


class Rows(KeptRows[Run]):
    """The results so far of this benchmark's runs."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path, run_of)


def run_of(row: Row) -> Run:
    """The run whose result ``row`` is."""
    return Run(**{part.name: row[part.name] for part in fields(Run)})


def planned(plan: Plan, finished: Mapping[Run, Row]) -> list[Run]:
    """Every run that the plan asks for as far as can be known by now, in order."""
    runs: list[Run] = []
    for seed in range(plan.seeds):
        runs += (run for arm in plan.arms for task in plan.tasks for run in plan.runs(task, arm, seed))
        if seed == 0:
            runs += (run for task in plan.tasks for run in _swept(plan, task))
    for task in plan.tasks:
        runs += (
            plan.run(task, SWEEP, seed, number)
            for seed in range(1, plan.seeds)
            for number in _leading(plan, task, finished)
        )
    return runs


def _swept(plan: Plan, task: str) -> list[Run]:
    return [plan.run(task, SWEEP, 0, number) for number in range(plan.swept)]


def _leading(plan: Plan, task: str, finished: Mapping[Run, Row]) -> list[int]:
    """The best of the sweep's first seed by the probe; none while it is not done."""
    runs = _swept(plan, task)
    if not all(run in finished for run in runs):
        return []
    return sorted(range(plan.swept), key=lambda number: finished[runs[number]]["probe"])[: plan.confirmed]
