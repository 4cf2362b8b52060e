"""What replicas stacked in one process gain over one process for each, on the same device.

All train the small language model with the paper's fan-out and a sync every twenty steps, on batches made
beforehand. Processes share their gradients by gloo, the one backend that lets several of them use one GPU, or
train on their own; on a GPU they take turns or, by NVIDIA's multi-process service, run at the same time.
And what a search on four of them takes beside plain training of one, with batch norm and without: whole runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import AdamW

from benchmarks import machine
from benchmarks.machine import rounded
from benchmarks.pool import Say, shared_gpu
from benchmarks.rows import environment
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.base import Batch, Workload
from hdet import AutoTune, Ensemble, LearningRate, Probe, StackedReplicas, WeightDecay
from hdet.replicas.launch import LocalProcesses

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["run", "table"]

_GOAL = 3.0
#: Replicas of a search, its steps, and how many times the time of plain training of one it may take.
_SEARCHED, _STEPS, _AT_MOST = 4, 2400, 1.5
_BATCHES = 8
_SYNC_EVERY = 20
_TIMEOUT_SECONDS = 400.0


def run(quick: bool = False, device: str = "cpu", on_progress: Say | None = None) -> dict[str, Any]:
    """Time a step of all replicas, every way; the result is plain JSON."""
    say = on_progress or (lambda _: None)
    on_gpu = torch.device(device).type == "cuda"
    plan = _Plan(
        device=device,
        scales=("cpu", "gpu") if on_gpu and not quick else ("cpu",),
        sizes=(2,) if quick else (2, 8, 64) if on_gpu else (2, 8),
        compared=2 if quick else 8,
        blocks=3 if quick else 8,
        steps=4 if quick else _SYNC_EVERY,
    )
    rows = [*_all_stacked(plan, "stacked", plan.sizes, say), *_all_processes(plan, "processes", say)]
    if on_gpu:
        with shared_gpu(say) as at_once:
            rows += _all_processes(plan, "processes, MPS", say) if at_once else []
    rows += _all_stacked(plan, "stacked, measured again", [plan.compared], say)  # nothing drifted meanwhile
    goals = {
        f"{name}: stacked at least {_GOAL:g} × {way}, {gradients}": {"measured": ratio, "met": ratio >= _GOAL}
        for (name, way, gradients), ratio in _ratios(rows, plan.compared).items()
    }
    searches = [
        _searched(name, device, 40 if quick else _STEPS, say) for name in ("digits-mlp", "digits-cnn")
    ]
    about = machine.about("stacked", quick=quick, device=device)
    result: dict[str, Any] = rounded({**about, "goals": goals, "rows": rows, "searches": searches})
    return result


@dataclass(frozen=True)
class _Plan:
    device: str
    scales: Sequence[str]
    sizes: Sequence[int]
    #: So many replicas are also trained as processes.
    compared: int
    blocks: int
    steps: int


def _all_stacked(plan: _Plan, way: str, sizes: Sequence[int], say: Say) -> list[dict[str, Any]]:
    rows = []
    for scale in plan.scales:
        workload = WORKLOADS["charlm"](scale, plan.device, None)
        for size in sizes:
            for shares in (True, False):
                say(f"{size} replicas of {_name(workload)} stacked, {_sharing(shares)}")
                times = _stacked(workload, size, shares, plan.blocks, plan.steps)
                rows.append(_row(way, size, shares, times, workload))
    return rows


def _all_processes(plan: _Plan, way: str, say: Say) -> list[dict[str, Any]]:
    rows = []
    with environment({"OMP_NUM_THREADS": "1"}), LocalProcesses(plan.compared) as ranks:
        for scale in plan.scales:
            workload = WORKLOADS["charlm"](scale, plan.device, None)
            for shares in (True, False):
                say(f"{plan.compared} {way} of {_name(workload)}, {_sharing(shares)}")
                settings = (scale, plan.device, shares, plan.blocks, plan.steps)
                each = ranks.run(_process, *settings, timeout=_TIMEOUT_SECONDS)
                times = [max(block) for block in zip(*each, strict=True)]
                rows.append(_row(way, plan.compared, shares, times, workload))
    return rows


def _ratios(rows: list[dict[str, Any]], size: int) -> dict[tuple[str, str, str], float]:
    """Throughput of stacked replicas, the mean of both times it was measured, over that of processes."""
    same = [row for row in rows if row["replicas"] == size]
    ratios = {}
    for row in same:
        if row["way"].startswith("processes"):
            stacked = [
                other["samples_per_second"]
                for other in same
                if other["way"].startswith("stacked")
                and (other["model"], other["gradients"]) == (row["model"], row["gradients"])
            ]
            key = (row["model"], row["way"], row["gradients"])
            ratios[key] = statistics.mean(stacked) / row["samples_per_second"]
    return ratios


def _name(workload: Workload) -> str:
    parameters = sum(p.numel() for p in workload.build(0).parameters())
    return f"{workload.name}, {parameters / 1e3:.0f} k"


def _sharing(shares: bool) -> str:
    return "shared gradients" if shares else "own gradients"


def _row(way: str, size: int, shares: bool, times: list[float], workload: Workload) -> dict[str, Any]:
    per_replica = len(next(workload.batches(0))[0])
    return {
        "model": _name(workload),
        "way": way,
        "replicas": size,
        "gradients": _sharing(shares),
        **machine.summary("step_ms", [1e3 * seconds for seconds in times]),
        "samples_per_second": size * per_replica / statistics.median(times),
    }


def _batches(workload: Workload, ranks: range) -> list[Batch]:
    """A few batches, each of so many ranks one after the other."""
    readers = [workload.batches(rank) for rank in ranks]
    drawn = [[next(reader) for reader in readers] for _ in range(_BATCHES)]
    return [tuple(torch.cat(parts) for parts in zip(*one, strict=True)) for one in drawn]


def _stacked(workload: Workload, size: int, shares: bool, blocks: int, steps: int) -> list[float]:
    """Seconds per step, of each block."""
    model = workload.build(0).train()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    replicas = StackedReplicas(model, optimizer, size, gradients="all" if shares else "none")
    ensemble = _ensemble(replicas.optimizer, None, shares)
    batches = _batches(workload, range(size))
    compute = replicas.capture(workload.loss)

    def step(number: int) -> None:
        losses = compute(batches[number % _BATCHES])
        replicas.optimizer.step()
        replicas.optimizer.zero_grad()
        ensemble.step(losses)

    return _timed(step, blocks, steps, batches[0][0].is_cuda)


def _process(rank: int, scale: str, device: str, shares: bool, blocks: int, steps: int) -> list[float]:
    workload = WORKLOADS["charlm"](scale, device, None)
    model = workload.build(0).train()
    wrapped = nn.parallel.DistributedDataParallel(model) if shares else model
    optimizer = AdamW(model.parameters(), lr=1e-3)
    ensemble = _ensemble(optimizer, wrapped, shares)
    batches = _batches(workload, range(rank, rank + 1))

    def step(number: int) -> None:
        loss = workload.loss(wrapped, batches[number % _BATCHES])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        ensemble.step(loss)

    return _timed(step, blocks, steps, batches[0][0].is_cuda)


def _searched(name: str, device: str, steps: int, say: Say) -> dict[str, Any]:
    """Whole runs of one plain model and of replicas under AutoTune, in turn."""
    workload = WORKLOADS[name]("cpu", device, None)
    say(f"{_SEARCHED} replicas of {_name(workload)} under AutoTune, and one plain")
    _run(workload, 40, searches=True)  # what is made once is made
    plain, first, second, last = (_run(workload, steps, searches=s) for s in (False, True, True, False))
    ratio = (first + second) / (plain + last)
    norms = any(isinstance(module, nn.BatchNorm2d) for module in workload.build(0).modules())
    return {
        "model": _name(workload),
        "batch_norm": norms,
        "steps": steps,
        "plain_ms": 1e3 * (plain + last) / (2 * steps),
        "search_ms": 1e3 * (first + second) / (2 * steps),
        "ratio": ratio,
        "met": ratio <= _AT_MOST,
    }


def _run(workload: Workload, steps: int, *, searches: bool) -> float:
    """Seconds of a run: of one plain model, or of a search on replicas with as many samples each."""
    model = workload.build(0).train()
    optimizer: torch.optim.Optimizer = AdamW(model.parameters(), lr=1e-3)
    batches = _batches(workload, range(_SEARCHED if searches else 1))
    finish: Callable[[], object] = torch.cuda.synchronize if batches[0][0].is_cuda else lambda: None
    if searches:
        replicas = StackedReplicas(model, optimizer, _SEARCHED, gradients="none")
        compute, optimizer = replicas.capture(workload.loss), replicas.optimizer
        probe = Probe(compute, _batches(workload, range(_SEARCHED, 2 * _SEARCHED)), model=model)
        tune = AutoTune(optimizer, [WeightDecay()], probe=probe, total_steps=steps)
    finish()
    began = time.perf_counter()
    for number in range(steps):
        batch = batches[number % _BATCHES]
        if searches:
            compute(batch)
        else:
            workload.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if searches:
            tune.step()
    finish()
    return time.perf_counter() - began


def _ensemble(optimizer: torch.optim.Optimizer, model: nn.Module | None, shares: bool) -> Ensemble:
    return Ensemble(
        optimizer,
        [LearningRate(1 / 9)],
        sync_every=_SYNC_EVERY,
        gradients="all" if shares else "none",
        model=model,
    )


def _timed(step: Callable[[int], None], blocks: int, steps: int, on_gpu: bool) -> list[float]:
    finish: Callable[[], object] = torch.cuda.synchronize if on_gpu else lambda: None
    for number in range(steps):
        step(number)
    times = []
    for _ in range(blocks):
        finish()
        began = time.perf_counter()
        for number in range(steps):
            step(number)
        finish()
        times.append((time.perf_counter() - began) / steps)
    return times


_HEADINGS = ["model", "replicas", "gradients", "way", "step of all (quartiles)", "samples a second"]


def _cells(row: dict[str, Any]) -> list[str]:
    low, high = row["step_ms_iqr"]
    return [
        row["model"],
        str(row["replicas"]),
        row["gradients"],
        row["way"],
        f"{row['step_ms']:.1f} ms ({low:.1f}–{high:.1f})",
        f"{row['samples_per_second']:,.0f}",
    ]


def _ordered(result: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(result["rows"], key=lambda row: (row["model"], row["replicas"], row["gradients"]))


def table(result: dict[str, Any]) -> Table:
    """One line for each way."""
    from rich.table import Table

    view = Table(*_HEADINGS, title="Replicas on one device")
    for row in _ordered(result):
        view.add_row(*_cells(row))
    for name, goal in result["goals"].items():
        view.add_section()
        view.add_row("", "", "", name, f"× {goal['measured']:.2f}", "met" if goal["met"] else "missed")
    for one in result.get("searches", ()):  # not in older files
        view.add_section()
        view.add_row("", "", "", _said(one), f"× {one['ratio']:.2f}", "met" if one["met"] else "missed")
    return view


def _said(search: dict[str, Any]) -> str:
    norms = "batch norm" if search["batch_norm"] else "no norms"
    return (
        f"{search['model']}, {norms}: {_SEARCHED} replicas under AutoTune {search['search_ms']:.2f} ms a "
        f"step, one plain {search['plain_ms']:.2f} ms"
    )
