"""One run of the paper's experiments: a task, a configuration, from the first step to the final loss.

Replicas that differ (by warm noise, by their learning rates) are stacked on one device; plain data
parallelism is one model on the batch of all replicas, for no model here has dropout or BatchNorm. All
configurations of a seed see the same batches in the same order, and the cold ones start from the same
weights. Losses stay on the device until the run is over.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks.metrics import auc, normalised_entropy
from benchmarks.reproduce.plan import PLAIN, Row, Run, Settings
from benchmarks.reproduce.tasks import REPLICAS, Task, make
from benchmarks.rows import failure
from benchmarks.workloads.base import seeded
from benchmarks.workloads.newsfeed import TASKS, parameter_groups
from hdet import AutoLR, OneCycleAutoLR, Probe, StackedReplicas, warm_start_
from hdet.history import SyncRecord
from hdet.published.softmax import geometric_decay, literal_decay

__all__ = ["PRETRAINING_LR", "SETTINGS", "execute", "one_cycle", "reduced"]

#: The paper's values (section 4.1), by the names of our arguments. ``plan.Settings`` has what can be chosen.
SETTINGS = {"spread": 1 / 9, "momentum_of_lr": 0.9, "lr_of_lr": 0.5, "noise": 0.01}
_DIV = 25.0
#: Of the plain run that makes the checkpoint of the warm starts.
PRETRAINING_LR = 3e-3
#: AutoLR reads of an optimizer's learning rates the ratios alone.
_ANY_LR = 1e-3
#: A final training loss is the mean over this share of the steps.
_LAST = 0.05
_POINTS = 200


@dataclass
class _Trained:
    """What training leaves behind: the model to evaluate, every step's loss, every sync's record."""

    model: nn.Module
    losses: list[Tensor] = field(default_factory=list)
    records: list[SyncRecord] = field(default_factory=list)


@dataclass(frozen=True)
class _Recipe:
    """A configuration with replicas that differ."""

    warm: bool
    spread: bool
    auto_lr: bool


_RECIPES = {
    "Warm-Init": _Recipe(warm=True, spread=False, auto_lr=False),
    "HDET w/o auto-LR": _Recipe(warm=True, spread=True, auto_lr=False),
    "HDET w/o warm init": _Recipe(warm=False, spread=True, auto_lr=True),
    "HDET (full)": _Recipe(warm=True, spread=True, auto_lr=True),
}


def execute(run: Run, data: Path | None = None, folder: Path | None = None) -> Row:
    """The run's result, or its error; never raises.

    Args:
        run: what to run.
        data: the file whose digest the run holds.
        folder: where checkpoints are kept, so that all warm runs of a seed start from one.
    """
    try:
        with seeded(run.seed):
            return _execute(run, make(run.task, run.scale, run.device, data), data, folder)
    except Exception as error:
        return failure(run, error)


def _execute(run: Run, task: Task, data: Path | None, folder: Path | None) -> Row:
    recipe = _RECIPES.get(run.configuration)
    start = task.workload.build(run.seed)
    if recipe is not None and recipe.warm:
        # The same for all settings.
        plain = replace(run, configuration="checkpoint", lr=PRETRAINING_LR, settings=Settings())
        start.load_state_dict(_checkpoint(plain, data, folder))
    began = time.perf_counter()
    if recipe is not None:
        trained = _train_replicas(run, task, start, recipe)
    elif run.configuration in (PLAIN, "AutoLR"):
        trained = _train_one(run, task, start)
    else:
        names = ", ".join(map(repr, (PLAIN, "AutoLR", *_RECIPES)))
        raise ValueError(f"configuration must be one of {names}, got {run.configuration!r}")
    losses = _means(trained.losses)
    seconds = time.perf_counter() - began
    return {
        **asdict(run),
        **_summary(task, trained.model, losses),
        **_learning_rates(run, task, trained.records),
        "seconds": round(seconds, 3),
    }


# ---------------------------------------------------------------------- training


def _train_one(run: Run, task: Task, model: nn.Module) -> _Trained:
    """Plain data parallelism, with a learning rate or without."""
    workload, trained = task.workload, _Trained(model)
    optimizer = _adam(model, run.lr or _ANY_LR)
    after_step: Callable[[], object]
    if run.lr is None:  # AutoLR
        probe = Probe(lambda batch: workload.loss(model, batch), workload.probe(run.seed), model=model)
        after_step = AutoLR(optimizer, total_steps=workload.steps, probe=probe).step
    else:
        after_step = _one_cycle(run, workload.steps, optimizer).step
    for batch in islice(workload.batches(run.seed), workload.steps):
        loss = workload.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        after_step()
        trained.losses.append(loss.detach())
    return trained


def _train_replicas(run: Run, task: Task, model: nn.Module, recipe: _Recipe) -> _Trained:
    """Replicas that share their gradients; without a spread they never meet, and replica 0 is evaluated."""
    assert run.lr is not None
    workload, trained = task.workload, _Trained(model)
    replicas = StackedReplicas(model, _adam(model, run.lr), REPLICAS, gradients="all")
    if recipe.warm:
        warm_start_(replicas, noise=SETTINGS["noise"], seed=run.seed)
    after_step = _schedule(run, task, replicas.optimizer, recipe)
    compute = replicas.capture(workload.loss)
    for batch in islice(workload.batches(run.seed), workload.steps):
        losses = compute(batch)
        replicas.optimizer.step()
        replicas.optimizer.zero_grad()
        if (record := after_step(losses)) is not None:
            trained.records.append(record)
        trained.losses.append(losses)
    replicas.write_(replica=None if recipe.spread else 0)
    return trained


def _schedule(
    run: Run, task: Task, optimizer: Optimizer, recipe: _Recipe
) -> Callable[[Tensor], SyncRecord | None]:
    assert run.lr is not None
    steps = task.workload.steps
    if not recipe.spread:
        plain = _one_cycle(run, steps, optimizer)

        def after_step(losses: Tensor) -> None:
            plain.step()

        return after_step
    return OneCycleAutoLR(
        optimizer,
        run.lr,
        steps,
        div_factor=_DIV,
        final_div_factor=run.settings.final_div,
        ensemble_lr_spread_ratio=SETTINGS["spread"],
        model_sync_interval=run.settings.sync_every or task.sync_every,
        enable_auto_lr=recipe.auto_lr,
        auto_lr_warmup_steps=task.warm_up,
        loss_scale=run.settings.sigma,  # type: ignore[arg-type]
        momentum_of_lr=SETTINGS["momentum_of_lr"],
        lr_of_lr=SETTINGS["lr_of_lr"],
        decay=run.settings.decay,  # type: ignore[arg-type]
        rules=run.settings.rules,  # type: ignore[arg-type]
        seed=run.seed,
    ).step


def _one_cycle(run: Run, steps: int, optimizer: Optimizer) -> OneCycleLR:
    assert run.lr is not None
    return OneCycleLR(optimizer, run.lr, steps, div_factor=_DIV, final_div_factor=run.settings.final_div)


def _adam(model: nn.Module, lr: float) -> Adam:
    """The paper's optimizer over its four groups of parameters. It names no weight decay: there is none."""
    groups = [{"params": members, "name": name} for name, members in parameter_groups(model).items()]
    return Adam(groups, lr=lr)


@cache
def _checkpoint(run: Run, data: Path | None, folder: Path | None) -> dict[str, Tensor]:
    """What the warm runs of a seed start from: a plain run on samples of its own.

    A GPU does not train twice to the same bits, so the first process that is done keeps it for the others.
    """
    kept = None if folder is None else folder / f"checkpoint-{run.device}-{run.data or 'made'}-{run.seed}.pt"
    if kept is None:
        return _pretrained(run, data)
    if not kept.exists():
        folder_of_its_own = Path(tempfile.mkdtemp(dir=_made(kept.parent)))
        torch.save(_pretrained(run, data), folder_of_its_own / "new.pt")
        with suppress(FileExistsError):
            os.link(folder_of_its_own / "new.pt", kept)
        shutil.rmtree(folder_of_its_own)
    state: dict[str, Tensor] = torch.load(kept, map_location=run.device, weights_only=True)
    return state


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _pretrained(run: Run, data: Path | None) -> dict[str, Tensor]:
    task = make(run.task, run.scale, run.device, data)
    model = task.workload.build(run.seed)
    optimizer = _adam(model, PRETRAINING_LR)
    schedule = OneCycleLR(optimizer, PRETRAINING_LR, task.pretraining_steps)
    for batch in islice(task.pretraining(run.seed), task.pretraining_steps):
        task.workload.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.state_dict()


# ---------------------------------------------------------------------- what is kept of a run


def _means(losses: Sequence[Tensor]) -> list[float]:
    """Each step's loss, over the replicas; here the host waits for the device."""
    found: list[float] = torch.stack(list(losses)).double().view(len(losses), -1).mean(1).tolist()
    return found


def _summary(task: Task, model: nn.Module, losses: Sequence[float]) -> Row:
    last = max(1, round(_LAST * len(losses)))
    steps, points = reduced(losses)
    return {
        "train": _finite(sum(losses[-last:]) / last),
        "held_out": _finite(task.workload.evaluate(model)),
        **_by_answer(task, model),
        "init": _finite(losses[0]),
        "loss_steps": steps,
        "loss": points,
    }


def _by_answer(task: Task, model: nn.Module) -> Row:
    """Held-out loss, AUC and normalised entropy of each answer alone."""
    if task.outputs is None:
        return {"by_answer": {}}
    with torch.no_grad():
        logits, labels = task.outputs(model)
    losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(0)
    found = {
        "by_answer": losses,
        "auc": auc(logits, labels),
        "ne": normalised_entropy(logits, labels),
    }
    return {
        name: dict(zip(TASKS, map(_finite, values.tolist()), strict=True)) for name, values in found.items()
    }


def reduced(losses: Sequence[float], points: int = _POINTS) -> tuple[list[int], list[float | None]]:
    """The curve by the means of about so many equal parts, and the last step of each; None if not finite.

    >>> reduced([4.0, 2.0, 1.0, math.nan], points=2)
    ([2, 4], [3.0, None])
    """
    count = min(points, len(losses))
    ends = [round((part + 1) * len(losses) / count) for part in range(count)]
    parts = zip([0, *ends[:-1]], ends, strict=True)
    return ends, [_finite(sum(losses[start:end]) / (end - start)) for start, end in parts]


def _learning_rates(run: Run, task: Task, records: Sequence[SyncRecord]) -> Row:
    """At every sync the base learning rate of each group, and its factor on what it were without a vote."""
    if not records:
        return {}
    assert run.lr is not None
    names = list(parameter_groups(task.workload.build(run.seed)))
    lrs = {
        name: [_finite(record.hyperparameters[place].base_after) for record in records]
        for place, name in enumerate(names)
    }
    at = [record.step for record in records]
    without = _unmoved(run, task, at)
    factors = {
        name: [None if lr is None else lr / other for lr, other in zip(found, without, strict=True)]
        for name, found in lrs.items()
    }
    return {"lr_steps": at, "lrs": lrs, "factors": factors}


def _unmoved(run: Run, task: Task, at: Sequence[int]) -> list[float]:
    """The learning rate at these syncs if no vote moves it: OneCycle's and, if that is chosen, Eq. 8's."""
    assert run.lr is not None
    settings, steps = run.settings, task.workload.steps
    curve = one_cycle(run.lr, steps, settings.final_div)
    plain = [curve[step - 1] for step in at]
    rule = {"literal": literal_decay, "geometric": geometric_decay}.get(settings.decay)
    free = sum(step < task.warm_up for step in at)
    if rule is None or free == len(at):
        return plain
    syncs = (steps - task.warm_up) / (settings.sync_every or task.sync_every)
    kept = 1 - rule(div_factor=_DIV, final_div_factor=settings.final_div, syncs=syncs)
    return [*plain[:free], *(plain[free] * kept ** (k + 1) for k in range(len(at) - free))]


@cache
def one_cycle(max_lr: float, steps: int, final_div: float = 1e4) -> tuple[float, ...]:
    """The learning rate of each step under plain OneCycleLR.

    >>> [round(lr, 4) for lr in one_cycle(0.1, 10)][:4]
    [0.004, 0.052, 0.1, 0.095]
    """
    optimizer = Adam([torch.zeros(1, requires_grad=True)])
    schedule = OneCycleLR(optimizer, max_lr, steps, div_factor=_DIV, final_div_factor=final_div)
    lrs = []
    for _ in range(steps):
        lrs.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return tuple(lrs)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
