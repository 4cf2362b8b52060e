"""What AutoLR costs: whole runs beside plain training, the time spent in its calls, the memory it holds; a
step between windows, beside OneCycleLR's; and runs of AutoLR and AutoTune beside plain DDP on two ranks.

Runs take turns step by step, so that a machine which others use, too, is as slow for the one as for the
other; on a GPU, which must not be waited for at every step, ten by ten. Probe batches are as large as
training batches. The share of time falls with the length of a run, since windows grow with it.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from benchmarks import machine
from benchmarks.machine import rounded
from benchmarks.workloads import WORKLOADS, Batch, Workload
from hdet.autolr.auto_lr import AutoLR
from hdet.autolr.schedule import WarmStableDecay
from hdet.hyperparameters import WeightDecay
from hdet.probes.probe import Probe
from hdet.replicas.launch import LocalProcesses
from hdet.tuning.auto_tune import AutoTune

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["run", "table"]

#: More wall-clock than plain training, up to so many steps and beyond.
_GOAL, _LONG, _LONG_GOAL = 0.02, 2400, 0.01
#: A step between windows, over OneCycleLR's.
_QUIET_GOAL = 2.5
#: Steps of a run, from short to long; and whether SGD has it, too. A GPU has the first twice: a process's
#: first run loads what the others find.
_STEPS = {
    "cpu": [(600, True), (2400, True), (10_000, False)],
    "cuda": [(500, False), (500, False), (2000, False)],
}
_DDP_STEPS = (600, 2400)
#: Steps of a turn on a GPU, which is waited for at its end.
_TURN = 10
_PROBE_SEED = 123_457


def run(
    quick: bool = False, device: str = "cpu", on_progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Measure on ``device`` and hold the result against the goal; the result is plain JSON."""
    say = on_progress or (lambda _: None)
    kind = torch.device(device).type
    name = "quadratic" if quick else "charlm"
    workload = WORKLOADS[name]("cpu" if kind == "cpu" else "gpu", device)
    batches = list(islice(workload.batches(0), 64))
    rows: list[dict[str, Any]] = []
    lengths = [(60, True)] if quick else _STEPS[kind]
    for optimizer in ("AdamW", "SGD"):
        for steps in (steps for steps, also in lengths if also or optimizer == "AdamW"):
            say(f"{name}, {optimizer}, {steps} steps")
            rows.append({"run": len(rows) + 1, **_measure(workload, batches, optimizer, steps)})
    say("a step between windows")
    quiet = [_between_windows(groups, device, blocks=20 if quick else 400) for groups in (1, 4)]
    beside_ddp = []
    if kind == "cpu":
        with LocalProcesses(2) as ranks:
            for steps in (40,) if quick else _DDP_STEPS:
                say(f"DDP on two ranks, {steps} steps")
                beside_ddp.append(ranks.run(_in_ddp, name, steps, timeout=600)[0])
    goals = {
        f"more wall-clock than plain training, run {row['run']}, {row['optimizer']}, {row['steps']} steps": {
            "at_most": (goal := _GOAL if row["steps"] < _LONG else _LONG_GOAL),
            "measured": row["overhead"],
            "met": row["overhead"] <= goal,
        }
        for row in rows
    }
    goals |= {
        f"a step between windows over OneCycleLR's, parameter groups: {row['groups']}": {
            "at_most": _QUIET_GOAL,
            "measured": row["ratio"],
            "met": row["ratio"] <= _QUIET_GOAL,
        }
        for row in quiet
    }
    result: dict[str, Any] = rounded(
        {**machine.about("autolr", quick=quick, device=device), "goals": goals, "rows": rows, "quiet": quiet}
        | {"ddp": beside_ddp}
    )
    return result


@dataclass
class _Run:
    """A training loop; plain ones have the schedule that AutoLR draws, at a size of rate that it reaches."""

    loss: Callable[[Batch], Tensor]
    batches: Iterator[Batch]
    optimizer: Optimizer
    schedule: Any
    #: Seconds of all steps, and those in the schedule's calls: on a GPU the host's part alone.
    seconds: float = 0.0
    in_calls: float = 0.0
    #: Seconds of the probe's passes, like those in calls; one number for each.
    passes: list[float] = field(default_factory=list)

    def take(self, steps: int, wait: Callable[[], object]) -> None:
        """So many steps, timed, and what the device has of them left."""
        began = time.perf_counter()
        for _ in range(steps):
            self.loss(next(self.batches)).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad()
            before = time.perf_counter()
            self.schedule.step()
            self.in_calls += time.perf_counter() - before
        wait()
        self.seconds += time.perf_counter() - began


def _run(workload: Workload, batches: list[Batch], kind: str, steps: int, *, auto: bool) -> _Run:
    model = workload.build(0).train()
    loss = partial(workload.loss, model)
    optimizer: Optimizer = (
        AdamW(model.parameters(), lr=1e-3) if kind == "AdamW" else SGD(model.parameters(), 0.05, momentum=0.9)
    )
    passes: list[float] = []
    if auto:
        probe = Probe(_timed(loss, passes), _endless(workload.batches(_PROBE_SEED)), model=model)
        schedule: Any = AutoLR(optimizer, total_steps=steps, probe=probe)
    else:
        schedule = LambdaLR(optimizer, WarmStableDecay.of(steps))
    return _Run(loss, cycle(batches), optimizer, schedule, passes=passes)


def _timed(loss: Callable[[Batch], Tensor], seconds: list[float]) -> Callable[[Batch], Tensor]:
    def timed(batch: Batch) -> Tensor:
        began = time.perf_counter()
        try:
            return loss(batch)
        finally:
            seconds.append(time.perf_counter() - began)

    return timed


def _measure(workload: Workload, batches: list[Batch], optimizer: str, steps: int) -> dict[str, Any]:
    make = partial(_run, workload, batches, optimizer, steps)
    on_gpu, on_device = batches[0][0].is_cuda, torch.cuda.memory_allocated
    wait: Callable[[], object] = torch.cuda.synchronize if on_gpu else _nothing
    first = make(auto=False)
    first.take(20, wait)  # what is made once is made
    gc.collect()  # of earlier runs
    before, plain = on_device(), make(auto=False)
    plain.take(1, wait)  # moments
    between, auto = on_device(), make(auto=True)
    plain.seconds = plain.in_calls = 0.0
    _in_turn([plain, auto], steps, _TURN if on_gpu else 1, wait)
    trained = plain.optimizer.param_groups[0]["params"]
    weights = sum(p.numel() * p.element_size() for p in trained)
    row = {
        "workload": workload.name,
        "optimizer": optimizer,
        "steps": steps,
        "parameters": sum(p.numel() for p in trained),
        "step_ms": plain.seconds / steps * 1e3,
        "seconds": [plain.seconds, auto.seconds],
        "overhead": auto.seconds / plain.seconds - 1,
        "overhead_in_calls": (auto.in_calls - plain.in_calls) / plain.seconds,
        "passes": len(auto.passes),
        "overhead_in_passes": sum(auto.passes) / plain.seconds,
        "extra_memory_in_weights": auto.schedule.extra_bytes() / weights,
    }
    if on_gpu:
        row["extra_on_device_in_weights"] = (on_device() - between - (between - before)) / weights
    return row


def _nothing() -> None:
    """A CPU is not waited for."""


def _in_turn(runs: list[_Run], steps: int, turn: int = 1, wait: Callable[[], object] = _nothing) -> None:
    """So many steps of each, a few at a time, every other time backwards."""
    for taken in range(0, steps, turn):
        for run in runs if taken // turn % 2 else reversed(runs):
            run.take(min(turn, steps - taken), wait)


def _between_windows(groups: int, device: str, blocks: int) -> dict[str, Any]:
    """Microseconds that a scheduler adds to a step of four weights a group, its hooks included, by medians of
    short blocks; AutoLR's windows are long by then, and those blocks in which one ends are not the median."""
    loops = {name: _tiny(name, groups, device) for name in ("none", "OneCycleLR", "AutoLR")}
    for loop in loops.values():
        _seconds_of(loop, 2000)
    times: dict[str, list[float]] = {name: [] for name in loops}
    for block in range(blocks):
        for name in loops if block % 2 else reversed(loops):
            times[name].append(_seconds_of(loops[name], 10) * 1e5)
    none, one_cycle, auto = (statistics.median(times[name]) for name in loops)
    added = {"optimizer_us": none, "one_cycle_us": one_cycle - none, "autolr_us": auto - none}
    return {"groups": groups, **added, "ratio": (auto - none) / (one_cycle - none)}


def _tiny(name: str, groups: int, device: str) -> Callable[[], object]:
    weights = nn.ParameterList(torch.ones(4, device=device) for _ in range(groups))
    for weight in weights:
        weight.grad = torch.full_like(weight, 1e-3)
    optimizer = AdamW([{"params": [weight]} for weight in weights], lr=1e-3)
    if name == "none":
        return optimizer.step
    if name == "OneCycleLR":
        schedule: Any = OneCycleLR(optimizer, 1e-3, 1_000_000)
    else:
        held_out = list(torch.eye(4, device=device))  # the loss falls for good, as the gradient says
        probe = Probe(lambda batch: (weights[0] * batch).sum(), held_out, model=weights)
        schedule = AutoLR(optimizer, total_steps=1_000_000, probe=probe)

    def step() -> None:
        optimizer.step()
        schedule.step()

    return step


def _seconds_of(step: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        step()
    return time.perf_counter() - began


def _in_ddp(rank: int, name: str, steps: int) -> dict[str, Any]:
    """Plain DDP, AutoLR, and AutoTune of the weight decay, step by step in turn."""
    torch.set_num_threads(1)
    arms = ("plain", "AutoLR", "AutoTune")
    runs = {arm: _ddp_run(arm, WORKLOADS[name]("cpu", "cpu"), rank, steps) for arm in arms}
    _in_turn([*runs.values()], steps)
    seconds = {arm: run.seconds for arm, run in runs.items()}
    return {
        "ranks": 2,
        "steps": steps,
        "step_ms": seconds["plain"] / steps * 1e3,
        "seconds": seconds,
        "overhead": {arm: seconds[arm] / seconds["plain"] - 1 for arm in arms[1:]},
    }


def _ddp_run(arm: str, workload: Workload, rank: int, steps: int) -> _Run:
    model = DistributedDataParallel(workload.build(0).train())
    loss = partial(workload.loss, model)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    probe = Probe(loss, list(islice(workload.batches(_PROBE_SEED + rank), 8)), model=model)
    schedule: Any
    if arm == "plain":
        schedule = LambdaLR(optimizer, WarmStableDecay.of(steps))
    elif arm == "AutoLR":
        schedule = AutoLR(optimizer, total_steps=steps, probe=probe)
    else:
        schedule = AutoTune(optimizer, [WeightDecay()], total_steps=steps, probe=probe)
    return _Run(loss, cycle(list(islice(workload.batches(rank), 64))), optimizer, schedule)


def _endless(batches: Iterator[Batch]) -> Callable[[int], Batch]:
    return lambda _: next(batches)


def table(result: dict[str, Any]) -> Table:
    """One line for each run."""
    from rich.table import Table

    view = Table(
        *("run", "plain step", "more wall-clock", "of it in calls", "in the probe's passes", "extra memory"),
        title="What AutoLR costs",
    )
    for row in result["rows"]:
        view.add_row(
            f"{row['workload']}, {row['optimizer']}, {row['steps']:,} steps",
            f"{row['step_ms']} ms",
            f"{100 * row['overhead']:.1f} %",
            f"{100 * row['overhead_in_calls']:.1f} %",
            f"{100 * row['overhead_in_passes']:.1f} % ({row['passes']})",
            f"{row['extra_memory_in_weights']:.1f} × the weights",
        )
    for row in result["quiet"]:
        added = f"{row['autolr_us']} µs for OneCycleLR's {row['one_cycle_us']}"
        view.add_row(f"a step between windows, groups: {row['groups']}", "", added, "", "", "")
    for row in result["ddp"]:
        for arm, more in row["overhead"].items():
            run = f"{arm} in DDP on two ranks, {row['steps']:,} steps"
            view.add_row(run, f"{row['step_ms']} ms", f"{100 * more:.1f} %", "", "", "")
    return view
