"""Which runs are compared: plain data parallelism, and ways in which four islands meet.

Every arm has the same samples, steps and schedule, and as many learning rates to choose from. Arm after arm,
so that a prefix is already a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import hdet
from hdet.bench.regret.plan import learning_rate
from hdet.bench.rows import Row

__all__ = ["ARMS", "INNER_EVERY", "ISLANDS", "PLAIN", "SYNC_EVERY", "Arm", "Plan", "Run", "planned", "run_of"]

ISLANDS = 4
#: T: steps that islands train by themselves.
SYNC_EVERY = 50
#: Steps between two means of a pair, where pairs meet more often than all.
INNER_EVERY = 10
PLAIN = "DDP"


@dataclass(frozen=True)
class Arm:
    """How islands meet. ``pairs``: None, or how the two of a pair share what they learn within a round."""

    outer: hdet.Outer | None = None
    explore: tuple[Any, ...] = ()
    wire: str | None = None
    pairs: str | None = None

    @property
    def travels(self) -> bool:
        """Whether it takes processes to see what it does; else islands are rows of one process."""
        return bool(self.explore) or self.wire is not None or self.pairs is not None


_EXPLORED = (hdet.OuterLR(), hdet.OuterMomentum())
ARMS: dict[str, Arm | None] = {
    PLAIN: None,
    "mean": Arm(),
    "outer": Arm(hdet.Outer()),
    "outer explored": Arm(hdet.Outer(), _EXPLORED),
    "mean, int8": Arm(wire="int8"),
    "outer, int8": Arm(hdet.Outer(), wire="int8"),
    "outer explored, int8": Arm(hdet.Outer(), _EXPLORED, wire="int8"),
    "mean, bf16": Arm(wire="bf16"),
    "mean, pairs share gradients": Arm(pairs="gradients"),
    "mean, pairs share weights": Arm(pairs="weights"),
}


_FEW, _MANY = 12 * SYNC_EVERY, 48 * SYNC_EVERY
_COMPARED = {_FEW: tuple(ARMS), _MANY: tuple(ARMS)[:4]}


@dataclass(frozen=True, slots=True)
class Run:
    """One training run: all that its result depends on."""

    workload: str
    steps: int
    arm: str
    lr: float
    seed: int

    @property
    def replicas(self) -> int:
        """How many processes it takes. One model on the batch of all is what DDP computes."""
        arm = ARMS[self.arm]
        return ISLANDS if arm is not None and arm.travels else 1

    def __str__(self) -> str:
        return f"{self.workload}, {self.steps} steps, {self.arm} at {self.lr:g}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """What is compared."""

    workloads: Sequence[str]
    seeds: int = 3
    #: For every length of a run its arms: an outer momentum remembers ten rounds, so few and many differ.
    arms: Mapping[int, Sequence[str]] = field(default_factory=lambda: dict(_COMPARED))
    #: Of √10: from 1e-2 to 1e-1.
    exponents: Sequence[int] = (-4, -3, -2)

    def over_seeds(self, workload: str, steps: int, arm: str, lr: float) -> list[Run]:
        """One run for each seed."""
        return [Run(workload, steps, arm, lr, seed) for seed in range(self.seeds)]

    def rates(self) -> list[float]:
        """Those that every arm has to choose from."""
        return [learning_rate(exponent) for exponent in self.exponents]


def planned(plan: Plan) -> list[Run]:
    """Length after length, arm after arm."""
    return [
        run
        for workload in plan.workloads
        for steps, arms in plan.arms.items()
        for arm in arms
        for lr in plan.rates()
        for run in plan.over_seeds(workload, steps, arm, lr)
    ]


def run_of(row: Row | Mapping[str, Any]) -> Run:
    """Which run a row is of."""
    return Run(**{part.name: row[part.name] for part in fields(Run)})
