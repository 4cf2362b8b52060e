"""One run of the benchmark of hyperparameters, on one of its replicas, from the first step to the final loss.

All runs of a task and a seed start from the same weights and take the same number of steps, each replica on
batches of its own, and on gradients of its own or shared as the task says; weights on gradients of their own
are averaged every so often, also where nothing is looked for.
What differs is where the values start, and whether they stay there.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

import hdet
from benchmarks.hyperparameters.plan import FIXED, IN_TURN, Run
from benchmarks.hyperparameters.tasks import TASKS, Setup, Task, explore, put, set_up, workload
from benchmarks.regret.trainer import wsd
from benchmarks.rows import Row
from benchmarks.workloads import Batch, Workload
from benchmarks.workloads.base import seeded

__all__ = ["execute", "phases"]

# More than any benchmark has ranks, so that no two replicas of any two seeds draw the same batches.
_SEED_STRIDE = 1000


def execute(rank: int, run: Run) -> Row | None:
    """One replica of the run; the first has the result."""
    own_seed = _SEED_STRIDE * run.seed + rank
    with _quick_and_quiet(), seeded(own_seed):
        return _execute(rank, run, own_seed)


@contextmanager
def _quick_and_quiet() -> Iterator[None]:
    """Within, without oneDNN, whose set-up costs more than a matrix this small, and without hdet's warnings.

    The process may serve others afterwards. ``mkldnn.flags`` would do the same, but sets TF32 too and warns.
    """
    logger, set_flags = logging.getLogger("hdet"), torch.backends.mkldnn.set_flags
    level = logger.level
    logger.setLevel(logging.ERROR)
    enabled, *_ = set_flags(False)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        set_flags(enabled)  # type: ignore[no-untyped-call]
        logger.setLevel(level)


def phases(run: Run, explored: Sequence[str], steps: int) -> list[tuple[tuple[str, ...], int]]:
    """What is looked for in which part of the run, and how many steps that has.

    >>> phases(Run("any", "in turn", (1.0, 2.0), 0, 4), ("first", "second"), 101)
    [(('first',), 51), (('second',), 50)]
    """
    if run.arm == IN_TURN:
        count = len(explored)
        ends = [math.ceil(steps * (turn + 1) / count) for turn in range(count)]
        lengths = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
        return [((name,), length) for name, length in zip(explored, lengths, strict=True)]
    return [(() if run.arm == FIXED else tuple(explored), steps)]


def _execute(rank: int, run: Run, own_seed: int) -> Row | None:
    task, data = TASKS[run.task], workload(run.task)
    steps = run.steps or data.steps
    model = data.build(run.seed).train()
    # One arm shares its gradients, an arm for each replica does not.
    arms = hdet.Arms(1 if task.gradients == "all" else run.replicas)
    setup = set_up(task, arms.wrap(model))
    for name, value in zip(task.explored, run.start, strict=True):
        put(setup, name, value)
    schedule = LambdaLR(setup.optimizer, lambda step: wsd(step, steps))
    batches = data.batches(own_seed)
    paths = {name: [value] for name, value in zip(task.explored, run.start, strict=True)}
    began = time.perf_counter()
    for names, length in phases(run, task.explored, steps):
        ensemble = _ensemble(run, task, data, setup, names, schedule, length)
        for values in _train(task, setup, ensemble, islice(batches, length)):
            for name, value in zip(names, values, strict=True):
                paths[name].append(value)
        ensemble.detach()
    seconds = time.perf_counter() - began
    return None if rank else _result(run, data.evaluate(model), seconds, paths)


def _ensemble(
    run: Run,
    task: Task,
    data: Workload,
    setup: Setup,
    names: Sequence[str],
    schedule: LambdaLR,
    steps: int,
) -> hdet.Ensemble:
    """Replicas that look for what is named, or for nothing."""
    probe = None
    if names:
        # All replicas are asked on the same batches: what differs between them is what they trained with.
        asked = data.probe(run.seed)
        probe = hdet.Probe(
            lambda batch: data.loss(setup.model, batch), asked, model=setup.model, per_sync=task.probed
        )
    return hdet.Ensemble(
        setup.optimizer,
        explore=[explore(setup, name) for name in names],
        schedule=schedule,
        sync_every=run.sync_every,
        total_steps=steps,
        probe=probe,
        gradients=task.gradients,
        model=setup.model,
        seed=run.seed,
    )


def _train(
    task: Task, setup: Setup, ensemble: hdet.Ensemble, batches: Iterator[Batch]
) -> Iterator[list[float]]:
    """Train on the batches; the base values after every sync."""
    for batch in batches:
        setup.optimizer.zero_grad()
        loss = setup.criterion(*task.outputs(setup.model, batch))
        loss.backward()
        setup.optimizer.step()
        record = ensemble.step(loss)
        if record is not None:
            yield [about.base_after for about in record.hyperparameters]


def _result(run: Run, held_out: float, seconds: float, paths: dict[str, list[float]]) -> Row:
    finite = math.isfinite(held_out)
    moved: dict[str, Any] = {
        name: [float(f"{value:.4g}") for value in values] for name, values in paths.items() if len(values) > 1
    }
    return {
        **asdict(run),
        "held_out": held_out if finite else None,
        "diverged": not finite,
        "seconds": round(seconds, 3),
        "paths": moved,
    }
