"""Which runs the excess is made of, in which order, and the file that remembers those done.

A prefix of the order is already a table: seed 0 of everything comes first, and the sweep, which every other
arm is measured against, before the rest. What a sweep has found so far decides where it goes on, and which of
its learning rates wait for their other seeds until all else is done.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from benchmarks.rows import KeptRows, Row

__all__ = [
    "DEFAULT_RATES",
    "OPTIMIZERS",
    "SCHEDULES",
    "STARTS",
    "USUAL",
    "WITHOUT_MATRICES",
    "Plan",
    "Row",
    "Rows",
    "Run",
    "knows",
    "loss_of",
    "next_half_decade",
    "planned",
    "run_of",
]

#: Those of the table, and all there are.
USUAL = ("adamw", "sgd")
OPTIMIZERS = (*USUAL, "lion", "muon")
SCHEDULES = ("wsd", "onecycle")
#: What torch gives who gives no learning rate. Lion is none of torch's; Muon's updates are scaled to AdamW's.
DEFAULT_RATES = {"adamw": 1e-3, "sgd": 1e-3, "lion": 1e-4, "muon": 1e-3}
#: Each arm that is not swept, with the schedule it is used with.
ARMS = {
    "default-onecycle": "onecycle",
    "autolr": "own",
    "prodigy": "cosine",
    "prodigy-schedulefree": "constant",
    "schedule-free": "warm-up",
    "greedy": "own",
}
#: Arms that are not for every optimizer: variants of some, and what takes a single one.
_ONLY = {
    "prodigy": ("adamw",),
    "prodigy-schedulefree": ("adamw",),
    "schedule-free": ("adamw", "sgd"),
}
#: Without a linear layer before the last there is nothing for Muon to do.
WITHOUT_MATRICES = ("quadratic", "digits-cnn", "images", "few-images")
#: Exponents of √10.
STARTS = {
    "adamw": (-6, -5, -4, -3, -2),
    "sgd": (-4, -3, -2, -1, 0),
    "lion": (-8, -7, -6, -5, -4),
    "muon": (-6, -5, -4, -3, -2),
}
#: A regret, as a share.
_FAR = 0.1


@dataclass(frozen=True, slots=True)
class Run:
    """One training run: all that its result depends on. ``steps`` of None are the workload's own."""

    workload: str
    optimizer: str
    arm: str
    lr: float | None
    schedule: str
    seed: int
    scale: str = "cpu"
    device: str = "cpu"
    steps: int | None = None

    def __str__(self) -> str:
        rate = "" if self.lr is None else f" {self.lr:g}"
        return f"{self.workload} {self.optimizer} {self.arm}{rate} {self.schedule} seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """What is to be compared. ``extensions`` is how many learning rates a sweep may add at its edges."""

    workloads: tuple[str, ...]
    optimizers: tuple[str, ...] = USUAL
    seeds: int = 3
    arms: tuple[str, ...] = tuple(ARMS)
    schedules: tuple[str, ...] = SCHEDULES
    starts: Mapping[str, Sequence[int]] = field(default_factory=lambda: STARTS)
    extensions: int = 4
    scale: str = "cpu"
    device: str = "cpu"
    steps: int | None = None

    def run(
        self, pair: tuple[str, str], arm: str, seed: int, *, lr: float | None = None, schedule: str = "own"
    ) -> Run:
        """A run of this plan's size on this plan's device."""
        return Run(*pair, arm, lr, schedule, seed, self.scale, self.device, self.steps)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every workload with every optimizer that has something to do there."""
        return [
            (workload, optimizer)
            for workload in self.workloads
            for optimizer in self.optimizers
            if optimizer != "muon" or workload not in WITHOUT_MATRICES
        ]

    def holds(self, run: Run) -> bool:
        """Whether a run, of any arm, belongs to the table of this plan."""
        size = (run.scale, run.device, run.steps) == (self.scale, self.device, self.steps)
        return size and (run.workload, run.optimizer) in self.pairs and run.seed < self.seeds


def planned(plan: Plan, finished: Mapping[Run, Row]) -> list[Run]:
    """Every run the plan asks for as far as can be known by now, the most telling first."""
    swept = _sweeps(plan, finished)
    behind = _far_behind(swept, finished)
    runs: list[Run] = []
    for seed in range(plan.seeds):
        runs += (replace(run, seed=seed) for run in swept if seed == 0 or run not in behind)
        for arm in plan.arms:
            runs += (_other(plan, pair, arm, seed) for pair in plan.pairs if _applies(arm, pair[1]))
    return runs + [replace(run, seed=seed) for seed in range(1, plan.seeds) for run in behind]


def _sweeps(plan: Plan, finished: Mapping[Run, Row]) -> list[Run]:
    """Every sweep as far as it has been led, of the first seed."""
    return [
        _swept(plan, pair, exponent, schedule, seed=0)
        for pair in plan.pairs
        for exponent in _sweep_of(plan, pair, finished)
        for schedule in plan.schedules
    ]


def next_half_decade(losses: Mapping[int, float]) -> int | None:
    """Where to look next if the best exponent is at an edge of those tried; None if it is not.

    >>> next_half_decade({-2: 0.5, -1: 0.4, 0: 0.6}) is None
    True
    >>> next_half_decade({-2: 0.5, -1: 0.4, 0: 0.3})
    1
    """
    # Of equals, such as all diverged, the lowest learning rate.
    best = min(losses, key=lambda exponent: (losses[exponent], exponent))
    if best == min(losses):
        return best - 1
    return best + 1 if best == max(losses) else None


def learning_rate(exponent: int) -> float:
    """√10 to the power of ``exponent``, in four digits, so that it reads the same everywhere.

    >>> learning_rate(-5)
    0.003162
    """
    return float(f"{10 ** (exponent / 2):.4g}")


def loss_of(row: Row, name: str = "held_out") -> float:
    """A final loss; of a run that diverged, infinity, but for what it had ``chosen`` before."""
    if name == "chosen":
        return math.inf if row.get("chosen") is None else float(row["chosen"])
    return math.inf if row["diverged"] else float(row[name])


def knows(row: Row, name: str) -> bool:
    """Whether the row tells this loss, be it infinite: rows of old files tell no ``chosen`` one."""
    return name != "chosen" or bool(row["diverged"]) or row.get("chosen_step") is not None


def run_of(row: Row) -> Run:
    """The run whose result ``row`` is."""
    return Run(**{part.name: row[part.name] for part in fields(Run)})


def _applies(arm: str, optimizer: str) -> bool:
    return optimizer in _ONLY.get(arm, OPTIMIZERS)


def _other(plan: Plan, pair: tuple[str, str], arm: str, seed: int) -> Run:
    lr = DEFAULT_RATES[pair[1]] if arm == "default-onecycle" else None
    return plan.run(pair, arm, seed, lr=lr, schedule=ARMS[arm])


def _swept(plan: Plan, pair: tuple[str, str], exponent: int, schedule: str, seed: int) -> Run:
    return plan.run(pair, "sweep", seed, lr=learning_rate(exponent), schedule=schedule)


def _sweep_of(plan: Plan, pair: tuple[str, str], finished: Mapping[Run, Row]) -> list[int]:
    """The exponents of one sweep: those it starts from, and those it was led to."""
    tried = list(plan.starts[pair[1]])
    for _ in range(plan.extensions):
        losses = _losses(plan, pair, tried, finished)
        further = next_half_decade(losses) if losses else None
        if further is None:
            break
        tried.append(further)
    return sorted(tried)


def _far_behind(swept: Iterable[Run], finished: Mapping[Run, Row]) -> list[Run]:
    """Those whose regret beside the best of the first seed is more than other seeds could give back."""
    by_pair: dict[tuple[str, str], dict[Run, Row]] = {}
    for run in swept:
        if (row := finished.get(run)) is not None:
            by_pair.setdefault((run.workload, run.optimizer), {})[run] = row
    behind = []
    for rows in by_pair.values():
        best = min(map(loss_of, rows.values()))
        # Not `>`: that is false where all diverged.
        behind += [run for run, row in rows.items() if not loss_of(row) - best <= _FAR * (row["init"] - best)]
    return behind


def _losses(
    plan: Plan, pair: tuple[str, str], exponents: Iterable[int], finished: Mapping[Run, Row]
) -> dict[int, float]:
    """For each exponent the mean over seeds under its better schedule; empty while any is not known.

    Only seeds count that all of them have, so that no seed's luck is taken for a learning rate's.
    """
    losses: dict[int, float] = {}
    rows = {
        exponent: [
            [finished.get(_swept(plan, pair, exponent, schedule, seed)) for seed in range(plan.seeds)]
            for schedule in plan.schedules
        ]
        for exponent in exponents
    }
    seeds = [
        seed
        for seed in range(plan.seeds)
        if all(by_seed[seed] is not None for schedules in rows.values() for by_seed in schedules)
    ]
    if not seeds:
        return losses
    for exponent, schedules in rows.items():
        losses[exponent] = min(
            statistics.fmean(loss_of(row) for seed in seeds if (row := by_seed[seed]) is not None)
            for by_seed in schedules
        )
    return losses


class Rows(KeptRows[Run]):
    """The results so far of this benchmark's runs."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path, run_of)
