"""One run of what more replicas buy: N of them stacked, or one model on the batch of all, and its cost."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Adam
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks.rows import Row, failure
from benchmarks.workloads import Batch, feedstream, newsfeed
from benchmarks.workloads.base import Workload, seeded
from hdet import AutoLR, OneCycleAutoLR, Probe, StackedReplicas
from hdet.history import SyncRecord

__all__ = [
    "ARMS",
    "BATCH",
    "CONTROL_AFTER",
    "SIGMA",
    "SPREAD",
    "STEPS",
    "SYNC_EVERY",
    "Run",
    "cost",
    "execute",
]

#: Plain OneCycleLR; the paper's controller with its σ, and with the spread of the losses for σ; no LR at all.
ARMS = ("plain", "published", "published, σ auto", "AutoLR")
STEPS, BATCH, SYNC_EVERY = 1500, 16, 10
#: α and σ of the paper; the controller acts after this share of the steps.
SPREAD, SIGMA, CONTROL_AFTER = 1 / 9, 0.1, 0.1


@dataclass(frozen=True, slots=True)
class Run:
    """One training run: all that its result depends on."""

    arm: str
    replicas: int
    lr: float | None
    seed: int
    steps: int = STEPS
    device: str = "cpu"

    def __str__(self) -> str:
        at = "" if self.lr is None else f" at {self.lr:g}"
        return f"N = {self.replicas}, {self.arm}{at}, seed {self.seed}"


def execute(run: Run) -> Row:
    """The run's result, or its error; never raises."""
    try:
        with seeded(run.seed):
            return _execute(run)
    except Exception as error:
        return failure(run, error)


@cache
def _workload(device: str) -> Workload:
    return feedstream.make("cpu", device)


def _execute(run: Run) -> Row:
    if run.arm not in ARMS:
        raise ValueError(f"arm must be one of {', '.join(map(repr, ARMS))}, got {run.arm!r}")
    workload = _workload(run.device)
    model = workload.build(run.seed)
    init = workload.evaluate(model)
    step, records, finish = _training(run, model)
    for _ in range(run.steps):
        step()
    finish()
    held_out = workload.evaluate(model)
    return {
        **asdict(run),
        "held_out": held_out if math.isfinite(held_out) else None,
        "init": init,
        "decisions": [
            [h.delta / h.base_before for h in record.hyperparameters]
            for record in records
            if record.step >= CONTROL_AFTER * run.steps
        ],
    }


def _batches(run: Run) -> Iterator[Batch]:
    """Of all replicas, one after the other: no two share a sample."""
    feed = feedstream.stream("cpu", run.device)
    start = (1 + run.seed) * (1 << 40)
    return feedstream.Reader(feed, run.replicas * BATCH, start=start, part=feedstream.train_positions)


#: One step; the records so far; what is to be done at the end.
Training = tuple[Callable[[], None], list[SyncRecord], Callable[[], None]]


def _training(run: Run, model: nn.Module) -> Training:
    groups = newsfeed.parameter_groups(model).values()
    # Of AutoLR's learning rates the ratios count alone.
    optimizer = Adam([{"params": members} for members in groups], lr=run.lr or 1e-3)
    train = _train_replicas if run.arm.startswith("published") else _train_one
    return train(run, model, optimizer)


def _train_one(run: Run, model: nn.Module, optimizer: Adam) -> Training:
    """Plain data parallelism is one model on the batch of all replicas."""
    workload, batches = _workload(run.device), _batches(run)
    after_step: Callable[[], object]
    if run.arm == "AutoLR":
        probe = Probe(lambda batch: workload.loss(model, batch), workload.probe(run.seed), model=model)
        after_step = AutoLR(optimizer, total_steps=run.steps, probe=probe).step
    else:
        after_step = OneCycleLR(optimizer, run.lr or 0.0, run.steps).step

    def step() -> None:
        workload.loss(model, next(batches)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        after_step()

    return step, [], lambda: None


def _train_replicas(run: Run, model: nn.Module, optimizer: Adam) -> Training:
    workload, batches = _workload(run.device), _batches(run)
    replicas = StackedReplicas(model, optimizer, run.replicas)
    sigma: float | Literal["auto"] = "auto" if run.arm.endswith("auto") else SIGMA
    scheduler = OneCycleAutoLR(
        replicas.optimizer,
        run.lr or 0.0,
        run.steps,
        ensemble_lr_spread_ratio=SPREAD,
        model_sync_interval=SYNC_EVERY,
        enable_auto_lr=True,
        auto_lr_warmup_steps=int(CONTROL_AFTER * run.steps),
        loss_scale=sigma,
        seed=run.seed,
    )
    compute = replicas.capture(workload.loss)
    records: list[SyncRecord] = []

    def step() -> None:
        losses: Tensor = compute(next(batches))
        replicas.optimizer.step()
        replicas.optimizer.zero_grad()
        if (record := scheduler.step(losses)) is not None:
            records.append(record)

    return step, records, replicas.write_


def cost(arm: str, replicas: int, device: str, blocks: int) -> float:
    """Milliseconds of a step, alone on the device; a block has as many as lie between two syncs."""
    run = Run(arm, replicas, 1e-3, seed=0, device=device)
    step, _, _ = _training(run, _workload(device).build(0))
    finish: Callable[[], object] = torch.cuda.synchronize if device != "cpu" else lambda: None
    times = []
    for _ in range(blocks + 1):
        finish()
        began = time.perf_counter()
        for _ in range(SYNC_EVERY):
            step()
        finish()
        times.append((time.perf_counter() - began) / SYNC_EVERY)
    return 1e3 * statistics.median(times[1:])  # the first one warms up
