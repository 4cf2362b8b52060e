"""Which runs are compared: N replicas that train one model, each with probe batches of its own; the sweep.

The sweep, of one model without replicas, is the regret benchmark's own, and comes first: all else is measured
against it. Then seed after seed, one replica alone and then the largest N: a prefix is already a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from benchmarks.regret import plan as sweep
from benchmarks.rows import KeptRows, Row

__all__ = [
    "PROBES",
    "SWEEP",
    "Plan",
    "Rows",
    "Run",
    "planned",
    "row_of",
    "run_of",
]

SWEEP = "sweep"
#: Each rank probes batches of its own; all train one model on one gradient.
PROBES = "probes"


@dataclass(frozen=True, slots=True)
class Run:
    """One training run: all that its result depends on. ``steps`` of None are the workload's own."""

    workload: str
    optimizer: str
    arm: str
    replicas: int
    seed: int
    lr: float | None = None
    schedule: str = "own"
    steps: int | None = None

    def __str__(self) -> str:
        what = f"{self.lr:g} {self.schedule}" if self.arm == SWEEP else f"N = {self.replicas}"
        return f"{self.workload} {self.optimizer} {self.arm} {what} seed {self.seed}"

    @property
    def swept(self) -> sweep.Run:
        """What the regret benchmark calls it."""
        pair = self.workload, self.optimizer
        return sweep.Run(*pair, SWEEP, self.lr, self.schedule, self.seed, steps=self.steps)


@dataclass(frozen=True)
class Plan:
    """What is to be compared.

    Args:
        workloads: names from :data:`benchmarks.workloads.WORKLOADS`, without batch norm, whose statistics
            would be others on a part of the batch.
        sizes: N.
    """

    workloads: tuple[str, ...]
    optimizers: tuple[str, ...] = sweep.USUAL
    seeds: int = 3
    sizes: tuple[int, ...] = (1, 2, 4, 8)
    steps: int | None = None
    #: Of the sweep.
    schedules: tuple[str, ...] = sweep.SCHEDULES
    starts: Mapping[str, Sequence[int]] = field(default_factory=lambda: sweep.STARTS)
    extensions: int = 4

    @property
    def sweep(self) -> sweep.Plan:
        """The yardstick."""
        return sweep.Plan(
            self.workloads,
            self.optimizers,
            self.seeds,
            arms=(),
            misled=(),
            schedules=self.schedules,
            starts=self.starts,
            extensions=self.extensions,
            steps=self.steps,
        )

    def holds(self, run: Run) -> bool:
        """Whether a run belongs to the table of this plan."""
        known = run.arm == SWEEP or run.replicas in self.sizes
        pair = (run.workload, run.optimizer) in self.sweep.pairs
        return known and pair and run.seed < self.seeds and run.steps == self.steps


def planned(plan: Plan, finished: Mapping[Run, Row]) -> list[Run]:
    """Every run that the plan asks for as far as can be known by now."""
    known = {run.swept: row for run, row in finished.items() if run.arm == SWEEP}
    runs = [
        Run(one.workload, one.optimizer, SWEEP, 1, one.seed, one.lr, one.schedule, one.steps)
        for one in sweep.sweep_alone(plan.sweep, known)
    ]
    runs += [
        Run(*pair, PROBES, size, seed, steps=plan.steps)
        for seed in range(plan.seeds)
        for size in sorted(plan.sizes, key=lambda size: (size > 1, -size))
        for pair in plan.sweep.pairs
    ]
    return runs


def run_of(row: Row) -> Run:
    """The run whose result ``row`` is."""
    return Run(**{part.name: row[part.name] for part in fields(Run)})


def row_of(run: Run, result: Row) -> Row:
    """A result under the name of its run."""
    return {**result, **asdict(run)}


class Rows(KeptRows[Run]):
    """The results so far of this benchmark's runs."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path, run_of)
