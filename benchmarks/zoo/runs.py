"""One run of a cell, from the first step to the losses of what it leaves.

All runs of a task and a seed start from the same weights and take their steps on the same batches. What a run
leaves is told twice: as it ends, and as :class:`hdet.BestMean` or AutoLR itself chooses it by the probe.
Schedule-Free has no choice: the weights it trains are not those it is for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

import hdet
from benchmarks.regret.optimizers import build, rate
from benchmarks.regret.peers import PEERS, greedy
from benchmarks.regret.trainer import Trainer, stepping, with_wsd
from benchmarks.rows import Row, failure
from benchmarks.workloads.base import Batch, seeded
from benchmarks.zoo.catalogue import TASKS
from benchmarks.zoo.plan import DEFAULT_RATES, Run
from benchmarks.zoo.task import Setting
from hdet.history import SyncRecord

__all__ = ["execute", "mean_loss", "pace_of"]

#: Every so many steps a run at a fixed rate is asked whether its loss is still a number.
_LOOK = 50
#: Beyond so many times the loss at the start a run has diverged, like one whose loss is not finite.
_DIVERGED = 10.0
#: Windows in which the weights hardly move are followed by others at a hundred times the rate.
_FIRST_STEPS = 60
#: The rate of AutoLR is read here, a share of the run, before the schedule comes down.
_READ = 0.7
_PEERS: Mapping[str, Callable[..., Trainer]] = {
    **PEERS,
    "greedy-bounds": partial(greedy, min_lr=1e-7, max_lr=1e-4),
}


def execute(run: Run, steps: int | None = None, **autolr: Any) -> Row:
    """The run's result, or its error; never raises. ``steps`` are the task's own if None; ``autolr`` are
    arguments of :class:`hdet.AutoLR`, or ``per_sync`` of its probe."""
    try:
        with seeded(run.seed):
            return _execute(run, TASKS[run.task].steps if steps is None else steps, autolr)
    except Exception as error:
        return failure(run, error)


def mean_loss(setting: Setting, batches: Sequence[Batch]) -> float:
    """The mean over all rows, in evaluation mode; the mode of every module is put back."""
    modes = [(module, module.training) for module in setting.model.modules()]
    setting.model.eval()
    try:
        with torch.no_grad():
            losses = torch.stack([setting.loss_fn(batch).detach() for batch in batches])
    finally:
        for module, training in modes:
            module.training = training
    counts = torch.tensor([float(len(batch[0])) for batch in batches], device=losses.device)
    return float((losses * counts).sum() / counts.sum())


def _execute(run: Run, steps: int, autolr: Mapping[str, Any]) -> Row:
    if torch.device(run.device).type == "cuda":
        torch.cuda.manual_seed(run.seed)  # dropout is drawn there
    began = time.perf_counter()
    setting = TASKS[run.task].build(run.seed, run.device)
    setting.model.train()
    start = mean_loss(setting, setting.test), mean_loss(setting, setting.held_out)
    if run.method == "autolr":
        trainer = _autolr(run, setting, steps, **autolr)
    else:
        trainer = (_peer if run.method in _PEERS else _fixed)(run, setting, steps)
    built = time.perf_counter()
    taken, reached, read = _train(setting, trainer, steps, watch=run.method != "autolr")
    trainer.finish()
    end = mean_loss(setting, setting.test), mean_loss(setting, setting.held_out)
    trained = time.perf_counter()
    handed = None if trainer.best is None else trainer.best.finish_()
    chosen = mean_loss(setting, setting.test), mean_loss(setting, setting.held_out)
    limit = start[0] + (_DIVERGED - 1) * abs(start[0])
    return {
        **asdict(run),
        **_finite({"test": end[0], "probe": end[1], "test_chosen": chosen[0], "probe_chosen": chosen[1]}),
        **_finite({"start": start[0], "probe_start": start[1], "reached": reached, "found": read}),
        "diverged": not end[0] <= limit,  # which NaN is not either
        "chosen_step": getattr(handed, "step", None),
        "chosen_kind": getattr(handed, "kind", None),
        "taken": taken,
        "steps": steps,
        "back": sum(event.kind == "back" for event in trainer.events),
        "seconds": round(trained - built, 3),
        "seconds_around": round(built - began + time.perf_counter() - trained, 3),
    }


def _train(setting: Setting, trainer: Trainer, steps: int, *, watch: bool) -> tuple[int, float, float]:
    """Steps taken, the highest rate, and the last one of the first seven tenths of the run."""
    reached = read = 0.0
    for taken in range(1, steps + 1):
        loss = _step(setting, trainer.optimizers)
        now = trainer.lr()
        reached = max(reached, now)
        read = now if taken <= _READ * steps else read
        trainer.after_step(loss)
        if trainer.finished() or (watch and taken % _LOOK == 0 and not math.isfinite(loss.item())):
            break
    return taken, reached, read


def _step(setting: Setting, optimizers: Sequence[Any]) -> Tensor:
    """One step on the next batch; its loss."""
    loss = setting.loss_fn(setting.batches())
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    for optimizer in optimizers:
        optimizer.step()
    return loss.detach()


def _probe(setting: Setting, **given: Any) -> hdet.Probe:
    return hdet.Probe(setting.loss_fn, setting.held_out, model=setting.model, **given)


def _fixed(run: Run, setting: Setting, steps: int) -> Trainer:
    """A given rate under a plain schedule."""
    assert run.rate is not None
    optimizers = build(run.optimizer, setting.model, run.rate)
    schedules = stepping(
        [
            OneCycleLR(optimizer, run.rate, steps, cycle_momentum=False)
            if run.schedule == "onecycle"
            else with_wsd(optimizer, steps)
            for optimizer in optimizers
        ]
    )
    return _choosing(Trainer(optimizers, schedules, lambda: rate(optimizers, "lr")), setting)


def _peer(run: Run, setting: Setting, steps: int) -> Trainer:
    """What else asks for no rate."""
    trainer = _PEERS[run.method](
        run.optimizer, setting.model, steps, lambda: setting.loss_fn(setting.batches())
    )
    return trainer if run.method == "schedule-free" else _choosing(trainer, setting)


def _choosing(trainer: Trainer, setting: Setting) -> Trainer:
    """With the choice of weights beside it."""
    best = hdet.BestMean(setting.model, _probe(setting))

    def after_step(loss: Tensor) -> None:
        trainer.after_step(loss)
        best.step()

    return replace(trainer, after_step=after_step, best=best)


def _autolr(run: Run, setting: Setting, steps: int, **given: Any) -> Trainer:
    """No rate is given."""
    optimizers = build(run.optimizer, setting.model, DEFAULT_RATES[run.optimizer])
    events: list[hdet.Event] = []
    of_probe = {name: given.pop(name) for name in ("per_sync",) if name in given}
    auto = hdet.AutoLR(
        optimizers[0] if len(optimizers) == 1 else optimizers,
        total_steps=steps,
        probe=_probe(setting, **of_probe),
        on_event=events.append,
        **given,
    )
    return Trainer(
        optimizers,
        auto.step,
        lambda: rate(optimizers, "lr"),
        best=auto,
        finished=lambda: auto.finished,
        events=events,
    )


def pace_of(task: str, optimizer: str) -> float | None:
    """By how much of their norm a unit of rate moves the weights in one of the first steps; where there are
    two optimizers, the weights of the first. None where they hardly move."""
    with seeded(0):
        setting = TASKS[task].build(0, "cpu")
        setting.model.train()
        run = Run(task, optimizer, "autolr", None, "own", 0)
        trainer = _autolr(run, setting, TASKS[task].steps)
        for _ in range(_FIRST_STEPS):
            now = float(trainer.optimizers[0].param_groups[0]["lr"])
            loss = _step(setting, trainer.optimizers)
            record = trainer.after_step(loss)
            if isinstance(record, SyncRecord) and not record.horizon[0].why:
                return record.horizon[0].speed / TASKS[task].steps / now
    return None


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
