"""Made-up rows of the paper's experiments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.reproduce.plan import Plan, Row, Run, planned

GROUPS = ("embedding", "no_decay", "non_embedding", "transformer")
PLAN = Plan("feed", "cpu", seeds=3)


def made_up(run: Run, crash_from: float = 0.3) -> Row:
    """A loss that is lowest at 0.01; at ``crash_from`` and above a run crashes at step 80."""
    lr = run.lr or 0.01
    crashed = lr >= crash_from
    loss = 1.0 + 0.1 * abs(math.log10(lr) + 2) + 0.01 * run.seed
    row: Row = {
        **asdict(run),
        "train": None if crashed and run.seed == 1 else loss,
        "held_out": loss + 0.1,
        "by_answer": {"like": 0.5},
        "auc": {"like": 0.7 + 0.01 * run.seed, "long_dwell": 0.6},
        "ne": {"like": 0.9, "long_dwell": 0.0},
        "init": 2.0,
        "crashed": crashed,
        "crash_step": 80 + run.seed if crashed else None,
        "seconds": 1.5,
        "loss_steps": [50, 100],
        "loss": [2.0, None if crashed else loss],
    }
    if run.configuration.startswith("HDET"):
        factors = dict(zip(GROUPS, (1.0, 1.1, 1.05, 0.9), strict=True))
        row |= {
            "lr_steps": [40, 100],
            "factors": {group: [1.0, factor] for group, factor in factors.items()},
            "lrs": {group: [lr, factor * lr] for group, factor in factors.items()},
        }
    return row


def all_done(plan: Plan, crash_from: float = 0.3) -> dict[Run, Row]:
    finished: dict[Run, Row] = {}
    while todo := [run for run in planned(plan, finished) if run not in finished]:
        finished |= {run: made_up(run, crash_from) for run in todo}
    return finished


def with_head(name: str, made: Mapping[str, Any]) -> dict[str, Any]:
    head: dict[str, Any] = {"name": name, "title": "Table 1", "task": "feed", "seeds": 3, "loss_unit": "nats"}
    head |= {"options": "", "settings": {"decay": "schedule"}}
    head |= {"reference": {"base_rate_loss": 1.3, "bayes_loss": None}, "missing_runs": 0, "failed": []}
    return {**head, "crash_rule": "Crashed is who crashed.", "caveats": ["It is made up."], **made}
