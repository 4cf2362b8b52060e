"""Arms that are one run of several replicas' samples: AutoTune, averaging alone, and one large batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from torch import nn

from benchmarks.autotune.arena import Arena
from benchmarks.autotune.plan import AVERAGED, SEGMENTS
from benchmarks.autotune.space import DEFAULTS, Range, Setting
from benchmarks.autotune.tasks import optimizer_of
from benchmarks.autotune.training import joined, stream
from benchmarks.gradients import average_gradients
from benchmarks.rows import Row
from benchmarks.workloads import Batch
from benchmarks.workloads.base import ByNumber, generator, seeded
from hdet.autolr.auto_lr import AutoLR
from hdet.hyperparameters import Dropout, Explorable, Hyperparameter, LabelSmoothing, WeightDecay
from hdet.probes.probe import Probe
from hdet.tuning.auto_tune import AutoTune

__all__ = ["autotune", "explored", "large"]


def autotune(rank: int, arena: Arena) -> list[Row]:
    """One replica of ``arena.run.replicas``, on processes of their own that share a gloo group.

    From the same weights as any other training of the seed, at torch's own decay, without dropout or
    smoothing, each on batches of its own. Averaging alone explores nothing, on gradients of its own from the
    beginning; AutoTune shares them first, as with DDP.
    """
    run, workload = arena.run, arena.workload
    model, criterion = workload.build(run.seed).train(), arena.task.criterion()
    optimizer = optimizer_of(model)
    averages = run.arm == AVERAGED
    tune = AutoTune(
        optimizer,
        [] if averages else explored(model, criterion, arena.task.ranges),
        probe=_probe(arena, model),
        total_steps=workload.steps,
        gradients="all" if run.replicas == 1 else "none" if averages else "switch",
        seed=run.seed,
    )
    batches = workload.batches(stream(run.seed, rank))
    return _train(arena, model, criterion, optimizer, tune, batches, rank, run.replicas)


def large(arena: Arena) -> list[Row]:
    """One process with AutoLR, on the batches of as many replicas together."""
    run, workload = arena.run, arena.workload
    model, criterion = workload.build(run.seed).train(), arena.task.criterion()
    optimizer = optimizer_of(model)
    auto = AutoLR(optimizer, probe=_probe(arena, model), total_steps=workload.steps)
    batches = joined(workload, run.seed, range(run.members))
    return _train(arena, model, criterion, optimizer, auto, batches, 0, 1)


def _probe(arena: Arena, model: nn.Module) -> Probe:
    workload = arena.workload
    return Probe(
        lambda batch: workload.loss(model, batch), ByNumber(workload.probe(arena.run.seed)), model=model
    )


def _train(
    arena: Arena,
    model: nn.Module,
    criterion: nn.Module,
    optimizer: Any,
    auto: Any,
    batches: Iterator[Batch],
    rank: int,
    replicas: int,
) -> list[Row]:
    """The replicas are one model after every window: there it is looked at, about once in a part of the run,
    and when the best weights have been returned.

    Returns:
        What was found; a list, as other arms have several.
    """
    steps, ledger, looked, highest = arena.workload.steps, arena.ledger, 0, 0.0
    draw = generator(stream(arena.run.seed, rank), "autotune dropout").initial_seed()
    for step, batch in enumerate(islice(batches, steps), start=1):
        with seeded(draw + step):
            optimizer.zero_grad(set_to_none=True)
            criterion(*arena.task.outputs(model, batch)).backward()
            if auto.switches and not auto.trains_alone:
                average_gradients(model)
            optimizer.step()
        highest = max(highest, auto.get_last_lr()[0])
        ledger.spend(len(batch[0]) * replicas)
        if auto.step() is not None and step - looked >= arena.segment:
            looked = step
            ledger.look(model, _setting(auto, highest))
        if auto.finished:
            break
    auto.finish_()
    setting = _setting(auto, highest)
    return [arena.trial(0, setting, SEGMENTS, ledger.look(model, setting))]


def explored(model: nn.Module, criterion: nn.Module, ranges: Mapping[str, Range]) -> Sequence[Explorable]:
    """All but the learning rate, within the bounds that every search has."""
    bounds = {name: (known.low, known.high) for name, known in ranges.items()}
    chosen: list[Explorable] = [WeightDecay(spread=1.5, bounds=bounds["weight_decay"])]
    if "dropout" in bounds:
        chosen.append(Dropout(model, bounds=bounds["dropout"]))
    if "label_smoothing" in bounds and isinstance(criterion, nn.CrossEntropyLoss):
        chosen.append(LabelSmoothing(criterion, bounds=bounds["label_smoothing"]))
    elif "label_smoothing" in bounds:
        chosen.append(
            Hyperparameter(
                "label_smoothing",
                lambda: criterion.label_smoothing,
                lambda value: setattr(criterion, "label_smoothing", value),
                bounds=bounds["label_smoothing"],
                off=0.0,
            )
        )
    return chosen


def _setting(auto: Any, highest: float) -> Setting:
    """What it has come to; the learning rate is the highest of the run, as others tell their peak."""
    found = [auto.values.get(name, getattr(DEFAULTS, name)) for name in list(DEFAULTS.__slots__)[1:]]
    return Setting(highest, *found)
