"""Which runs the zoo is made of, in which order.

For every cell, a task with an optimizer, the ground truth: half-decade rates under two schedules, further
outward while the best is at an edge, then other seeds of the two best settings. Then the default rate,
AutoLR, and what else asks for no rate. Every stage goes over all cells before the next begins, and rates go
from the middle outward, so that a plan that is stopped has something to say of every cell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from benchmarks.regret.plan import learning_rate, next_half_decade
from benchmarks.rows import Row

__all__ = [
    "DEFAULT_RATES",
    "METHODS",
    "PEERS",
    "SCHEDULES",
    "Cell",
    "Plan",
    "Run",
    "best_settings",
    "first_seed",
    "loss_of",
    "planned",
    "run_of",
]

Cell = tuple[str, str]
#: A rate and a schedule.
Setting = tuple[float, str]

#: What else asks for no rate, with the optimizers that it is for; "greedy-bounds" is GreedyLR between the
#: rates that its author gives (transformers#45168).
PEERS = {
    "prodigy": ("adamw",),
    "schedule-free": ("adamw", "sgd"),
    "greedy": ("adamw", "sgd"),
    "greedy-bounds": ("adamw",),
}
METHODS = ("sweep", "default", "autolr", *PEERS)
SCHEDULES = ("onecycle", "wsd")
#: All with OneCycle.
DEFAULT_RATES = {"adamw": 1e-3, "sgd": 1e-2, "lion": 1e-4, "muon": 1e-3}
#: Exponents of √10, from the middle outward: 1e-5…3e-2 for AdamW, 3e-4…1 for SGD.
_STARTS = {
    "adamw": (-6, -5, -7, -4, -8, -3, -9, -10),
    "sgd": (-4, -3, -2, -5, -1, -6, 0, -7),
    "lion": (-8, -7, -9, -6, -10, -5, -11, -4),
    "muon": (-6, -5, -7, -4, -8, -3, -9, -10),
}
_SETTINGS = {
    exponent: [(learning_rate(exponent), schedule) for schedule in SCHEDULES] for exponent in range(-20, 10)
}
#: So many rates a sweep may add at its edges: losses in raw units need rates far from the usual.
_EXTENSIONS = 8


@dataclass(frozen=True, slots=True)
class Run:
    """One training run: all that its result depends on. ``method`` is fixed, or one that has no rate: autolr,
    before, a peer."""

    task: str
    optimizer: str
    method: str
    rate: float | None
    schedule: str
    seed: int
    device: str = "cpu"

    def __str__(self) -> str:
        rate = "" if self.rate is None else f" {self.rate:g} {self.schedule}"
        return f"{self.task} {self.optimizer} {self.method}{rate} seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """What is to be run, and where."""

    cells: Sequence[Cell]
    methods: Sequence[str] = METHODS
    seeds: int = 3
    device: str = "cpu"

    def fixed(self, cell: Cell, setting: Setting, seed: int) -> Run:
        """At a given rate, under a given schedule."""
        return Run(*cell, "fixed", *setting, seed, self.device)

    def run(self, method: str, cell: Cell, seed: int) -> Run:
        """At the default rate, of which seed 0 is a part of the sweep, too; or without a rate. "before" is
        AutoLR with the rule of 0.2.0: kept, and not to be run again."""
        if method == "default":
            return self.fixed(cell, (DEFAULT_RATES[cell[1]], "onecycle"), seed)
        return Run(*cell, method, None, "own", seed, self.device)


def planned(plan: Plan, finished: Mapping[Run, Row]) -> list[Run]:
    """Every run the plan asks for as far as can be known by now, in order and each once."""
    runs: list[Run] = []
    if "sweep" in plan.methods:
        first = first_seed(plan, finished)
        swept = {cell: _swept(cell, rows) for cell, rows in first.items()}
        for place in range(max(map(len, swept.values()), default=0)):
            runs += (plan.fixed(cell, some[place], 0) for cell, some in swept.items() if place < len(some))
        for seed in range(1, plan.seeds):
            for cell, some in swept.items():
                if len(first[cell]) == len(some):
                    runs += (plan.fixed(cell, best, seed) for best in best_settings(first[cell]))
    others = [method for method in METHODS if method in plan.methods and method != "sweep"]
    for seed in range(plan.seeds):
        for method in others:
            runs += (
                plan.run(method, cell, seed)
                for cell in plan.cells
                if method not in PEERS or cell[1] in PEERS[method]
            )
    return list(dict.fromkeys(runs))


def first_seed(plan: Plan, finished: Mapping[Run, Row]) -> dict[Cell, dict[Setting, Row]]:
    """What is known of every cell's sweep with seed 0."""
    found: dict[Cell, dict[Setting, Row]] = {cell: {} for cell in plan.cells}
    for run, row in finished.items():
        cell = run.task, run.optimizer
        if run.rate is not None and run.seed == 0 and run.device == plan.device and cell in found:
            found[cell][run.rate, run.schedule] = row
    return found


def best_settings(swept: Mapping[Setting, Row]) -> list[Setting]:
    """The two that are worth other seeds.

    The best as it ends and the best with the choice of weights, or, where these are one, the next as it ends.
    """
    by_end = sorted(swept, key=lambda setting: loss_of(swept[setting], "test"))
    by_choice = min(swept, key=lambda setting: loss_of(swept[setting], "test_chosen"))
    return list(dict.fromkeys([by_end[0], by_choice, *by_end]))[:2]


def loss_of(row: Row, name: str) -> float:
    """A loss of the row; infinite where it was not finite."""
    return math.inf if row[name] is None else float(row[name])


def run_of(row: Row) -> Run:
    """The run whose result ``row`` is."""
    return Run(**{part.name: row[part.name] for part in fields(Run)})


def _swept(cell: Cell, known: Mapping[Setting, Row]) -> list[Setting]:
    """The settings of one sweep: those it starts from, and those it was led to."""
    tried = list(_STARTS[cell[1]])
    for _ in range(_EXTENSIONS):
        losses = _losses(tried, known)
        further = next_half_decade(losses) if losses else None
        if further is None:
            break
        tried.append(further)
    return [setting for exponent in tried for setting in _SETTINGS[exponent]]


def _losses(exponents: Sequence[int], known: Mapping[Setting, Row]) -> dict[int, float]:
    """For each exponent the loss under its better schedule; empty while any is not known."""
    if not all(setting in known for exponent in exponents for setting in _SETTINGS[exponent]):
        return {}
    return {
        exponent: min(loss_of(known[setting], "test") for setting in _SETTINGS[exponent])
        for exponent in exponents
    }
