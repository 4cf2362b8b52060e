"""One run on one of its replicas, from the first step to the final loss.

All runs of a workload and a seed start from the same weights and are given the same batches, each replica its
N-th part of every one. So all N train the same run, and what differs is what is known of it.
Each replica probes 32 samples that no other has, in four batches: N of them know N times as much.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from itertools import islice

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.fan_out.noise import NotedController, usual
from benchmarks.fan_out.plan import SWEEP, Run, row_of
from benchmarks.regret import arms as regret
from benchmarks.regret.optimizers import build
from benchmarks.rows import Row, six_digits
from benchmarks.workloads import Batch, Workload
from benchmarks.workloads.base import seeded
from hdet.autolr.auto_lr import AutoLR
from hdet.probes.probe import Probe

__all__ = ["BATCHES", "MOST_RANKS", "SAMPLES", "execute", "probed"]

#: What each replica probes: so many batches of so many samples.
BATCHES, SAMPLES = 4, 8
#: As many as any workload's probe has samples for.
MOST_RANKS = 8
_DIVERGED = 10.0
# More than there are ranks, so that no two replicas of any two seeds drop the same units.
_SEED_STRIDE = 1000


def execute(rank: int, run: Run) -> Row | None:
    """One replica of the run; the first has the result."""
    regret.prepare("cpu")
    if run.arm == SWEEP:
        return row_of(run, regret.execute(run.swept))
    with seeded(_SEED_STRIDE * run.seed + rank):
        return _execute(rank, run)


def _execute(rank: int, run: Run) -> Row | None:
    workload = regret.workload_of(run.swept)
    model = workload.build(run.seed)
    init = workload.evaluate(model)
    wrapped: nn.Module = model.train()
    if run.replicas > 1:
        wrapped = DistributedDataParallel(model)
    (optimizer,) = build(run.optimizer, wrapped, 1.0)  # which is not read
    probe = Probe(lambda batch: workload.loss(model, batch), probed(rank, run, workload), model=model)
    controller = NotedController(ranks=run.replicas)
    search = AutoLR(optimizer, probe=probe, total_steps=workload.steps, rule=controller)
    began = time.perf_counter()
    reached = 0.0
    for batch in islice(workload.batches(run.seed), workload.steps):
        optimizer.zero_grad(set_to_none=True)
        part = tuple(whole.chunk(run.replicas)[rank] for whole in batch)
        workload.loss(wrapped, part).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        reached = max(reached, float(optimizer.param_groups[0]["lr"]))
        search.step()
        if search.finished:
            break
    seconds = time.perf_counter() - began
    end = workload.evaluate(model)
    handed = search.finish_()
    chosen = workload.evaluate(model)
    if rank:
        return None
    diverged = not end <= _DIVERGED * init
    return row_of(
        run,
        {
            "init": init,
            "held_out": None if diverged else end,
            "chosen": chosen if math.isfinite(chosen) else None,
            "chosen_step": None if handed is None else handed.step,
            "diverged": diverged,
            "taken": search.steps,
            "reached": reached if math.isfinite(reached) else None,
            "seconds": round(seconds, 3),
            **_noted(controller),
        },
    )


def probed(rank: int, run: Run, workload: Workload) -> list[Batch]:
    """The batches that one replica judges by, which no other one has, and its neighbour's, for an estimate
    that is not read here."""
    source = workload.probe(run.seed)
    parts: list[Batch] = []
    # A pass over the probe's samples repeats none.
    while sum(len(part[0]) for part in parts) < MOST_RANKS * BATCHES * SAMPLES:
        parts.append(next(source))
    samples = tuple(torch.cat(column) for column in zip(*parts, strict=True))
    firsts = [(r % MOST_RANKS) * BATCHES * SAMPLES for r in (rank, rank + 1)]
    return [
        tuple(column[start : start + SAMPLES] for column in samples)
        for first in firsts
        for start in range(first, first + BATCHES * SAMPLES, SAMPLES)
    ]


def _noted(controller: NotedController) -> Row:
    """How sure its decisions were, over all judged windows."""
    noted = controller.noted
    found: Row = {
        "windows": len(noted),
        "progress_error": usual([one.progress_error for one in noted], BATCHES * controller.ranks),
        "decision_error": _root_mean_square([one.error for one in noted]),
    }
    rounded: Row = six_digits(found)
    return rounded


def _root_mean_square(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return math.sqrt(statistics.fmean(value**2 for value in finite)) if finite else None
