"""Which runs are compared: N replicas on the same samples, on one gradient or on their own, and the sweep.

The sweep, of one model without replicas, is the regret benchmark's own, and comes first: all else is measured
against it. Then seed after seed, one replica alone and then the largest N: a prefix is already a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from hdet.bench.regret import plan as sweep
from hdet.bench.rows import KeptRows, Row

__all__ = [
    "ARMS",
    "OWN",
    "PROBES",
    "SHARED",
    "SWEEP",
    "Plan",
    "Rows",
    "Run",
    "arm_name",
    "planned",
    "row_of",
    "run_of",
]

SWEEP = "sweep"
#: Each rank probes batches of its own; all train one model on one gradient.
PROBES = "probes"
#: The same, each at a learning rate of its own.
SHARED = "shared gradient"
#: Each trains on its part of the batch by itself, and the weights are averaged at the end of a window.
OWN = "own gradients"
ARMS = (PROBES, SHARED, OWN)


@dataclass(frozen=True, slots=True)
class Run:
    """One training run: all that its result depends on. ``steps`` of None are the workload's own."""

    workload: str
    optimizer: str
    arm: str
    replicas: int
    spread: float
    seed: int
    lr: float | None = None
    schedule: str = "own"
    steps: int | None = None

    def __str__(self) -> str:
        what = f"{self.lr:g} {self.schedule}" if self.arm == SWEEP else f"N = {self.replicas}"
        return f"{self.workload} {self.optimizer} {arm_name(self.arm, self.spread)} {what} seed {self.seed}"

    @property
    def swept(self) -> sweep.Run:
        """What the regret benchmark calls it."""
        pair = self.workload, self.optimizer
        return sweep.Run(*pair, SWEEP, self.lr, self.schedule, self.seed, steps=self.steps)


def arm_name(arm: str, spread: float) -> str:
    """An arm with its spread.

    >>> arm_name(OWN, 0.3), arm_name(PROBES, 0.0)
    ('own gradients, spread 0.3', 'probes')
    """
    return arm if arm in (SWEEP, PROBES) else f"{arm}, spread {spread:g}"


@dataclass(frozen=True)
class Plan:
    """What is to be compared.

    Args:
        workloads: names from :data:`hdet.bench.workloads.WORKLOADS`, without batch norm, whose statistics
            would be others on a part of the batch.
        sizes: N. One replica alone has nothing to diverge from: there is one arm.
        spreads: of each arm that has any. 0 on gradients of their own tells what those alone do.
    """

    workloads: tuple[str, ...]
    optimizers: tuple[str, ...] = sweep.USUAL
    seeds: int = 3
    sizes: tuple[int, ...] = (1, 2, 4, 8)
    spreads: Mapping[str, Sequence[float]] = field(
        default_factory=lambda: {PROBES: (0.0,), SHARED: (0.1, 0.3), OWN: (0.0, 0.3, 0.9)}
    )
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

    @property
    def arms(self) -> list[tuple[str, float, int]]:
        """Every arm with its spread and its N: one replica, whom all are compared with, then the largest."""
        return [
            (arm, spread, size)
            for size in sorted(self.sizes, key=lambda size: (size > 1, -size))
            for arm in ARMS
            for spread in self.spreads.get(arm, ())
            if size > 1 or arm == PROBES
        ]

    def holds(self, run: Run) -> bool:
        """Whether a run belongs to the table of this plan."""
        known = run.arm == SWEEP or (run.arm, run.spread, run.replicas) in self.arms
        pair = (run.workload, run.optimizer) in self.sweep.pairs
        return known and pair and run.seed < self.seeds and run.steps == self.steps


def planned(plan: Plan, finished: Mapping[Run, Row]) -> list[Run]:
    """Every run that the plan asks for as far as can be known by now."""
    known = {run.swept: row for run, row in finished.items() if run.arm == SWEEP}
    runs = [
        Run(one.workload, one.optimizer, SWEEP, 1, 0.0, one.seed, one.lr, one.schedule, one.steps)
        for one in sweep.sweep_alone(plan.sweep, known)
    ]
    runs += [
        Run(*pair, arm, size, spread, seed, steps=plan.steps)
        for seed in range(plan.seeds)
        for arm, spread, size in plan.arms
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
