"""Made-up rows."""

import math
from dataclasses import asdict

from benchmarks.zoo.plan import planned


def row_of(run, loss, chosen=None, **more):
    finite = loss if math.isfinite(loss) else None
    chosen = finite if chosen is None else chosen
    return {
        **asdict(run),
        **{"test": finite, "test_chosen": chosen, "probe": finite, "probe_chosen": chosen},
        "start": 2.0,
        "reached": run.rate or 0.02,
        "back": 0,
        "taken": 100,
        "steps": 100,
        "seconds": 1.0,
        **more,
    }


def complete(plan, loss):
    """All rows of a plan, each with the loss that the function gives its run."""
    done = {}
    while todo := [run for run in planned(plan, done) if run not in done]:
        done |= {run: row_of(run, loss(run)) for run in todo}
    return done
