"""What AutoLR costs: whole runs beside plain training, the time spent in its calls, the memory it holds.

Whole runs take turns in the order A B B A, in one process, on one model. Probe batches are as large as
training batches. The share of time falls with the length of a run, since windows grow with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from benchmarks import machine
from benchmarks.machine import rounded
from benchmarks.workloads import WORKLOADS, Batch, Workload
from hdet.autolr.auto_lr import AutoLR
from hdet.autolr.schedule import WarmStableDecay
from hdet.probes.probe import Probe

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["run", "table"]

_GOAL = 0.02
#: Steps of a run: those of the benchmark, and a longer one.
_STEPS = {"cpu": (600, 2400), "cuda": (2000,)}
_PROBE_SEED = 123_457


class _Timed(NamedTuple):
    """Seconds of one run, those spent in the scheduler's calls, and bytes on the GPU at its end."""

    whole: float
    scheduler: float
    on_device: int


def run(
    quick: bool = False, device: str = "cpu", on_progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Measure on ``device`` and hold the result against the goal; the result is plain JSON."""
    say = on_progress or (lambda _: None)
    kind = torch.device(device).type
    name = "quadratic" if quick else "charlm"
    workload = WORKLOADS[name]("cpu" if kind == "cpu" else "gpu", device)
    batches = list(islice(workload.batches(0), 64))
    rows = []
    for optimizer in ("AdamW", "SGD") if kind == "cpu" else ("AdamW",):
        for steps in (60,) if quick else _STEPS[kind]:
            say(f"{name}, {optimizer}, {steps} steps")
            rows.append(_measure(workload, batches, optimizer, steps))
    goals = {
        f"more wall-clock than plain training, {row['optimizer']}, {row['steps']} steps": {
            "at_most": _GOAL,
            "measured": row["overhead"],
            "met": row["overhead"] <= _GOAL,
        }
        for row in rows
    }
    result: dict[str, Any] = rounded(
        {**machine.about("autolr", quick=quick, device=device), "goals": goals, "rows": rows}
    )
    return result


def _measure(workload: Workload, batches: list[Batch], optimizer: str, steps: int) -> dict[str, Any]:
    model = workload.build(0).train()
    _train(workload, model, batches, optimizer, 20, auto=False)  # what is made once is made
    runs = [_train(workload, model, batches, optimizer, steps, auto=a) for a in (False, True, True, False)]
    (plain, _), (first, auto), (second, _), (last, _) = runs
    whole_plain, whole_auto = plain.whole + last.whole, first.whole + second.whole
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    assert auto is not None
    in_calls = first.scheduler + second.scheduler - plain.scheduler - last.scheduler
    return {
        "workload": workload.name,
        "optimizer": optimizer,
        "steps": steps,
        "parameters": sum(p.numel() for p in model.parameters()),
        "step_ms": whole_plain / (2 * steps) * 1e3,
        "seconds_abba": [timed.whole for timed, _ in runs],
        "overhead": whole_auto / whole_plain - 1,
        # On a GPU the host does not wait, so this is the host's part alone.
        "overhead_in_calls": in_calls / whole_plain,
        "extra_memory_in_weights": auto.extra_bytes() / weights,
        "extra_on_device_in_weights": (first.on_device - plain.on_device) / weights,
    }


def _train(
    workload: Workload, model: nn.Module, batches: list[Batch], kind: str, steps: int, *, auto: bool
) -> tuple[_Timed, AutoLR | None]:
    """One run; plain training has a scheduler too, and steps at a size that AutoLR reaches."""
    finish: Callable[[], object] = torch.cuda.synchronize if batches[0][0].is_cuda else lambda: None
    with torch.no_grad():
        for parameter, fresh in zip(model.parameters(), workload.build(0).parameters(), strict=True):
            parameter.copy_(fresh)
    optimizer: Optimizer = (
        AdamW(model.parameters(), lr=1e-3) if kind == "AdamW" else SGD(model.parameters(), 0.05, momentum=0.9)
    )
    found = None
    if auto:
        drawn = workload.batches(_PROBE_SEED)
        found = AutoLR(
            optimizer,
            total_steps=steps,
            probe=Probe(lambda b: workload.loss(model, b), _endless(drawn), model=model),
        )
        after_step: Callable[[], object] = found.step
    else:
        after_step = LambdaLR(optimizer, WarmStableDecay.of(steps)).step
    spent = 0.0
    finish()
    began = time.perf_counter()
    for step in range(steps):
        loss = workload.loss(model, batches[step % len(batches)])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        before = time.perf_counter()
        after_step()
        spent += time.perf_counter() - before
    finish()
    on_device = torch.cuda.memory_allocated() if batches[0][0].is_cuda else 0
    return _Timed(time.perf_counter() - began, spent, on_device), found


def _endless(batches: Iterator[Batch]) -> Callable[[int], Batch]:
    return lambda _: next(batches)


def table(result: dict[str, Any]) -> Table:
    """One line for each run."""
    from rich.table import Table

    view = Table(
        "run", "plain step", "more wall-clock", "of it in calls", "extra memory", title="What AutoLR costs"
    )
    for row in result["rows"]:
        view.add_row(
            f"{row['workload']}, {row['optimizer']}, {row['steps']:,} steps",
            f"{row['step_ms']} ms",
            f"{100 * row['overhead']:.1f} %",
            f"{100 * row['overhead_in_calls']:.1f} %",
            f"{row['extra_memory_in_weights']:.1f} × the weights",
        )
    return view
