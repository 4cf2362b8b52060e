"""One run: the recipe at the rates of its arm, or at none, and what it leaves on the test images."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

import hdet
from benchmarks.rows import Row, failure
from benchmarks.speedrun.images import SOURCE, Images, batches, load, view
from benchmarks.speedrun.model import Network, rescale_
from benchmarks.workloads.base import generator
from benchmarks.workloads.cifar import CLASSES

__all__ = ["ARMS", "RECIPE", "SEEDS", "Run", "execute", "planned", "run_of"]

SEEDS = 30
#: The rates of each arm, in the order of the protocol.
ARMS: dict[str, dict[str, float]] = {
    "hand": {"muon": 0.24, "biases": 0.053, "head": 0.67},
    "autolr": {},
    "default": {"muon": 0.02, "adamw": 1e-3},
    "hand, fewer": {"muon": 0.24, "biases": 0.053, "head": 0.67},
}
#: Those that train without what is set aside for a probe.
_FEWER = ("autolr", "hand, fewer")
_MOMENTUM = {"muon": 0.6, "sgd": 0.85}
_ITERATIONS, _DECAY, _SMOOTHING = 3, 2e-6, 0.2
#: Within which share of the run the rate of the whitening bias falls to zero.
_WHITENS = 3 / 8
_WHITENED_BY = 5000
#: What all runs have in common; a Run has the rest, and :data:`ARMS` the rates.
RECIPE = {
    "images": SOURCE,
    "muon": f"torch.optim.Muon, Nesterov momentum {_MOMENTUM['muon']}, {_ITERATIONS} iterations, no decay, "
    "matrices scaled to the norm √rows before every step",
    "sgd (hand)": f"Nesterov momentum {_MOMENTUM['sgd']}, decay {_DECAY} · batch / rate",
    "adamw (autolr, default)": "torch's defaults",
    "schedule": "linear to zero, of the whitening bias within 3/8 of the steps; autolr: its own, wsd",
    "label smoothing": _SMOOTHING,
    "whitened by": _WHITENED_BY,
    "precision": "on cuda float16 autocast, else float32; weights, batch norm and losses in float32",
    "probe (autolr)": "hdet.Probe.set_aside with its defaults; the same images are left out in 'hand, fewer'",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One training: all that its result depends on.

    ``random``: so many random images instead of CIFAR-10. ``width``: of the first block.
    """

    arm: str
    seed: int
    steps: int = 200
    batch: int = 2000
    width: int = 64
    random: int = 0
    device: str = "cpu"


def run_of(row: Row) -> Run:
    """The run whose row it is."""
    return Run(**{field.name: row[field.name] for field in fields(Run)})


def planned(seeds: int, device: str, *, quick: bool = False) -> list[Run]:
    """The two arms of the question first, seed by seed, so that whenever it is stopped both have as many."""
    sizes = {"steps": 16, "batch": 50, "width": 4, "random": 600} if quick else {}
    first, others = tuple(ARMS)[:2], tuple(ARMS)[2:]
    return [
        Run(arm, seed, device=device, **sizes)
        for arms in (first, others)
        for seed in range(seeds)
        for arm in arms
    ]


def execute(run: Run) -> Row:
    """The run's result, or its error; never raises."""
    try:
        return _execute(run)
    except Exception as error:
        return failure(run, error)


def _execute(run: Run) -> Row:
    torch.backends.cudnn.benchmark = True
    logging.getLogger("hdet").setLevel(logging.WARNING)
    images = load(run.device, run.random)
    began = _now(run)
    torch.manual_seed(run.seed)  # of the GPU's generator as well
    model = Network(run.width).to(run.device)
    rows, probe = torch.arange(len(images.train_labels)), None
    if run.arm in _FEWER:
        probe, rows = _set_aside(run, model, images, rows)
    some = rows[torch.randperm(len(rows), generator=generator(run.seed, "whitening"))[:_WHITENED_BY]]
    model.whiten_by_(images.scaled(images.train[some.to(run.device)]))
    arm = _arm(run, model, probe)
    taken, course = _train(run, model, batches(images, rows, run.batch, generator(run.seed, "order")), arm)
    trained = _now(run)
    end = _measure(run, model, images)
    best = arm.auto.finish_() if arm.auto is not None else None
    left = _measure(run, model, images) if best else end
    return {
        **asdict(run),
        "rates": ARMS[run.arm],
        **left,
        "end": end,
        "chosen_step": best.step if best else taken,
        "chosen_kind": best.kind if best else "end",
        "course": course,
        "taken": taken,
        "trained_on": len(rows),
        "seconds": round(trained - began, 2),
        "seconds_after": round(_now(run) - trained, 2),
    }


def _set_aside(run: Run, model: Network, images: Images, rows: Tensor) -> tuple[hdet.Probe, Tensor]:
    """The probe, and the rows that are left to train on."""

    def loss_of(some: Tensor) -> Tensor:
        some = some.to(run.device)
        return _loss(run, model, images.scaled(images.train[some]), images.train_labels[some], "mean")

    loader: Any = DataLoader(rows.tolist(), run.batch, shuffle=True)  # type: ignore[arg-type]
    rest: Any
    probe, rest = hdet.Probe.set_aside(loss_of, loader, model=model, seed=run.seed)
    return probe, torch.tensor(rest.dataset.indices)


@dataclass
class Arm:
    """What steps, what follows a step, and hdet's search if there is one."""

    optimizers: list[Any]
    after: list[Any]
    auto: Any = None


def _arm(run: Run, model: Network, probe: hdet.Probe | None) -> Arm:
    rates, first = ARMS[run.arm], model.first_bias
    muon = _muon(model, rates.get("muon", 1e-3))  # AutoLR does not read it
    if "head" in rates:
        groups = [([first], "biases"), (model.biases, "biases"), ([model.head.weight], "head")]
        decay = _DECAY * run.batch
        settings = [{"params": p, "lr": rates[of], "weight_decay": decay / rates[of]} for p, of in groups]
        others: Any = SGD(settings, momentum=_MOMENTUM["sgd"], nesterov=True)
    else:
        others = AdamW([first, *model.biases, model.head.weight], lr=rates.get("adamw", 1e-3), fused=True)
    optimizers = [muon, others]
    if run.arm == "autolr":
        assert probe is not None
        auto = hdet.AutoLR(optimizers, probe=probe, total_steps=run.steps)
        return Arm(optimizers, [auto.step], auto)

    def linear(step: int, within: float = 1.0) -> float:
        return max(0.0, 1 - step / (within * run.steps))

    falls: list[Any] = [linear] * len(others.param_groups)
    if "head" in rates:
        falls[0] = lambda step: linear(step, _WHITENS)
    return Arm(optimizers, [LambdaLR(muon, linear).step, LambdaLR(others, falls).step])


def _muon(model: Network, rate: float) -> Any:
    """Of torch 2.9 or later."""
    matrices, momentum = model.matrices, _MOMENTUM["muon"]
    muon = torch.optim.Muon(matrices, lr=rate, weight_decay=0.0, momentum=momentum, ns_steps=_ITERATIONS)
    muon.register_step_pre_hook(lambda *_: rescale_(matrices))
    return muon


def _logits(run: Run, model: nn.Module, given: Tensor) -> Tensor:
    with torch.autocast("cuda", torch.float16, enabled=run.device == "cuda"):
        logits: Tensor = model(given)
    return logits.float()


def _loss(run: Run, model: nn.Module, given: Tensor, labels: Tensor, reduction: str) -> Tensor:
    logits = _logits(run, model, given)
    return cross_entropy(logits, labels, label_smoothing=_SMOOTHING, reduction=reduction)


def _train(
    run: Run, model: nn.Module, given: Iterator[tuple[Tensor, Tensor]], arm: Arm
) -> tuple[int, list[Any]]:
    """Steps taken, and of every window its end: step, rates of Muon and AdamW, held-out loss, actions."""
    course: list[Any] = []
    taken = 0
    for images, labels in islice(given, run.steps):
        for optimizer in arm.optimizers:
            optimizer.zero_grad()
        _loss(run, model, images, labels, "sum").backward()  # type: ignore[no-untyped-call]
        for optimizer in arm.optimizers:
            optimizer.step()
        taken += 1
        for after in arm.after:
            record = after()
            if record is not None:
                seen = record.horizon
                loss = [_finite(seen[0].loss_mean)]
                course.append([record.step, *arm.auto.get_last_lr(), *loss, *(one.action for one in seen)])
        if arm.auto is not None and arm.auto.finished:
            break
    return taken, course


#: The views of a test image: by how many pixels it is moved down and right, whether it is mirrored, weight.
_VIEWS = [(shift, half, 0.25 if shift == 0 else 0.125) for shift in (0, -1, 1) for half in (False, True)]


@torch.no_grad()
def _measure(run: Run, model: nn.Module, images: Images) -> dict[str, float | None]:
    """Accuracy with the recipe's test-time augmentation and without, and cross-entropy without."""
    model.eval()
    labels = images.test_labels
    total = torch.zeros(len(labels), CLASSES, device=run.device)
    plain = torch.zeros_like(total)
    rows = torch.arange(len(labels), device=run.device)
    for start in range(0, len(labels), run.batch):
        some = rows[start : start + run.batch]
        for shift, mirrored, weight in _VIEWS:
            moved = torch.full_like(some, shift)
            seen = view(images.test, some, moved, moved, torch.full_like(some, mirrored, dtype=torch.bool))
            logits = _logits(run, model, images.scaled(seen))
            total[some] += weight * logits
            if not (shift or mirrored):
                plain[some] = logits
    model.train()
    return {
        "accuracy_augmented": float((total.argmax(1) == labels).double().mean()),
        "accuracy": float((plain.argmax(1) == labels).double().mean()),
        "loss": _finite(float(cross_entropy(plain, labels))),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _now(run: Run) -> float:
    if run.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
