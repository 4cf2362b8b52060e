"""One run of the regret benchmark: a workload, an optimizer, an arm, from the first step to the final loss.

An arm is whatever decides the learning rate. All arms of a workload and a seed start from the same weights,
take the same number of steps on the same batches, and differ in nothing else: momentum is 0.9 everywhere, and
weight decay that of torch's own AdamW also where a peer's default is another.
"""

from __future__ import annotations

import io
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import import_module
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase  # no public name covers all of its kinds
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR

from hdet.auto_lr import AutoLR
from hdet.bench.regret.plan import DEFAULT_LR, Row, Run
from hdet.bench.regret.steps import make_step
from hdet.bench.rows import failure
from hdet.bench.workloads import WORKLOADS, Batch, Workload
from hdet.bench.workloads.base import seeded
from hdet.best_mean import BestMean
from hdet.one_cycle import OneCycleAutoLR
from hdet.probes.probe import Probe

__all__ = [
    "RANKS",
    "execute",
    "execute_published",
    "failure",
    "prepare",
    "torch_optimizer",
    "workload_of",
    "wsd",
]

#: Processes of the published controller.
RANKS = 4
_MOMENTUM, _WEIGHT_DECAY = 0.9, 0.01
_WARM_UP, _DECAY = 0.05, 0.25
#: A final loss beyond so many times that of the start is a divergence, like one that is not finite.
_DIVERGED = 10.0
_TRAIN_BATCHES, _TRAIN_SEED = 8, 990_001
# As many as schedule-free's README refreshes BatchNorm with.
_REFRESHED = 50


@dataclass(frozen=True)
class _Trainer:
    """An arm at work: the optimizer, what follows its step, the learning rate in use, what ends it."""

    optimizer: Any
    after_step: Callable[[], object]
    lr: Callable[[], float]
    finish: Callable[[], object] = lambda: None
    #: Hands over the best weights seen; of an arm that has no choice of its own, BestMean's.
    best: BestMean | AutoLR | None = None
    #: Whether there is nothing left to train.
    finished: Callable[[], bool] = lambda: False


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
    trainer = _ARMS[run.arm.partition("@")[0]](run, workload, model)
    step, how = make_step(run, workload, model)
    best = trainer.best or BestMean(model, _probe(run, workload, model))
    began = time.perf_counter()
    reached = choosing = 0.0
    taken = 0
    for batch in islice(workload.batches(run.seed), workload.steps):
        step(batch)
        trainer.optimizer.step()
        reached = max(reached, trainer.lr())
        trainer.after_step()
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
    return Probe(lambda batch: workload.loss(model, batch), _ByNumber(workload.probe(run.seed)), model=model)


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


def wsd(step: int, steps: int) -> float:
    """Warm-up, constant, linear decay to zero: the factor of the step with number ``step``, from 0.

    >>> [wsd(step, 20) for step in (0, 1, 14, 15, 19)]
    [1.0, 1.0, 1.0, 1.0, 0.2]
    """
    return min(1.0, (step + 1) / max(1, int(_WARM_UP * steps)), (steps - step) / max(1, int(_DECAY * steps)))


def _with_wsd(optimizer: Any, workload: Workload) -> LRScheduler:
    return LambdaLR(optimizer, lambda step: wsd(step, workload.steps))


def torch_optimizer(
    run: Run, model: nn.Module, lr: float, wrap: Callable[[Any], Any] = lambda kind: kind
) -> Any:
    """Momentum 0.9 everywhere, and AdamW's own weight decay; ``wrap`` makes another kind of it."""
    if run.optimizer == "adamw":
        return wrap(AdamW)(model.parameters(), lr=lr, weight_decay=_WEIGHT_DECAY, fused=True)
    return wrap(SGD)(model.parameters(), lr=lr, momentum=_MOMENTUM, fused=True)


def _group(optimizer: Optimizer, *names: str) -> float:
    """The product of some values of the one parameter group."""
    return math.prod(float(optimizer.param_groups[0][name]) for name in names)


def _scheduled(run: Run, workload: Workload, model: nn.Module) -> _Trainer:
    """A plain schedule at a given learning rate: the arms of the sweep, and torch's default."""
    assert run.lr is not None
    optimizer = torch_optimizer(run, model, run.lr)
    scheduler = (
        OneCycleLR(optimizer, run.lr, workload.steps, cycle_momentum=False)
        if run.schedule == "onecycle"
        else _with_wsd(optimizer, workload)
    )
    return _Trainer(optimizer, scheduler.step, lambda: _group(optimizer, "lr"))


def _autolr(run: Run, workload: Workload, model: nn.Module) -> _Trainer:
    """No learning rate; or a misleading one, which the optimizer is built with and which must not matter."""
    optimizer = torch_optimizer(run, model, DEFAULT_LR if run.lr is None else run.lr)
    auto = AutoLR(optimizer, total_steps=workload.steps, probe=_probe(run, workload, model))
    return _Trainer(
        optimizer,
        auto.step,
        lambda: _group(optimizer, "lr"),
        best=auto,
        finished=lambda: auto.finished,
    )


def _prodigy(run: Run, workload: Workload, model: nn.Module) -> _Trainer:
    """With the cosine schedule that its README recommends."""
    # Its constructor announces the weight decay on standard output.
    with redirect_stdout(io.StringIO()):
        optimizer = _peer("prodigyopt").Prodigy(
            model.parameters(), lr=1.0, weight_decay=_WEIGHT_DECAY, safeguard_warmup=True
        )
    scheduler = CosineAnnealingLR(optimizer, T_max=workload.steps)
    return _Trainer(optimizer, scheduler.step, lambda: _group(optimizer, "d", "lr"))


def _dadaptation(run: Run, workload: Workload, model: nn.Module) -> _Trainer:
    """With the schedule one would use anyway, as its README says."""
    package = _peer("dadaptation")
    if run.optimizer == "adamw":
        with redirect_stdout(io.StringIO()):
            optimizer = package.DAdaptAdam(
                model.parameters(), lr=1.0, weight_decay=_WEIGHT_DECAY, decouple=True
            )
    else:
        optimizer = package.DAdaptSGD(model.parameters(), lr=1.0, momentum=_MOMENTUM)
    scheduler = _with_wsd(optimizer, workload)

    def lr() -> float:
        # The variant of SGD divides by the norm of the first gradient.
        norm = optimizer.param_groups[0].get("g0_norm", 1.0)
        return _group(optimizer, "d", "lr") / norm if norm else math.inf

    return _Trainer(optimizer, scheduler.step, lr)


def _schedule_free(run: Run, workload: Workload, model: nn.Module) -> _Trainer:
    """At the package's default learning rate, with the warm-up that its README recommends."""
    package = _peer("schedulefree")
    warm_up = max(1, int(_WARM_UP * workload.steps))
    if run.optimizer == "adamw":
        optimizer = package.AdamWScheduleFree(
            model.parameters(), weight_decay=_WEIGHT_DECAY, warmup_steps=warm_up
        )
    else:
        optimizer = package.SGDScheduleFree(model.parameters(), momentum=_MOMENTUM, warmup_steps=warm_up)
    optimizer.train()

    def finish() -> None:
        # The weights become the average x; running statistics are still those of y, where it took gradients.
        optimizer.eval()
        if any(isinstance(module, _NormBase) for module in model.modules()):
            model.train()
            with torch.no_grad():
                for batch in islice(workload.batches(run.seed), _REFRESHED):
                    workload.loss(model, batch)

    return _Trainer(optimizer, lambda: None, lambda: _group(optimizer, "scheduled_lr"), finish)


def _mechanic(run: Run, workload: Workload, model: nn.Module) -> _Trainer:
    """Around torch's optimizer at a learning rate of 1, as its README says, under the schedule."""
    optimizer = torch_optimizer(run, model, 1.0, _peer("mechanic_pytorch").mechanize)
    scheduler = _with_wsd(optimizer, workload)

    def lr() -> float:
        return _group(optimizer, "lr") * float(optimizer.state["_mechanic"]["s"].sum())

    return _Trainer(optimizer, scheduler.step, lr)


_ARMS: dict[str, Callable[[Run, Workload, nn.Module], _Trainer]] = {
    "sweep": _scheduled,
    "default": _scheduled,
    "default-onecycle": _scheduled,
    "autolr": _autolr,
    "prodigy": _prodigy,
    "dadaptation": _dadaptation,
    "schedule-free": _schedule_free,
    "mechanic": _mechanic,
}


def _peer(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"this arm needs {name}: pip install 'hdet[bench]'") from error


class _ByNumber:
    """An endless iterator that can be asked for its k-th batch, and always answers with the same one."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches, self._drawn = batches, list[Batch]()

    def __call__(self, k: int) -> Batch:
        while len(self._drawn) <= k:
            self._drawn.append(next(self._batches))
        return self._drawn[k]


# ---------------------------------------------------------------------- the published controller


def execute_published(rank: int, run: Run) -> Row | None:
    """One of :data:`RANKS` processes, each with its part of every batch; rank 0 has the result."""
    prepare(run.device)
    workload = workload_of(run)
    model = workload.build(run.seed)
    start = _losses(workload, model)
    parallel = DistributedDataParallel(model.train())
    assert run.lr is not None
    optimizer = torch_optimizer(run, parallel, run.lr)
    scheduler = OneCycleAutoLR(
        optimizer,
        run.lr,
        workload.steps,
        ensemble_lr_spread_ratio=1 / 9,
        model_sync_interval=max(10, workload.steps // 40),
        enable_auto_lr=True,
        auto_lr_warmup_steps=workload.steps // 20,
        loss_scale="auto",
        seed=run.seed,
        model=parallel,
    )
    began = time.perf_counter()
    reached = 0.0
    for batch in islice(workload.batches(run.seed), workload.steps):
        loss = workload.loss(parallel, tuple(part.chunk(RANKS)[rank] for part in batch))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        reached = max(reached, _group(optimizer, "lr"))
        scheduler.step(loss)
    seconds = time.perf_counter() - began
    return _result(run, start, _losses(workload, model), seconds, reached) if rank == 0 else None
