"""AutoTune's arm: as many replicas as other arms have runs, all of them one run that tunes everything."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from torch import nn

from benchmarks.autotune.arena import Arena
from benchmarks.autotune.plan import SEGMENTS
from benchmarks.autotune.space import RANGES, Setting
from benchmarks.autotune.tasks import batch_size, optimizer_of
from benchmarks.autotune.training import stream
from benchmarks.rows import Row
from benchmarks.workloads.base import ByNumber, generator, seeded
from hdet.hyperparameters import Dropout, Explorable, Hyperparameter, LabelSmoothing, WeightDecay
from hdet.probes.probe import Probe
from hdet.tuning.auto_tune import AutoTune

__all__ = ["autotune", "explored"]


def autotune(rank: int, arena: Arena) -> list[Row]:
    """One replica of ``arena.run.members``, on processes of their own that share a gloo group.

    From the same weights as any other training of the seed, at torch's own decay, without dropout or
    smoothing, each on batches of its own. The replicas are one model after every window: there it is looked
    at, about once in a part of the run, and when the best weights have been handed over.

    Returns:
        What was found; a list, as other arms have several.
    """
    run, workload, ledger = arena.run, arena.workload, arena.ledger
    model, criterion = workload.build(run.seed).train(), arena.task.criterion()
    optimizer = optimizer_of(model)
    probe = Probe(lambda batch: workload.loss(model, batch), ByNumber(workload.probe(run.seed)), model=model)
    tune = AutoTune(
        optimizer,
        explored(model, criterion),
        probe=probe,
        total_steps=workload.steps,
        gradients="none" if run.members > 1 else None,
        seed=run.seed,
    )
    samples, looked = batch_size(workload), 0
    highest = 0.0
    batches = workload.batches(stream(run.seed, rank))
    draw = generator(stream(run.seed, rank), "autotune dropout").initial_seed()
    for step, batch in enumerate(islice(batches, workload.steps), start=1):
        with seeded(draw + step):
            optimizer.zero_grad(set_to_none=True)
            criterion(*arena.task.outputs(model, batch)).backward()
            optimizer.step()
        highest = max(highest, tune.get_last_lr()[0])
        ledger.spend(samples * run.members)
        if tune.step() is not None and step - looked >= arena.segment:
            looked = step
            ledger.look(model, _setting(tune, highest))
        if tune.finished:
            break
    tune.finish_()
    setting = _setting(tune, highest)
    return [arena.trial(0, setting, SEGMENTS, ledger.look(model, setting))]


def explored(model: nn.Module, criterion: nn.Module) -> Sequence[Explorable]:
    """All but the learning rate, within the bounds that every search has."""
    bounds = {name: (known.low, known.high) for name, known in RANGES.items()}
    smoothing: Explorable
    if isinstance(criterion, nn.CrossEntropyLoss):
        smoothing = LabelSmoothing(criterion, bounds=bounds["label_smoothing"])
    else:
        smoothing = Hyperparameter(
            "label_smoothing",
            lambda: criterion.label_smoothing,
            lambda value: setattr(criterion, "label_smoothing", value),
            bounds=bounds["label_smoothing"],
            off=0.0,
        )
    decay = WeightDecay(bounds=bounds["weight_decay"])
    return [decay, Dropout(model, bounds=bounds["dropout"]), smoothing]


def _setting(tune: AutoTune, highest: float) -> Setting:
    """What it has come to; the learning rate is the highest of the run, as others tell their peak."""
    values = tune.values
    return Setting(highest, values["weight_decay"], values["dropout"], values["label_smoothing"])
