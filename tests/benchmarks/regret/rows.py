"""Made-up rows of the regret benchmark."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks.regret.plan import ARMS, Row, Run


def row(arm: str, seed: int, held_out: float, *, lr: float | None = None, **changes: Any) -> Row:
    """A run that came from 2 to ``held_out``, and in training from 4 to twice of it."""
    schedule = ARMS.get(arm, "wsd")
    run = asdict(Run(changes.pop("workload", "quadratic"), "adamw", arm, lr, schedule, seed))
    found = {"init": 2.0, "init_train": 4.0, "seconds": 1.0, "reached": lr or 0.1, "diverged": False}
    return {**run, "held_out": held_out, "train": 2 * held_out, **found, **changes}


def sweep(lr: float, *losses: float, **changes: Any) -> list[Row]:
    return [row("sweep", seed, loss, lr=lr, **changes) for seed, loss in enumerate(losses)]
