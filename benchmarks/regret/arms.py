"""One run of the regret benchmark: a workload, an optimizer, an arm, from the first step to the final loss.

An arm is whatever decides the learning rate. All arms of a workload and a seed start from the same weights,
take the same number of steps on the same batches, and differ in nothing else. Which optimizers there are is
in :mod:`benchmarks.regret.optimizers`, what others offer in :mod:`benchmarks.regret.peers`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks.regret.optimizers import build, rate
from benchmarks.regret.peers import PEERS
from benchmarks.regret.plan import DEFAULT_RATES, Row, Run
from benchmarks.regret.steps import make_step
from benchmarks.regret.trainer import Trainer, stepping, with_wsd
from benchmarks.rows import failure
from benchmarks.workloads import WORKLOADS, Workload
from benchmarks.workloads.base import ByNumber, seeded
from hdet.autolr.auto_lr import AutoLR
from hdet.autolr.best_mean import BestMean
from hdet.probes.probe import Probe

__all__ = ["execute", "failure", "prepare", "workload_of"]

#: A final loss beyond so many times that of the start is a divergence, like one that is not finite.
_DIVERGED = 10.0
_TRAIN_BATCHES, _TRAIN_SEED = 8, 990_001


# ---------------------------------------------------------------------- one run


def prepare(device: str) -> None:
    """Once in every process: one thread, TF32, and no word from hdet, whose warnings are for users."""
    torch.set_num_threads(1)
    logging.getLogger("hdet").setLevel(logging.ERROR)
    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")


def execute(run: Run) -> Row:
    """The run's result, or its error; never raises."""
    try:
        with seeded(run.seed):
            return _execute(run)
    except Exception as error:
        return failure(run, error)


def _execute(run: Run) -> Row:
    if torch.device(run.device).type == "cuda":
        torch.cuda.manual_seed(run.seed)  # dropout is drawn there
    workload = workload_of(run)
    model = workload.build(run.seed)
    start = _losses(workload, model)
    model.train()
    trainer = _ARMS[run.arm](run, workload, model)
    step, how = make_step(run, workload, model)
    best = trainer.best or BestMean(model, _probe(run, workload, model))
    began = time.perf_counter()
    reached = choosing = 0.0
    taken = 0
    for batch in islice(workload.batches(run.seed), workload.steps):
        loss = step(batch)
        for optimizer in trainer.optimizers:
            optimizer.step()
        reached = max(reached, trainer.lr())
        trainer.after_step(loss)
        taken += 1
        if trainer.finished():
            break
        if best is not trainer.best:
            choosing += _timed(best.step)
    if torch.device(run.device).type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began - choosing
    trainer.finish()
    row = {**_result(run, start, _losses(workload, model), seconds, reached), "step": how, "taken": taken}
    handed = best.finish_()
    if handed is None:
        return row
    chosen = workload.evaluate(model)
    return {
        **row,
        "chosen": chosen if math.isfinite(chosen) else None,
        "chosen_step": handed.step,
        "chosen_kind": handed.kind,
        "estimate": handed.estimate if math.isfinite(handed.estimate) else None,
    }


def _timed(call: Callable[[], object]) -> float:
    """Seconds; between windows a call waits for nothing and takes next to none."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _probe(run: Run, workload: Workload, model: nn.Module) -> Probe:
    return Probe(lambda batch: workload.loss(model, batch), ByNumber(workload.probe(run.seed)), model=model)


@cache
def _made(name: str, scale: str, device: str) -> Workload:
    return WORKLOADS[name](scale, device)


def workload_of(run: Run) -> Workload:
    """The task of a run, made once in every process."""
    workload = _made(run.workload, run.scale, run.device)
    return workload if run.steps is None else replace(workload, steps=run.steps)


def _losses(workload: Workload, model: nn.Module) -> tuple[float, float]:
    """Held-out loss, and that of a few training batches that are the same for every run."""
    some = tuple(islice(workload.batches(_TRAIN_SEED), _TRAIN_BATCHES))
    return workload.evaluate(model), replace(workload, held_out=some).evaluate(model)


def _result(
    run: Run, start: tuple[float, float], end: tuple[float, float], seconds: float, reached: float
) -> Row:
    # Not `loss > limit`: that is false of NaN.
    diverged = not all(loss <= _DIVERGED * begun for loss, begun in zip(end, start, strict=True))
    held_out, train = (None, None) if diverged else end
    return {
        **asdict(run),
        "held_out": held_out,
        "train": train,
        "init": start[0],
        "init_train": start[1],
        "seconds": round(seconds, 3),
        "reached": reached if math.isfinite(reached) else None,
        "diverged": diverged,
    }


# ---------------------------------------------------------------------- arms


def _scheduled(run: Run, workload: Workload, model: nn.Module) -> Trainer:
    """A plain schedule at a given learning rate: the arms of the sweep, and torch's default."""
    assert run.lr is not None
    optimizers = build(run.optimizer, model, run.lr)
    schedulers = [
        OneCycleLR(optimizer, run.lr, workload.steps, cycle_momentum=False)
        if run.schedule == "onecycle"
        else with_wsd(optimizer, workload.steps)
        for optimizer in optimizers
    ]
    return Trainer(optimizers, stepping(schedulers), lambda: rate(optimizers, "lr"))


def _autolr(run: Run, workload: Workload, model: nn.Module) -> Trainer:
    """No learning rate."""
    optimizers = build(run.optimizer, model, DEFAULT_RATES[run.optimizer])
    given: Any = optimizers[0] if len(optimizers) == 1 else optimizers
    auto = AutoLR(given, total_steps=workload.steps, probe=_probe(run, workload, model))
    return Trainer(
        optimizers,
        lambda loss: auto.step(),
        lambda: rate(optimizers, "lr"),
        best=auto,
        finished=lambda: auto.finished,
    )


def _peer(run: Run, workload: Workload, model: nn.Module) -> Trainer:
    batches = workload.batches(run.seed)
    return PEERS[run.arm](run.optimizer, model, workload.steps, lambda: workload.loss(model, next(batches)))


_ARMS: dict[str, Callable[[Run, Workload, nn.Module], Trainer]] = {
    "sweep": _scheduled,
    "default-onecycle": _scheduled,
    "autolr": _autolr,
    **dict.fromkeys(PEERS, _peer),
}
