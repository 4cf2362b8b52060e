"""One run, from the first step to the final loss of the islands' mean.

All runs of a task and a seed start from the same weights and are given the same batches, each island its part
of every one; plain data parallelism is one model on the whole of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR

import hdet
from hdet.bench.islands.plan import ARMS, INNER_EVERY, ISLANDS, SYNC_EVERY, Arm, Run
from hdet.bench.regret.arms import prepare
from hdet.bench.rows import Row
from hdet.bench.workloads import WORKLOADS, Batch, Workload
from hdet.bench.workloads.base import seeded

__all__ = ["execute"]

_DIVERGED = 10.0
#: Held-out batches that are probed at every sync, where something is explored.
_PROBED = 2
# More than there are ranks, so that no two islands of any two seeds draw the same noise.
_SEED_STRIDE = 1000


def execute(rank: int, run: Run) -> Row | None:
    """One process of the run; the first has the result."""
    prepare("cpu")
    with seeded(_SEED_STRIDE * run.seed + rank):
        return _execute(rank, run)


def _execute(rank: int, run: Run) -> Row | None:
    workload = WORKLOADS[run.workload]("cpu", "cpu")
    model = workload.build(run.seed).train()
    init = workload.evaluate(model)
    arm = ARMS[run.arm]
    began = time.perf_counter()
    values: dict[str, float] = {}
    if arm is None:
        sent = _ring(model) * run.steps
        _plain(run, workload, model)
    elif arm.travels:
        values, sent = _processes(rank, run, arm, workload, model)
    else:  # as many syncs of weights and two moments
        sent = 3 * _ring(model) * (run.steps // SYNC_EVERY)
        values = _rows(run, arm, workload, model)
    seconds = time.perf_counter() - began
    held_out = workload.evaluate(model)
    if rank:
        return None
    diverged = not held_out <= _DIVERGED * init
    return {
        **asdict(run),
        "init": init,
        "held_out": None if diverged or not math.isfinite(held_out) else held_out,
        "sent_bytes": sent,
        "values": values,
        "seconds": round(seconds, 3),
    }


def _optimizer(run: Run, model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=run.lr)


def _curve(run: Run, optimizer: Optimizer) -> OneCycleLR:
    return OneCycleLR(optimizer, run.lr, run.steps, cycle_momentum=False)


def _plain(run: Run, workload: Workload, model: nn.Module) -> None:
    """One model on the whole of every batch."""
    optimizer = _optimizer(run, model)
    schedule = _curve(run, optimizer)
    for batch in islice(workload.batches(run.seed), run.steps):
        optimizer.zero_grad(set_to_none=True)
        workload.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()


def _rows(run: Run, arm: Arm, workload: Workload, model: nn.Module) -> dict[str, float]:
    """All islands as rows of this process, which equal processes."""
    rows = hdet.StackedReplicas(model, _optimizer(run, model), ISLANDS, gradients="none")
    probe = _probe(0, run, arm, workload, lambda batch: rows.losses(workload.loss, batch), model)
    ensemble = _ensemble(run, arm, rows.optimizer, probe, "none", None)
    for batch in islice(workload.batches(run.seed), run.steps):
        rows.optimizer.zero_grad()
        losses = rows.losses(workload.loss, batch)
        rows.backward(losses)
        rows.optimizer.step()
        ensemble.step(losses.detach())
    rows.write_()
    return ensemble.values


def _processes(
    rank: int, run: Run, arm: Arm, workload: Workload, model: nn.Module
) -> tuple[dict[str, float], float]:
    """One island a process, on its part of every batch. What pairs tell each other is not counted as sent."""
    sharing: Any = "none"
    wrapped = model
    if arm.pairs is not None:
        sharing = hdet.Arms(ISLANDS // 2, average_every=INNER_EVERY if arm.pairs == "weights" else None)
        wrapped = sharing.wrap(model)
    optimizer = _optimizer(run, wrapped)
    probe = _probe(rank, run, arm, workload, lambda batch: workload.loss(model, batch), model)
    ensemble = _ensemble(run, arm, optimizer, probe, sharing, wrapped)
    for batch in islice(workload.batches(run.seed), run.steps):
        loss = workload.loss(wrapped, tuple(whole.chunk(ISLANDS)[rank] for whole in batch))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        ensemble.step(loss.detach())
    return ensemble.values, float(ensemble.replicas.sent_bytes)


def _probe(
    rank: int,
    run: Run,
    arm: Arm,
    workload: Workload,
    loss_fn: Callable[[Batch], Tensor],
    model: nn.Module,
) -> hdet.Probe | None:
    if not arm.explore:
        return None
    batches = list(islice(workload.probe(_SEED_STRIDE * run.seed + rank), 2 * _PROBED))
    return hdet.Probe(loss_fn, batches, model=model, per_sync=_PROBED)


def _ensemble(
    run: Run,
    arm: Arm,
    optimizer: Optimizer,
    probe: hdet.Probe | None,
    gradients: Any,
    model: nn.Module | None,
) -> hdet.Ensemble:
    return hdet.Ensemble(
        optimizer,
        arm.explore,
        schedule=_curve(run, optimizer),
        sync_every=SYNC_EVERY,
        total_steps=run.steps,
        probe=probe,
        gradients=gradients,
        outer=arm.outer,
        wire=arm.wire,  # type: ignore[arg-type]
        model=model,
        seed=run.seed,
    )


def _ring(model: nn.Module) -> float:
    """What a sum of all weights in float32 sends from each of as many ranks as there are islands."""
    return 2 * 4 * sum(p.numel() for p in model.parameters()) * (ISLANDS - 1) / ISLANDS
